"""``openai`` in each of its major versions: everything it offers for text, its errors and its retries."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx2
import pytest

from llmrt.supervisor import facts
from support.server import Server, wait_for

from .conftest import MODEL
from .environments import HERE, Environment

VERSIONS = ["openai-1", "openai-2", "openai-3"]
KEY = "a-key-for-tests"
LONG = {"prompt": "Hi", "max_tokens": 8000, "ignore_eos": True, "stream": True}


@pytest.fixture(scope="module", params=VERSIONS)
def environment(request: pytest.FixtureRequest) -> Environment:
    return Environment(request.param)


@pytest.fixture(scope="module")
def seen(environment: Environment, server: Server) -> Any:
    return environment.program("openai_basics", f"{server.url}/v1", MODEL)


def test_the_version_is_the_one_asked_for(seen: Any, environment: Environment) -> None:
    assert f"\nopenai=={seen['version']}\n" in environment.requirements.read_text()


def test_models(seen: Any) -> None:
    assert (seen["models"], seen["model"]) == ([MODEL], MODEL)
    assert seen["no_model"]["code"] == "model_not_found"


def test_chat(seen: Any) -> None:
    chat, chunks = seen["chat"], seen["chat_chunks"]
    [choice] = chat["choices"]
    assert "Paris" in choice["message"]["content"]
    assert (chat["object"], chat["model"], choice["message"]["role"]) == ("chat.completion", MODEL, "assistant")
    assert chat["usage"]["total_tokens"] == chat["usage"]["prompt_tokens"] + chat["usage"]["completion_tokens"]
    parts = [part for chunk in chunks for part in chunk["choices"]]
    assert "".join(part["delta"]["content"] or "" for part in parts) == choice["message"]["content"]
    assert parts[0]["delta"]["role"] == "assistant"
    assert [part["finish_reason"] for part in parts if part["finish_reason"]] == [choice["finish_reason"]]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == chat["usage"]["completion_tokens"]
    assert seen["async"] == {name: choice["message"]["content"] for name in ("whole", "stream")}


def test_completions(seen: Any) -> None:
    [choice] = seen["completion"]["choices"]
    assert "Paris" in choice["text"] and choice["finish_reason"] == "length"
    assert "".join(chunk["choices"][0]["text"] for chunk in seen["completion_chunks"]) == choice["text"]


@pytest.mark.parametrize(
    ("name", "kind", "code"),
    [
        ("temperature", "BadRequestError", None),
        ("model", "NotFoundError", "model_not_found"),
        ("messages", "BadRequestError", "context_length_exceeded"),
        ("stop", "BadRequestError", None),
    ],
)
def test_errors(seen: Any, name: str, kind: str, code: str | None) -> None:
    error = seen["errors"][name]
    assert error["class"] == kind and error["id"]
    assert error["body"]["type"] == "invalid_request_error" and error["body"]["message"]
    assert (error["body"]["param"], error["body"]["code"]) == (name, code)


# --- Retries


@pytest.fixture(scope="module")
def narrow() -> Iterator[Server]:
    """A server that holds two requests, and wants a key."""
    places = ("--max-num-seqs", "1", "--max-num-queued-reqs", "1", "--max-core-restarts", "1000")
    headers = {"Authorization": f"Bearer {KEY}"}
    mocked = Server("--engine", "mock", *places, "--api-key", KEY, headers=headers)
    yield mocked
    assert mocked.stop() == 0, mocked.log


class Client:
    """``openai_retries.py``, ready to ask."""

    def __init__(self, environment: Environment, server: Server, retries: int, key: str = KEY) -> None:
        program = [str(environment.python), "-I", str(HERE / "programs" / "openai_retries.py")]
        self._process = subprocess.Popen(
            [*program, f"{server.url}/v1", MODEL, str(retries), key],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.line() == {"ready": True}

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        with self._process:
            self._process.kill()

    def ask(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def line(self) -> Any:
        """The next thing it says: an answer of the server, or the end."""
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())


@contextmanager
def full(server: Server) -> Iterator[None]:
    """All places of the server are taken."""
    with ExitStack() as stack:
        http = stack.enter_context(httpx2.Client(base_url=server.url, headers=server.headers, timeout=60))
        for _ in range(2):
            response = stack.enter_context(http.stream("POST", "/v1/completions", json=LONG))
            assert response.status_code == 200
        yield
    server.wait_idle()


def check_answers(client: Client, status: int) -> None:
    """The client hears ``status``, at least once, comes again when it was told to, and has its answer then."""
    said = [client.line()]
    while "status" in said[-1]:
        said.append(client.line())
    *answers, end = said
    assert [answer["status"] for answer in answers] == [status] * (len(answers) - 1) + [200]
    assert len(answers) >= 2 and end["text"]
    for refused, again in itertools.pairwise(answers):
        assert again["at"] - refused["at"] >= int(refused["retry_after_ms"]) / 1000


def test_a_refused_request_comes_again(environment: Environment, narrow: Server) -> None:
    refusals = "llmrt_admission_rejections_total"
    before = narrow.metrics().get(refusals, 0)
    with Client(environment, narrow, retries=9) as client:
        with full(narrow):
            client.ask()
            wait_for(lambda: narrow.metrics().get(refusals, 0) > before, "a refusal")
        check_answers(client, 429)


def test_a_request_whose_core_dies_comes_again(environment: Environment, narrow: Server) -> None:
    [own] = (each for each in facts.running() if each.pid == narrow.process.pid)
    with Client(environment, narrow, retries=9) as client:
        client.ask()
        wait_for(lambda: narrow.metrics()["llmrt_num_requests_running"] == 1, "the request to run")
        os.kill(own.processes["mock engine"], signal.SIGKILL)
        check_answers(client, 503)


def test_without_retries_a_refusal_is_an_error(environment: Environment, narrow: Server) -> None:
    with Client(environment, narrow, retries=0) as client, full(narrow):
        client.ask()
        refused, end = client.line(), client.line()
    assert (refused["status"], end["error"]) == (429, "RateLimitError")
    # What the server has seen end tells it when there will be room, within bounds.
    assert 100 <= int(refused["retry_after_ms"]) <= 60_000
    assert (end["body"]["type"], end["body"]["code"]) == ("rate_limit_error", "rate_limit_exceeded")


def test_a_wrong_key_is_not_tried_again(environment: Environment, narrow: Server) -> None:
    with Client(environment, narrow, retries=9, key="another") as client:
        client.ask()
        refused, end = client.line(), client.line()
    assert (refused["status"], end["error"], end["body"]["code"]) == (401, "AuthenticationError", "invalid_api_key")
