"""``top_k``: only the k best tokens may be chosen, and those that equal the last of them."""

from __future__ import annotations

import numpy as np
import torch

from llmrt.sampling.slots import Slots


def raise_floor(floor: torch.Tensor, scores: torch.Tensor, top_k: Slots) -> None:
    """Raises ``floor`` ``[rows, 1]`` to the ``top_k``-th best of ``scores`` ``[rows, vocab_size]``; 0 is off."""
    vocab_size = scores.shape[1]
    rows = np.flatnonzero((top_k > 0) & (top_k < vocab_size))
    if rows.size:
        index, wanted = torch.from_numpy(rows), torch.from_numpy(top_k[rows]).unsqueeze(1)
        best = scores.index_select(0, index).topk(int(wanted.max()), dim=1).values
        floor[index] = floor[index].maximum(best.gather(1, wanted - 1))
