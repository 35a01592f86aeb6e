"""What comes back: answers, whole or growing, and errors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from llmrt.llm.logprobs import PromptLogprobs, SampleLogprobs, of_answer, of_prompt

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
class CompletionOutput:
    """One answer to a prompt, or as much of it as there is yet."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    """Its tokens, a stop token among them."""
    logprobs: SampleLogprobs | None = None
    """For each token, the logprobs of it and of the likeliest ones by id; ``None`` when not asked for."""
    finish_reason: str | None = None
    """``stop`` (end-of-sequence token, stop token or stop text), ``length``, or ``abort``; ``None`` while it grows."""
    stop_reason: int | str | None = None
    """The stop text or the id out of ``stop_token_ids`` that ended the answer."""


@dataclass(frozen=True)
class RequestOutput:
    """The answers to one prompt, or as much of them as there is yet: then the counts are 0.

    ``text``, ``token_ids``, ``logprobs``, ``finish_reason`` and ``stop_reason`` are those of the first answer.
    """

    outputs: list[CompletionOutput]
    prompt_token_ids: list[int] = field(default_factory=list)
    prompt_logprobs: PromptLogprobs | None = None
    """As for an answer; nothing stands before the first token, which has ``None``."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    """Of all answers together."""
    cached_tokens: int = 0
    """Prompt tokens that came from the prefix cache."""

    @property
    def finished(self) -> bool:
        """Whether every answer has ended."""
        return all(output.finish_reason is not None for output in self.outputs)

    @property
    def text(self) -> str:
        return self.outputs[0].text

    @property
    def token_ids(self) -> list[int]:
        return self.outputs[0].token_ids

    @property
    def logprobs(self) -> SampleLogprobs | None:
        return self.outputs[0].logprobs

    @property
    def finish_reason(self) -> str | None:
        return self.outputs[0].finish_reason

    @property
    def stop_reason(self) -> int | str | None:
        return self.outputs[0].stop_reason


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
    growing = Growing(len(answer["choices"]))
    growing.add(answer)
    return growing.output


class Growing:
    """Answers that arrive as Server-Sent Events, ``n`` of them."""

    def __init__(self, n: int = 1) -> None:
        self.done = False
        """Whether the last event has come."""
        self._choices = [_Choice() for _ in range(n)]
        self._prompt_token_ids: list[int] = []
        self._prompt_logprobs: PromptLogprobs | None = None
        self._counts: dict[str, int] = {}
        self._rest = b""

    @property
    def output(self) -> RequestOutput:
        """All of them so far."""
        outputs = [choice.output(index) for index, choice in enumerate(self._choices)]
        return RequestOutput(outputs, self._prompt_token_ids, self._prompt_logprobs, **self._counts)

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
        return self.add(chunk)

    def add(self, part: dict[str, Any]) -> str:
        """Takes a chunk, or a whole answer as the only one; returns its text."""
        text = ""
        self._learn(part)
        for choice in part["choices"]:
            self._learn(choice)
            text += self._choices[choice["index"]].add(choice)
        if part.get("usage"):
            self._counts = _counts(part["usage"])
        return text

    def _learn(self, part: dict[str, Any]) -> None:
        """What there is to learn of the prompt: chats tell it beside their choices, completions in them."""
        if part.get("prompt_token_ids"):
            self._prompt_token_ids = part["prompt_token_ids"]
        if part.get("prompt_logprobs"):
            self._prompt_logprobs = of_prompt(part["prompt_logprobs"])


class _Choice:
    """One answer as it grows."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._token_ids: list[int] = []
        self._logprobs: SampleLogprobs | None = None
        self._ended: dict[str, Any] = {}

    def add(self, choice: dict[str, Any]) -> str:
        message = choice.get("delta") or choice.get("message") or {}
        text: str = choice["text"] if "text" in choice else message.get("content") or ""
        self._texts.append(text)
        self._token_ids += choice.get("token_ids") or []
        if choice.get("logprobs"):
            self._logprobs = (self._logprobs or []) + of_answer(choice["logprobs"])
        if choice["finish_reason"] is not None:
            self._ended = {"finish_reason": choice["finish_reason"], "stop_reason": choice["stop_reason"]}
        return text

    def output(self, index: int) -> CompletionOutput:
        return CompletionOutput(index, "".join(self._texts), list(self._token_ids), self._logprobs, **self._ended)


def _error(status: int, error: dict[str, Any]) -> RequestError:
    return RequestError(error["message"], status, error["type"], error["param"], error["code"])


def _counts(usage: dict[str, Any]) -> dict[str, int]:
    return {
        "prompt_tokens": usage["prompt_tokens"],
        "completion_tokens": usage["completion_tokens"],
        "cached_tokens": usage["prompt_tokens_details"]["cached_tokens"],
    }
