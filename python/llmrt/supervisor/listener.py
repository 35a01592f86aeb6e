"""The listening socket: bound before anything is started, so that a taken port is a start error."""

from __future__ import annotations

import errno
import socket

from llmrt.supervisor.errors import StartError, preparing

BACKLOG = 4096
# A larger buffer keeps big bodies on fresh connections from stalling for a delayed acknowledgement.
RECEIVE_BUFFER = 1 << 20


def listen(host: str, port: int) -> socket.socket:
    """A listening TCP socket. Raises :class:`StartError` when the address cannot be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, ValueError) as error:
        raise StartError(f"--host {host}: {getattr(error, 'strerror', 'no name of a host')}") from error
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
            raise StartError(f"port {port} of {host} is taken; choose another one with --port") from error
        raise StartError(f"cannot listen on {host} port {port}: {error.strerror}") from error
    return listener


def url_of(listener: socket.socket) -> str:
    """The URL of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if listener.family == socket.AF_INET6 else f"http://{host}:{port}"
