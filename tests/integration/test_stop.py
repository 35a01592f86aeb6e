"""How a server is told to end: signals that reach its processes all at once, and those that come while it starts."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from llmrt.supervisor import facts
from support.server import Server, wait_for
from tests.integration.test_start_errors import left_of

TOKENS = 80
BODY: dict[str, Any] = {"prompt": "Hi", "max_tokens": TOKENS, "ignore_eos": True, "stream": True}
MOCK = (
    "--engine",
    "mock",
    "--mock-step-ms",
    "10",
    "--mock-pattern",
    "text",
    "--mock-text",
    " so",
    "--stat-interval",
    "0",
)
GATEWAY = ("--core-listen", "tcp://127.0.0.1:0")
SECRET = {"LLMRT_CORE_SECRET": "0123456789abcdef0123456789abcdef"}
ERROR_LINE = re.compile(r"^\S+Z +ERROR .*", re.MULTILINE)

Start = Callable[..., Server]


@pytest.fixture
def start() -> Iterator[Start]:
    with contextlib.ExitStack() as stack:

        def make(*flags: str) -> Server:
            server = Server(*MOCK, *flags, env=SECRET if GATEWAY[0] in flags else None, clear=True)
            stack.callback(server.stop, signal.SIGKILL)
            return server

        yield make


def signal_all(server: Server, number: int) -> None:
    """As a service manager does: one process after the other, the supervisor last of all."""
    found = next(each for each in facts.running() if each.pid == server.process.pid)
    assert len(found.processes) >= 3
    for pid in sorted(found.processes.values(), key=lambda pid: pid == found.pid):
        # Of the workers some may have ended already.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


class Stream:
    """A streamed answer on a connection of its own; its first event has come."""

    def __init__(self, server: Server, stack: contextlib.ExitStack, **fields: Any) -> None:
        # Over HTTP/1.1: over HTTP/2 this client trips over a PING behind GOAWAY.
        client = stack.enter_context(httpx2.Client(base_url=server.url, http2=False, timeout=60))
        self.response = stack.enter_context(client.stream("POST", "/v1/completions", json=BODY | fields))
        self.lines = (line.removeprefix("data: ") for line in self.response.iter_lines() if line)
        self.first = json.loads(next(self.lines))

    def rest(self) -> list[dict[str, Any]]:
        """All further events but the last, which is ``[DONE]``."""
        events = list(self.lines)
        assert events[-1] == "[DONE]"
        return [json.loads(event) for event in events[:-1]]

    def ends_whole(self) -> None:
        """Reads to the end of an answer from which nothing is missing."""
        events = [self.first, *self.rest()]
        assert "".join(event["choices"][0]["text"] for event in events).count("so") == TOKENS
        assert events[-1]["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(("flags", "streams"), [(GATEWAY, 4), (("--entry-workers", "3", "--detokenizers", "2"), 12)])
def test_a_signal_to_all_processes_drains(start: Start, flags: tuple[str, ...], streams: int) -> None:
    server = start(*flags)
    with contextlib.ExitStack() as stack:
        answers = [Stream(server, stack) for _ in range(streams)]
        signal_all(server, signal.SIGTERM)
        for answer in answers:
            answer.ends_whole()
    assert server.process.wait(30) == 0, server.log
    assert not ERROR_LINE.findall(server.log)


def test_an_interrupt_of_all_processes_drains_a_real_engine() -> None:
    server = Server("--kv-cache-memory", "0.2", "--shutdown-timeout", "120", clear=True)
    try:
        with contextlib.ExitStack() as stack:
            answer = Stream(server, stack, max_tokens=32)
            signal_all(server, signal.SIGINT)
            assert answer.rest()[-1]["choices"][0]["finish_reason"] == "length"
        assert server.process.wait(30) == 0, server.log
        assert not ERROR_LINE.findall(server.log)
    finally:
        server.stop(signal.SIGKILL)


def test_workers_without_streams_may_end_before_the_others(start: Start) -> None:
    server = start("--entry-workers", "3")
    with contextlib.ExitStack() as stack:
        answer = Stream(server, stack)
        signal_all(server, signal.SIGTERM)
        answer.ends_whole()
    assert server.process.wait(30) == 0, server.log


@pytest.mark.parametrize("flags", [(), ("--entry-workers", "3")])
def test_a_second_signal_to_all_processes_ends_them_now(start: Start, flags: tuple[str, ...]) -> None:
    server = start(*flags)
    with contextlib.ExitStack() as stack:
        answer = Stream(server, stack, max_tokens=4000)
        signal_all(server, signal.SIGTERM)
        wait_for(lambda: "draining" in server.log, "the server to drain")
        signal_all(server, signal.SIGTERM)
        assert answer.rest()[-1]["error"]["message"]
    assert server.process.wait(30) == 0, server.log


@contextlib.contextmanager
def starting(tmp_path: Path, *arguments: str, **environment: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A Python process with these arguments that is a server, and the file of its log."""
    log = tmp_path / "log"
    clean = {name: value for name, value in os.environ.items() if not name.startswith("LLMRT_")}
    with log.open("wb") as file:
        server = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=file,
            env=clean | environment,
            # It is ignored in what a shell starts behind itself.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
    try:
        yield server, log
    finally:
        server.kill()
        server.wait()


def test_a_signal_to_all_processes_ends_a_server_that_loads_its_model(tmp_path: Path) -> None:
    flags = ("--port", "0", "--kv-cache-memory", "0.2")
    with starting(tmp_path, "-m", "llmrt.cli.serve", *flags) as (server, log):
        wait_for(lambda: "loading the model" in log.read_text(), "the model to load")
        found = next(each for each in facts.running() if each.pid == server.pid)
        for pid in sorted(found.processes.values(), key=lambda pid: pid == server.pid):
            os.kill(pid, signal.SIGTERM)
        assert server.wait(30) == 0
        assert not ERROR_LINE.findall(log.read_text())


ONE_STOPS = """
import signal, sys
from llmrt.cli import serve
from llmrt.supervisor import children, launch
start = launch.entry_process
def entry_process(*told):
    child = start(*told)
    if told[-1] == 1:
        child.process.send_signal(signal.SIGSTOP)
        print("one worker stands still", file=sys.stderr, flush=True)
    return child
launch.entry_process = entry_process
children.stop.__defaults__ = (0.5,)
sys.exit(serve.main())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_server_of_which_a_worker_does_not_start(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, number: int
) -> None:
    runtime = tmp_path_factory.mktemp("run")
    flags = ("--engine", "mock", "--port", "0", "--entry-workers", "3")
    with starting(tmp_path, "-c", ONE_STOPS, *flags, XDG_RUNTIME_DIR=str(runtime)) as (server, log):
        wait_for(lambda: "stands still" in log.read_text(), "the workers to start")
        server.send_signal(number)
        assert server.wait(30) == 0
        assert "told to end before it was up" in log.read_text()
    assert not left_of(runtime)


@pytest.mark.parametrize("action", [[], ["--check"]])
def test_an_interrupt_ends_a_download_quietly(tmp_path: Path, action: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as hub:
        told = {
            "HF_ENDPOINT": f"http://127.0.0.1:{hub.getsockname()[1]}",
            "HF_HOME": str(tmp_path),
            "HF_HUB_OFFLINE": "0",
        }
        with starting(tmp_path, "-m", "llmrt.cli.serve", "owner/model", *action, **told) as (server, log):
            hub.settimeout(60)
            # It says nothing, for ever.
            connection, _ = hub.accept()
            with connection:
                server.send_signal(signal.SIGINT)
                assert server.wait(30) == 130
            assert log.read_text() == ""
