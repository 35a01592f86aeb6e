"""What keeps a server from starting."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator

import zmq

from llmrt.topology import TopologyError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)


class StartError(Exception):
    """The server cannot start; the message says why and what to change."""


@contextlib.contextmanager
def preparing() -> Iterator[None]:
    """Makes a :class:`StartError` of what the system refuses while a server is prepared: files, sockets, processes."""
    try:
        yield
    except TopologyError as error:
        raise StartError(str(error)) from error
    except (OSError, zmq.ZMQError) as error:
        raise StartError(f"the server cannot be prepared: {_reason(error)}") from error


def _reason(error: OSError | zmq.ZMQError) -> str:
    reason = error.strerror or str(error)
    filename = getattr(error, "filename", None)
    if filename is not None:
        reason += f": {os.fsdecode(filename)}"
    if error.errno in _FULL:
        return f"{reason}; make room for temporary files, or name other places with XDG_RUNTIME_DIR and TMPDIR"
    if error.errno in _DESCRIPTORS:
        return f"{reason}; raise the limit with ulimit -n"
    return reason
