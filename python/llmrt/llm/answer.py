"""What comes back: answers, whole or growing, and errors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import msgspec

_EVENT = b"\n\n"
_DATA = b"data: "
_DONE = b"[DONE]"
# An error event names its type, as its head has been sent with status 200.
_STATUS = {
    "invalid_request_error": 400,
    "timeout_error": 408,
    "rate_limit_error": 429,
    "service_unavailable_error": 503,
}


@dataclass(frozen=True)
class RequestOutput:
    """One answer, or as much of it as there is yet: then ``finish_reason`` is ``None`` and the counts are 0."""

    text: str
    finish_reason: str | None = None
    """``stop`` (end-of-sequence token, stop token or stop text), ``length``, or ``abort``."""
    stop_reason: int | str | None = None
    """The stop text or the id out of ``stop_token_ids`` that ended the answer."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens that came from the prefix cache."""


class RequestError(Exception):
    """A request that was refused or failed, as the HTTP API would have answered it."""

    def __init__(self, message: str, status: int, type: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        """HTTP status: 400 for a request that cannot be answered as it is, 429 for a full queue, 503 without a core."""
        self.type = type
        self.param = param
        """The field at fault, if it is one."""
        self.code = code

    def __reduce__(self) -> tuple[Any, ...]:
        return RequestError, (str(self), self.status, self.type, self.param, self.code)


def lost(reason: str) -> RequestError:
    """The error of an answer that broke off without one."""
    return RequestError(reason, 503, "service_unavailable_error")


def whole(status: int, body: bytes) -> RequestOutput:
    """Reads an answer that is not streamed. Raises :class:`RequestError` if it is an error."""
    answer = msgspec.json.decode(body)
    if status != 200:
        raise _error(status, answer["error"])
    choice = answer["choices"][0]
    text = choice["message"]["content"] if "message" in choice else choice["text"]
    return RequestOutput(text, choice["finish_reason"], choice["stop_reason"], **_counts(answer["usage"]))


class Growing:
    """An answer that arrives as Server-Sent Events."""

    def __init__(self) -> None:
        self.output = RequestOutput("")
        """All of it so far."""
        self.done = False
        """Whether the last event has come."""
        self._rest = b""

    def feed(self, status: int, piece: bytes, ended: bool) -> str:
        """Takes a piece of the body and returns the text in it. Raises :class:`RequestError` if it holds an error."""
        if status != 200:
            self._rest += piece
            if ended:
                raise _error(status, msgspec.json.decode(self._rest)["error"])
            return ""
        *events, self._rest = (self._rest + piece).split(_EVENT)
        return "".join([self._take(event.removeprefix(_DATA)) for event in events])

    def _take(self, event: bytes) -> str:
        if event == _DONE:
            self.done = True
            return ""
        chunk = msgspec.json.decode(event)
        if "error" in chunk:
            raise _error(_STATUS.get(chunk["error"]["type"], 500), chunk["error"])
        before = self.output
        if not chunk["choices"]:
            self.output = replace(before, **_counts(chunk["usage"]))
            return ""
        choice = chunk["choices"][0]
        text: str = choice["text"] if "text" in choice else choice["delta"].get("content") or ""
        reason, stop = choice["finish_reason"], choice.get("stop_reason")
        self.output = replace(before, text=before.text + text, finish_reason=reason, stop_reason=stop)
        return text


def _error(status: int, error: dict[str, Any]) -> RequestError:
    return RequestError(error["message"], status, error["type"], error["param"], error["code"])


def _counts(usage: dict[str, Any]) -> dict[str, Any]:
    return {
        "prompt_tokens": usage["prompt_tokens"],
        "completion_tokens": usage["completion_tokens"],
        "cached_tokens": usage["prompt_tokens_details"]["cached_tokens"],
    }
