"""The processes of the core: what the control link tells of each, and when one is started again."""

from __future__ import annotations

import time
from collections import deque

from llmrt import link
from llmrt.supervisor.children import Child

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 10.0
"""Seconds before a restart: the first one at once, as nearly all are alone; those that follow double the pause."""


LEAVE = 15.0
"""Seconds that a process may live on after its control link ended. Until then it has either joined again or ended: an
engine gives a step that hangs five seconds to come to its end after it has said that it is gone."""


class Restarts:
    """Counts restarts: no more than ``limit`` of them within ``window`` seconds."""

    def __init__(self, limit: int, window: float) -> None:
        self.limit = limit
        self.window = window
        self._times: deque[float] = deque()

    def pause(self, now: float) -> float | None:
        """Seconds to wait before one more, which is counted; ``None`` when there were too many."""
        while self._times and self._times[0] <= now - self.window:
            self._times.popleft()
        if len(self._times) == self.limit:
            return None
        self._times.append(now)
        # Bounded before it is a power: so many doublings are beyond the longest pause.
        return min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(len(self._times) - 1, 16))


class Member:
    """A process of the core, through all of its lives."""

    def __init__(self, child: Child) -> None:
        self.took = 0.0
        """Seconds that its last start took, until it had joined the control link."""
        self._live(child)

    def _live(self, child: Child) -> None:
        self.child = child
        self.began = time.monotonic()
        self.joined = False
        self.incarnation: int | None = None
        self.due: float | None = None
        """When it is to be started again; ``None`` while it runs."""
        self._peer: int | None = None
        self._silent = False
        self._left: float | None = None

    def notice(self, event: link.InboxEvent) -> bool:
        """Takes an event of the control link; whether it says that this process is up."""
        if isinstance(event, link.Joined):
            if (event.hello.role, event.hello.index) != (self.child.role, self.child.index):
                return False
            came_up = not self.joined
            if came_up:
                self.took = time.monotonic() - self.began
            self.joined = True
            self.incarnation = event.hello.incarnation
            self._peer = event.peer
            self._silent = False
            self._left = None
            return came_up
        if isinstance(event, link.Left) and event.peer == self._peer:
            self._silent = event.silent
            self._left = time.monotonic()
        return False

    @property
    def lingers(self) -> bool:
        """Whether its control link ended otherwise than by silence: it ends, or will join again."""
        return self._left is not None and not self._silent

    def until_deadline(self, start_timeout: float) -> float | None:
        """Seconds until something is to be done about it, ``None`` when only an event can say."""
        if self.due is not None:
            return max(0.0, self.due - time.monotonic())
        if self._left is not None and self.child.ended() is None:
            return max(0.0, self._left + LEAVE - time.monotonic())
        if self.joined:
            return None
        return max(0.0, self.began + start_timeout - time.monotonic())

    def hung(self, start_timeout: float) -> bool:
        """Whether it lives but does not answer: it fell silent, left but did not end, or has not joined in time."""
        return self.due is None and (self._silent or self.until_deadline(start_timeout) == 0.0)

    def fault(self, start_timeout: float) -> str | None:
        """How it failed, ``None`` while it does not; one that hangs is killed."""
        if self.due is not None:
            return None
        if (fault := self.child.ended()) is not None:
            return fault
        if not self.hung(start_timeout):
            return None
        self.child.kill()
        return f"{self.child.name} {'left but did not end' if self.lingers else 'gave no sign of life'}"

    def rest(self, pause: float) -> float:
        """Leaves a dead one alone for ``pause`` seconds; returns those until it may have joined again."""
        self.due = time.monotonic() + pause
        return pause + self.took

    def revive(self) -> bool:
        """Starts it again if that is due. Raises ``OSError`` when the system has no room for it."""
        if self.due is None or time.monotonic() < self.due:
            return False
        self._live(self.child.again())
        return True
