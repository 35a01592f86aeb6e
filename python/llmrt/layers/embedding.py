"""Token embedding."""

from __future__ import annotations

import torch


class Embedding:
    """Rows of ``weight`` ``[vocab_size, hidden_size]``, kept in float32: look-ups cost nothing at any width."""

    def __init__(self, weight: torch.Tensor) -> None:
        self._weight = weight

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        """``ids`` ``[rows]`` (int64) to float32 ``[rows, hidden_size]``."""
        return self._weight.index_select(0, ids)
