"""Signals as something to poll for: the loop wakes up and asks, nothing runs inside a handler."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Iterator
from types import FrameType
from typing import Any

END = signal.SIGUSR1
"""By this a supervisor tells a child to end. Nobody else sends it, as service managers and terminals do with others."""

INTERRUPTED = 128 + signal.SIGINT
"""Exit code of a program that an interrupt has ended."""

_FOR_SUPERVISORS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Signals:
    """Collects SIGINT, SIGTERM and SIGCHLD while open; ``fileno()`` becomes readable when one arrives.

    ``also`` are further signals to collect. Must be opened in the main thread.
    """

    WATCHED = (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)

    def __init__(self, *also: signal.Signals) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._wakeup = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._handlers: dict[int, Any] = {number: signal.signal(number, _ignore) for number in (*self.WATCHED, *also)}

    def fileno(self) -> int:
        """Descriptor to poll for reading."""
        return self._reader.fileno()

    def take(self) -> list[int]:
        """Numbers of the signals that came since the last call."""
        with contextlib.suppress(BlockingIOError):
            return list(self._reader.recv(4096))
        return []

    def close(self) -> None:
        """Puts the former handlers back."""
        signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._reader.close()
        self._writer.close()

    def close_at_the_end(self) -> None:
        """As :meth:`close`, for a process that ends: signals that ask for that are ignored from here on.

        Python's own end takes its time, and a second signal in it would make a good end a death by that signal.
        """
        for number in self._handlers:
            if number != signal.SIGCHLD:
                self._handlers[number] = signal.SIG_IGN
        self.close()


@contextlib.contextmanager
def interrupted_at_once() -> Iterator[None]:
    """Meanwhile SIGINT ends the process, with the exit code that shells give for that; for the main thread.

    Python's own way would wait for threads first, and one of them may be in a long download.
    """
    before = signal.signal(signal.SIGINT, lambda number, frame: os._exit(INTERRUPTED))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def kept_from_children() -> Iterator[None]:
    """Children that this thread starts meanwhile do not get the signals that are a supervisor's to handle.

    Such a signal may be sent to all processes of a server at once, which then has work until it has drained. It is
    blocked from a child's first instruction on, so that one that just starts does not die of it either.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _FOR_SUPERVISORS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _ignore(number: int, frame: FrameType | None) -> None:
    """The wake-up descriptor tells the loop; the handler only has to exist."""
