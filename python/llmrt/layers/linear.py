"""Linear layers on the CPU: which kernel is best depends on the machine, on the number of rows and on their role.

A row is *exact* or not. Prompt tokens are exact: they come in large batches, where float32 costs little more than
narrower weights, and everything that follows builds on them. Generated tokens come few at a time, where a step is as
long as reading the weights takes; they use the fastest lossless kernel, which is the fp16 one where it works. Only
where their log probabilities are reported are they exact too: fp16 shifts single ones by up to 1e-2. The role belongs
to the token, not to the batch it is computed in, so it does not matter when or beside what a token is computed.

It does matter what a token is. When a chat goes on, the last answer is part of the prompt. A prefix hit finds the keys
and values that were made while it was generated; computed again, they would come from the exact kernel. The two differ
by about 1e-2 in the largest keys, so with the prefix cache the next turn can differ where two tokens are all but tied.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from llmrt.layers.linear_kernels import KERNELS, Packed

PERIOD = 120
"""Kernels cut batches into blocks of this many rows, so what holds for a row count holds for it plus ``PERIOD``."""


@dataclass(frozen=True)
class KernelChoice:
    """Kernel by number of rows: ``names[i]`` serves up to ``limits[i]`` rows.

    ``padded`` makes a row's result independent of how many rows share its call: ``padded[n]`` is the number of rows
    to compute where ``n`` (1 to ``PERIOD``) are wanted. Kernels change their summation order at some counts; a row or
    two more avoids those. Empty where the kernels do not allow it.
    """

    names: tuple[str, ...]
    limits: tuple[int, ...]
    padded: tuple[int, ...] = ()

    def rows(self, wanted: int) -> int:
        """How many rows to compute so that none of the ``wanted`` ones feels its neighbours."""
        if not self.padded or wanted == 0:
            return wanted
        blocks = (wanted - 1) // PERIOD * PERIOD
        return blocks + self.padded[wanted - blocks]


@dataclass(frozen=True)
class Kernels:
    """Kernels of exact rows and of others; the same object where one serves both."""

    exact: KernelChoice
    fast: KernelChoice


@dataclass(frozen=True)
class Segment:
    """Rows ``start`` to ``stop`` of a batch share a role; their kernel is given those up to ``computed``."""

    start: int
    stop: int
    computed: int
    exact: bool


def segments(exact: npt.NDArray[np.bool_], kernels: Kernels) -> tuple[Segment, ...]:
    """Cuts a batch, ``exact`` telling the role of each row, into runs of one role.

    A kernel may be given rows of the next run besides its own, and their results are dropped; where the batch ends
    too early, the last run's ``computed`` says how long it must be made.
    """
    if kernels.exact is kernels.fast:
        exact = np.zeros_like(exact)
    cuts = [0, *(np.flatnonzero(exact[1:] != exact[:-1]) + 1).tolist(), len(exact)]
    found = []
    for start, stop in itertools.pairwise(cuts):
        choice = kernels.exact if exact[start] else kernels.fast
        found.append(Segment(start, stop, start + choice.rows(stop - start), bool(exact[start])))
    found[-1] = replace(found[-1], computed=max(segment.computed for segment in found))
    return tuple(found)


class Linear:
    """``x @ weight.T + bias``; ``weight`` is ``[out, in]``, ``bias`` ``[out]`` or ``None``, both float32."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, kernels: Kernels) -> None:
        used = dict.fromkeys(kernels.exact.names + kernels.fast.names)
        packed = {name: KERNELS[name].pack(weight, bias) for name in used}
        self._exact = _by_rows(kernels.exact, packed)
        self._fast = _by_rows(kernels.fast, packed)

    def __call__(self, x: torch.Tensor, rows: tuple[Segment, ...]) -> torch.Tensor:
        """Float32 ``[rows, in]`` to float32 ``[rows, out]``; ``rows`` ends with the batch, padding included."""
        if len(rows) == 1:
            return self._kernel(rows[0])(x)
        *others, last = rows
        parts = [self._kernel(s)(x[s.start : s.computed])[: s.stop - s.start] for s in others]
        return torch.cat([*parts, self._kernel(last)(x[last.start :])])

    def _kernel(self, segment: Segment) -> Packed:
        number = segment.computed - segment.start
        return next(kernel for limit, kernel in (self._exact if segment.exact else self._fast) if number <= limit)


def _by_rows(choice: KernelChoice, packed: dict[str, Packed]) -> list[tuple[int, Packed]]:
    return [(limit, packed[name]) for name, limit in zip(choice.names, choice.limits, strict=True)]
