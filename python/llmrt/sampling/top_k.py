"""``top_k``: only the k best tokens may be chosen, and those that equal the last of them."""

from __future__ import annotations

import torch

from llmrt.sampling.slots import Slots


def raise_floor(floor: torch.Tensor, ordered: torch.Tensor, top_k: Slots) -> None:
    """Raises ``floor`` ``[rows, 1]`` to the ``top_k``-th of ``ordered``; 0 is off.

    ``ordered`` ``[rows, best]`` holds the best scores of each row, descending. Rows that ask for more of them than
    there are keep their floor.
    """
    wanted = torch.from_numpy(top_k).unsqueeze(1)
    last = ordered.gather(1, (wanted - 1).clamp(0, ordered.shape[1] - 1))
    applies = (wanted > 0) & (wanted <= ordered.shape[1])
    floor.copy_(torch.where(applies, floor.maximum(last), floor))
