"""``llmrt-serve --engine mock``: the real links, entry and detokenizer around an engine that makes answers up."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from llmrt import model_source
from llmrt._core import Tokenizer
from support.server import Server, wait_for

TEXT = " Ein Bär 日本 \N{PANDA FACE} says hello."
LONG: dict[str, Any] = {"prompt": "Hi", "max_tokens": 4096, "ignore_eos": True, "stream": True}


def mock(*flags: str) -> Server:
    return Server("--engine", "mock", "--mock-step-ms", "1", *flags)


def complete(server: Server, **body: Any) -> dict[str, Any]:
    response = httpx2.post(f"{server.url}/v1/completions", json={"prompt": "Hi", **body}, timeout=60)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def events(server: Server, **body: Any) -> list[str]:
    """The data lines of a streamed completion."""
    with (
        httpx2.Client(base_url=server.url, timeout=60) as client,
        client.stream("POST", "/v1/completions", json=LONG | body) as response,
    ):
        return [line[6:] for line in response.iter_lines() if line.startswith("data: ")]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_gguf(model_source.resolve(None).path)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Says :data:`TEXT` again and again."""
    mocked = mock("--mock-text", TEXT, "--mock-cached-tokens", "3", "--max-num-seqs", "512")
    yield mocked
    assert mocked.stop() == 0, mocked.log


def test_it_says_loudly_that_answers_are_made_up(server: Server) -> None:
    assert "all answers are made up" in server.log


def test_the_text_comes_again_and_again(server: Server, tokenizer: Tokenizer) -> None:
    once = len(tokenizer.encode(TEXT))
    answer = complete(server, max_tokens=3 * once)
    choice, usage = answer["choices"][0], answer["usage"]
    assert (choice["text"], choice["finish_reason"]) == (TEXT * 3, "length")
    assert usage["completion_tokens"] == 3 * once
    streamed = events(server, max_tokens=2 * once)
    assert "".join(json.loads(event)["choices"][0]["text"] for event in streamed[:-1]) == TEXT * 2


def test_stop_strings_end_through_the_detokenizer(server: Server) -> None:
    choice = complete(server, max_tokens=4000, stop=["says"])["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == (TEXT.partition("says")[0], "stop")
    assert server.wait_idle()["llmrt_kv_cache_usage_perc"] == 0


def test_stop_tokens_and_min_tokens(server: Server, tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(TEXT)
    last = ids[-1]
    assert last not in ids[:-1]
    answer = complete(server, max_tokens=4000, stop_token_ids=[last])
    assert answer["usage"]["completion_tokens"] == len(ids)
    assert answer["choices"][0]["finish_reason"] == "stop"
    answer = complete(server, max_tokens=4000, stop_token_ids=[last], min_tokens=len(ids) + 1)
    assert answer["usage"]["completion_tokens"] == 2 * len(ids)


def test_cached_tokens_are_reported(server: Server) -> None:
    usage = complete(server, prompt=[5, 6, 7, 8, 9], max_tokens=1)["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 3


def test_many_streams_at_once_end_whole(server: Server) -> None:
    with ThreadPoolExecutor(64) as pool:
        answers = list(pool.map(lambda n: events(server, max_tokens=20 + n % 7), range(128)))
    for number, streamed in enumerate(answers):
        assert streamed[-1] == "[DONE]"
        text = "".join(json.loads(event)["choices"][0]["text"] for event in streamed[:-1])
        assert (TEXT * 9).startswith(text.rstrip("\N{REPLACEMENT CHARACTER}")) and text, number
    assert server.wait_idle()["llmrt_num_requests_running"] == 0


def test_one_worker_alone_shows_its_counts_as_those_of_several_do(server: Server) -> None:
    complete(server, max_tokens=3)
    now = server.wait_idle()
    assert now["llmrt_worker_generation_tokens_total"] == now["llmrt_generation_tokens_total"] >= 3
    assert "llmrt_worker_num_requests_running" not in now


def test_leaving_frees_the_place(server: Server) -> None:
    with (
        httpx2.Client(base_url=server.url, timeout=60) as client,
        client.stream("POST", "/v1/completions", json=LONG) as response,
    ):
        assert next(response.iter_lines()).startswith("data: {")
    server.wait_idle()


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--mock-pattern", "tokens", "--mock-tokens", "504, 905"], [504, 905, 504, 905, 504, 905]),
        (["--mock-pattern", "count"], [0, 1, 3, 3, 4, 5]),
        (["--mock-pattern", "echo"], [338, 253, 1277]),
    ],
)
def test_patterns(flags: list[str], expected: list[int], tokenizer: Tokenizer) -> None:
    mocked = mock(*flags)
    try:
        answer = complete(mocked, prompt=[338, 253, 1277], max_tokens=6)
        assert answer["choices"][0]["text"] == tokenizer.decode(expected)
    finally:
        assert mocked.stop() == 0, mocked.log


def test_random_answers_follow_their_seed() -> None:
    mocked = mock("--mock-pattern", "random")
    try:
        texts = [complete(mocked, max_tokens=30, seed=seed)["choices"][0]["text"] for seed in (1, 1, 2)]
        assert texts[0] == texts[1] != texts[2]
    finally:
        assert mocked.stop() == 0, mocked.log


def test_back_to_back_nothing_is_lost() -> None:
    mocked = mock("--mock-step-ms", "0")
    try:
        with ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(lambda _: events(mocked, max_tokens=4000), range(16)))
        assert all(streamed[-1] == "[DONE]" for streamed in answers)
        assert mocked.metrics()["llmrt_generation_tokens_total"] == 16 * 4000
    finally:
        assert mocked.stop() == 0, mocked.log


