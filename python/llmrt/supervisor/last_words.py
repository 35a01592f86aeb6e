"""What processes say when they end, kept for whoever must explain their end."""

from __future__ import annotations

from llmrt import link
from llmrt.engine.farewell import FAILED_ROLE


class LastWords:
    """The latest reason that each role gave for leaving the control link."""

    def __init__(self) -> None:
        self._members: dict[int, str] = {}
        self._reasons: dict[str, str] = {}

    def notice(self, event: link.InboxEvent) -> None:
        """Takes an event of the control link."""
        if isinstance(event, link.Joined):
            role = "scheduler" if event.hello.role == FAILED_ROLE else event.hello.role
            self._members[event.peer] = role
            self._reasons.pop(role, None)
        elif isinstance(event, link.Left):
            self._reasons[self._members.pop(event.peer)] = event.reason

    def of(self, role: str) -> str | None:
        """The reason as one line, ``None`` before there is one."""
        reason = self._reasons.get(role)
        return None if reason is None else " ".join(reason.split())

    def forget(self, role: str) -> None:
        """A successor in this role starts: what comes now is its own."""
        self._reasons.pop(role, None)
