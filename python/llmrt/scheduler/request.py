"""A request as the scheduler keeps it: the tokens it has, how many of them are computed, the pages that hold them."""

from __future__ import annotations

import itertools
import math
from array import array
from dataclasses import dataclass

import msgspec

from llmrt import wire
from llmrt.cache.pages import PAGE_SIZE
from llmrt.cache.prefix import Node
from llmrt.scheduler.prompt_logprobs import PromptLogprobs

NO_SLOT = -1

MAX_LOGPROBS = 20
"""Most of the likeliest tokens that are reported beside each."""


@dataclass(frozen=True)
class Limits:
    """What a scheduler allows. ``max_model_len`` bounds prompt plus answer, in tokens."""

    max_model_len: int
    vocab_size: int
    max_num_seqs: int
    max_num_batched_tokens: int


class Request:
    """One generation. Running when it has a slot, else waiting or finished.

    ``length`` counts the tokens it has, those included whose sampling is launched but not read back; ``computed``
    counts those whose KV is computed or launched. A step closes some of the gap between the two.
    """

    __slots__ = (
        "admissions",
        "arrival",
        "arrived_ns",
        "cached_tokens",
        "computed",
        "deadline_ns",
        "finished",
        "first_sent",
        "hashes",
        "id",
        "key",
        "length",
        "matched",
        "node",
        "opened",
        "output",
        "pages",
        "priority",
        "prompt_logprobs",
        "prompt_tokens",
        "published",
        "room",
        "salt",
        "sampling",
        "scheduled_ns",
        "slot",
        "stop_at",
        "stops",
        "tokens",
        "watch",
    )

    def __init__(self, request: wire.Request, prompt: array[int], arrival: int, arrived_ns: int) -> None:
        self.id = request.id
        self.tokens = prompt
        self.prompt_tokens = len(prompt)
        self.sampling = request.sampling
        self.output = request.output
        self.priority = request.priority
        self.salt = request.cache_salt
        self.arrival = arrival
        """Rank among all requests, in order of arrival."""
        self.arrived_ns = arrived_ns
        self.deadline_ns: int | None = None
        if request.deadline_ms is not None:
            self.deadline_ns = arrived_ns + request.deadline_ms * 1_000_000
        self.scheduled_ns = 0
        self.key: tuple[int, int] = (0, arrival)
        """Place in the policy's order; lower runs first."""
        self.matched = 0
        """Pages of its prefix that the cache had when the policy looked last."""
        self.stops: frozenset[int] = frozenset()
        self.stop_at = 0
        """The length at which it ends, whatever its last token is."""
        self.length = len(prompt)
        self.computed = 0
        self.slot = NO_SLOT
        self.pages: list[int] = []
        self.room = 0
        """Tokens that its pages hold."""
        self.hashes: list[bytes] = []
        self.node: Node | None = None
        self.published = 0
        """Pages of it that the prefix cache has seen."""
        self.watch = 0
        """From this length on, the next token needs more than being appended."""
        self.admissions = 0
        self.cached_tokens = 0
        self.prompt_logprobs = PromptLogprobs(request.sampling.prompt_logprobs, len(prompt))
        self.opened = False
        self.first_sent = False
        self.finished = False

    @property
    def generated(self) -> int:
        """Tokens of answer so far."""
        return len(self.tokens) - self.prompt_tokens

    @property
    def settled(self) -> bool:
        """No sampled token of it is still to be read back."""
        return self.length == len(self.tokens)

    @property
    def exact(self) -> bool:
        """The ranks compute all its tokens exactly, so it must not build on pages that were not."""
        return self.sampling.logprobs is not None

    def settings(self) -> wire.Sampling:
        """What the ranks must know when it enters a slot: of its prompt they report what is still missing."""
        if self.sampling.prompt_logprobs is None or self.prompt_logprobs.missing:
            return self.sampling
        return msgspec.structs.replace(self.sampling, prompt_logprobs=None)

    def watch_next(self) -> None:
        """Sets :attr:`watch`: its end, or the token with which its next page is computed."""
        self.watch = min(self.stop_at, (self.published + 1) * PAGE_SIZE + 1)


