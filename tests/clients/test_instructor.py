"""``instructor`` in its plain mode: JSON in a text, without tools or a response format."""

from __future__ import annotations

from typing import Any

import pytest

from llmrt import model_source
from llmrt._core import Tokenizer
from support.server import Server

from .conftest import MODEL
from .environments import Environment

ANSWER = '```json\n{"name": "Ada", "age": 36}\n```'


@pytest.fixture(scope="module")
def seen() -> Any:
    """The small model can not be trusted with JSON: the mock engine says it, once."""
    tokens = len(Tokenizer.from_gguf(model_source.resolve(None).path).encode(ANSWER))
    once = ("--mock-text", ANSWER, "--mock-answer-tokens", str(tokens))
    server = Server("--engine", "mock", "--mock-step-ms", "1", *once)
    try:
        return Environment("instructor").program("instructor_plain", f"{server.url}/v1", MODEL)
    finally:
        assert server.stop() == 0, server.log


def test_an_object(seen: Any) -> None:
    assert seen["person"] == {"name": "Ada", "age": 36}
    assert seen["completion"]["choices"][0]["message"]["content"] == ANSWER


def test_an_object_that_grows(seen: Any) -> None:
    assert seen["first_partial"] != seen["last_partial"] == {"name": "Ada", "age": 36}


def test_what_does_not_fit_is_asked_for_again(seen: Any) -> None:
    assert seen["attempts"] == 1 + 2
