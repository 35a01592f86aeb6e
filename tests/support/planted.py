"""Faults in the processes of a server that come and go while it runs: a window is as long as a test needs it."""

from __future__ import annotations

import os
from pathlib import Path

_CODE = """
import errno, os, signal, sys, time
parent = os.getppid()
def told(deed):
    with open(os.environ["PLANTED"]) as file:
        return file.read() == deed
name = (sys.orig_argv + [""] * 3)[2]
if told("fail " + name):
    sys.exit("not now")
if name == "llmrt.entry.process":
    # As it does when it has read its modules, before it can obey.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
while told("hang " + name) and os.getppid() == parent:
    time.sleep(0.01)
real = os.pidfd_open
def pidfd_open(*given):
    if told("blind"):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    return real(*given)
os.pidfd_open = pidfd_open
"""
"""Runs in every process of a server before all else."""


class Planted:
    """What processes do that have ``environment``, and those that they start."""

    def __init__(self, folder: Path) -> None:
        (folder / "sitecustomize.py").write_text(_CODE)
        self._told = folder / "told"
        self.environment = {"PYTHONPATH": str(folder), "PLANTED": str(self._told)}
        self.nothing()

    def fail(self, module: str) -> None:
        """Processes that are started with ``module`` fail from now on, at once."""
        self._tell(f"fail {module}")

    def hang(self, module: str) -> None:
        """They wait, before they have said anything, until this is told something else."""
        self._tell(f"hang {module}")

    def blind(self) -> None:
        """No process can open another one's descriptor (pidfd) any more."""
        self._tell("blind")

    def nothing(self) -> None:
        """All goes well again."""
        self._tell("")

    def _tell(self, deed: str) -> None:
        new = self._told.with_suffix(".new")
        new.write_text(deed)
        os.replace(new, self._told)
