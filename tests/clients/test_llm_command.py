"""Simon Willison's ``llm`` on the command line, with llmrt in its ``extra-openai-models.yaml``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from support.server import Server

from .conftest import MODEL
from .environments import Environment

Llm = Callable[..., str]
QUESTION = ("What is the capital of France?", "-o", "temperature", "0", "-o", "max_tokens", "16")


@pytest.fixture(scope="module")
def llm(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Llm:
    """Runs the command with a user folder of its own and returns what it prints."""
    environment = Environment("llm")
    folder: Path = tmp_path_factory.mktemp("llm")
    models = [
        {"model_id": "chat", "model_name": MODEL, "api_base": f"{server.url}/v1"},
        {"model_id": "text", "model_name": MODEL, "api_base": f"{server.url}/v1", "completion": True},
    ]
    (folder / "extra-openai-models.yaml").write_text(json.dumps(models))
    return lambda *command: environment.python_output("-m", "llm", *command, LLM_USER_PATH=str(folder))


def test_the_models_are_listed(llm: Llm) -> None:
    listed = llm("models")
    assert "OpenAI Chat: chat" in listed and "OpenAI Completion: text" in listed


def test_streamed_and_not_and_on(llm: Llm) -> None:
    streamed = llm("-m", "chat", *QUESTION)
    assert "Paris" in streamed
    assert llm("-m", "chat", "--no-stream", *QUESTION) == streamed
    assert llm("-c", "And of Italy?", "-o", "max_tokens", "8").strip()
    first, second, third = json.loads(llm("logs", "--json"))
    assert first["output_tokens"] == second["output_tokens"]
    # The conversation went on: its first turn is part of the prompt.
    assert third["input_tokens"] > second["input_tokens"] and third["conversation_id"] == second["conversation_id"]


def test_text_model(llm: Llm) -> None:
    assert "Paris" in llm("-m", "text", "The capital of France is", "-o", "temperature", "0", "-o", "max_tokens", "8")
