"""``min_p``, ``top_k`` and ``top_p`` together: each is a floor on the scores, so all are one comparison.

Limits keep few tokens as a rule. So a row's best tokens are looked at first, and only where they do not hold
everything that may be chosen are more of them sorted. Which way a row goes depends on that row alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from llmrt.sampling import draw, min_p, top_k, top_p
from llmrt.sampling.slots import Slots

LOOKS = (256, 8192)
"""How many of a row's best tokens are looked at, first and then, before it is all of them."""


@dataclass(frozen=True)
class Limits:
    """One entry a row: ``top_k`` (0 is off), ``top_p`` (1 is off), ``min_p`` (0 is off)."""

    top_k: Slots
    top_p: npt.NDArray[np.float32]
    min_p: npt.NDArray[np.float32]

    def limited(self) -> npt.NDArray[np.bool_]:
        """Whether each row has any limit."""
        return (self.top_k > 0) | (self.top_p < 1) | (self.min_p > 0)

    def of(self, rows: Slots) -> Limits:
        """The limits of some rows."""
        return Limits(self.top_k[rows], self.top_p[rows], self.min_p[rows])


def choose(scores: torch.Tensor, limits: Limits, keys: torch.Tensor) -> torch.Tensor:
    """Draws one token a row among those that ``limits`` allow: int64 ``[rows]``.

    ``scores`` ``[rows, vocab_size]`` are logits over temperature; they are overwritten. ``keys`` are those of
    :mod:`~llmrt.sampling.draw`.
    """
    scores.sub_(scores.amax(dim=1, keepdim=True))
    tokens = torch.empty(scores.shape[0], dtype=torch.int64)
    pending = torch.arange(scores.shape[0])
    for look in (*LOOKS, scores.shape[1]):
        rows = scores if pending.numel() == scores.shape[0] else scores.index_select(0, pending)
        drawn, complete = _among_best(rows, look, limits.of(pending.numpy()), keys[pending])
        tokens[pending] = drawn
        pending = pending[~complete]
        if not pending.numel():
            break
    return tokens


def _among_best(
    scores: torch.Tensor, look: int, limits: Limits, keys: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draws among the ``look`` best of each row, whose first is 0. The rows marked (bool) had all that may be drawn."""
    best, ids = scores.topk(min(look, scores.shape[1]), dim=1)
    floor, complete = _floor(scores, best, limits)
    weights = best.exp().masked_fill_(best < floor, 0)
    return draw.draw_among(weights, ids, keys), complete.squeeze(1)


def _floor(scores: torch.Tensor, best: torch.Tensor, limits: Limits) -> tuple[torch.Tensor, torch.Tensor]:
    """The floor ``[rows, 1]`` of each row, and whether all that stand on it are among its ``best``."""
    floor = torch.full((scores.shape[0], 1), -torch.inf)
    min_p.raise_floor(floor, limits.min_p)
    top_k.raise_floor(floor, best, limits.top_k)
    reached = torch.ones_like(floor, dtype=torch.bool)
    # A top_k beyond the best would lower the total that top_p counts in, so it has to wait for the whole order.
    if best.shape[1] < scores.shape[1]:
        reached = torch.from_numpy(limits.top_k <= best.shape[1]).unsqueeze(1)
    if (limits.top_p < 1).any():
        reached = reached & top_p.raise_floor(floor, best, _totals(scores, best, floor), limits.top_p)
    complete = reached & ((floor > best[:, -1:]) | (best.shape[1] == scores.shape[1]))
    return floor, complete


def _totals(scores: torch.Tensor, best: torch.Tensor, floor: torch.Tensor) -> torch.Tensor:
    """Summed exponentials, float64 ``[rows, 1]``, of the scores at or above ``floor``."""
    totals = best.exp().masked_fill_(best < floor, 0).sum(1, keepdim=True, dtype=torch.float64)
    beyond = (floor <= best[:, -1:]).squeeze(1)
    if best.shape[1] < scores.shape[1] and bool(beyond.any()):
        rows = slice(None) if bool(beyond.all()) else beyond
        weights = scores[rows].exp()
        if bool((floor[rows] > -torch.inf).any()):
            weights.masked_fill_(scores[rows] < floor[rows], 0)
        totals[rows] = weights.sum(1, keepdim=True, dtype=torch.float64)
    return totals