class Rejected(ValueError):
    """A request that can never run; the text is meant for its client."""


def accept(request: wire.Request, limits: Limits, eos: frozenset[int], arrival: int, now_ns: int) -> Request:
    """Checks a request that came over the wire and makes it schedulable.

    Raises :class:`Rejected`. The entry has checked all this before, but what it sends is not trusted.
    """
    prompt = wire.u32s(request.prompt)
    sampling = request.sampling
    if not prompt:
        raise Rejected("the prompt is empty")
    if len(prompt) >= limits.max_model_len:
        raise Rejected(
            f"the prompt has {len(prompt)} tokens and at least one of answer is needed, but the longest sequence "
            f"that this server can hold is {limits.max_model_len} tokens"
        )
    bad_words = [wire.u32s(word) for word in sampling.bad_words]
    allowed = None if sampling.allowed_token_ids is None else wire.u32s(sampling.allowed_token_ids)
    named = [max(prompt), *sampling.stop_token_ids, *(token for token, _ in sampling.logit_bias)]
    named += [*itertools.chain(allowed or (), *bad_words)]
    if not 0 <= min(named) <= max(named) < limits.vocab_size:
        raise Rejected(f"token ids must be below the vocabulary size, {limits.vocab_size}")
    _check_sampling(sampling)
    stops = frozenset(sampling.stop_token_ids) | (frozenset() if sampling.ignore_eos else eos)
    _check_choice(sampling, stops, bad_words, allowed)
    accepted = Request(request, prompt, arrival, now_ns)
    accepted.stops = stops
    # Where nothing is to be generated, a token is sampled all the same and dropped.
    accepted.stop_at = min(len(prompt) + max(sampling.max_tokens, 1), limits.max_model_len)
    return accepted


def _check_sampling(sampling: wire.Sampling) -> None:
    """Ranges outside of which a sampler could fail for its whole batch. A NaN is in no range."""
    ranges: list[tuple[str, float, float, float]] = [
        ("max_tokens", sampling.max_tokens, 1 if sampling.prompt_logprobs is None else 0, math.inf),
        ("min_tokens", sampling.min_tokens, 0, math.inf),
        ("temperature", sampling.temperature, 0, 1e6),
        ("top_p", sampling.top_p, 0, 1),
        ("min_p", sampling.min_p, 0, 1),
        ("top_k", sampling.top_k, 0, math.inf),
        ("logprobs", sampling.logprobs or 0, 0, MAX_LOGPROBS),
        ("prompt_logprobs", sampling.prompt_logprobs or 0, 0, MAX_LOGPROBS),
        ("presence_penalty", sampling.presence_penalty, -1e6, 1e6),
        ("frequency_penalty", sampling.frequency_penalty, -1e6, 1e6),
        ("repetition_penalty", sampling.repetition_penalty, 1e-6, 1e6),
        *(("logit_bias", bias, -1e6, 1e6) for _, bias in sampling.logit_bias),
    ]
    for name, value, low, high in ranges:
        if not low <= value <= high:
            raise Rejected(f"{name} must be between {low:g} and {high:g}, not {value!r}")
    if sampling.seed is not None and not 0 <= sampling.seed < 1 << 64:
        raise Rejected("seed must be an unsigned 64-bit number")


def _check_choice(
    sampling: wire.Sampling, stops: frozenset[int], bad_words: list[array[int]], allowed: array[int] | None
) -> None:
    """Whether the masks of a request leave it something to choose."""
    if not all(bad_words):
        raise Rejected("a sequence in bad_words is empty")
    if allowed is None:
        return
    ruled_out = {word[0] for word in bad_words if len(word) == 1}
    if sampling.min_tokens:
        ruled_out |= stops
    if ruled_out.issuperset(allowed):
        raise Rejected(
            "allowed_token_ids leave no token to choose: they are empty, or all of them are ruled out by bad_words or, "
            "as tokens that would end the answer, by min_tokens"
        )
