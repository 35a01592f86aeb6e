"""What a weight file must offer."""

from __future__ import annotations

from typing import Protocol

import torch


class TensorReader(Protocol):
    """Tensors of one checkpoint under their Hugging Face names, in Hugging Face row order."""

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every tensor."""

    def read(self, name: str) -> torch.Tensor:
        """The tensor ``name`` as float32, in memory of its own or mapped from the file."""
