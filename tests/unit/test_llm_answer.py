"""Answers as programs read them: whole ones and those that grow, in the forms of both routes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llmrt.llm.answer import CompletionOutput, Growing, RequestError, whole
from llmrt.llm.body import request
from llmrt.llm.logprobs import Logprob

USAGE = {
    "prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5, "prompt_tokens_details": {"cached_tokens": 1},
}  # fmt: skip
PROMPT = {"prompt_token_ids": [1, 2], "prompt_logprobs": [None, {"2": {"logprob": -1.0}, "9": {"logprob": -0.5}}]}


def chat_logprobs(*tokens: int) -> dict[str, Any]:
    top = {"token": "token_id:9", "logprob": -2.0}
    return {"content": [{"token": f"token_id:{token}", "logprob": -1.5, "top_logprobs": [top]} for token in tokens]}


def completion_logprobs(*tokens: int) -> dict[str, Any]:
    return {"top_logprobs": [{f"token_id:{token}": -1.5, "token_id:9": -2.0} for token in tokens]}


def events(*chunks: dict[str, Any]) -> bytes:
    return b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks) + b"data: [DONE]\n\n"


@pytest.mark.parametrize("chat", [False, True])
def test_a_stream_of_choices_adds_up_to_the_whole(chat: bool) -> None:
    logprobs = chat_logprobs if chat else completion_logprobs

    def choice(index: int, text: str, tokens: list[int], reason: str | None, key: str) -> dict[str, Any]:
        said = {key: {"content": text}} if chat else {"text": text}
        ended = {"finish_reason": reason, "stop_reason": None}
        return {"index": index, **said, "token_ids": tokens, "logprobs": logprobs(*tokens) if tokens else None, **ended}

    beside, inside = (PROMPT, {}) if chat else ({}, PROMPT)
    body = {
        "choices": [
            {**choice(0, "ab", [5, 6], "stop", "message"), **inside},
            {**choice(1, "c", [7], "length", "message"), **inside},
        ],
        **beside,
        "usage": USAGE,
    }
    stream = events(
        {"choices": [{**choice(1, "c", [7], None, "delta"), **inside}]},
        {"choices": [{**choice(0, "a", [5], None, "delta"), **inside}], **beside},
        {"choices": [choice(1, "", [], "length", "delta")]},
        {"choices": [choice(0, "b", [6], None, "delta")]},
        {"choices": [choice(0, "", [], "stop", "delta")]},
        {"choices": [], "usage": USAGE},
    )
    expected = whole(200, json.dumps(body).encode())
    growing = Growing(2)
    pieces = [growing.feed(200, stream[at : at + 7], False) for at in range(0, len(stream), 7)]
    assert growing.done and "".join(pieces) == "cab"
    assert growing.output == expected
    likely = [{token: Logprob(-1.5), 9: Logprob(-2.0)} for token in (5, 6)]
    assert expected.outputs[0] == CompletionOutput(0, "ab", [5, 6], likely, "stop", None)
    assert expected.prompt_token_ids == [1, 2]
    assert expected.prompt_logprobs == [None, {2: Logprob(-1.0), 9: Logprob(-0.5)}]
    assert (expected.text, expected.finish_reason, expected.finished, expected.cached_tokens) == ("ab", "stop", True, 1)


def test_an_answer_that_grows_is_not_finished() -> None:
    growing = Growing(2)
    growing.feed(
        200, events({"choices": [{"index": 0, "text": "a", "finish_reason": "stop", "stop_reason": 3}]}), False
    )
    assert not growing.output.finished
    assert (growing.output.outputs[0].stop_reason, growing.output.outputs[1]) == (3, CompletionOutput(1))


def test_an_error_in_a_stream_is_raised() -> None:
    error = {"message": "late", "type": "timeout_error", "param": None, "code": "deadline_exceeded"}
    with pytest.raises(RequestError, match="late") as caught:
        Growing().feed(200, events({"error": error}), False)
    assert (caught.value.status, caught.value.code) == (408, "deadline_exceeded")


def test_requests_ask_for_ids() -> None:
    fields = json.loads(request([1, 2], None).body)
    assert fields == {"prompt": [1, 2], "return_token_ids": True, "return_tokens_as_token_ids": True}
