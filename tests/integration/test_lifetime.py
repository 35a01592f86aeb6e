"""Requests whose client leaves, in every phase; counters return to zero and others are unharmed."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from llmrt import topology
from support.cell import CELL
from support.h2_client import H2Client
from support.server import Server, wait_for

COMPLETIONS = "/v1/completions"
LONG: dict[str, Any] = {"prompt": "Once upon a time", "max_tokens": 4096, "ignore_eos": True, "stream": True}
SPILLED = 16
"""Tokens that a request may still get between its client's leave and its abort, before and after."""


def http(server: Server, http2: bool = False) -> httpx2.Client:
    return httpx2.Client(base_url=server.url, http1=not http2, http2=http2, timeout=120)


def test_leave_after_the_first_chunk_over_http1(server: Server) -> None:
    sibling: dict[str, Any] = {"prompt": "The sky is", "max_tokens": 48, "temperature": 0, "ignore_eos": True}
    with http(server) as client:
        expected = client.post(COMPLETIONS, json=sibling).json()["choices"][0]["text"]
        before = server.wait_idle()
        with ThreadPoolExecutor(1) as beside, client.stream("POST", COMPLETIONS, json=LONG) as response:
            assert next(response.iter_lines()).startswith("data: {")
            answer = beside.submit(client.post, COMPLETIONS, json=sibling)
            response.close()
            assert answer.result().json()["choices"][0]["text"] == expected
        after = server.wait_idle()
    computed = after["llmrt_generation_tokens_total"] - before["llmrt_generation_tokens_total"]
    assert 48 < computed <= 48 + SPILLED


def test_reset_after_the_first_chunk_leaves_siblings_of_the_connection_alone(server: Server) -> None:
    sibling: dict[str, Any] = {"prompt": "The sky is", "max_tokens": 48, "temperature": 0, "ignore_eos": True}
    with H2Client(server.host, server.port) as client:
        expected = json.loads(client.finish(client.post(COMPLETIONS, sibling)))["choices"][0]["text"]
        leaver = client.post(COMPLETIONS, LONG)
        beside = client.post(COMPLETIONS, sibling)
        client.read_until(lambda: client.bodies[leaver])
        client.reset(leaver)
        wait_for(lambda: server.metrics()["llmrt_num_requests_running"] <= 1, "the slot to be free")
        assert json.loads(client.finish(beside))["choices"][0]["text"] == expected
    assert server.wait_idle()["llmrt_kv_cache_usage_perc"] == 0


def test_leave_while_queued_and_while_prefilling() -> None:
    server = Server("--max-num-seqs", "1", "--max-num-batched-tokens", "64", "--kv-cache-memory", "0.6")
    try:
        with http(server) as client:
            prefilling = {"prompt": [7] * 8000, "max_tokens": 1, "stream": True}
            with client.stream("POST", COMPLETIONS, json=prefilling):
                wait_for(lambda: server.metrics()["llmrt_num_requests_running"] == 1, "the prefill to run")
                # One protocol each. This client never resets a stream: it leaves with its connection.
                with http(server, http2=True) as other, other.stream("POST", COMPLETIONS, json=LONG):
                    wait_for(lambda: server.metrics()["llmrt_num_requests_waiting"] == 1, "a request to wait")
                wait_for(lambda: server.metrics()["llmrt_num_requests_waiting"] == 0, "the queue to be empty")
                assert server.metrics()["llmrt_num_requests_running"] == 1
            server.wait_idle()
            assert server.metrics()["llmrt_kv_cache_usage_perc"] == 0
            quick = client.post(COMPLETIONS, json={"prompt": "Hello", "max_tokens": 2})
            assert quick.status_code == 200 and quick.json()["usage"]["completion_tokens"] == 2
    finally:
        assert server.stop() == 0, server.log


@pytest.mark.parametrize("http2", [False, True])
def test_abort_races_the_last_token(server: Server, http2: bool) -> None:
    before = server.wait_idle()
    with http(server, http2) as client:
        for tokens in range(1, 9):
            body = {**LONG, "max_tokens": tokens}
            with client.stream("POST", COMPLETIONS, json=body) as response:
                for line, _ in zip(response.iter_lines(), range(2 * tokens - 1), strict=False):
                    assert line == "" or line.startswith("data: ")
    after = server.wait_idle()
    assert after["llmrt_kv_cache_usage_perc"] == 0
    assert after["llmrt_request_success_total"] - before["llmrt_request_success_total"] == 8


def test_many_requests_end_once_each_and_leak_nothing(server: Server) -> None:
    server.wait_idle()

    def one(number: int) -> list[str]:
        body = {**LONG, "prompt": f"Story number {number}", "max_tokens": 4 + number % 5}
        with http(server, http2=number % 2 == 0) as client, client.stream("POST", COMPLETIONS, json=body) as response:
            events = [line for line in response.iter_lines() if line]
        assert events[-1] == "data: [DONE]"
        reasons = [json.loads(event[6:])["choices"][0]["finish_reason"] for event in events[:-1]]
        return [reason for reason in reasons if reason]

    with ThreadPoolExecutor(24) as clients:
        assert list(clients.map(one, range(24))) == [["length"]] * 24
    assert server.wait_idle()["llmrt_kv_cache_usage_perc"] == 0