def test_a_death_on_demand_ends_streams_with_an_error() -> None:
    mocked = mock("--mock-faults", "die@50", "--no-restart-core")
    try:
        streamed = events(mocked)
        assert streamed[-1] == "[DONE]"
        assert json.loads(streamed[-2])["error"]["message"]
        wait_for(lambda: mocked.process.poll() is not None, "the supervisor to end")
        assert mocked.process.returncode == 1
        assert "the mock engine was killed by SIGABRT" in mocked.log
    finally:
        mocked.stop(signal.SIGKILL)


def test_a_stall_on_demand_is_noticed_and_a_new_engine_takes_over() -> None:
    mocked = mock("--mock-faults", "stall:600@20", "--step-deadline", "1.5", "--stat-interval", "0")
    try:
        *_, error, done = events(mocked)
        assert json.loads(error)["error"]["message"] and done == "[DONE]"
        wait_for(lambda: mocked.log.count("ready after") == 2, "another engine")
        wait_for(lambda: mocked.get("/health").status_code == 200, "the server to be sound again")
        assert complete(mocked, max_tokens=4)["usage"]["completion_tokens"] == 4
        assert "the mock engine gave no sign of life for 1.5 s (--step-deadline)" in mocked.log
    finally:
        mocked.stop()


def test_garbage_on_demand_is_dropped_and_a_short_stall_passes(tokenizer: Tokenizer) -> None:
    mocked = mock("--mock-faults", "garbage@2,stall:0.5@3,garbage@5", "--mock-text", TEXT)
    try:
        begun = time.monotonic()
        choice = complete(mocked, max_tokens=len(tokenizer.encode(TEXT)))["choices"][0]
        assert choice["text"] == TEXT
        assert time.monotonic() - begun >= 0.5
        assert mocked.log.count("malformed frame dropped") == 2
    finally:
        assert mocked.stop() == 0, mocked.log


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--mock-faults", "burn"], "stall:SECONDS"),
        (["--mock-pattern", "tokens"], "--mock-tokens"),
        (["--mock-pattern", "tokens", "--mock-tokens", "1,49152"], "49152"),
        (["--mock-text", ""], "--mock-text"),
        (["--mock-step-ms", "-1"], "--mock-step-ms"),
        (["--mock-pattern", "noise"], "noise"),
    ],
)
def test_bad_values_are_refused_at_the_start(flags: list[str], named: str) -> None:
    command = [sys.executable, "-m", "llmrt.cli.serve", "--port", "0", "--engine", "mock", *flags]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    assert named in ended.stderr and "Traceback" not in ended.stderr


def test_it_needs_no_torch(tmp_path: Any) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('torch is blocked by a test')\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    mocked = Server("--engine", "mock", env={"PYTHONPATH": path})
    try:
        assert complete(mocked, max_tokens=2)["usage"]["completion_tokens"] == 2
    finally:
        assert mocked.stop(signal.SIGINT) == 0, mocked.log
