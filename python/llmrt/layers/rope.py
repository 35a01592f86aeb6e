"""Rotary position embedding (Su et al. 2021, arXiv 2104.09864), with linear and Llama 3 scaling.

A rotation of pairs is one complex multiplication when the two numbers of a pair lie side by side. Checkpoints
keep them ``head_dim / 2`` apart, so :func:`interleave` reorders the rows of the q and k projections (and of their
norms) once at load. Scores do not change: q and k are reordered alike.
"""

from __future__ import annotations

import math
from typing import Any

import torch


class Rope:
    """Rotations for every position below ``max_positions``, complex64 ``[max_positions, 1, head_dim / 2]``."""

    def __init__(self, frequencies: torch.Tensor, max_positions: int) -> None:
        angles = torch.outer(torch.arange(max_positions, dtype=torch.float64), frequencies.double())
        self._table = torch.polar(torch.ones_like(angles), angles).to(torch.complex64).unsqueeze(1)

    def rotations(self, positions: torch.Tensor) -> torch.Tensor:
        """What :func:`rotate` needs for rows at ``positions`` (int64 ``[rows]``)."""
        return self._table.index_select(0, positions)


def rotate(x: torch.Tensor, rotations: torch.Tensor) -> torch.Tensor:
    """Rotates the interleaved pairs of ``x`` ``[rows, heads, head_dim]``, whose last dimension is dense."""
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * rotations).flatten(-2)


def interleave(rows: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Puts rows ``i`` and ``i + head_dim / 2`` of each head side by side. ``rows`` is ``[heads * head_dim, ...]``."""
    halves = rows.unflatten(0, (-1, 2, head_dim // 2))
    return halves.transpose(1, 2).flatten(0, 2).contiguous()


def frequencies(head_dim: int, theta: float, scaling: dict[str, Any] | None) -> torch.Tensor:
    """Radians per position of each pair, float32 ``[head_dim / 2]``.

    ``scaling`` is ``None`` or a dictionary with ``rope_type`` ``linear`` or ``llama3``; others raise ``ValueError``.
    """
    plain = 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    if scaling is None:
        return plain
    kind = scaling.get("rope_type")
    if kind == "linear":
        return plain / float(scaling["factor"])
    if kind == "llama3":
        return _llama3(plain, scaling)
    raise ValueError(f"rope scaling {kind!r} is not supported; 'linear' and 'llama3' are")


def _llama3(plain: torch.Tensor, scaling: dict[str, Any]) -> torch.Tensor:
    """Long waves are stretched by ``factor``, short ones kept, those between blended (Llama 3 model card and code)."""
    factor = float(scaling["factor"])
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    context = float(scaling["original_max_position_embeddings"])
    turns = context * plain / (2 * math.pi)
    blend = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - blend) * plain / factor + blend * plain
