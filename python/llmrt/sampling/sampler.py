"""From logits to tokens.

Order: logit bias, the masks (allowed tokens, min_tokens, bad words), penalties, then greedy rows are done (best logit,
lowest id wins). Sampled rows go on with temperature, then min_p, top_k, top_p (:mod:`llmrt.sampling.limits`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from llmrt.sampling import draw
from llmrt.sampling.allowed import AllowedTokens
from llmrt.sampling.bad_words import BadWords
from llmrt.sampling.limits import Limits, choose
from llmrt.sampling.logit_bias import LogitBias
from llmrt.sampling.min_tokens import MinTokens
from llmrt.sampling.penalties import Penalties
from llmrt.sampling.slots import Slots, values
from llmrt.wire import Sampling

GREEDY_BELOW = 1e-5
"""Temperatures below this count as 0: their softmax is the argmax anyway."""


class Sampler:
    """Sampling settings and counts of every slot, applied to batches of slots."""

    def __init__(self, num_slots: int, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self._bias = LogitBias(num_slots, vocab_size)
        self._allowed = AllowedTokens(vocab_size)
        self._min_tokens = MinTokens(num_slots, vocab_size, eos_token_ids)
        self._bad_words = BadWords(vocab_size)
        self._penalties = Penalties(num_slots, vocab_size)
        self._changed = np.zeros(num_slots, np.bool_)
        self._temperature = np.zeros(num_slots, np.float32)
        self._top_k = np.zeros(num_slots, np.int64)
        self._top_p = np.ones(num_slots, np.float32)
        self._min_p = np.zeros(num_slots, np.float32)
        self._seed = np.zeros(num_slots, np.int64)

    def start(self, slot: int, sampling: Sampling, tokens: torch.Tensor, prompt_tokens: int) -> None:
        """A request enters ``slot`` with ``tokens`` (int64), the first ``prompt_tokens`` of them its prompt.

        Raises ``ValueError`` when ``sampling`` has no seed.
        """
        if sampling.seed is None:
            raise ValueError(f"the request in slot {slot} has no seed")
        changes = (
            self._bias.start(slot, sampling),
            self._allowed.start(slot, sampling),
            self._min_tokens.start(slot, sampling, prompt_tokens),
            self._bad_words.start(slot, sampling, tokens),
            self._penalties.start(slot, sampling, tokens, prompt_tokens),
        )
        self._changed[slot] = any(changes)
        self._temperature[slot] = sampling.temperature if sampling.temperature >= GREEDY_BELOW else 0
        self._top_k[slot] = max(sampling.top_k, 0)
        self._top_p[slot] = sampling.top_p
        self._min_p[slot] = sampling.min_p
        self._seed[slot] = draw.signed(sampling.seed)

    def free(self, slot: int) -> None:
        """The request in ``slot`` has left."""
        self._allowed.free(slot)
        self._bad_words.free(slot)
        self._penalties.free(slot)
        self._changed[slot] = False

    def sample(self, logits: torch.Tensor, slots: Slots, positions: Slots) -> torch.Tensor:
        """The next token of each of ``slots``, int64 ``[rows]``, and counts it.

        ``logits`` is float32 ``[rows, vocab_size]`` and is overwritten; ``positions`` are the places in their
        sequences that the tokens will take.
        """
        if self._changed[slots].any():
            self._bias.apply(logits, slots)
            self._allowed.apply(logits, slots)
            self._min_tokens.apply(logits, slots, positions)
            self._bad_words.apply(logits, slots)
            self._penalties.apply(logits, slots)
        random = np.flatnonzero(self._temperature[slots])
        if random.size == len(slots):
            tokens = self._sample_random(logits, slots, positions)
        else:
            tokens = logits.argmax(dim=1)
            if random.size:
                index = torch.from_numpy(random)
                tokens[index] = self._sample_random(logits.index_select(0, index), slots[random], positions[random])
        self._bad_words.record(slots, tokens)
        self._penalties.record(slots, tokens)
        return tokens

    def _sample_random(self, logits: torch.Tensor, slots: Slots, positions: Slots) -> torch.Tensor:
        logits.div_(values(self._temperature, slots))
        keys = draw.keys_of(torch.from_numpy(self._seed[slots]), torch.from_numpy(positions))
        limits = Limits(self._top_k[slots], self._top_p[slots], self._min_p[slots])
        limited = limits.limited()
        if limited.all():
            return choose(logits, limits, keys)
        if not limited.any():
            return draw.draw(logits.softmax(dim=1), keys)
        tokens = torch.empty(len(slots), dtype=torch.int64)
        free, rows = torch.from_numpy(np.flatnonzero(~limited)), np.flatnonzero(limited)
        index = torch.from_numpy(rows)
        tokens[free] = draw.draw(logits.index_select(0, free).softmax(dim=1), keys[free])
        tokens[index] = choose(logits.index_select(0, index), limits.of(rows), keys[index])
        return tokens
