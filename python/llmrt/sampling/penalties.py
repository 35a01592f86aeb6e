"""Penalties on tokens that have been used.

``presence_penalty`` and ``frequency_penalty`` (OpenAI API) look at generated tokens; ``repetition_penalty`` (CTRL,
arXiv 1909.05858) at the prompt too. Repetition goes first: it divides positive logits and multiplies negative ones.
"""

from __future__ import annotations

import numpy as np
import torch

from llmrt.sampling.slots import Slots, values
from llmrt.wire import Sampling


class Penalties:
    """Counts live in rows of ``[rows, vocab_size]`` that only slots with penalties take; rows are added as needed, at
    most one per slot, at 5 bytes a token."""

    def __init__(self, num_slots: int, vocab_size: int) -> None:
        self._presence = np.zeros(num_slots, np.float32)
        self._frequency = np.zeros(num_slots, np.float32)
        self._repetition = np.ones(num_slots, np.float32)
        self._row = np.full(num_slots, -1, np.int64)
        self._free: list[int] = []
        self._generated = torch.zeros((0, vocab_size), dtype=torch.int32)
        self._prompt = torch.zeros((0, vocab_size), dtype=torch.bool)

    def start(self, slot: int, sampling: Sampling, tokens: torch.Tensor, prompt_tokens: int) -> bool:
        """Takes the settings of a slot and counts ``tokens`` (int64, the first ``prompt_tokens`` of them prompt).

        Says whether its logits will change.
        """
        self.free(slot)
        wanted = sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty
        if wanted == (0.0, 0.0, 1.0):
            return False
        self._presence[slot], self._frequency[slot], self._repetition[slot] = wanted
        row = self._take_row()
        self._row[slot] = row
        self._prompt[row].zero_().index_fill_(0, tokens[:prompt_tokens], True)
        generated = tokens[prompt_tokens:]
        self._generated[row].zero_().index_add_(0, generated, torch.ones_like(generated, dtype=torch.int32))
        return True

    def free(self, slot: int) -> None:
        """Forgets a slot."""
        if self._row[slot] >= 0:
            self._free.append(int(self._row[slot]))
            self._row[slot] = -1

    def apply(self, logits: torch.Tensor, slots: Slots) -> None:
        """Changes ``logits`` ``[rows, vocab_size]`` of ``slots`` in place."""
        chosen = np.flatnonzero(self._row[slots] >= 0)
        if not chosen.size:
            return
        owners = slots[chosen]
        rows, targets = torch.from_numpy(self._row[owners]), torch.from_numpy(chosen)
        counts = self._generated.index_select(0, rows)
        generated = counts > 0
        used = generated | self._prompt.index_select(0, rows)
        scores = logits.index_select(0, targets)
        repetition = values(self._repetition, owners)
        scores = torch.where(used, torch.where(scores > 0, scores / repetition, scores * repetition), scores)
        scores -= values(self._frequency, owners) * counts
        scores -= values(self._presence, owners) * generated
        logits.index_copy_(0, targets, scores)

    def record(self, slots: Slots, tokens: torch.Tensor) -> None:
        """Counts the token (int64 ``[rows]``) that each of ``slots`` has got."""
        chosen = np.flatnonzero(self._row[slots] >= 0)
        if chosen.size:
            rows = torch.from_numpy(self._row[slots[chosen]])
            one = torch.ones(1, dtype=torch.int32)
            self._generated.index_put_((rows, tokens[torch.from_numpy(chosen)]), one, accumulate=True)

    def _take_row(self) -> int:
        if not self._free:
            held = self._generated.shape[0]
            more = min(max(1, held), len(self._row) - held)
            self._free = list(range(held, held + more))
            self._generated = torch.cat((self._generated, self._generated.new_zeros(more, self._generated.shape[1])))
            self._prompt = torch.cat((self._prompt, self._prompt.new_zeros(more, self._prompt.shape[1])))
        return self._free.pop()
