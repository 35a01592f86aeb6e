"""The start of a child process: its configuration from an inherited descriptor, and its end tied to its parent's."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from llmrt.process.descriptor import read_from_fd

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int | None = None) -> None:
    """Has the kernel kill this process when the one that started it dies, however it dies.

    Linux only (prctl(2), PR_SET_PDEATHSIG); elsewhere the links notice the loss. ``parent`` is the process id that
    the parent must still have: exits at once when it died before this call, after which the kernel sends nothing.
    A process that is stopped (SIGSTOP) between its fork and this call and loses its parent meanwhile stays, stopped,
    until it is continued, and ends then: nothing before the interpreter starts could make this call without
    ``preexec_fn``, which may deadlock in a process with threads.
    """
    if not sys.platform.startswith("linux"):
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if parent is not None and os.getppid() != parent:
        sys.exit("the parent process is gone")


def read_configuration(arguments: list[str]) -> bytes:
    """The JSON of a child started by :class:`llmrt.supervisor.children.Child`: its only argument is a descriptor.

    Exits with a message when the arguments are something else.
    """
    if len(arguments) != 1 or not arguments[0].isdecimal():
        sys.exit("this process is started by llmrt itself, with one argument: the descriptor of its configuration")
    return read_from_fd(int(arguments[0]))
