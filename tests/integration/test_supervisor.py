"""The supervisor: what it leaves behind when a start fails, and what it does while it drains."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from llmrt import link, model_source, topology
from llmrt.cli import probe
from llmrt.config import Config, MockOptions, ModelOptions
from llmrt.model_source import ModelSource
from llmrt.supervisor import facts, launch
from llmrt.supervisor.errors import StartError
from llmrt.supervisor.listener import listen
from llmrt.supervisor.parts import Parts
from support.server import Server, wait_for

CONFIG = Config(mock=MockOptions(engine="mock"))
LONG: dict[str, Any] = {"prompt": "Hi", "max_tokens": 4096, "ignore_eos": True, "stream": True}


@pytest.fixture(scope="module")
def source() -> ModelSource:
    return model_source.resolve(None)


@pytest.fixture
def table() -> Iterator[topology.Topology]:
    with topology.RuntimeDirectory() as directory:
        yield topology.build(directory.path)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with listen("127.0.0.1", 0) as listener:
        yield listener


def holders(listener: socket.socket) -> list[int]:
    """The descriptors of this process that are this socket."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.path.sameopenfile(int(name), listener.fileno()):
                found.append(int(name))
    return found


def children() -> set[int]:
    tasks = Path("/proc/self/task").glob("*/children")
    return {int(child) for task in tasks for child in task.read_text().split()}


needs_proc = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")


