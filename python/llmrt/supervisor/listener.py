"""The listening socket: bound before anything is started, so that a taken port is a start error."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from llmrt.config import EntryOptions
from llmrt.supervisor.errors import StartError, preparing

BACKLOG = 4096
# A larger buffer keeps big bodies on fresh connections from stalling for a delayed acknowledgement.
RECEIVE_BUFFER = 1 << 20


@contextlib.contextmanager
def listening(options: EntryOptions) -> Iterator[socket.socket]:
    """The listening socket of a server; that of a path is gone from there at the end.

    Raises :class:`StartError` when the address cannot be had.
    """
    if options.uds is None:
        with listen(options.host, options.port) as listener:
            yield listener
        return
    path = Path(options.uds).expanduser().absolute()
    with listen_unix(path, options.uds_mode) as listener:
        mine = path.stat()
        try:
            yield listener
        finally:
            # A successor may have taken the path meanwhile.
            with contextlib.suppress(OSError):
                if os.path.samestat(mine, path.lstat()):
                    path.unlink()


def listen_unix(path: Path, mode: str) -> socket.socket:
    """A listening Unix socket at ``path`` with an octal ``mode``. One that nobody listens on any more is replaced.

    Raises :class:`StartError` when the path cannot be had.
    """
    if not mode or set(mode) - set("01234567") or int(mode, 8) > 0o777:
        raise StartError(f"--uds-mode {mode!r} must be an octal mode such as 660")
    _clear(path)
    with preparing():
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # Nobody gets in between bind and chmod: connections are refused until it listens.
        listener.bind(str(path))
        path.chmod(int(mode, 8))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise StartError(f"cannot listen on --uds {path}: {error.strerror or error}") from error
    return listener


def _clear(path: Path) -> None:
    """Removes a socket that a server left behind when it was killed."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise StartError(f"cannot listen on --uds {path}: {error.strerror}") from error
    if not stat.S_ISSOCK(found.st_mode):
        raise StartError(f"--uds {path} exists and is no socket; remove it or choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        # A full queue must not hold the start up; that somebody listens is known then.
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            with preparing():
                path.unlink(missing_ok=True)
            return
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EINPROGRESS):
                raise StartError(f"cannot listen on --uds {path}: {error.strerror or error}") from error
    raise StartError(f"--uds {path} is in use by another server; choose another path")


def listen(host: str, port: int, flag: str = "--port") -> socket.socket:
    """A listening TCP socket; ``flag`` chooses its port. Raises :class:`StartError` when the address cannot be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, ValueError) as error:
        named = "--host" if flag == "--port" else flag
        raise StartError(f"{named} {host}: {getattr(error, 'strerror', 'no name of a host')}") from error
    with preparing():
        listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise StartError(f"port {port} of {host} is taken; choose another one with {flag}") from error
        raise StartError(f"cannot listen on {host} port {port}: {error.strerror}") from error
    return listener


def url_of(listener: socket.socket, secure: bool) -> str:
    """The URL of a listening socket; ``unix:`` and its path for one without host and port."""
    if listener.family == socket.AF_UNIX:
        return f"unix:{listener.getsockname()}"
    scheme = "https" if secure else "http"
    host, port = listener.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if listener.family == socket.AF_INET6 else f"{scheme}://{host}:{port}"
