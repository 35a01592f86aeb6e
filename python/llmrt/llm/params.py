"""How to continue a prompt."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """The sampling fields of a request, under the names and with the rules of the HTTP API.

    ``None`` leaves a field to the server: the model's own preference where it has one. Raises :class:`ValueError` at
    construction, with the words of the server's 400. What depends on the model or the prompt, such as the range of
    token ids, is checked with the request.
    """

    temperature: float | None = None
    """0 (greedy) to 2; 1 when left out."""
    top_p: float | None = None
    """Smallest set of most likely tokens whose probabilities reach this; above 0, at most 1."""
    top_k: int | None = None
    """Number of most likely tokens that may be drawn; -1 or 0 for all."""
    min_p: float | None = None
    """Least probability of a token, relative to the most likely one; 0 to 1."""
    seed: int | None = None
    """64 bits, signed; the same seed gives the same tokens. Drawn for each request when left out."""
    max_tokens: int | None = None
    """Most tokens of the answer; when left out, 16 for a prompt, and all the room that is left for a conversation."""
    min_tokens: int | None = None
    """Tokens before which no stop and no end-of-sequence token ends the answer."""
    stop: str | Sequence[str] | None = None
    """Up to 4 texts that end the answer."""
    stop_token_ids: Sequence[int] | None = None
    """Up to 256 token ids that end the answer."""
    ignore_eos: bool | None = None
    """Whether the end-of-sequence token does not end the answer."""
    include_stop_str_in_output: bool | None = None
    """Whether what ended the answer is part of its text."""
    skip_special_tokens: bool | None = None
    """Whether special tokens have no text; true when left out."""
    presence_penalty: float | None = None
    """-2 to 2, for each token that the answer has already."""
    frequency_penalty: float | None = None
    """-2 to 2, for each time that the answer has a token already."""
    repetition_penalty: float | None = None
    """Above 0; divides the logits of tokens that prompt or answer have already."""
    logit_bias: Mapping[int, float] | None = None
    """Token id to what is added to its logit, -100 to 100; up to 1,024 entries."""
    n: int | None = None
    """Answers to each prompt; above 1 not with ``temperature`` 0."""
    logprobs: int | None = None
    """How many of the likeliest tokens are told with each token of the answer, 0 to 20."""
    prompt_logprobs: int | None = None
    """The same for the prompt's tokens."""
    allowed_token_ids: Sequence[int] | None = None
    """The only tokens that the answer may have."""
    bad_words: Sequence[str] | None = None
    """Texts that the answer never has as whole tokens, with or without a space before them; up to 128."""

    def __post_init__(self) -> None:
        from llmrt._core import check_sampling

        try:
            check_sampling(json.dumps(self.fields()))
        except TypeError as error:
            raise ValueError(f"a sampling field has a value that JSON cannot carry: {error}") from error

    def fields(self) -> dict[str, Any]:
        """The fields that are set, as a request has them."""
        values = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        values = {name: value for name, value in values.items() if value is not None}
        if isinstance(self.logit_bias, Mapping):
            values["logit_bias"] = {str(token): bias for token, bias in self.logit_bias.items()}
        return values
