"""Scheduling seen from outside, with the real model: caching, preemption, neighbours, tiny pools."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from support.server import Server

COMPLETIONS = "/v1/completions"


def ask(server: Server, **body: Any) -> dict[str, Any]:
    """A completion; fails on any status but 200."""
    response = httpx2.post(server.url + COMPLETIONS, json={"temperature": 0, "ignore_eos": True, **body}, timeout=180)
    assert response.status_code == 200, response.text
    return response.json()


def text(server: Server, **body: Any) -> str:
    return ask(server, **body)["choices"][0]["text"]


def together(server: Server, bodies: list[dict[str, Any]]) -> list[str]:
    with ThreadPoolExecutor(len(bodies)) as pool:
        return list(pool.map(lambda body: text(server, **body), bodies))


@pytest.fixture(scope="module")
def tiny() -> Iterator[Server]:
    """Room for 39 pages of 16 tokens, so that a few requests force preemption."""
    server = Server("--num-pages", "40", "--max-num-seqs", "8")
    yield server
    assert server.stop() == 0, server.log


@pytest.fixture(scope="module")
def uncached() -> Iterator[Server]:
    server = Server("--no-enable-prefix-caching", "--kv-cache-memory", "0.3")
    yield server
    assert server.stop() == 0, server.log


def test_long_prompt_with_one_token(server: Server) -> None:
    usage = ask(server, prompt=[11] * 1500, max_tokens=1)["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (1500, 1)


def test_prompt_of_whole_pages_fully_cached_still_answers(server: Server) -> None:
    prompt = list(range(1000, 1064))
    first = ask(server, prompt=prompt, max_tokens=8)
    second = ask(server, prompt=prompt, max_tokens=8)
    assert second["choices"][0]["text"] == first["choices"][0]["text"]
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == 48


def test_same_prompt_twice_at_once_then_again(server: Server, uncached: Server) -> None:
    body = {"prompt": "The history of the city of Rome begins with a legend about two brothers, " * 4, "max_tokens": 32}
    expected = text(uncached, **body)
    assert together(server, [body, body]) == [expected, expected]
    assert text(server, **body) == expected


def test_preemption_changes_nothing(tiny: Server) -> None:
    bodies = [
        {
            # All prompts fit at once, and all answers do not.
            "prompt": f"Chapter {number}. " + "It was a dark night in the old town, and " * 6,
            "max_tokens": 60,
            "ignore_eos": True,
            "temperature": 0.8 if number % 2 else 0,
            "seed": number,
            "presence_penalty": 0.5,
            "repetition_penalty": 1.1,
        }
        for number in range(6)
    ]
    # By the same server: another one may have other kernels.
    expected = [text(tiny, **body) for body in bodies]
    before = tiny.metrics()["llmrt_num_preemptions_total"]
    assert together(tiny, bodies) == expected
    assert tiny.metrics()["llmrt_num_preemptions_total"] > before
    assert tiny.wait_idle()["llmrt_kv_cache_usage_perc"] == 0


def test_request_bigger_than_the_pool_gets_an_error_and_others_go_on(tiny: Server) -> None:
    with ThreadPoolExecutor(2) as pool:
        other = pool.submit(text, tiny, prompt="The weather today is", max_tokens=32)
        response = httpx2.post(tiny.url + COMPLETIONS, json={"prompt": [9] * 2000, "max_tokens": 4}, timeout=60)
        assert response.status_code == 400 and response.json()["error"]["code"] == "context_length_exceeded"
        assert other.result()


def test_the_context_is_what_the_pool_holds(tiny: Server) -> None:
    [model] = httpx2.get(tiny.url + "/v1/models", timeout=60).json()["data"][:1]
    assert model["max_model_len"] == 39 * 16 + 1
    assert "fewer than max_model_len" in tiny.log


def test_two_requests_that_fit_one_at_a_time(tiny: Server) -> None:
    bodies = [{"prompt": [20 + number] * 400, "max_tokens": 100} for number in range(2)]
    before = tiny.metrics()["llmrt_num_preemptions_total"]
    answers = together(tiny, bodies)
    assert all(answers)
    assert tiny.metrics()["llmrt_num_preemptions_total"] - before <= 2, "admit and preempt loop"


def test_seeded_request_beside_neighbours(server: Server) -> None:
    seeded = {"prompt": "My favourite animal is", "max_tokens": 24, "temperature": 0.9, "seed": 1234}
    alone = text(server, **seeded)
    neighbours = [
        {"prompt": f"A list of {number} words:", "max_tokens": 24, "temperature": 1.0, "presence_penalty": 2}
        for number in range(6)
    ]
    assert together(server, [seeded, *neighbours])[0] == alone


def test_penalties_touch_only_their_request(server: Server) -> None:
    plain = {"prompt": "one two three one two three one two", "max_tokens": 24}
    alone = text(server, **plain)
    punished = {**plain, "frequency_penalty": 2.0, "presence_penalty": 2.0, "logit_bias": {"260": -100}}
    answers = together(server, [plain, punished, punished, plain])
    assert answers[0] == answers[3] == alone
    assert answers[1] == answers[2] != alone


@pytest.mark.parametrize("policy", ["lpm", "priority"])
def test_other_policies_serve(policy: str) -> None:
    server = Server("--schedule-policy", policy, "--kv-cache-memory", "0.2", "--max-num-seqs", "2")
    try:
        bodies = [{"prompt": f"Fact {number}: water", "max_tokens": 6} for number in range(6)]
        assert all(together(server, bodies))
    finally:
        assert server.stop() == 0, server.log
