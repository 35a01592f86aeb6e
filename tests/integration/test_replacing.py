"""Processes that are to be replaced when the system has no room for them, or when the server ends."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from llmrt import wire
from llmrt.cli import probe
from llmrt.supervisor import facts
from support.planted import Planted
from support.server import Server, wait_for

LONG: dict[str, Any] = {"prompt": "Hi", "max_tokens": 4000, "ignore_eos": True, "stream": True}
SECRET = "0123456789abcdef0123456789abcdef"

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")

WORKER = "llmrt.entry.process"


class Frail:
    """A server of two workers, a gateway and a core whose processes can be told to fail."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.planted = Planted(folder)
        self.server = Server(
            *("--engine", "mock", "--mock-step-ms", "10", "--stat-interval", "0", "--entry-workers", "2"),
            *("--core-listen", "tcp://127.0.0.1:0", "--max-core-restarts", "1000", *flags),
            env={"LLMRT_CORE_SECRET": SECRET, **self.planted.environment},
        )

    def pid(self, name: str) -> int:
        found = next(each for each in facts.running() if each.pid == self.server.process.pid)
        return found.processes[name]

    def kill(self, name: str) -> int:
        """Returns the process id that it had."""
        pid = self.pid(name)
        os.kill(pid, signal.SIGKILL)
        return pid

    def logged(self, text: str) -> None:
        wait_for(lambda: text in self.server.log, f"{text!r} in the log")

    @contextlib.contextmanager
    def stream(self, worker: int) -> Iterator[Iterator[dict[str, Any]]]:
        """The events of a streamed answer of one of the workers, as soon as it gives one.

        Over HTTP/1.1: with HTTP/2 this client does not read on after a GOAWAY.
        """

        def found() -> Iterator[str] | None:
            client = stack.enter_context(self.server.client(http2=False))
            answer = stack.enter_context(client.stream("POST", "/v1/completions", json=LONG))
            if answer.status_code == 200:
                lines = (line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: "))
                if wire.worker_of(int(json.loads(next(lines))["id"][-16:], 16)) == worker:
                    return lines
            client.close()
            return None

        with contextlib.ExitStack() as stack:
            lines = wait_for(found, f"an answer of worker {worker}")
            yield (json.loads(line) for line in lines if line != "[DONE]")


@pytest.fixture
def frail(tmp_path: Path) -> Iterator[Callable[..., Frail]]:
    """Starts servers; what a test leaves is killed."""
    with contextlib.ExitStack() as stack:

        def make(*flags: str) -> Frail:
            made = Frail(tmp_path, *flags)
            stack.callback(made.server.stop, signal.SIGKILL)
            return made

        yield make


@contextlib.contextmanager
def no_descriptors(pid: int) -> Iterator[None]:
    """A process can open nothing meanwhile: none of those that it may close had a number below the limit."""
    numbers = [int(each.name) for each in Path(f"/proc/{pid}/fd").iterdir() if "pidfd" in os.readlink(each)]
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (min(numbers), before[1]))
    yield
    resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


def test_a_system_without_room_ends_no_server_and_processes_are_replaced_later(frail: Callable[..., Frail]) -> None:
    made = frail()
    server = made.server
    with made.stream(0) as events:
        with no_descriptors(server.process.pid):
            before = {name: made.kill(name) for name in ("entry[1]", "gateway", "detokenizer", "mock engine")}
            made.logged("entry[1] cannot be replaced yet: Too many open files; another one takes its place in")
            made.logged("the gateway cannot be replaced yet: Too many open files")
            made.logged("the detokenizer cannot be started again: Too many open files")
            assert "error" in list(events)[-1]
            assert server.get("/health").status_code == 503
        for name, pid in before.items():
            wait_for(lambda name=name, pid=pid: made.pid(name) != pid, f"another {name}")
    with made.stream(1):
        pass
    assert server.stop() == 0, server.log


def test_a_process_that_cannot_be_watched_is_not_started_twice(frail: Callable[..., Frail]) -> None:
    made = frail()
    server = made.server
    count = len(server.children())
    made.planted.blind()
    for name in ("mock engine", "entry[1]", "gateway"):
        before = made.kill(name)
        wait_for(lambda name=name, before=before: made.pid(name) != before, f"another {name}")
        made.logged(f"the end of {'' if name == 'entry[1]' else 'the '}{name} will be noticed late: Too many open")
    with made.stream(1) as events:
        before = made.kill("entry[1]")
        # Its links tell.
        wait_for(lambda: made.pid("entry[1]") != before, "another one")
        with contextlib.suppress(Exception):
            list(events)
    with made.stream(1):
        assert len(server.children()) == count
    assert server.log.count("the mock engine starts again") == 1
    assert server.stop() == 0, server.log


def test_a_worker_that_starts_when_the_server_ends_is_no_failure(frail: Callable[..., Frail]) -> None:
    made = frail()
    made.planted.hang(WORKER)
    before = made.kill("entry[1]")
    wait_for(lambda: made.pid("entry[1]") != before, "a successor")
    children = made.server.children()
    assert made.server.stop() == 0, made.server.log
    assert all(probe.process_state(child) == "is gone" for child in children)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_server_that_ends_sleeps_and_replaces_nothing(frail: Callable[..., Frail]) -> None:
    made = frail("--shutdown-timeout", "60")
    server = made.server
    with made.stream(0) as events:
        made.planted.fail(WORKER)
        made.kill("entry[1]")
        failed = "entry[1] ended with exit code 1; another one takes its place"
        # By then the pause is long enough for the signal to come within it.
        wait_for(lambda: server.log.count(failed) >= 2, "its successors to fail")
        server.process.send_signal(signal.SIGTERM)
        made.logged("draining for up to")
        began, used = time.monotonic(), cpu_seconds(server.process.pid)
        made.kill("gateway")
        made.logged("the gateway was killed by SIGKILL; entry nodes have lost the core, which ends")
        # Far beyond the pause, in which it would have slept anyway.
        while (took := time.monotonic() - began) < 1.6:
            next(events)
        assert cpu_seconds(server.process.pid) - used < 0.1 * took
    assert server.process.wait(30) == 0, server.log
    assert "another one takes its place" not in server.log.partition("draining for")[2]
