"""Child processes: started with their configuration on an inherited descriptor, stopped without leftovers."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence

from llmrt.process import start
from llmrt.process.descriptor import descriptor_of
from llmrt.process.signals import END, kept_from_children

KILL_AFTER = 5.0
"""Seconds that a child gets between being told to end and SIGKILL."""


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
            with kept_from_children():
                # A session of its own: nor does a terminal that closes or stops its programs reach it.
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

    def tell_to_end(self) -> None:
        """Has it end in order; one that still starts ends at once."""
        self.process.send_signal(END)

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
    """Ends the children: they are told, and killed where they are still there after ``patience`` seconds."""
    running = [child for child in children if child.process.poll() is None]
    for child in running:
        child.tell_to_end()
    end = time.monotonic() + patience
    for child in running:
        try:
            child.process.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
