"""What a model thought of tokens, by their ids."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

_ID = "token_id:"


class Logprob(NamedTuple):
    """How likely a token was in its place."""

    logprob: float
    """Natural logarithm of its probability, before temperature and every other sampling field."""


SampleLogprobs: TypeAlias = "list[dict[int, Logprob]]"
"""One for each token of an answer: itself and the likeliest tokens."""

PromptLogprobs: TypeAlias = "list[dict[int, Logprob] | None]"
"""The same for a prompt; ``None`` for its first token."""


def of_answer(logprobs: dict[str, Any]) -> SampleLogprobs:
    """Reads a choice's ``logprobs``, in the form of chats or of completions, whose tokens are named by their ids."""
    if "content" in logprobs:
        return [
            {_id(one["token"]): Logprob(one["logprob"]) for one in (token, *token["top_logprobs"])}
            for token in logprobs["content"]
        ]
    return [{_id(name): Logprob(logprob) for name, logprob in likely.items()} for likely in logprobs["top_logprobs"]]


def of_prompt(logprobs: list[dict[str, Any] | None]) -> PromptLogprobs:
    """Reads ``prompt_logprobs``."""
    return [
        None if likely is None else {int(token): Logprob(one["logprob"]) for token, one in likely.items()}
        for likely in logprobs
    ]


def _id(name: str) -> int:
    return int(name.removeprefix(_ID))
