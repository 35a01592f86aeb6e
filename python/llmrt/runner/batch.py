"""From the rows of a plan to the arrays of one forward pass."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from llmrt.attention.base import Sequences
from llmrt.runner.slots import Ints, PlanError, SlotTable, column
from llmrt.scheduler.plan import PAGE_SIZE, StepPlan


@dataclass(frozen=True)
class Batch:
    """Arrays of one step.

    ``ids``, ``owner`` (its slot), ``positions``, ``exact`` (see ``llmrt.layers.linear``) and ``origin`` (the row of
    the plan that it comes from) have one entry a row, in the order of ``sequences``. The other arrays have one entry
    for each sequence that is sampled, those whose last token is generated first: ``last`` (its last row),
    ``last_exact``, ``slots``, ``next_positions`` (where the sampled token goes) and ``order`` (its place in the
    result).
    """

    ids: Ints
    owner: Ints
    positions: Ints
    exact: npt.NDArray[np.bool_]
    origin: Ints
    sequences: Sequences
    last: Ints
    last_exact: npt.NDArray[np.bool_]
    slots: Ints
    next_positions: Ints
    order: Ints


def build(plan: StepPlan, table: SlotTable) -> Batch | None:
    """The batch of ``plan``, or ``None`` when it has no rows. Raises :class:`PlanError` on rows that ask for what
    their slots do not hold."""
    slots, begin, count = column(plan.slots), column(plan.begin), column(plan.count)
    sample = np.frombuffer(plan.sample, np.uint8) != 0
    if not len(slots) == len(begin) == len(count) == len(sample):
        raise PlanError("the columns of the plan differ in length")
    if not len(slots):
        return None
    end = begin + count
    _check(slots, count, end, table)
    # Attention wants single rows first and similar lengths together, linears want rows of one role together.
    order = np.lexsort((begin, table.exact(slots, begin), count > 1))
    owner = np.repeat(slots[order], count[order])
    ends = np.cumsum(count[order])
    positions = np.arange(ends[-1]) + np.repeat(begin[order] - ends + count[order], count[order])
    pages = table.pages[slots[order], : (int(end.max()) - 1) // PAGE_SIZE + 1]
    pages[np.arange(pages.shape[1])[None, :] >= table.page_counts[slots[order], None]] = 0
    last = np.empty_like(ends)
    last[order] = ends - 1
    last_exact = table.exact(slots[sample], end[sample] - 1)
    by_role = np.argsort(last_exact, kind="stable")
    return Batch(
        ids=table.tokens[owner, positions].astype(np.int64),
        owner=owner,
        positions=positions,
        exact=table.exact(owner, positions),
        origin=np.repeat(order, count[order]),
        sequences=Sequences(begin[order], count[order], pages),
        last=last[sample][by_role],
        last_exact=last_exact[by_role],
        slots=slots[sample][by_role],
        next_positions=end[sample][by_role],
        order=by_role,
    )


def _check(slots: Ints, count: Ints, end: Ints, table: SlotTable) -> None:
    if slots.max() >= table.num_slots:
        raise PlanError(f"slot {slots.max()} does not exist; there are {table.num_slots}")
    if len(np.unique(slots)) != len(slots):
        raise PlanError("a slot stands in two rows of one plan")
    for wrong, what in (
        (count == 0, "computes no token"),
        (end > table.lengths[slots], "computes tokens that it does not have"),
        (end > table.page_counts[slots] * PAGE_SIZE, "computes tokens for which it has no page"),
    ):
        if wrong.any():
            raise PlanError(f"slot {slots[wrong][0]} {what}")
