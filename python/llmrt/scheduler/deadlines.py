"""Requests that must have ended by a certain time."""

from __future__ import annotations

from llmrt.scheduler.request import Request


class Deadlines:
    """Those of the living requests that have one. Times are nanoseconds of the scheduler's clock."""

    def __init__(self) -> None:
        self._of: dict[int, int] = {}

    def add(self, request: Request) -> None:
        """Watches a request, if it has a deadline."""
        if request.deadline_ns is not None:
            self._of[request.id] = request.deadline_ns

    def remove(self, request: Request) -> None:
        """The request has ended."""
        self._of.pop(request.id, None)

    @property
    def any(self) -> bool:
        """Whether there is one to watch."""
        return bool(self._of)

    def passed(self, now_ns: int) -> list[int]:
        """The ids of those whose time is over, in order of arrival."""
        return [id for id, deadline in self._of.items() if deadline <= now_ns]
