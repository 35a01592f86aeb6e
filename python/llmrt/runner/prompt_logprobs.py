"""``prompt_logprobs``: log probabilities of prompt tokens, each from the logits at the token before it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from llmrt.runner.batch import Batch
from llmrt.runner.slots import Ints, SlotTable
from llmrt.sampling import logprobs
from llmrt.scheduler.plan import RowLogprobs, SlotStart

BLOCK = 64
"""Rows whose logits are held at once: of a chunk all would take as much memory as a small model."""

Logits = Callable[[Ints], torch.Tensor]
"""Float32 ``[rows, vocab_size]`` of some rows of a batch."""


class PromptLogprobs:
    """Which slots report them; only steps that compute prompt tokens of such slots cost anything."""

    def __init__(self) -> None:
        self._top: dict[int, int] = {}

    def start(self, start: SlotStart) -> None:
        """Takes the settings of a slot."""
        self.free(start.slot)
        if start.sampling.prompt_logprobs is not None:
            self._top[start.slot] = start.sampling.prompt_logprobs

    def free(self, slot: int) -> None:
        """Forgets a slot."""
        self._top.pop(slot, None)

    def of(self, batch: Batch, table: SlotTable, logits: Logits) -> list[RowLogprobs]:
        """One entry for each row of the plan that asked and computes a prompt token with another behind it."""
        found = []
        for slot, top in self._top.items():
            rows = np.flatnonzero((batch.owner == slot) & (batch.positions + 1 < table.prompts[slot]))
            if rows.size:
                targets = table.tokens[slot, batch.positions[rows] + 1].astype(np.int64)
                found.append(RowLogprobs(int(batch.origin[rows[0]]), top, *_in_blocks(rows, targets, top, logits)))
        return found


def _in_blocks(rows: Ints, targets: Ints, top: int, logits: Logits) -> logprobs.Columns:
    parts = []
    for start in range(0, len(rows), BLOCK):
        block = slice(start, start + BLOCK)
        tokens = torch.from_numpy(targets[block])
        parts.append(logprobs.columns(*logprobs.score(logits(rows[block]), tokens, top)))
    chosen, ids, values = (b"".join(column) for column in zip(*parts, strict=True))
    return chosen, ids, values
