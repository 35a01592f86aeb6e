"""Logprobs through a real server and the real ``openai`` client, against what ``transformers`` computes."""

from __future__ import annotations

import concurrent.futures
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from openai import OpenAI

from support.server import Server

from .conftest import MODEL

GOLDEN = Path(__file__).parent.parent / "golden"
CLOSE = 1e-3


def _cases() -> list[dict[str, Any]]:
    told = json.loads((GOLDEN / "logprobs_smollm2.json").read_text())["cases"]
    cases = {case["name"]: case for case in json.loads((GOLDEN / "reference_smollm2.json").read_text())["cases"]}
    return [{**cases[case["name"]], **case} for case in told]


CASES = _cases()
GENERATED = len(CASES[0]["chosen"]) + 1 - len(CASES[0]["prompt"])


@pytest.fixture(scope="module")
def exact() -> Iterator[Server]:
    """A server that computes in float32, with so few pages that requests displace each other."""
    server = Server("--dtype", "float32", "--num-pages", "24", "--max-num-seqs", "8")
    yield server
    assert server.stop() == 0, server.log


@pytest.fixture(scope="module")
def api(exact: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{exact.url}/v1", api_key="unused", timeout=120) as client:
        yield client


def close(told: list[float | None], expected: list[float]) -> bool:
    return len(told) == len(expected) and all(
        one is not None and abs(one - other) < CLOSE for one, other in zip(told, expected, strict=True)
    )


def columns(api: OpenAI, stream: bool, **fields: Any) -> dict[str, list[Any]]:
    """The logprobs of a completion's one choice, its pieces joined."""
    answer = api.completions.create(model=MODEL, stream=stream, **fields)
    joined: dict[str, list[Any]] = {"text": []}
    for part in answer if stream else [answer]:
        for choice in part.choices:
            joined["text"].append(choice.text)
            for name, values in (choice.logprobs.model_dump() if choice.logprobs else {}).items():
                joined.setdefault(name, []).extend(values)
    return joined


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_they_are_those_of_the_reference(api: OpenAI, case: dict[str, Any], stream: bool) -> None:
    prompt, before = case["prompt"], len(case["prompt"]) - 1
    ask: Any = {"prompt": prompt, "max_tokens": GENERATED, "temperature": 0, "logprobs": 5}
    ignoring: Any = {"extra_body": {"ignore_eos": True, "return_tokens_as_token_ids": True}}
    told = columns(api, stream, **ask, **ignoring)
    assert told["tokens"] == [f"token_id:{token}" for token in case["tokens"][:GENERATED]]
    assert close(told["token_logprobs"], case["chosen"][before:])
    for likely, values in zip(told["top_logprobs"], case["top_logprobs"][before:], strict=True):
        assert close(sorted(likely.values(), reverse=True)[:5], values)
    # With its prompt in front: cold or warm, the same numbers.
    for _ in range(2):
        echoed = columns(api, stream, **ask, echo=True, **ignoring)
        assert echoed["token_logprobs"][0] is None and echoed["top_logprobs"][0] is None
        assert close(echoed["token_logprobs"][1:], case["chosen"])
        assert echoed["tokens"][: before + 1] == [f"token_id:{token}" for token in prompt]


@pytest.mark.parametrize("stream", [False, True])
def test_text_offsets_cut_the_text_into_its_tokens(api: OpenAI, stream: bool) -> None:
    case = next(case for case in CASES if case["name"] == "chinese")
    told = columns(
        api, stream, prompt=case["prompt"], max_tokens=20, temperature=0, logprobs=0, echo=True,
        extra_body={"ignore_eos": True},
    )  # fmt: skip
    text, offsets = "".join(told["text"]), told["text_offset"]
    assert offsets == sorted(offsets) and offsets[0] == 0 and offsets[-1] <= len(text)
    for token, start, end in zip(told["tokens"], offsets, [*offsets[1:], len(text)], strict=True):
        # A token that is part of a character shows as U+FFFD and has no text of its own.
        assert "\ufffd" in token or text[start:end] == token


def test_a_chat_has_every_tokens_bytes(api: OpenAI) -> None:
    ask: Any = {
        "model": MODEL, "messages": [{"role": "user", "content": "Write three emoji and a Chinese word."}],
        "max_tokens": 24, "temperature": 0, "logprobs": True, "top_logprobs": 2,
    }  # fmt: skip
    whole = api.chat.completions.create(**ask).choices[0]
    assert whole.logprobs is not None and whole.logprobs.content is not None
    told = whole.logprobs.content
    assert all(len(token.top_logprobs) == 2 and token.bytes is not None for token in told)
    shown = b"".join(bytes(token.bytes or ()) for token in told if not token.token.startswith("<|"))
    assert shown.decode(errors="replace") == whole.message.content
    streamed: list[Any] = []
    for chunk in api.chat.completions.create(**ask, stream=True):
        for choice in chunk.choices:
            streamed += (choice.logprobs.content or []) if choice.logprobs else []
    assert [(token.token, token.bytes) for token in streamed] == [(token.token, token.bytes) for token in told]
    # The second prompt came from the cache in part, which rounds differently.
    assert close([token.logprob for token in streamed], [token.logprob for token in told])
    assert all(len(token.top_logprobs) == 2 for token in streamed)


def test_they_survive_preemption_choices_and_stops(api: OpenAI, exact: Server) -> None:
    """What is told of a sampled token is what a prompt with that token in it is told."""
    before = exact.metrics()["llmrt_num_preemptions_total"]
    ask: Any = {
        "model": MODEL, "prompt": CASES[0]["prompt"], "max_tokens": 60, "temperature": 1, "n": 4, "logprobs": 1,
        # Long enough together that not all of them fit.
        "stop": ["."], "extra_body": {"return_token_ids": True, "ignore_eos": True, "min_tokens": 40},
    }  # fmt: skip
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda seed: api.completions.create(**ask, seed=seed), range(4)))
    assert exact.metrics()["llmrt_num_preemptions_total"] > before
    choices = [choice for answer in answers for choice in answer.choices]
    assert len(choices) == 16 and {choice.finish_reason for choice in choices} <= {"stop", "length"}
    for answer in answers:
        counts = [len(choice.model_extra["token_ids"]) for choice in answer.choices]  # type: ignore[index]
        assert answer.usage is not None and sum(counts) == answer.usage.completion_tokens
    for choice in choices[::5]:
        ids = choice.model_extra["token_ids"]  # type: ignore[index]
        assert choice.logprobs is not None and choice.logprobs.token_logprobs is not None
        again = api.completions.create(
            model=MODEL, prompt=[*CASES[0]["prompt"], *ids], max_tokens=0, echo=True, logprobs=0
        )
        logprobs = again.choices[0].logprobs
        assert logprobs is not None and logprobs.token_logprobs is not None
        assert close(choice.logprobs.token_logprobs, logprobs.token_logprobs[-len(ids) :])