@pytest.mark.parametrize(
    ("number", "engine"),
    [(signal.SIGTERM, ("--kv-cache-memory", "0.2")), (signal.SIGINT, ("--engine", "mock", "--mock-step-ms", "20"))],
    ids=["SIGTERM", "SIGINT"],
)
def test_signal_drains_and_leaves_nothing(number: int, engine: tuple[str, ...]) -> None:
    server = Server(*engine, "--shutdown-timeout", "120")
    children = server.children()
    assert len(children) == 2 + len(CELL.entry_processes)
    with http(server) as client, client.stream("POST", COMPLETIONS, json={**LONG, "max_tokens": 64}) as response:
        lines = response.iter_lines()
        assert next(lines).startswith("data: {")
        server.process.send_signal(number)
        events = [line for line in lines if line]
    assert events[-1] == "data: [DONE]"
    assert json.loads(events[-2][6:])["choices"][0]["finish_reason"] == "length"
    assert server.stop() == 0, server.log
    for child in children:
        wait_for(lambda child=child: not alive(child), f"child {child} to be gone")


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture(scope="module")
def mocked() -> Iterator[Server]:
    mocked = Server("--engine", "mock", "--mock-step-ms", "5")
    yield mocked
    assert mocked.stop() == 0, mocked.log


def test_a_reset_behind_the_end_is_a_success(mocked: Server) -> None:
    """As the asynchronous OpenAI client does: it closes the stream as soon as it has read ``[DONE]``."""
    before = ended(mocked)
    with H2Client(mocked.host, mocked.port) as client:
        for _ in range(50):
            stream = client.post(COMPLETIONS, {**LONG, "max_tokens": 2})
            client.read_until(lambda stream=stream: b"[DONE]" in client.bodies[stream])
            if stream not in client.ended:
                client.reset(stream)
    after = ended(mocked)
    assert after.get("length", 0) - before.get("length", 0) == 50
    assert after.get("abort", 0) == before.get("abort", 0)


def ended(server: Server) -> dict[str, float]:
    """Requests that ended, by reason."""
    server.wait_idle()
    text = server.get("/metrics").text
    found = re.findall(r'^llmrt_request_success_total{.*finished_reason="(\w+)".*} (\S+)$', text, re.MULTILINE)
    return {reason: float(count) for reason, count in found}


def test_live_requests_may_have_the_same_id(mocked: Server) -> None:
    with H2Client(mocked.host, mocked.port) as one, http(mocked) as other:
        name = ("x-request-id", "the-same")
        body: dict[str, Any] = {**LONG, "max_tokens": 40}
        stream = one.post(COMPLETIONS, body, name)
        one.read_until(lambda: one.bodies[stream])
        with other.stream("POST", COMPLETIONS, json=body, headers=[name]) as response:
            assert response.headers["x-request-id"] == one.headers[stream]["x-request-id"] == "the-same"
            assert [line for line in response.iter_lines() if line][-1] == "data: [DONE]"
        assert one.finish(stream).endswith(b"data: [DONE]\n\n")


def test_a_signal_says_goodbye_and_ends_streams_at_the_deadline_over_http2() -> None:
    server = Server("--engine", "mock", "--mock-step-ms", "20", "--shutdown-timeout", "2")
    with H2Client(server.host, server.port) as client:
        long = client.post(COMPLETIONS, LONG)
        short = client.post(COMPLETIONS, {**LONG, "max_tokens": 40})
        client.read_until(lambda: client.bodies[long] and client.bodies[short])
        server.process.send_signal(signal.SIGTERM)
        client.read_until(lambda: client.said_goodbye)
        with pytest.raises(httpx2.ConnectError):
            httpx2.get(f"{server.url}/ready")
        finish = json.loads(client.finish(short).split(b"data: ")[-2])
        assert finish["choices"][0]["finish_reason"] == "length"
        *_, error, done = client.finish(long).split(b"data: ")
    assert done == b"[DONE]\n\n"
    assert json.loads(error)["error"]["type"] == "service_unavailable_error"
    wait_for(lambda: server.process.poll() is not None, "the server to end")
    assert server.process.returncode == 0, server.log


def test_a_killed_supervisor_leaves_nothing() -> None:
    server = Server("--engine", "mock")
    directory = next(each for each in topology.live_directories() if f"-{server.process.pid}-" in each.name)
    children = server.children()
    server.stop(signal.SIGKILL)
    for child in children:
        wait_for(lambda child=child: not alive(child), f"child {child} to be gone")
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(f"{server.url}/health")
    # The dead cannot tidy up; whoever starts next does.
    assert directory.exists()
    assert Server("--engine", "mock").stop() == 0
    assert not directory.exists()


@pytest.mark.parametrize("victim", [0, 1])
def test_dead_core_ends_open_streams_and_a_server_without_restarts(victim: int) -> None:
    server = Server("--engine", "mock", "--mock-step-ms", "20", "--no-restart-core")
    with http(server) as client, client.stream("POST", COMPLETIONS, json=LONG) as response:
        lines = response.iter_lines()
        assert next(lines).startswith("data: {")
        os.kill(server.children()[victim], signal.SIGKILL)
        events = [line for line in lines if line.startswith("data: ")]
    assert events[-1] == "data: [DONE]"
    assert json.loads(events[-2][6:])["error"]["message"]
    wait_for(lambda: server.process.poll() is not None, "the supervisor to end")
    assert server.process.returncode != 0
