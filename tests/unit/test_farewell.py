"""Why a scheduler process ended, as its supervisor hears it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import zmq

from llmrt import link, topology, wire
from llmrt.engine import farewell
from llmrt.supervisor.last_words import LastWords
from tests.unit.test_engine_process import Plant


class Listener:
    """A supervisor's end of the control link."""

    def __init__(self, control: link.Inbox) -> None:
        self.control = control
        self.words = LastWords()

    def until(self, condition: Callable[[], object]) -> None:
        end = time.monotonic() + 30
        poller = zmq.Poller()
        self.control.register(poller)
        while not condition():
            assert time.monotonic() < end
            link.poll(poller, [self.control], 0.05)
            for event in self.control.receive():
                self.words.notice(event)


def test_a_model_that_cannot_be_loaded_is_told_before_the_process_ends(tmp_path: Path) -> None:
    with topology.RuntimeDirectory() as directory:
        plant = Plant(directory.path, model=str(tmp_path / "none.gguf"))
        listener = Listener(plant.control)
        listener.until(lambda: listener.words.of("scheduler"))
        assert "none.gguf does not exist" in (listener.words.of("scheduler") or "")
        assert plant.end_code() == 1
        plant.close()


def test_the_latest_reason_counts_as_one_line() -> None:
    words = LastWords()
    for peer, role in enumerate(["scheduler", "detokenizer"]):
        words.notice(link.Joined(peer, wire.Hello(wire.VERSION, role, 0, 1)))
    words.notice(link.Left(0, "first\n  second"))
    assert words.of("scheduler") == "first second" and words.of("detokenizer") is None
    # Who is back has not ended.
    words.notice(link.Joined(2, wire.Hello(wire.VERSION, farewell.FAILED_ROLE, 0, 1)))
    assert words.of("scheduler") is None
    words.notice(link.Left(2, "third"))
    assert words.of("scheduler") == "third"


def test_nobody_to_tell_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(farewell, "_PATIENCE", 0.05)
    with topology.RuntimeDirectory() as directory:
        farewell.say(topology.build(directory.path).control, "gone")
