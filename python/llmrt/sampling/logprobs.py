"""``logprobs``: log probabilities of chosen tokens, and of the likeliest at their places.

They are those of the model: the log softmax of its logits as they come, before bias, masks, penalties and temperature.
So a greedy and a heavily biased request report the same values for the same tokens.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from llmrt.sampling.slots import Slots
from llmrt.wire import Sampling

OFF = -1

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


def score(logits: torch.Tensor, tokens: torch.Tensor, top: int) -> tuple[Floats, Ints, Floats]:
    """Log probabilities of ``tokens`` (int64 ``[rows]``) under float32 ``logits`` ``[rows, vocab_size]``: ``[rows]``.

    And the ``top`` likeliest ids of each row with theirs, ``[rows, top]``: best first, of equal ones the lowest id.
    """
    scores = logits.log_softmax(dim=1)
    chosen = scores.gather(1, tokens.unsqueeze(1)).squeeze(1)
    ids = best(logits, top)
    return chosen.numpy(), ids, scores.gather(1, torch.from_numpy(ids)).numpy()


def best(scores: torch.Tensor, number: int) -> Ints:
    """The ids of the ``number`` largest ``scores`` of each row, int64 ``[rows, number]``; of equal ones the lowest."""
    number = min(number, scores.shape[1])
    if number == 0:
        return np.zeros((scores.shape[0], 0), np.int64)
    # ``topk`` picks any among equals, so it says only how large the last one is.
    floor = scores.topk(number, dim=1).values[:, -1:]
    rows, ids = ((index.numpy()) for index in (scores >= floor).nonzero(as_tuple=True))
    order = np.lexsort((ids, -scores.numpy()[rows, ids], rows))
    first = np.searchsorted(rows, np.arange(scores.shape[0]))
    return ids[order[first[:, None] + np.arange(number)]]


Columns = tuple[bytes, bytes, bytes]


def columns(chosen: Floats, ids: Ints, values: Floats) -> Columns:
    """The wire's form of what :func:`score` gives: f32, u32, f32."""
    return chosen.astype("<f4").tobytes(), ids.astype("<u4").tobytes(), values.astype("<f4").tobytes()


class Logprobs:
    """Which slots report log probabilities of generated tokens, and how many of the likeliest with each."""

    def __init__(self, num_slots: int) -> None:
        self._top = np.full(num_slots, OFF, np.int64)

    def start(self, slot: int, sampling: Sampling) -> None:
        """Takes the settings of a slot."""
        self._top[slot] = OFF if sampling.logprobs is None else sampling.logprobs

    def free(self, slot: int) -> None:
        """Forgets a slot."""
        self._top[slot] = OFF

    def keep(self, logits: torch.Tensor, slots: Slots) -> Kept | None:
        """Keeps the rows of ``logits`` ``[rows, vocab_size]`` whose slots asked, before they are overwritten.

        ``None`` when none did.
        """
        rows = np.flatnonzero(self._top[slots] != OFF)
        if not rows.size:
            return None
        return Kept(logits.index_select(0, torch.from_numpy(rows)), rows, self._top[slots[rows]])


class Kept:
    """Logits of rows whose tokens are still to be chosen."""

    def __init__(self, logits: torch.Tensor, rows: Slots, top: Slots) -> None:
        self._logits = logits
        self._rows = rows
        self._top = top

    def score(self, tokens: torch.Tensor) -> list[tuple[int, int, Columns]]:
        """For each row that asked: its number, how many of the likeliest it has, the values.

        ``tokens`` (int64) are those of all rows.
        """
        chosen, ids, values = score(self._logits, tokens[torch.from_numpy(self._rows)], int(self._top.max()))
        return [
            (row, top, columns(chosen[i : i + 1], ids[i, :top], values[i, :top]))
            for i, (row, top) in enumerate(zip(self._rows.tolist(), self._top.tolist(), strict=True))
        ]
