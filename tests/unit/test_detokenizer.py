"""The detokenizer's process over real links: text, life and death."""

from __future__ import annotations

import functools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
import zmq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmrt import link, model_source, topology, wire
from llmrt._core import Tokenizer
from llmrt.config import Config
from llmrt.process.descriptor import descriptor_of
from llmrt.supervisor import launch
from llmrt.supervisor.children import Child

PATIENCE = 60.0
T = TypeVar("T")


@functools.cache
def model() -> model_source.ModelSource:
    """The default model; `make test` installs it."""
    return model_source.resolve(None)


class Stage:
    """A detokenizer for one entry worker, and its neighbours: entry, scheduler, supervisor."""

    def __init__(self, directory: Path, source: model_source.ModelSource) -> None:
        self.table = topology.build(directory)
        self.results = link.Inbox(self.table.entry[0].results)
        self.requests = link.Inbox(self.table.scheduler.requests)
        self.control = link.Inbox(self.table.control)
        self.tokens = link.Outbox(self.table.detokenizer[0].tokens, link.Identity("scheduler"))
        self.links: list[link.Inbox | link.Outbox] = [self.results, self.requests, self.control, self.tokens]
        self.events: dict[int, list[Any]] = {id(each): [] for each in self.links}
        self.poller = zmq.Poller()
        for each in self.links:
            each.register(self.poller)
        config = launch.detokenizer_config(Config(), source, self.table)
        told = json.dumps(config).encode()
        self.child = Child("the detokenizer", "detokenizer", "llmrt.detokenizer.process", told)
        self.step = 0

    def wait(self, of: link.Inbox | link.Outbox, kind: type[T]) -> T:
        """The next event of a link that is of this kind; others stay for later."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            for event in self.events[id(of)]:
                if isinstance(event, kind):
                    self.events[id(of)].remove(event)
                    return event
            assert self.child.ended() is None or kind is link.Left, self.child.ended()
            link.poll(self.poller, self.links, 0.2)
            for each in self.links:
                self.events[id(each)].extend(each.receive())
        raise AssertionError(f"no {kind.__name__} within {PATIENCE} s")

    def ready(self) -> int:
        """Waits until all links stand; returns the detokenizer's number at the supervisor."""
        self.wait(self.tokens, link.Up)
        for inbox in (self.results, self.requests):
            self.wait(inbox, link.Joined)
        return self.wait(self.control, link.Joined).peer

    def call(self, peer: int, method: str) -> wire.Reply:
        """Calls the detokenizer as the supervisor does."""
        self.control.send(peer, wire.Call(1, method, "{}"))
        return self.wait(self.control, link.Received).message  # type: ignore[return-value]

    def generate(self, request: int, rows: Sequence[Sequence[int]], output: wire.Output) -> str:
        """Sends a request's tokens a row a step; returns its text, of which every delta is checked."""
        for number, row in enumerate(rows):
            opened = [wire.Opened(request, b"", output)] if number == 0 else []
            finished = [wire.Finished(0, wire.Outcome(wire.LENGTH))] if number + 1 == len(rows) else []
            self.step += 1
            frame = wire.TokenFrame(
                self.step, opened, wire.u64([request]), wire.u32([len(row)]), wire.u32(row), [], finished
            )
            self.tokens.send(frame)
        text, tokens, over = "", 0, False
        while not over:
            shown = self.wait(self.results, link.Received).message
            assert isinstance(shown, wire.TextFrame)
            assert list(wire.u64s(shown.ids)) == [request]
            over = bool(shown.finished)
            assert shown.text or over, "an empty delta"
            text += shown.text
            tokens += wire.u32s(shown.counts)[0]
        assert tokens == sum(len(row) for row in rows)
        return text

    def close(self) -> None:
        self.child.process.kill()
        self.child.process.wait()
        for each in self.links:
            each.close("the test is over")


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with topology.RuntimeDirectory() as directory:
        stage = Stage(directory.path, model())
        try:
            stage.ready()
            yield stage
        finally:
            stage.close()


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_gguf(model().tokenizer)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), size=st.integers(1, 400), skip=st.booleans())
def test_random_tokens_stream_what_they_decode_to(
    stage: Stage, tokenizer: Tokenizer, seed: int, size: int, skip: bool
) -> None:
    draw = random.Random(seed)
    # Byte tokens are few among 49,152, and they are what breaks characters; some ids are outside.
    pools = [range(tokenizer.vocab_size), range(300), range(tokenizer.vocab_size, tokenizer.vocab_size + 4)]
    tokens = [draw.choice(pool) for pool in draw.choices(pools, (10, 10, 1), k=size)]
    rows = [tokens[at : at + 3] for at in range(0, size, 3)]
    text = stage.generate(draw.getrandbits(44), rows, wire.Output(skip_special_tokens=skip))
    assert text == tokenizer.decode(tokens, skip_special_tokens=skip)


