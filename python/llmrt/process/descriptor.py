"""What a process tells its child at the start: bytes on a descriptor that the child inherits."""

from __future__ import annotations

import os
from typing import IO

_MOST = 16 << 20
"""Bytes that a child reads at most."""


def descriptor_of(data: bytes) -> int:
    """An inheritable descriptor from which a child reads ``data`` once; close it after the child has started.

    Unlike a pipe it needs no writer that stays around and no room in a kernel buffer.
    """
    with _file() as file:
        file.write(data)
        file.seek(0)
        descriptor = os.dup(file.fileno())
    os.set_inheritable(descriptor, True)
    return descriptor


def _file() -> IO[bytes]:
    """A file without a name; in memory where the system has that, for keys are in it and disks can be full."""
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("llmrt"), "w+b")
    # Only who starts processes needs this, with all that it imports.
    import tempfile

    return tempfile.TemporaryFile()


def read_from_fd(descriptor: int) -> bytes:
    """Reads an inherited descriptor, a file or a pipe, to its end and closes it.

    Raises ValueError when the descriptor is not open or says more than 16 MiB.
    """
    try:
        with open(descriptor, "rb") as file:
            data = file.read(_MOST + 1)
    except OSError as error:
        raise ValueError(f"cannot read descriptor {descriptor}: {error.strerror}") from error
    if len(data) > _MOST:
        raise ValueError(f"descriptor {descriptor} says more than {_MOST} bytes")
    return data
