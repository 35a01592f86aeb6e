"""Load for a server under measurement: streams by ``h2load``, long prompts one after the other."""

from __future__ import annotations

import http.client
import json
import random
import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from typing import Any

from servers import Measured

from llmrt._core import Tokenizer

PATH = "/v1/chat/completions"
QUESTION = "Tell me in a few words what a quick brown fox does when it meets a lazy dog on a warm day in June."
ORDINARY = range(300, 45000)
"""Token ids that are neither special nor single bytes in the model that is used here."""


def chat(model: str, messages: list[dict[str, str]], max_tokens: int, stream: bool) -> dict[str, Any]:
    """A request for exactly ``max_tokens`` tokens."""
    return {
        "model": model,
        "messages": messages,
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": stream,
        "ignore_eos": True,
    }


def question(text: str = QUESTION) -> list[dict[str, str]]:
    """A conversation of one message."""
    return [{"role": "user", "content": text}]


def streams(server: Measured, http2: bool, count: int, requests: int, tokens: int, connections: int = 1) -> int:
    """Runs ``requests`` streamed answers, ``count`` at a time; returns the tokens that the client received.

    HTTP/1.1 uses a connection for each stream, HTTP/2 so many ``connections`` for all. Raises ``RuntimeError`` when an
    answer fails.
    """
    with h2load(server, http2, count, requests, tokens, connections) as process:
        output, _ = process.communicate()
    done = re.search(r"(\d+) succeeded, (\d+) failed, (\d+) errored, (\d+) timeout", output)
    status = re.search(r"status codes: (\d+) 2xx", output)
    events = re.search(r"\((\d+)\) data", output)
    if not done or not status or not events or int(done[1]) != requests or int(status[1]) != requests:
        raise RuntimeError(f"{server.name}: not every answer came:\n{output}")
    # An event has at least its token's text in a JSON object; less means that answers were cut short.
    if int(events[1]) < requests * tokens * 50:
        raise RuntimeError(f"{server.name}: {events[1]} bytes are too few for {requests} x {tokens} tokens:\n{output}")
    return requests * tokens


def h2load(
    server: Measured, http2: bool, count: int, requests: int, tokens: int, connections: int = 1
) -> subprocess.Popen[str]:
    """``h2load`` on its way."""
    body = tempfile.NamedTemporaryFile("w", suffix=".json", prefix="llmrt-bench-")  # noqa: SIM115
    json.dump(chat(server.model, question(), tokens, True), body)
    body.flush()
    together = ["-c", str(connections), "-m", str(count // connections)]
    shape = together if http2 else ["--h1", "-c", str(count), "-m", "1"]
    process = subprocess.Popen(
        [
            *("h2load", "-t", "1", *shape, "-n", str(requests), "-d", body.name),
            *("-H", "content-type: application/json", f"{server.scheme}://{server.host}:{server.port}{PATH}"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    # The file lives as long as the process object.
    process.body = body  # type: ignore[attr-defined]
    return process


def text(tokens: int, rng: random.Random, tokenizer: Tokenizer) -> str:
    """The text of random tokens: few of its words come twice, so that no cache of words helps."""
    return tokenizer.decode(rng.choices(ORDINARY, k=tokens))


def conversations(
    tokenizer: Tokenizer, count: int, tokens: int, warm: bool, rng: random.Random
) -> Iterator[list[dict[str, str]]]:
    """Long prompts of about ``tokens`` tokens; warm ones share all but their last message."""
    shared = text(tokens, rng, tokenizer)
    for _ in range(count):
        if warm:
            yield [{"role": "system", "content": shared}, {"role": "user", "content": text(8, rng, tokenizer)}]
        else:
            yield question(text(tokens, rng, tokenizer))


def ask_all(server: Measured, prompts: Iterable[list[dict[str, str]]]) -> int:
    """Sends prompts one after the other, for one token each; returns their tokens by its usage."""
    connection = http.client.HTTPConnection(server.host, server.port, timeout=60)
    try:
        return sum(ask(connection, server, messages) for messages in prompts)
    finally:
        connection.close()


def ask(connection: http.client.HTTPConnection, server: Measured, messages: list[dict[str, str]]) -> int:
    """One unary request for one token; returns the prompt's tokens."""
    body = json.dumps(chat(server.model, messages, 1, False))
    connection.request("POST", PATH, body, {"content-type": "application/json"})
    response = connection.getresponse()
    answer = json.loads(response.read())
    if response.status != 200:
        raise RuntimeError(f"{server.name} answered {response.status}: {answer}")
    return int(answer["usage"]["prompt_tokens"])
