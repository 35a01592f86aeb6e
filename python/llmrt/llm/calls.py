"""Requests under way, for callers that wait in a thread of their own."""

from __future__ import annotations

import select
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from llmrt.llm.answer import Growing, RequestOutput, whole
from llmrt.llm.body import Request
from llmrt.llm.engine import Engine

if TYPE_CHECKING:
    from llmrt._core import Client, Response


def wait_for_news(client: Client) -> list[int]:
    """Sleeps until responses have news; returns their keys. Signals are served meanwhile."""
    poller = select.poll()
    poller.register(client, select.POLLIN)
    poller.poll()
    return client.ready()


def all_of(engine: Engine, requests: Iterable[Request]) -> Iterator[tuple[int, RequestOutput]]:
    """Answers with the numbers of their requests, as they end; a bounded number of answers is under way at once.

    Raises :class:`~llmrt.llm.answer.RequestError` for the first that fails. Then, and when the iterator is closed, the
    others are cancelled.
    """
    client = engine.client()
    numbered = enumerate(requests)
    following = next(numbered, None)
    under_way: dict[int, tuple[int, Response, list[bytes], int]] = {}
    choices = 0
    try:
        while True:
            while following and (not under_way or choices + following[1].choices <= engine.concurrency):
                number, request = following
                response = client.request("POST", request.path, request.body)
                under_way[response.key] = (number, response, [], request.choices)
                choices += request.choices
                following = next(numbered, None)
            if not under_way:
                return
            for key in wait_for_news(client):
                if key not in under_way:
                    continue
                number, response, pieces, its_choices = under_way[key]
                pieces.append(response.take())
                if response.ended:
                    del under_way[key]
                    choices -= its_choices
                    if response.status is None:
                        raise engine.lost()
                    yield number, whole(response.status, b"".join(pieces))
    finally:
        for _, response, *_ in under_way.values():
            response.close()


def deltas(engine: Engine, request: Request) -> Iterator[str]:
    """The text of a streamed answer as it comes. Closing the iterator cancels the request."""
    client = engine.client()
    response = client.request("POST", request.path, request.body)
    growing = Growing()
    try:
        while not growing.done:
            wait_for_news(client)
            if text := take(engine, response, growing):
                yield text
    finally:
        response.close()


def take(engine: Engine, response: Response, growing: Growing) -> str:
    """Moves what has arrived from ``response`` to ``growing``; returns its text. Raises what the answer raises."""
    piece = response.take()
    if response.status is None and not response.ended:
        return ""
    text = "" if response.status is None else growing.feed(response.status, piece, response.ended)
    if response.ended and not growing.done:
        raise engine.lost()
    return text
