"""``min_p``: only tokens at least that fraction as likely as the best may be chosen (arXiv 2407.01082)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch


def raise_floor(floor: torch.Tensor, min_p: npt.NDArray[np.float32]) -> None:
    """Raises ``floor`` ``[rows, 1]`` for scores whose best is 0 in every row; 0 is off."""
    if min_p.any():
        floor.copy_(floor.maximum(torch.from_numpy(min_p).unsqueeze(1).log()))
