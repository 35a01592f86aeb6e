"""``min_tokens``: tokens that would end the request cannot be chosen before it has generated that many."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from llmrt.sampling.slots import Slots, TokenLists
from llmrt.wire import Sampling


class MinTokens:
    """Masks ``stop_token_ids`` and, without ``ignore_eos``, the model's own ``eos_token_ids``."""

    def __init__(self, num_slots: int, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self._vocab_size = vocab_size
        self._eos = tuple(eos_token_ids)
        self._lists = TokenLists(num_slots)
        self._until = np.zeros(num_slots, np.int64)

    def start(self, slot: int, sampling: Sampling, prompt_tokens: int) -> bool:
        """Takes the settings of a slot; says whether its logits may change."""
        ends = set(sampling.stop_token_ids) | (set() if sampling.ignore_eos else set(self._eos))
        ids = sorted(token for token in ends if 0 <= token < self._vocab_size)
        active = sampling.min_tokens > 0 and bool(ids)
        self._lists.set(slot, ids if active else (), [-torch.inf] * len(ids) if active else ())
        self._until[slot] = prompt_tokens + sampling.min_tokens if active else 0
        return active

    def apply(self, logits: torch.Tensor, slots: Slots, positions: Slots) -> None:
        """Changes ``logits`` ``[rows, vocab_size]`` in place; ``positions`` are those of the tokens to be chosen."""
        early = np.flatnonzero(positions < self._until[slots])
        if early.size:
            rows, ids, numbers = self._lists.gather(slots[early])
            logits.index_put_((torch.from_numpy(early)[rows], ids), numbers)
