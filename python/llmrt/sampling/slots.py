"""Per-slot storage that sampling features share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

Slots = npt.NDArray[np.int64]


def values(column: npt.NDArray[np.float32], slots: Slots) -> torch.Tensor:
    """The values of ``column`` ``[num_slots]`` at ``slots``, float32 ``[rows, 1]``."""
    return torch.from_numpy(column[slots]).unsqueeze(1)


class TokenLists:
    """A short list of token ids for each slot, each with a float32 number.

    Stored as padded rows that grow to the longest list in use, so a batch is gathered in one operation.
    """

    def __init__(self, num_slots: int) -> None:
        self._ids = np.zeros((num_slots, 0), np.int64)
        self._numbers = np.zeros((num_slots, 0), np.float32)
        self.lengths = np.zeros(num_slots, np.int64)

    def set(self, slot: int, ids: Sequence[int], numbers: Sequence[float]) -> None:
        """Replaces the list of ``slot``."""
        room = self._ids.shape[1]
        if len(ids) > room:
            grow = ((0, 0), (0, max(len(ids), 2 * room) - room))
            self._ids, self._numbers = np.pad(self._ids, grow), np.pad(self._numbers, grow)
        self._ids[slot, : len(ids)] = ids
        self._numbers[slot, : len(ids)] = numbers
        self.lengths[slot] = len(ids)

    def gather(self, slots: Slots) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """All entries of ``slots`` end to end: which row of ``slots`` each belongs to, its id, its number."""
        lengths = self.lengths[slots]
        used = np.arange(lengths.max(initial=0))[None, :] < lengths[:, None]
        rows, columns = np.nonzero(used)
        owners = slots[rows]
        return (
            torch.from_numpy(rows),
            torch.from_numpy(self._ids[owners, columns]),
            torch.from_numpy(self._numbers[owners, columns]),
        )
