"""``import llmrt``: several answers, logprobs and token ids, from a program that runs an event loop already."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmrt import LLM, AsyncLLM, SamplingParams

CAPITAL = "The capital of France is"
CONVERSATION = [{"role": "user", "content": "Say hello."}]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(kv_cache_memory=0.5) as shared:
        yield shared


def test_several_answers(llm: LLM) -> None:
    params = SamplingParams(n=3, temperature=1, seed=7, max_tokens=6, ignore_eos=True)
    for output in (llm.generate(CAPITAL, params, use_tqdm=False)[0], llm.chat(CONVERSATION, params, use_tqdm=False)[0]):
        assert [each.index for each in output.outputs] == [0, 1, 2]
        assert [len(each.token_ids) for each in output.outputs] == [6, 6, 6]
        assert len({each.text for each in output.outputs}) > 1
        assert output.completion_tokens == 18 and output.finished
    one = SamplingParams(temperature=1, seed=7, max_tokens=6, ignore_eos=True)
    first = llm.generate(CAPITAL, params, use_tqdm=False)[0].outputs[0]
    assert first == llm.generate(CAPITAL, one, use_tqdm=False)[0].outputs[0]
    with pytest.raises(ValueError, match="a stream is one answer"):
        next(llm.stream(CAPITAL, params))


def test_more_answers_than_may_be_open() -> None:
    params = SamplingParams(n=100, temperature=1, max_tokens=1)
    with LLM(engine="mock", mock_step_ms=1) as llm:
        assert llm._engine.concurrency < 1400
        outputs = llm.generate([[5]] * 14, params, use_tqdm=False)
    assert [len(output.outputs) for output in outputs] == [100] * 14


@pytest.mark.parametrize("prompt", [CAPITAL, CONVERSATION])
def test_logprobs_by_id(llm: LLM, prompt: object) -> None:
    params = SamplingParams(temperature=0, max_tokens=5, logprobs=3, prompt_logprobs=1)
    answer = llm.generate if prompt is CAPITAL else llm.chat
    [output] = answer(prompt, params, use_tqdm=False)  # type: ignore[operator]
    assert output.logprobs is not None and output.prompt_logprobs is not None
    assert len(output.logprobs) == len(output.token_ids) == 5
    for token, likely in zip(output.token_ids, output.logprobs, strict=True):
        # Greedy: the token is the likeliest of the three.
        assert len(likely) == 3 and max(likely, key=lambda id: likely[id].logprob) == token
    assert len(output.prompt_logprobs) == len(output.prompt_token_ids) == output.prompt_tokens
    assert output.prompt_logprobs[0] is None
    for token, told in zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True):
        assert told is not None and token in told and len(told) <= 2
    again = llm.generate(output.prompt_token_ids, params, use_tqdm=False)[0]
    assert again.token_ids == output.token_ids and again.prompt_token_ids == output.prompt_token_ids


def test_tokens_that_may_and_must_not_come(llm: LLM) -> None:
    [free] = llm.generate(CAPITAL, SamplingParams(temperature=0, max_tokens=4), use_tqdm=False)
    assert "Paris" in free.text
    [held] = llm.generate(CAPITAL, SamplingParams(temperature=0, max_tokens=4, bad_words=["Paris"]), use_tqdm=False)
    assert "Paris" not in held.text
    allowed = [100, 200, 300]
    [few] = llm.generate(
        CAPITAL, SamplingParams(temperature=1, max_tokens=8, allowed_token_ids=allowed, ignore_eos=True), use_tqdm=False
    )
    assert set(few.token_ids) <= set(allowed) and len(few.token_ids) == 8


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"n": 0}, "`n` must be"),
        ({"n": 2, "temperature": 0}, "`n` is 2"),
        ({"logprobs": 21}, "`logprobs` must be"),
        ({"prompt_logprobs": -1}, "`prompt_logprobs` must be"),
        ({"allowed_token_ids": []}, "`allowed_token_ids` is empty"),
        ({"bad_words": [""]}, r"`bad_words\[0\]` is empty"),
    ],
)
def test_new_fields_are_checked_at_construction(fields: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        SamplingParams(**fields)  # type: ignore[arg-type]


SCRIPT = """
    import asyncio
    from llmrt import LLM, AsyncLLM, SamplingParams

    params = SamplingParams(temperature=0, max_tokens=4, logprobs=1)

    async def cell():
        # A notebook runs its cells inside an event loop: both kinds must work there. Two processes with a model may
        # differ in the last digits, those of the mock engine do not.
        with LLM(engine="mock") as llm:
            [whole] = llm.generate("The capital of France is", params, use_tqdm=False)
            streamed = "".join(llm.stream("The capital of France is", params))
        async with await asyncio.to_thread(AsyncLLM, engine="mock") as llm:
            parts = [part async for part in llm.generate("The capital of France is", params)]
        assert streamed == whole.text == parts[-1].text
        assert parts[-1].logprobs == whole.logprobs and parts[-1].token_ids == whole.token_ids
        print("same")

    asyncio.run(cell())
"""


def test_a_running_loop_and_no_guard(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=250)
    assert (done.stdout, done.returncode) == ("same\n", 0), done.stderr


def test_async_answers_grow_together() -> None:
    async def use() -> None:
        params = SamplingParams(n=2, temperature=1, seed=1, max_tokens=6, ignore_eos=True)
        async with await asyncio.to_thread(AsyncLLM, engine="mock") as llm:
            *growing, last = [output async for output in llm.generate(CAPITAL, params)]
        assert not any(output.finished for output in growing) and last.finished
        assert [len(each.token_ids) for each in last.outputs] == [6, 6]
        assert last.prompt_token_ids and last.completion_tokens == 12

    asyncio.run(use())
