"""What a request may end with: each answer is checked to be whole, and to end once."""

from __future__ import annotations

import enum
import json
from typing import Any

from llmrt import wire


class Broken(AssertionError):
    """An answer that no client may see."""


class End(enum.Enum):
    """How a request ended, as its client saw it."""

    ANSWERED = "answered"
    FAILED = "failed"
    """An error after the head of a stream."""
    REFUSED = "refused"
    """An error status."""
    LEFT = "left"
    """The client went away first."""
    CUT = "cut"
    """The server hung up on a client that did not read."""
    LOST = "lost"
    """The connection broke: its entry worker died."""


class Stream:
    """Reads the events of one stream: exactly one end for each of its ``choices``, and nothing behind it."""

    def __init__(self, choices: int = 1) -> None:
        self._rest = b""
        self._open = set(range(choices))
        self.events = 0
        self.failed = False
        self.done = False
        self.worker: int | None = None
        """The entry worker that answers, once it is known."""

    def feed(self, data: bytes) -> None:
        *events, self._rest = (self._rest + data).split(b"\n\n")
        for event in events:
            if not event.startswith(b":"):
                self._take(event.removeprefix(b"data: "))

    def _take(self, event: bytes) -> None:
        self.events += 1
        if self.done:
            raise Broken(f"behind [DONE]: {event[:200]!r}")
        if event == b"[DONE]":
            if self._open:
                raise Broken("[DONE] without an end")
            self.done = True
            return
        chunk = json.loads(event)
        if "error" in chunk and self._open:
            check_error(chunk)
            self.failed = True
            self._open.clear()
            return
        self.worker = wire.worker_of(int(chunk["id"][-16:], 16))
        (choice,) = chunk["choices"]
        if choice["index"] not in self._open:
            raise Broken(f"behind the end: {event[:200]!r}")
        if choice["finish_reason"] is not None:
            if choice["finish_reason"] not in ("length", "stop"):
                raise Broken(f"an odd end: {event[:500]!r}")
            self._open.remove(choice["index"])

    def close(self) -> End:
        """The stream is over."""
        if not self.done or self._rest:
            raise Broken(f"a stream broke off after {self.events} events: {self._rest[:200]!r}")
        return End.FAILED if self.failed else End.ANSWERED


def check_error(body: Any) -> None:
    """An error of the API has all of its members."""
    error = body["error"]
    if set(error) != {"message", "type", "param", "code"} or not error["message"]:
        raise Broken(f"not an error of the API: {body}")


def check_whole(status: int, body: bytes) -> End:
    """A whole answer, or an error that clients know how to take."""
    value = json.loads(body)
    if status == 200:
        if value["choices"][0]["finish_reason"] not in ("length", "stop"):
            raise Broken(f"an odd end: {body[:500]!r}")
        return End.ANSWERED
    check_error(value)
    if status not in (429, 503):
        raise Broken(f"status {status}: {body[:500]!r}")
    return End.REFUSED
