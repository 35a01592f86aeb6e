"""Streamed and unary answers are the same text, reason and usage for any sampling fields."""

from __future__ import annotations

import json
from typing import Any

import httpx2
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.server import Server

PROMPTS = [
    "Write a haiku about the sea.",
    "Répète après moi : déjà vu, garçon, œuvre.",
    "写一首关于春天的诗。",
    "봄에 대한 시를 써 주세요.",
    "List emoji: 😀 👩‍👩‍👧 🇫🇷 👍🏽",
    "def fibonacci(n):\n    ",
    "\u0645\u0631\u062d\u0628\u0627",
]
STOPS = [".", "\n", "the", " a", "é", "。", "😀", "\n\n", "ing ", "\u200d", "zzzz"]

fields = st.fixed_dictionaries(
    {"seed": st.integers(-(2**63), 2**63 - 1), "max_tokens": st.integers(1, 24)},
    optional={
        "temperature": st.floats(0, 2),
        "top_p": st.floats(0.01, 1),
        "top_k": st.sampled_from([-1, 0, 1, 5, 1000]),
        "min_p": st.floats(0, 1),
        "presence_penalty": st.floats(-2, 2),
        "frequency_penalty": st.floats(-2, 2),
        "repetition_penalty": st.floats(0.5, 2),
        "stop": st.lists(st.sampled_from(STOPS), min_size=1, max_size=4),
        "include_stop_str_in_output": st.booleans(),
        "skip_special_tokens": st.booleans(),
        "ignore_eos": st.booleans(),
        "stop_token_ids": st.lists(st.integers(0, 49151), max_size=3),
        "logit_bias": st.dictionaries(st.integers(0, 49151).map(str), st.floats(-100, 100), max_size=4),
    },
)


def read_stream(response: httpx2.Response) -> tuple[str, str | None, Any, dict[str, Any]]:
    """Text, finish reason, stop reason and usage of an SSE answer; checks its form."""
    text, reason, stop_reason, usage = "", None, None, None
    events = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
    assert events[-1] == "[DONE]"
    for event in events[:-1]:
        chunk = json.loads(event)
        if not chunk["choices"]:
            usage = chunk["usage"]
            continue
        choice = chunk["choices"][0]
        assert reason is None, "a chunk behind the finish reason"
        delta = choice["text"] if "text" in choice else choice["delta"].get("content", "")
        assert delta or choice["finish_reason"] or "role" in choice.get("delta", {}), "an empty delta"
        text += delta or ""
        reason, stop_reason = choice["finish_reason"], choice.get("stop_reason")
    assert usage is not None and reason is not None
    return text, reason, stop_reason, usage


@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(prompt=st.sampled_from(PROMPTS), chat=st.booleans(), extra=fields)
def test_stream_equals_unary(server: Server, prompt: str, chat: bool, extra: dict[str, Any]) -> None:
    route = "/v1/chat/completions" if chat else "/v1/completions"
    body: dict[str, Any] = {**extra}
    body.update({"messages": [{"role": "user", "content": prompt}]} if chat else {"prompt": prompt})
    with httpx2.Client(base_url=server.url, timeout=120) as client:
        unary = client.post(route, json=body)
        assert unary.status_code == 200, unary.text
        streamed = client.post(route, json={**body, "stream": True, "stream_options": {"include_usage": True}})
        assert streamed.status_code == 200, streamed.text
    choice = unary.json()["choices"][0]
    text = choice["message"]["content"] if chat else choice["text"]
    got_text, got_reason, got_stop, usage = read_stream(streamed)
    assert (got_text, got_reason, got_stop) == (text, choice["finish_reason"], choice.get("stop_reason"))
    assert usage["completion_tokens"] == unary.json()["usage"]["completion_tokens"]
    assert usage["prompt_tokens"] == unary.json()["usage"]["prompt_tokens"]
