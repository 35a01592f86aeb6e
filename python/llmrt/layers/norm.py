"""Root mean square normalisation (Zhang and Sennrich 2019, arXiv 1910.07467)."""

from __future__ import annotations

import torch
from torch.nn.functional import rms_norm


class RMSNorm:
    """Normalises the last dimension of ``[..., size]`` and scales it by ``weight`` ``[size]``."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        self._weight = weight
        self._shape = tuple(weight.shape)
        self._eps = eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, self._shape, self._weight, self._eps)
