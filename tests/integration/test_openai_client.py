"""The real ``openai`` client: sync and async, HTTP/1.1 and HTTP/2, streamed and not, errors."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, DefaultAsyncHttpxClient, DefaultHttpxClient, OpenAI

from support.server import Server

from .conftest import MODEL

MESSAGES: Any = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(params=["http1", "http2"])
def transport(request: pytest.FixtureRequest) -> dict[str, bool]:
    return {"http1": request.param == "http1", "http2": request.param == "http2"}


@pytest.fixture
def sync_client(server: Server, transport: dict[str, bool]) -> Any:
    with OpenAI(base_url=f"{server.url}/v1", api_key="unused", http_client=DefaultHttpxClient(**transport)) as client:
        yield client


def async_client(server: Server, transport: dict[str, bool]) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{server.url}/v1", api_key="unused", http_client=DefaultAsyncHttpxClient(**transport))


def test_chat(sync_client: OpenAI) -> None:
    answer = sync_client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=24, temperature=0)
    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.id.startswith("chatcmpl-") and answer.object == "chat.completion" and answer.model == MODEL


def test_chat_stream(sync_client: OpenAI) -> None:
    ask: Any = {"model": MODEL, "messages": MESSAGES, "max_tokens": 24, "temperature": 0}
    whole = sync_client.chat.completions.create(**ask)
    chunks = list(sync_client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert [reason for reason in reasons if reason] == [whole.choices[0].finish_reason]
    assert chunks[-1].choices == [] and chunks[-1].usage is not None and whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert len({chunk.id for chunk in chunks}) == 1


def test_completions(sync_client: OpenAI) -> None:
    ask: Any = {"model": MODEL, "prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}
    whole = sync_client.completions.create(**ask)
    assert "Paris" in whole.choices[0].text
    assert whole.usage is not None and whole.usage.completion_tokens == 8
    streamed = "".join(chunk.choices[0].text for chunk in sync_client.completions.create(**ask, stream=True))
    assert streamed == whole.choices[0].text


def test_completions_default_to_16_tokens(sync_client: OpenAI) -> None:
    answer = sync_client.completions.create(
        model=MODEL, prompt="Once upon a time", temperature=0, extra_body={"ignore_eos": True}
    )
    assert answer.usage is not None and answer.usage.completion_tokens == 16
    assert answer.choices[0].finish_reason == "length"


def test_models(sync_client: OpenAI) -> None:
    assert [model.id for model in sync_client.models.list()] == [MODEL]
    assert sync_client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError):
        sync_client.models.retrieve("no-such-model")


@pytest.mark.parametrize(
    ("change", "error", "param"),
    [
        ({"temperature": 3}, openai.BadRequestError, "temperature"),
        ({"messages": []}, openai.BadRequestError, "messages"),
        ({"model": "no-such-model"}, openai.NotFoundError, "model"),
        ({"stop": ["a", "b", "c", "d", "e"]}, openai.BadRequestError, "stop"),
        ({"tools": []}, openai.BadRequestError, "tools"),
        ({"n": 5_000_000}, openai.BadRequestError, "n"),
        ({"stream_options": {"include_usage": True}}, openai.BadRequestError, "stream_options"),
        ({"logit_bias": {"9999999": 1}}, openai.BadRequestError, "logit_bias"),
        ({"extra_body": {"stop_token_ids": [-1]}}, openai.BadRequestError, "stop_token_ids"),
        ({"messages": [{"role": "user", "content": "x " * 20_000}]}, openai.BadRequestError, "messages"),
    ],
)
def test_errors(sync_client: OpenAI, change: dict[str, Any], error: type[openai.APIStatusError], param: str) -> None:
    with pytest.raises(error) as caught:
        sync_client.chat.completions.create(**{"model": MODEL, "messages": MESSAGES, **change})
    body: Any = caught.value.body
    assert set(body) == {"message", "type", "param", "code"}
    assert body["param"].startswith(param) and body["message"]
    assert caught.value.response.headers["x-request-id"]


@pytest.mark.parametrize("stream", [False, True])
def test_async(server: Server, transport: dict[str, bool], stream: bool) -> None:
    import asyncio

    async def one(client: AsyncOpenAI, number: int) -> str:
        ask: Any = {
            "model": MODEL,
            "messages": [{"role": "user", "content": f"Count up from {number}."}],
            "max_tokens": 12,
            "temperature": 0,
        }
        if not stream:
            return (await client.chat.completions.create(**ask)).choices[0].message.content or ""
        parts = [chunk async for chunk in await client.chat.completions.create(**ask, stream=True)]
        return "".join(part.choices[0].delta.content or "" for part in parts if part.choices)

    async def many() -> list[str]:
        async with async_client(server, transport) as client:
            return await asyncio.gather(*(one(client, number) for number in range(8)))

    answers = asyncio.run(many())
    assert len(answers) == 8 and all(answers)


def test_async_leave_after_first_chunk(server: Server, transport: dict[str, bool]) -> None:
    import asyncio

    async def leave() -> None:
        async with async_client(server, transport) as client:
            stream = await client.chat.completions.create(
                model=MODEL, messages=MESSAGES, max_tokens=4000, stream=True, extra_body={"ignore_eos": True}
            )
            async for _ in stream:
                break
            await stream.close()

    asyncio.run(leave())
    server.wait_idle()