@pytest.mark.parametrize(
    "text",
    [
        "你好，世界！這是一個測試。",  # noqa: RUF001
        "안녕하세요 세계",
        "👩‍👩‍👧‍👦🏳️‍🌈 family",
        "naïve café — “quoted”",
        "สวัสดีชาวโลก",
        "नमस्ते दुनिया",
        "\n\n\t  x",
    ],
)
def test_text_of_many_scripts_arrives_whole(stage: Stage, tokenizer: Tokenizer, text: str) -> None:
    tokens = tokenizer.encode(text)
    streamed = stage.generate(random.getrandbits(44), [[token] for token in tokens], wire.Output())
    assert streamed == text
    assert "\ufffd" not in streamed


def test_a_stop_string_beside_multi_byte_text(stage: Stage, tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("数は三つ。停止 and more")
    request = random.getrandbits(44)
    opened = [wire.Opened(request, b"", wire.Output(stop=["。停止"]))]
    for token in tokens:
        stage.tokens.send(wire.TokenFrame(0, opened, wire.u64([request]), wire.u32([1]), wire.u32([token]), [], []))
        opened = []
    text, outcome = "", None
    while outcome is None:
        frame = stage.wait(stage.results, link.Received).message
        assert isinstance(frame, wire.TextFrame)
        text += frame.text
        outcome = frame.finished[0].outcome if frame.finished else None
    assert text == "数は三つ"
    assert (outcome.reason, outcome.stop_string) == (wire.STOP, "。停止")
    assert stage.wait(stage.requests, link.Received).message == wire.Ended([request])


def test_characters_that_never_complete_stay_cheap(stage: Stage, tokenizer: Tokenizer) -> None:
    lead = next(id for id in range(tokenizer.vocab_size) if tokenizer.id_to_token(id) == "ð")
    text = stage.generate(random.getrandbits(44), [[lead] * 1024] * 32, wire.Output())
    assert text == "\ufffd" * 32768


def test_life_and_death() -> None:
    with topology.RuntimeDirectory() as directory:
        stage = Stage(directory.path, model())
        try:
            peer = stage.ready()
            stats = json.loads(stage.call(peer, "stats").value)
            assert stats["open"] == 0
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                os.kill(stage.child.process.pid, number)
            assert stage.call(peer, "stats").ok, "signals to all processes are not its business"
            assert stage.call(peer, "shutdown").ok
            stage.wait(stage.results, link.Left)
            assert stage.child.process.wait(PATIENCE) == 0
        finally:
            stage.close()


def test_the_signal_of_its_supervisor_ends_it_in_order() -> None:
    with topology.RuntimeDirectory() as directory:
        stage = Stage(directory.path, model())
        try:
            stage.ready()
            stage.child.tell_to_end()
            assert stage.wait(stage.results, link.Left).reason == "the server ends"
            assert stage.child.process.wait(PATIENCE) == 0
        finally:
            stage.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"index": 3}, "index must be"),
        ({"tokenizer": {"kind": "json", "path": "/nowhere/tokenizer.json"}}, "/nowhere/tokenizer.json"),
        ({"surprise": 1}, "surprise"),
        ({"log": {"level": "loud=="}}, "loud=="),
    ],
)
def test_what_keeps_it_from_serving_is_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    config = {
        "topology": json.loads(topology.build(tmp_path).to_json()),
        "tokenizer": {"kind": "json", "path": "/nowhere/tokenizer.json"},
        **change,
    }
    descriptor = descriptor_of(json.dumps(config).encode())
    try:
        done = subprocess.run(
            [sys.executable, "-m", "llmrt.detokenizer", str(descriptor)],
            pass_fds=[descriptor],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
    finally:
        os.close(descriptor)
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr
