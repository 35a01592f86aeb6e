"""Requests as the HTTP API takes them."""

from __future__ import annotations

import json
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from llmrt.llm.params import SamplingParams

Message: TypeAlias = Mapping[str, Any]
"""One message of a conversation: ``role``, ``content`` and whatever else the chat template reads."""

Prompt: TypeAlias = "str | Sequence[int] | Sequence[Message]"
"""A text, token ids, or a conversation, which goes through the model's chat template."""


@dataclass(frozen=True)
class Request:
    """A route and the JSON body for it."""

    path: str
    body: bytes
    choices: int = 1
    """How many answers it asks for."""


def request(prompt: Prompt, params: SamplingParams | None, stream: bool = False) -> Request:
    """The request for one prompt. Raises :class:`TypeError` for a prompt of another kind."""
    fields: dict[str, Any] = {} if params is None else params.fields()
    fields.update(return_token_ids=True, return_tokens_as_token_ids=True)
    if stream:
        fields.update(stream=True, stream_options={"include_usage": True})
    path = "/v1/completions"
    if isinstance(prompt, str):
        fields["prompt"] = prompt
    elif isinstance(prompt, Sequence) and not isinstance(prompt, bytes) and _all(prompt, Mapping):
        path = "/v1/chat/completions"
        fields["messages"] = [dict(message) for message in prompt if isinstance(message, Mapping)]
        if (logprobs := fields.pop("logprobs", None)) is not None:
            fields.update(logprobs=True, top_logprobs=logprobs)
    else:
        fields["prompt"] = _token_ids(prompt)
    return Request(path, json.dumps(fields).encode(), fields.get("n", 1))


def prompts(given: str | Sequence[Any]) -> list[Any]:
    """The prompts of a batch; a text or a list of token ids alone is a batch of one."""
    if isinstance(given, str) or (len(given) > 0 and not isinstance(given[0], (str, Sequence))):
        return [given]
    return list(given)


def conversations(given: Sequence[Message] | Sequence[Sequence[Message]]) -> list[Any]:
    """The conversations of a batch; a list of messages is a batch of one."""
    return [given] if len(given) > 0 and _all(given, Mapping) else list(given)


def each(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams | None]:
    """Sampling parameters for each of ``count`` prompts. Raises :class:`ValueError` if there are more or fewer."""
    if params is None or isinstance(params, SamplingParams):
        return [params] * count
    if len(params) != count:
        raise ValueError(f"{len(params)} sampling parameters for {count} prompts; give one for all, or one for each")
    return list(params)


def _all(items: Sequence[Any], kind: type) -> bool:
    return len(items) > 0 and all(isinstance(item, kind) for item in items)


def _token_ids(prompt: Any) -> list[int]:
    try:
        return [operator.index(token) for token in prompt]
    except TypeError:
        kind = type(prompt).__name__
        raise TypeError(f"a prompt is a text, a list of token ids or a list of messages, not this {kind}") from None
