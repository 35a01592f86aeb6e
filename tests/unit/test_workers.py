"""When entry workers that die again and again end the server."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from llmrt import link, wire
from llmrt.config import Config
from llmrt.supervisor import launch, workers
from llmrt.supervisor.core import LONGEST_PAUSE
from llmrt.supervisor.workers import EntryWorkers

WORKERS = 3


class FakeChild:
    role = "entry"

    def __init__(self, index: int) -> None:
        self.name, self.index = f"entry[{index}]", index
        self.code: int | None = None

    @property
    def process(self) -> FakeChild:
        return self

    def poll(self) -> int | None:
        return self.code

    def ended(self) -> str | None:
        return None if self.code is None else f"{self.name} ended with exit code {self.code}"


class FakeTable:
    workers = WORKERS


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Three workers that are up, none of which may be replaced any more."""
    monkeypatch.setattr(workers, "RESTARTS", 0)
    monkeypatch.setattr(launch, "ledger", lambda *told: None)
    monkeypatch.setattr(launch, "entry_process", lambda *told: FakeChild(told[-1]))
    with socket.socket() as listener:
        given: Any = (Config(), None, FakeTable(), listener, None, lambda child: None, lambda *children: None)
        made = EntryWorkers(*given)
    for worker in range(WORKERS):
        made.notice(link.Joined(worker, wire.Hello(wire.VERSION, "entry", worker, 1)))
    return made


def test_the_server_goes_on_while_a_worker_is_up(three: EntryWorkers) -> None:
    children: list[Any] = [member.child for member in three.members]
    for child in children[:2]:
        child.code = 1
        assert three.tend() is None
    wait = three.until_deadline()
    assert wait is not None and LONGEST_PAUSE - 5 < wait <= LONGEST_PAUSE
    children[2].code = 1
    assert three.tend() == "entry[2] ended with exit code 1; 0 workers were replaced in 60 s"


def test_one_that_ends_before_it_has_joined_is_no_crash_of_a_server_that_drains(three: EntryWorkers) -> None:
    children: list[Any] = [member.child for member in three.members]
    three.members[0].joined = False
    children[0].code, children[1].code = -15, 0
    assert three.crash() is None
    children[2].code = 1
    assert three.crash() == "entry[2] ended with exit code 1"
