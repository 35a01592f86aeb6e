"""Draws a token by a race, so that what hardly changes the weights hardly ever changes the token.

Every token runs for a time of its own, exponential noise over its weight, and the quickest wins with the probability
that its weight has among all: the Gumbel-max trick (Maddison, Tarlow and Minka, 2014) without its logarithms. The last
bits of weights depend on how many rows share a step. An inverse of the cumulative distribution would add them up along
the vocabulary and, where many tokens are unlikely, often fall on another one.

Noise for a whole vocabulary would cost more than all else here. So groups of :data:`GROUP` neighbouring ids race first,
by their sums, and then the tokens of the one that won.
"""

from __future__ import annotations

import torch

GROUP = 256

_GOLDEN = -0x61C8864680B583EB
_MIX_1 = -0x40A7B892E31B1A47
_MIX_2 = -0x6B2FB644ECCEEE15


def keys_of(seeds: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """What noise is made from, int64 ``[rows]``, by 64-bit ``seeds`` and ``positions`` (both int64 ``[rows]``).

    A counter-based generator: SplitMix64's finalizer (Steele, Lea and Flood, OOPSLA 2014) over the mixed seed plus
    the position times the golden ratio. Nothing but these two numbers enters.
    """
    return _mix(_mix(seeds) + (positions + 1) * _GOLDEN)


def noise(keys: torch.Tensor, runners: torch.Tensor) -> torch.Tensor:
    """Exponential noise, float64 ``[rows, n]`` above 0, of ``runners`` (int64 ``[n]`` or ``[rows, n]``)."""
    bits = _mix(keys.unsqueeze(1) + (runners + 1) * _GOLDEN)
    return (_shift(bits, 12).double() + 0.5).mul_(2.0**-52).log_().neg_()


def draw(weights: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """One token id for each row: int64 ``[rows]``.

    ``weights`` ``[rows, vocab_size]`` need not sum to 1; a token of weight 0 is never drawn.
    """
    grouped = torch.nn.functional.pad(weights, (0, -weights.shape[1] % GROUP)).unflatten(1, (-1, GROUP))
    group = _first_group(grouped.sum(2, dtype=torch.float64), keys)
    ids = group * GROUP + torch.arange(GROUP)
    within = grouped.gather(1, group.unsqueeze(2).expand(-1, 1, GROUP)).squeeze(1)
    return _first(within, ids, keys)


def draw_among(weights: torch.Tensor, ids: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """As :func:`draw`, and with its result, where all weights but those of ``ids`` (both ``[rows, n]``) are 0."""
    groups = ids // GROUP
    sums = torch.zeros(ids.shape[0], int(groups.max()) + 1, dtype=torch.float64)
    group = _first_group(sums.scatter_add_(1, groups, weights.double()), keys)
    return _first(weights.masked_fill(groups != group, 0), ids, keys)


def signed(seed: int) -> int:
    """The low 64 bits of ``seed`` as the int64 that holds them."""
    low = seed & (1 << 64) - 1
    return low - (1 << 64) if low >> 63 else low


def _first_group(sums: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """The group that wins, int64 ``[rows, 1]``; their noise is that of negative ids."""
    groups = torch.arange(sums.shape[1])
    return (sums / noise(keys, -2 - groups)).argmax(1, keepdim=True)


def _first(weights: torch.Tensor, ids: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """The token that wins, int64 ``[rows]``."""
    return ids.gather(1, (weights / noise(keys, ids)).argmax(1, keepdim=True)).squeeze(1)


def _mix(z: torch.Tensor) -> torch.Tensor:
    z = (z ^ _shift(z, 30)) * _MIX_1
    z = (z ^ _shift(z, 27)) * _MIX_2
    return z ^ _shift(z, 31)


def _shift(z: torch.Tensor, by: int) -> torch.Tensor:
    """Logical right shift: torch shifts the sign in."""
    return (z >> by) & ((1 << (64 - by)) - 1)
