"""``top_p``: only the likeliest tokens that together reach that probability may be chosen (arXiv 1904.09751)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch


def raise_floor(
    floor: torch.Tensor, ordered: torch.Tensor, totals: torch.Tensor, top_p: npt.NDArray[np.float32]
) -> torch.Tensor:
    """Raises ``floor`` ``[rows, 1]`` to the least score that ``top_p`` keeps; 1 is off. Tokens that equal it stay.

    ``ordered`` ``[rows, best]`` holds the best scores of each row, descending; ``totals`` (float64 ``[rows, 1]``) the
    summed exponentials of all scores at or above ``floor``. Gives whether ``ordered`` reached far enough (bool
    ``[rows, 1]``); where it did not, the floor is not low enough.
    """
    share = torch.from_numpy(top_p).double().unsqueeze(1)
    sums = ordered.exp().masked_fill_(ordered < floor, 0).cumsum(1, dtype=torch.float64)
    short = (sums < share * totals).sum(1, keepdim=True)
    last = ordered.shape[1] - 1
    least = ordered.gather(1, short.clamp(max=last))
    applies = share < 1
    floor.copy_(torch.where(applies, floor.maximum(least), floor))
    return ~applies | (short <= last)