@pytest.mark.parametrize("stream", [False, True])
def test_a_list_that_ends_inside_a_character(api: OpenAI, stream: bool) -> None:
    """Case 6 of the field notes: one ``length`` finish, lists of equal length, whatever the last token is."""
    case = next(case for case in CASES if case["name"] == "chinese")
    for max_tokens in range(1, 6):
        told = columns(
            api, stream, prompt=case["prompt"], max_tokens=max_tokens, temperature=0, logprobs=1,
            extra_body={"ignore_eos": True},
        )  # fmt: skip
        assert {len(told[name]) for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")} == {max_tokens}


def test_prompt_logprobs_and_token_ids(exact: Server) -> None:
    case = CASES[0]
    fields = {"max_tokens": 1, "temperature": 0, "prompt_logprobs": 1, "return_token_ids": True}
    with httpx2.Client(base_url=exact.url, timeout=120) as http:
        answers = [http.post("/v1/completions", json={"prompt": case["prompt"], **fields}).json() for _ in range(2)]
        chat = {"messages": [{"role": "user", "content": "Hi"}], **fields}
        asked = http.post("/v1/chat/completions", json=chat).json()
    choice = answers[0]["choices"][0]
    assert choice["prompt_token_ids"] == case["prompt"] and choice["token_ids"] == case["tokens"][:1]
    told = choice["prompt_logprobs"]
    assert told[0] is None
    own = [likely[str(token)]["logprob"] for likely, token in zip(told[1:], case["prompt"][1:], strict=True)]
    assert close(own, case["chosen"][: len(own)])
    warm = answers[1]["choices"][0]["prompt_logprobs"]
    pairs = zip(told[1:], warm[1:], strict=True)
    assert all(cold.keys() == hot.keys() for cold, hot in pairs)
    assert len(asked["prompt_logprobs"]) == len(asked["prompt_token_ids"]) == asked["usage"]["prompt_tokens"]


def test_an_evaluation_harness_reads_its_score(api: OpenAI) -> None:
    """The request of lm-eval's ``local-completions``: ids, one token, and the prompt's logprobs echoed."""
    case = CASES[1]
    answer = api.completions.create(
        model=MODEL,
        prompt=[case["prompt"], CASES[0]["prompt"]],
        max_tokens=1,
        logprobs=1,
        echo=True,
        temperature=0,
        seed=1,
    )
    for choice, one in zip(answer.choices, (case, CASES[0]), strict=True):
        logprobs = choice.logprobs
        assert logprobs is not None and logprobs.token_logprobs is not None and logprobs.top_logprobs is not None
        context = len(one["prompt"])
        assert abs(sum(logprobs.token_logprobs[1:context]) - sum(one["chosen"][: context - 1])) < CLOSE * context
        assert len(logprobs.top_logprobs) == context + 1


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"prompt_logprobs": 1_000_000}, "prompt_logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"allowed_token_ids": [10**6]}, "allowed_token_ids[0]"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"bad_words": ["x"] * 129}, "bad_words"),
        ({"deadline_ms": 0}, "deadline_ms"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
    ],
)
def test_bounds(api: OpenAI, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        api.completions.create(model=MODEL, prompt="x", extra_body=fields)
    assert caught.value.body["param"] == param  # type: ignore[index]
    with pytest.raises(openai.BadRequestError):
        api.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "x"}], logprobs=True, top_logprobs=1_000_000
        )


def test_a_deadline_is_408_or_an_event(exact: Server) -> None:
    body = {"prompt": "Once", "max_tokens": 300, "ignore_eos": True, "deadline_ms": 300}
    with httpx2.Client(base_url=exact.url, timeout=120) as http:
        late = http.post("/v1/completions", json=body)
        assert (late.status_code, late.json()["error"]["code"]) == (408, "deadline_exceeded")
        streamed = http.post("/v1/completions", json={**body, "stream": True})
    events = streamed.text.strip().split("\n\n")
    assert streamed.status_code == 200 and events[-1] == "data: [DONE]"
    assert json.loads(events[-2].removeprefix("data: "))["error"]["type"] == "timeout_error"
    exact.wait_idle()
