"""``logit_bias``: numbers added to the logits of chosen tokens."""

from __future__ import annotations

import torch

from llmrt.sampling.slots import Slots, TokenLists
from llmrt.wire import Sampling


class LogitBias:
    """Ids outside the vocabulary are left out; of an id named twice, both numbers are added."""

    def __init__(self, num_slots: int, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._lists = TokenLists(num_slots)

    def start(self, slot: int, sampling: Sampling) -> bool:
        """Takes the settings of a slot; says whether its logits will change."""
        pairs = [(token, bias) for token, bias in sampling.logit_bias if 0 <= token < self._vocab_size and bias]
        self._lists.set(slot, [token for token, _ in pairs], [bias for _, bias in pairs])
        return bool(pairs)

    def apply(self, logits: torch.Tensor, slots: Slots) -> None:
        """Changes ``logits`` ``[rows, vocab_size]`` of ``slots`` in place."""
        if self._lists.lengths[slots].any():
            rows, ids, numbers = self._lists.gather(slots)
            logits.index_put_((rows, ids), numbers, accumulate=True)
