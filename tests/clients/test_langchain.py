"""``langchain-openai``: chat and text models, whole, streamed, in batches and in a chain."""

from __future__ import annotations

from typing import Any

import pytest

from support.server import Server

from .conftest import MODEL
from .environments import Environment


@pytest.fixture(scope="module")
def seen(server: Server) -> Any:
    return Environment("langchain").program("langchain_openai_basics", f"{server.url}/v1", MODEL)


def test_invoke(seen: Any) -> None:
    answer = seen["invoke"]
    assert "Paris" in answer["text"]
    assert answer["metadata"]["finish_reason"] in ("stop", "length")
    assert answer["metadata"]["model_name"] == MODEL
    assert answer["usage"]["total_tokens"] == answer["usage"]["input_tokens"] + answer["usage"]["output_tokens"]
    assert seen["conversation"]


def test_stream(seen: Any) -> None:
    assert len(seen["stream"]) > 2 and "".join(seen["stream"]) == seen["invoke"]["text"]
    assert seen["stream_usage"]["output_tokens"] == seen["invoke"]["usage"]["output_tokens"]


def test_batch(seen: Any) -> None:
    assert seen["batch"] == seen["one_by_one"]
    assert len(set(seen["batch"])) == 3 and seen["batch"][0] == seen["invoke"]["text"]


def test_chain_and_async_say_the_same(seen: Any) -> None:
    assert seen["chain"] == seen["async"]["whole"] == seen["async"]["stream"] == seen["invoke"]["text"]


def test_text_model(seen: Any) -> None:
    assert "Paris" in seen["text"] and "".join(seen["text_stream"]) == seen["text"]


def test_an_error_names_the_field(seen: Any) -> None:
    assert seen["error"]["param"] == "temperature"
