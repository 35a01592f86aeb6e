"""Gated feed-forward block (SwiGLU, Shazeer 2020, arXiv 2002.05202)."""

from __future__ import annotations

import torch
from torch.nn.functional import silu

from llmrt.layers.linear import Linear, Segment


class GatedMLP:
    """``down(silu(gate(x)) * up(x))``; ``gate_up`` computes both in one matmul, gate first."""

    def __init__(self, gate_up: Linear, down: Linear) -> None:
        self._gate_up = gate_up
        self._down = down

    def __call__(self, x: torch.Tensor, rows: tuple[Segment, ...]) -> torch.Tensor:
        """``x`` ``[rows, hidden]``, cut into ``rows``."""
        gate, up = self._gate_up(x, rows).chunk(2, dim=-1)
        return self._down(silu(gate).mul_(up), rows)
