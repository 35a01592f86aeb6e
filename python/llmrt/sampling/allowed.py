"""``allowed_token_ids``: every other token is ruled out."""

from __future__ import annotations

import numpy as np
import torch

from llmrt.sampling.slots import Slots
from llmrt.wire import Sampling


class AllowedTokens:
    """A mask of ``vocab_size`` bytes for each slot that has such a list; ids outside the vocabulary are left out."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._others: dict[int, torch.Tensor] = {}

    def start(self, slot: int, sampling: Sampling) -> bool:
        """Takes the settings of a slot; says whether its logits will change."""
        self.free(slot)
        if sampling.allowed_token_ids is None:
            return False
        ids = np.frombuffer(sampling.allowed_token_ids, "<u4").astype(np.int64)
        others = torch.ones(self._vocab_size, dtype=torch.bool)
        others[torch.from_numpy(ids[ids < self._vocab_size])] = False
        self._others[slot] = others
        return True

    def free(self, slot: int) -> None:
        """Forgets a slot."""
        self._others.pop(slot, None)

    def apply(self, logits: torch.Tensor, slots: Slots) -> None:
        """Changes ``logits`` ``[rows, vocab_size]`` of ``slots`` in place."""
        if not self._others:
            return
        for row, slot in enumerate(slots.tolist()):
            others = self._others.get(slot)
            if others is not None:
                logits[row].masked_fill_(others, -torch.inf)
