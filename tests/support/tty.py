"""A program at a terminal of its own: what a user types and sees."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import time
from collections.abc import Sequence

PATIENCE = 90.0


class Tty:
    """Runs a command with a pseudo-terminal as its controlling terminal."""

    def __init__(self, command: Sequence[str], environment: dict[str, str]) -> None:
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.execve(command[0], list(command), environment)
        self.seen = ""
        self._at = 0
        self._code: int | None = None

    def type(self, text: str) -> None:
        """Sends keys; ``\\r`` is Enter, ``\\x03`` Ctrl-C, ``\\x04`` Ctrl-D."""
        os.write(self._fd, text.encode())

    def expect(self, pattern: str, patience: float = PATIENCE) -> re.Match[str]:
        """Waits until the output since the last match holds ``pattern``."""
        end = time.monotonic() + patience
        while True:
            if match := re.compile(pattern).search(self.seen, self._at):
                self._at = match.end()
                return match
            readable, _, _ = select.select([self._fd], [], [], max(0.0, end - time.monotonic()))
            if not readable or not self._read():
                raise AssertionError(f"{pattern!r} did not appear in:\n{self.seen}")

    def ended(self, patience: float = PATIENCE) -> int:
        """Waits for the end; returns the exit code."""
        end = time.monotonic() + patience
        while self._code is None:
            if select.select([self._fd], [], [], 0.05)[0]:
                self._read()
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > end:
                raise AssertionError(f"still running:\n{self.seen}")
        return self._code

    def close(self) -> None:
        """Ends the program if it still runs."""
        if self._code is None:
            os.kill(self.pid, signal.SIGKILL)
            self.ended()
        os.close(self._fd)

    def _read(self) -> bool:
        try:
            data = os.read(self._fd, 1 << 16)
        except OSError:  # Linux says EIO when the other side is gone.
            return False
        self.seen += data.decode(errors="replace").replace("\r\n", "\n")
        return bool(data)