@needs_proc
def test_a_second_process_that_does_not_start_ends_the_first(
    source: ModelSource, table: topology.Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = children()
    first: list[set[int]] = []

    def refuse(*_: object) -> dict[str, Any]:
        first.append(children() - before)
        raise OSError("no more processes")

    monkeypatch.setattr(launch, "detokenizer_config", refuse)
    with pytest.raises(OSError, match="no more processes"):
        launch.children(CONFIG, source, table)
    assert len(first[0]) == 1 and children() == before


@needs_proc
def test_an_entry_that_does_not_start_leaves_no_descriptor(
    source: ModelSource, table: topology.Topology, listener: socket.socket
) -> None:
    assert holders(listener) == [listener.fileno()]
    too_long = replace(CONFIG, model=ModelOptions(max_model_len=1 << 30))
    with pytest.raises(StartError, match="max-model-len"):
        launch.entry(too_long, source, table, listener)
    assert holders(listener) == [listener.fileno()]
    nameless = replace(source, name="")
    with pytest.raises(StartError, match="name"):
        launch.entry(CONFIG, nameless, table, listener)
    assert holders(listener) == [listener.fileno()]
    nowhere = topology.build(Path("/nowhere"))
    with pytest.raises(StartError):
        launch.entry(CONFIG, source, nowhere, listener)
    assert holders(listener) == [listener.fileno()]


@needs_proc
def test_an_error_after_the_start_ends_everything(source: ModelSource, listener: socket.socket) -> None:
    before = children()
    parts = Parts(CONFIG, source)
    with pytest.raises(ZeroDivisionError), parts.started(listener):
        assert len(children() - before) == 2
        assert len(holders(listener)) == 2
        assert not parts.entry.wait(0.0)
        raise ZeroDivisionError
    assert parts.entry.wait(0.0)
    assert holders(listener) == [listener.fileno()]
    assert children() == before
    assert not parts.directory.path.exists()


@contextlib.contextmanager
def draining() -> Iterator[tuple[Server, Iterator[str]]]:
    """A server that was told to end while it answers, and the rest of the answer."""
    server = Server("--engine", "mock", "--mock-step-ms", "20", "--shutdown-timeout", "60")
    try:
        with (
            # Over HTTP/1.1: over HTTP/2 this client trips over a PING behind GOAWAY.
            httpx2.Client(base_url=server.url, http2=False, timeout=60) as client,
            client.stream("POST", "/v1/completions", json=LONG) as response,
        ):
            lines = (line for line in response.iter_lines() if line)
            assert next(lines).startswith("data: {")
            server.process.send_signal(signal.SIGTERM)
            wait_for(lambda: "draining" in server.log, "the server to drain")
            yield server, lines
    finally:
        server.stop(signal.SIGKILL)


def the_facts(server: Server) -> facts.Facts:
    return next(each for each in facts.running() if each.pid == server.process.pid)


def test_the_control_link_answers_while_the_server_drains() -> None:
    with draining() as (server, lines):
        hops = {hop.name: hop for hop in probe.probe(the_facts(server), 20.0)}
        assert hops["control"].state == probe.OK, hops["control"]
        assert next(lines).startswith("data: {")
        assert server.process.poll() is None
        # Again: now.
        assert server.stop(signal.SIGTERM) == 0, server.log


@needs_proc
def test_a_process_that_ends_well_has_not_crashed(source: ModelSource) -> None:
    parts = Parts(CONFIG, source)
    with parts.started(None):
        core, detokenizer = parts.children
        outbox = link.Outbox(parts.table.detokenizer[0].tokens, link.Identity("doctor"))
        # Only then it ends by a signal as it should.
        wait_for(lambda: outbox.receive() and outbox.ready, "the detokenizer to serve")
        outbox.close("the probe ends")
        detokenizer.tell_to_end()
        assert detokenizer.process.wait(30) == 0
        parts.stop_restarts()
        assert parts.crash() is None and parts.tend() == "the detokenizer ended with exit code 0"
        core.process.kill()
        core.process.wait(30)
        assert parts.crash() == "the mock engine was killed by SIGKILL"


def test_an_entry_worker_that_ends_by_itself_is_noticed(source: ModelSource) -> None:
    parts = Parts(CONFIG, source)
    with parts.started(None):
        assert parts.tend() is None
        parts.entry.shutdown(0.0)
        while (fault := parts.tend()) is None:
            parts.wait()
        assert fault == "the entry worker has ended by itself"
        # But not where it was told to end.
        parts.stop_restarts()
        assert parts.tend() is None


def test_the_end_of_the_entry_worker_is_the_end_of_the_server() -> None:
    on_signal = (
        "import signal, sys\n"
        "from llmrt.cli import serve\n"
        "from llmrt.supervisor import launch\n"
        "start = launch.entry\n"
        "def entry(*told):\n"
        "    worker = start(*told)\n"
        "    signal.signal(signal.SIGUSR2, lambda *_: worker.shutdown(0.0))\n"
        "    return worker\n"
        "launch.entry = entry\n"
        "sys.exit(serve.main())"
    )
    server = Server("--engine", "mock", "--entry-workers", "1", command=[sys.executable, "-c", on_signal])
    try:
        # As a panic in its thread would end it, which no client can cause.
        server.process.send_signal(signal.SIGUSR2)
        assert server.process.wait(30) == 1
        assert "the entry worker has ended by itself; the server ends" in server.log
    finally:
        server.stop(signal.SIGKILL)


def test_a_fault_while_the_server_drains_is_told_once() -> None:
    with draining() as (server, lines):
        os.kill(the_facts(server).processes["mock engine"], signal.SIGKILL)
        events = list(lines)
        assert events[-1] == "data: [DONE]"
        assert json.loads(events[-2].removeprefix("data: "))["error"]["message"]
        wait_for(lambda: server.process.poll() is not None, "the server to end")
        assert server.process.returncode == 1
        assert server.log.count("the mock engine was killed by SIGKILL; the server ends") == 1, server.log
        # Not at all where the entry has noticed it first.
        assert server.log.count("the core is lost") <= 1, server.log


def test_signals_while_the_server_ends_do_not_change_its_end() -> None:
    server = Server("--engine", "mock")
    # As an impatient user does, up to the last moment.
    while server.process.poll() is None:
        server.process.send_signal(signal.SIGTERM)
        server.process.send_signal(signal.SIGINT)
        time.sleep(0.001)
    assert server.process.returncode == 0, server.log
