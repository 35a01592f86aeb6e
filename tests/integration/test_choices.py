"""Several answers to a request and several prompts in one, through the real ``openai`` client."""

from __future__ import annotations

from typing import Any

import httpx2
import openai
import pytest
from openai import OpenAI

from support.server import Server

from .conftest import MODEL

MESSAGES: Any = [{"role": "user", "content": "Name an animal."}]
PROMPT = "The capital of France is"


@pytest.fixture(scope="module")
def api(server: Server) -> Any:
    with OpenAI(base_url=f"{server.url}/v1", api_key="unused") as client:
        yield client


def test_choices_are_reproducible_and_differ(api: OpenAI) -> None:
    ask: Any = {"model": MODEL, "messages": MESSAGES, "max_tokens": 12, "temperature": 1, "seed": 11}
    one = api.chat.completions.create(**ask)
    four = api.chat.completions.create(**ask, n=4)
    texts = [choice.message.content for choice in four.choices]
    assert [choice.index for choice in four.choices] == [0, 1, 2, 3]
    assert texts[0] == one.choices[0].message.content
    assert len(set(texts)) > 1
    assert texts == [choice.message.content for choice in api.chat.completions.create(**ask, n=4).choices]
    assert four.usage is not None and one.usage is not None
    assert four.usage.prompt_tokens == one.usage.prompt_tokens
    assert four.usage.completion_tokens > one.usage.completion_tokens


def test_streamed_choices_have_one_finish_each(api: OpenAI) -> None:
    """Case 7 of the field notes: one finish per index, one usage, one ``[DONE]``."""
    ask: Any = {"model": MODEL, "messages": MESSAGES, "max_tokens": 12, "temperature": 1, "seed": 3, "n": 3}
    whole = api.chat.completions.create(**ask)
    chunks = list(api.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    texts, finishes = ["", "", ""], [[], [], []]  # type: ignore[var-annotated]
    for chunk in chunks[:-1]:
        [choice] = chunk.choices
        texts[choice.index] += choice.delta.content or ""
        if choice.finish_reason:
            finishes[choice.index].append(choice.finish_reason)
    assert texts == [choice.message.content for choice in whole.choices]
    assert finishes == [[choice.finish_reason] for choice in whole.choices]
    assert chunks[-1].choices == [] and [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].usage is not None and whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_lists_of_prompts(api: OpenAI, server: Server) -> None:
    tokens = httpx2.post(f"{server.url}/tokenize", json={"prompt": "Once upon a"}).json()["tokens"]
    ask: Any = {"model": MODEL, "max_tokens": 6, "temperature": 0}
    alone = [api.completions.create(prompt=prompt, **ask) for prompt in (PROMPT, "Once upon a")]
    for prompts in ([PROMPT, "Once upon a"], [PROMPT, tokens]):
        answer = api.completions.create(prompt=prompts, **ask)  # type: ignore[arg-type]
        assert [choice.text for choice in answer.choices] == [each.choices[0].text for each in alone]
        assert answer.usage is not None
        assert answer.usage.prompt_tokens == sum(each.usage.prompt_tokens for each in alone if each.usage)
    answer = api.completions.create(
        prompt=[PROMPT, "Once upon a"], model=MODEL, n=2, max_tokens=4, temperature=1, seed=4
    )
    again = api.completions.create(prompt="Once upon a", model=MODEL, n=2, max_tokens=4, temperature=1, seed=4)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in answer.choices[2:]] == [choice.text for choice in again.choices]


def test_usage_in_every_chunk(api: OpenAI) -> None:
    options: Any = {"include_usage": True, "continuous_usage_stats": True}
    chunks = list(
        api.completions.create(
            model=MODEL, prompt=PROMPT, max_tokens=5, temperature=0, stream=True, stream_options=options
        )
    )
    counts = [chunk.usage.completion_tokens for chunk in chunks if chunk.usage]
    assert len(counts) == len(chunks) and counts == sorted(counts) and counts[0] >= 1 and counts[-1] == 5


def test_the_way_from_a_prompt_to_its_tokens(api: OpenAI, server: Server) -> None:
    def prompt_tokens(**fields: Any) -> int:
        answer = api.chat.completions.create(
            model=MODEL, messages=MESSAGES, max_tokens=1, temperature=0, extra_body=fields
        )
        assert answer.usage is not None
        return answer.usage.prompt_tokens

    whole = prompt_tokens()
    # <|im_start|>, "ass", "istant" and the end of the line.
    assert prompt_tokens(add_generation_prompt=False) == whole - 4
    assert prompt_tokens(truncate_prompt_tokens=5) == 5
    assert prompt_tokens(chat_template_kwargs={"unused": 1}) == whole
    opened: Any = [*MESSAGES, {"role": "assistant", "content": "The capital of France is"}]
    answer = api.chat.completions.create(
        model=MODEL, messages=opened, max_tokens=4, temperature=0, extra_body={"continue_final_message": True}
    )
    assert "Paris" in (answer.choices[0].message.content or "")
    with httpx2.Client(base_url=server.url) as http:
        cut = http.post("/tokenize", json={"prompt": PROMPT, "truncate_prompt_tokens": 2, "return_token_strs": True})
        assert cut.json()["token_strs"] == ["ĠFrance", "Ġis"]


def test_a_salt_keeps_prefixes_apart(api: OpenAI) -> None:
    prompt = "A long sentence that fills pages of the cache, word after word, until there are enough of them. " * 3

    def cached(salt: str) -> int:
        answer = api.completions.create(model=MODEL, prompt=prompt, max_tokens=1, extra_body={"cache_salt": salt})
        assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
        return answer.usage.prompt_tokens_details.cached_tokens or 0

    assert [cached("one"), cached("two")] == [0, 0]
    assert cached("one") >= 32 and cached("two") >= 32


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 5_000_000}, "n"),
        ({"n": 0}, "n"),
        ({"n": 2, "temperature": 0}, "n"),
        ({"n": 2, "best_of": 3}, "best_of"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [""]}, "prompt[0]"),
        ({"prompt": [[1], []]}, "prompt[1]"),
        ({"prompt": ["x"] * 129}, "prompt"),
        ({"prompt": ["x"] * 65, "n": 2}, "prompt"),
        ({"prompt": [[-1]]}, "prompt[0][0]"),
        ({"priority": 1}, "priority"),
        ({"documents": [{"text": "x"}]}, "documents"),
    ],
)
def test_refusals(api: OpenAI, server: Server, fields: dict[str, Any], param: str) -> None:
    with httpx2.Client(base_url=server.url) as http:
        answer = http.post("/v1/completions", json={"model": MODEL, "prompt": PROMPT, "max_tokens": 1, **fields})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    with pytest.raises(openai.BadRequestError):
        api.completions.create(model=MODEL, prompt=PROMPT, extra_body=fields)


def test_leaving_frees_every_choice(server: Server) -> None:
    # Over HTTP/2 this client leaves with its connection alone.
    with OpenAI(base_url=f"{server.url}/v1", api_key="unused") as leaver:
        stream = leaver.completions.create(
            model=MODEL, prompt=PROMPT, n=4, max_tokens=4000, stream=True, extra_body={"ignore_eos": True}
        )
        next(iter(stream))
        assert server.metrics()["llmrt_num_requests_running"] == 4
    server.wait_idle()
