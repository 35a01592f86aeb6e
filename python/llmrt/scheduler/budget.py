"""How a step's token budget is spent.

Every running request has a gap between the tokens it has and the tokens computed. Gaps of one (mostly decoding)
come first, because each is somebody's next token and costs next to nothing; what remains closes larger gaps in the
policy's order, by chunks. So a long prompt never delays the running streams by more than one step of the budget.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from llmrt import wire
from llmrt.scheduler.plan import PageGrant, SlotStart, StepPlan
from llmrt.scheduler.request import Request


class Rows:
    """The rows of one step, by column, and what must be known to read its results."""

    __slots__ = ("begin", "chunks", "count", "sampled", "slots", "unit")

    def __init__(self) -> None:
        self.slots: list[int] = []
        self.begin: list[int] = []
        self.count: list[int] = []
        """Of the rows after the first :attr:`unit`."""
        self.unit = 0
        """Rows of one token, which come first."""
        self.sampled: list[Request] = []
        """The requests that get a token, in row order."""
        self.chunks: list[tuple[Request, int, int]] = []
        """Rows that get none: request, tokens computed after the step, the request's count of admissions."""

    @property
    def requests(self) -> list[Request]:
        """The requests of all rows."""
        return [*self.sampled, *(request for request, _, _ in self.chunks)]

    def told(self, first: int) -> Iterator[int | None]:
        """For each sampled request its row in a frame that has ``first`` rows already; finished ones get none."""
        for request in self.sampled:
            yield None if request.finished else first
            first += not request.finished

    def plan(self, step: int, freed: list[int], starts: list[SlotStart], grants: list[PageGrant]) -> StepPlan:
        """The plan of these rows."""
        # The budget runs out in at most one row, the last: all before it get a token.
        unsampled = len(self.slots) - len(self.sampled)
        assert unsampled == len(self.chunks) <= 1
        return StepPlan(
            step=step,
            freed=freed,
            starts=starts,
            grants=grants,
            slots=wire.u32(self.slots),
            begin=wire.u32(self.begin),
            count=wire.u32(array("I", (1,)) * self.unit + array("I", self.count)),
            sample=b"\x01" * len(self.sampled) + b"\x00" * unsampled,
        )


def spend(budget: int, running: list[Request]) -> Rows:
    """Spends ``budget`` tokens on the gaps of ``running``, which is in the policy's order, and marks them computed."""
    rows = Rows()
    slots, begins, sampled = rows.slots, rows.begin, rows.sampled
    larger: list[Request] = []
    for request in running:
        begin = request.computed
        length = request.length
        if length - begin != 1:
            larger.append(request)
        elif length < request.stop_at:
            if len(slots) == budget:
                break
            slots.append(request.slot)
            begins.append(begin)
            sampled.append(request)
            request.computed = length
            request.length = length + 1
    rows.unit = len(slots)
    left = budget - rows.unit
    for request in larger:
        if not left:
            break
        count = min(left, request.length - request.computed)
        left -= count
        slots.append(request.slot)
        begins.append(request.computed)
        rows.count.append(count)
        request.computed += count
        if request.computed == request.length:
            request.length += 1
            sampled.append(request)
        else:
            rows.chunks.append((request, request.computed, request.admissions))
    return rows


def reaches(budget: int, running: list[Request], request: Request) -> bool:
    """Whether :func:`spend` would have some of ``budget`` left for ``request``, were it running too."""
    left = budget
    for other in running:
        gap = other.length - other.computed
        if gap == 1 or other.key < request.key:
            left -= gap
    return left > 0
