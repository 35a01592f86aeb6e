"""A core whose processes die or hang: open requests are told, the front door stays, a new core answers."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from llmrt import link
from llmrt.cli import probe
from llmrt.supervisor import facts
from support.kept import events, kept
from support.planted import Planted
from support.server import Server, wait_for

COMPLETIONS = "/v1/completions"
LONG: dict[str, Any] = {"prompt": "Hi", "max_tokens": 4096, "ignore_eos": True, "stream": True}
SHORT: dict[str, Any] = {"prompt": "Hi", "max_tokens": 3, "ignore_eos": True}
MODULES = {"mock engine": "llmrt.engine.mock", "detokenizer": "llmrt.detokenizer.process"}
MOCK = ("--engine", "mock", "--mock-step-ms", "20")


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Planted:
    """What keeps a core away until its absence has been seen."""
    return Planted(tmp_path_factory.mktemp("planted"))


@pytest.fixture(scope="module")
def server(planted: Planted) -> Iterator[Server]:
    """May restart its core as often as the tests want."""
    mocked = Server(*MOCK, "--step-deadline", "3", "--max-core-restarts", "1000", env=planted.environment)
    yield mocked
    assert mocked.stop() == 0, mocked.log


def the_facts(server: Server) -> facts.Facts:
    return next(each for each in facts.running() if each.pid == server.process.pid)


def pid(server: Server, name: str) -> int:
    return the_facts(server).processes[name]


def wait_up(server: Server) -> None:
    wait_for(lambda: server.get("/ready").status_code == 200, "the core to be up", 60)


def is_gone(process: int) -> bool:
    return probe.process_state(process) == "is gone"


@pytest.mark.parametrize("version", ["http1", "http2"])
@pytest.mark.parametrize("victim", MODULES)
def test_a_dead_process_is_replaced_behind_the_front_door(
    server: Server, planted: Planted, victim: str, version: str
) -> None:
    wait_up(server)
    planted.hang(MODULES[victim])
    before = the_facts(server).processes
    unary: dict[str, Any] = {**LONG, "stream": False}
    with (
        kept(server, version) as connection,
        ThreadPoolExecutor(1) as beside,
        httpx2.Client(base_url=server.url, timeout=60) as other,
    ):
        data = events(connection.stream(COMPLETIONS, LONG))
        next(data)
        whole = beside.submit(other.post, COMPLETIONS, json=unary)
        wait_for(lambda: server.metrics()["llmrt_num_requests_running"] == 2, "both requests to run")
        os.kill(before[victim], signal.SIGKILL)
        *_, error, done = data
        assert done == "[DONE]"
        assert json.loads(error)["error"]["type"] == "service_unavailable_error"
        assert whole.result().status_code == 503
        # The same connection goes on: refused while the core is away, then answered.
        wait_for(lambda: connection.ask("/health").status == 503, "the loss to be noticed")
        refused = connection.ask(COMPLETIONS, SHORT)
        assert refused.status == 503 and refused.json()["error"]["type"] == "service_unavailable_error"
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        planted.nothing()
        wait_for(lambda: connection.ask("/health").status == 200, "a new core", 60)
        answer = connection.ask(COMPLETIONS, SHORT)
        assert answer.status == 200 and answer.json()["usage"]["completion_tokens"] == 3
    server.wait_idle()
    after = the_facts(server).processes
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {victim}
    hops = probe.probe(the_facts(server), 20.0)
    assert all(hop.state in (probe.OK, probe.UNUSED) for hop in hops), hops


@pytest.mark.parametrize("victim", MODULES)
def test_a_stopped_process_is_killed_after_the_deadline_and_replaced(
    server: Server, planted: Planted, victim: str
) -> None:
    wait_up(server)
    planted.hang(MODULES[victim])
    process = pid(server, victim)
    with kept(server, "http2") as connection:
        data = events(connection.stream(COMPLETIONS, LONG))
        next(data)
        os.kill(process, signal.SIGSTOP)
        *_, error, done = data
        assert done == "[DONE]" and json.loads(error)["error"]["message"]
        wait_for(lambda: connection.ask("/health").status == 503, "the hang to be noticed")
        wait_for(lambda: is_gone(process), "the stopped process to be killed")
        planted.nothing()
        wait_for(lambda: connection.ask("/health").status == 200, "a new core", 60)
        assert connection.ask(COMPLETIONS, SHORT).status == 200
    assert "gave no sign of life for 3 s (--step-deadline)" in server.log


@pytest.mark.parametrize("victim", MODULES)
def test_a_short_stop_costs_nothing(server: Server, victim: str) -> None:
    wait_up(server)
    process = pid(server, victim)
    with kept(server, "http1") as connection:
        data = events(connection.stream(COMPLETIONS, {**LONG, "max_tokens": 50}))
        next(data)
        os.kill(process, signal.SIGSTOP)
        wait_for(lambda: "is stopped" in (probe.process_state(process) or ""), "the process to stop")
        os.kill(process, signal.SIGCONT)
        *_, last, done = data
        assert done == "[DONE]" and json.loads(last)["choices"][0]["finish_reason"] == "length"
    assert pid(server, victim) == process


def test_one_that_says_that_it_ends_but_does_not_is_killed_and_replaced() -> None:
    soon = "import sys; from llmrt.cli import serve; from llmrt.supervisor import core; core.LEAVE = 0.5; "
    server = Server(*MOCK, command=[sys.executable, "-c", f"{soon}sys.exit(serve.main())"])
    try:
        process = pid(server, "mock engine")
        os.kill(process, signal.SIGSTOP)
        # What an engine says whose step hangs in native code, and which then cannot end for it.
        outbox = link.Outbox(the_facts(server).topology.control, link.Identity("scheduler"))
        wait_for(lambda: outbox.receive() and outbox.ready, "the supervisor to answer")
        outbox.close("a step takes too long")
        wait_for(lambda: is_gone(process), "the process that hangs to be killed")
        wait_up(server)
        with server.client() as client:
            assert client.post(COMPLETIONS, json=SHORT).status_code == 200
        said = "the mock engine left its control link and did not end in 0.5 s: a step takes too long; it starts again"
        assert said in server.log
        assert server.stop() == 0, server.log
    finally:
        server.stop(signal.SIGKILL)


def test_too_many_restarts_end_the_server_with_the_reason() -> None:
    server = Server(*MOCK, "--max-core-restarts", "1")
    try:
        first = pid(server, "mock engine")
        os.kill(first, signal.SIGKILL)
        wait_for(lambda: pid(server, "mock engine") != first, "the restart", 60)
        wait_up(server)
        with kept(server, "http1") as connection:
            data = events(connection.stream(COMPLETIONS, LONG))
            next(data)
            os.kill(pid(server, "mock engine"), signal.SIGKILL)
            *_, error, done = data
        assert done == "[DONE]" and json.loads(error)["error"]["message"]
        wait_for(lambda: server.process.poll() is not None, "the server to end")
        assert server.process.returncode == 1
        assert "there were 1 restarts in 300 s (--max-core-restarts)" in server.log
        assert server.log.count("the mock engine was killed by SIGKILL; the server ends") == 1
    finally:
        server.stop(signal.SIGKILL)


def test_a_signal_ends_a_server_that_waits_for_its_core(tmp_path: Path) -> None:
    planted = Planted(tmp_path)
    server = Server(*MOCK, env=planted.environment)
    try:
        planted.hang(MODULES["mock engine"])
        os.kill(pid(server, "mock engine"), signal.SIGKILL)
        wait_for(lambda: "it starts again" in server.log, "the loss to be noticed")
        assert server.stop() == 0, server.log
    finally:
        server.stop(signal.SIGKILL)


def test_a_real_scheduler_is_not_hung_while_it_prefills_but_when_it_is_stopped(tmp_path: Path) -> None:
    """A prompt whose steps together take longer than the deadline, each one far less."""
    deadline, planted = 3, Planted(tmp_path)
    small = ("--kv-cache-memory", "0.5", "--max-num-batched-tokens", "32", "--step-deadline", str(deadline))
    server = Server(*small, env=planted.environment)
    try:
        process = pid(server, "scheduler")
        with kept(server, "http2") as connection, ThreadPoolExecutor(1) as beside:

            def seconds(length: int) -> float:
                """That a prompt of so many tokens takes; none of it is cached."""
                prompt = {"prompt": [length % 1000] * length, "max_tokens": 1}
                began = time.monotonic()
                answer = beside.submit(httpx2.post, f"{server.url}{COMPLETIONS}", json=prompt, timeout=300)
                while not answer.done():
                    assert connection.ask("/health").status == 200, server.log
                    time.sleep(0.1)
                assert answer.result().status_code == 200
                return time.monotonic() - began

            # As long as this machine needs it.
            lengths = (1000, 1901, 3702, 5803, 8004)
            assert any(seconds(length) > deadline + 1 for length in lengths), "too fast: this proves nothing"
            planted.hang("llmrt.engine.process")
            os.kill(process, signal.SIGSTOP)
            wait_for(lambda: connection.ask("/health").status == 503, "the hang to be noticed")
            planted.nothing()
            wait_for(lambda: connection.ask("/health").status == 200, "a new core", 90)
            assert connection.ask(COMPLETIONS, SHORT).status == 200
            assert connection.ask("/health_generate").status == 200
        assert pid(server, "scheduler") != process
    finally:
        assert server.stop() == 0, server.log
