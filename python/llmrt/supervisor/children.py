"""Child processes: started with their configuration on an inherited descriptor, stopped without leftovers."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence

from llmrt.process import start
from llmrt.process.descriptor import descriptor_of

KILL_AFTER = 5.0
"""Seconds that a child gets between SIGTERM and SIGKILL."""


class Child:
    """A Python module run as a process; it reads its JSON configuration from the descriptor named in its argument.

    ``role`` and ``index`` are what it calls itself on the links; ``inherited`` are descriptors that it gets under the
    same numbers.
    """

    def __init__(
        self,
        name: str,
        role: str,
        module: str,
        configuration: bytes,
        environment: Mapping[str, str] | None = None,
        index: int = 0,
        inherited: Sequence[int] = (),
    ):
        self.name = name
        self.role = role
        self.index = index
        self._module = module
        self._configuration = configuration
        self._environment = environment
        self._inherited = inherited
        descriptor = descriptor_of(configuration)
        try:
            # A session of its own: a terminal's interrupt reaches the supervisor alone, which decides.
            self.process = subprocess.Popen(
                start.command(module, str(descriptor)),
                pass_fds=[descriptor, *inherited],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, **(environment or {})},
            )
        finally:
            os.close(descriptor)

    def again(self) -> Child:
        """Starts the same once more."""
        told = (self._configuration, self._environment, self.index, self._inherited)
        return Child(self.name, self.role, self._module, *told)

    def kill(self) -> None:
        """Ends it now, and waits for that."""
        self.process.kill()
        self.process.wait()

    def ended(self) -> str | None:
        """How the process ended, ``None`` while it runs."""
        code = self.process.poll()
        if code is None:
            return None
        if code < 0:
            return f"{self.name} was killed by {signal.Signals(-code).name}"
        return f"{self.name} ended with exit code {code}"


def stop(children: Iterable[Child], patience: float = KILL_AFTER) -> None:
    """Ends the children: SIGTERM, then SIGKILL for those that are still there after ``patience`` seconds."""
    running = [child.process for child in children if child.process.poll() is None]
    for process in running:
        process.terminate()
    end = time.monotonic() + patience
    for process in running:
        try:
            process.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
