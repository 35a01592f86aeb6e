"""One uniform number for each token to be chosen, and the token it falls on."""

from __future__ import annotations

import torch

_GOLDEN = -0x61C8864680B583EB
_MIX_1 = -0x40A7B892E31B1A47
_MIX_2 = -0x6B2FB644ECCEEE15


def uniform(seeds: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Float64 in [0, 1) from 64-bit ``seeds`` and ``positions`` (both int64 ``[rows]``).

    A counter-based generator: SplitMix64's finalizer (Steele, Lea and Flood, OOPSLA 2014) over the mixed seed plus
    the position times the golden ratio. Nothing but these two numbers enters.
    """
    bits = _mix(_mix(seeds) + (positions + 1) * _GOLDEN)
    return _shift(bits, 11).double() * 2.0**-53


def draw(weights: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Inverse of the cumulative distribution over token ids: int64 ``[rows]``.

    ``weights`` ``[rows, vocab_size]`` need not sum to 1; a token of weight 0 is never drawn. Sums run in float64 in
    the order of ids, so a row's answer is the same in every batch.
    """
    sums = weights.cumsum(1, dtype=torch.float64)
    total = sums[:, -1:]
    below = torch.nextafter(total, torch.zeros_like(total))
    goal = (uniforms.unsqueeze(1) * total).minimum(below)
    return torch.searchsorted(sums, goal, right=True).squeeze(1).clamp_(max=weights.shape[1] - 1)


def signed(seed: int) -> int:
    """The low 64 bits of ``seed`` as the int64 that holds them."""
    low = seed & (1 << 64) - 1
    return low - (1 << 64) if low >> 63 else low


def _mix(z: torch.Tensor) -> torch.Tensor:
    z = (z ^ _shift(z, 30)) * _MIX_1
    z = (z ^ _shift(z, 27)) * _MIX_2
    return z ^ _shift(z, 31)


def _shift(z: torch.Tensor, by: int) -> torch.Tensor:
    """Logical right shift: torch shifts the sign in."""
    return (z >> by) & ((1 << (64 - by)) - 1)
