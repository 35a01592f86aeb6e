"""``top_p``: only the likeliest tokens that together reach that probability may be chosen (arXiv 1904.09751).

Tokens that equal the last of them stay too. Few tokens reach it as a rule, so the vocabulary is sorted in full only
where they do not.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

FIRST_LOOK = 512
"""Best tokens that are looked at before everything is sorted."""


def raise_floor(
    floor: torch.Tensor, scores: torch.Tensor, weights: torch.Tensor, top_p: npt.NDArray[np.float32]
) -> None:
    """Raises ``floor`` ``[rows, 1]`` to the least score that ``top_p`` keeps; 1 is off.

    ``weights`` ``[rows, vocab_size]`` are the exponentials of ``scores``, 0 where other limits exclude a token.
    """
    rows = np.flatnonzero(top_p < 1)
    if not rows.size:
        return
    index = torch.from_numpy(rows)
    scores, weights = scores.index_select(0, index), weights.index_select(0, index)
    goal = torch.from_numpy(top_p[rows]).double().unsqueeze(1) * weights.sum(1, keepdim=True, dtype=torch.float64)
    best = scores.topk(min(FIRST_LOOK, scores.shape[1]), dim=1).values
    least, reached = _least(best, goal)
    rest = (~reached).nonzero().flatten()
    if rest.numel():
        least[rest] = _least(scores[rest].sort(dim=1, descending=True).values, goal[rest])[0]
    floor[index] = floor[index].maximum(least)


def _least(ordered: torch.Tensor, goal: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The first of the descending scores at which the summed weights reach ``goal``, and whether they do."""
    short = (ordered.exp().cumsum(1, dtype=torch.float64) < goal).sum(1, keepdim=True)
    last = ordered.shape[1] - 1
    return ordered.gather(1, short.clamp(max=last)), short.squeeze(1) <= last
