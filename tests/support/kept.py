"""One connection that is kept: what is asked on it fails when the server has closed it meanwhile."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from support.cell import CELL
from support.h2_client import H2Client
from support.server import Server


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class _Http1:
    def __init__(self, server: Server) -> None:
        self.connection = http.client.HTTPConnection(server.host, server.port, timeout=60)
        self.connection.sock = CELL.connect(server.host, server.port)
        # Another socket than this one would hide that it was closed.
        self.connection.auto_open = 0

    def close(self) -> None:
        self.connection.close()

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Answer:
        self._send(path, body)
        response = self.connection.getresponse()
        headers = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, headers, response.read())

    def stream(self, path: str, body: dict[str, Any]) -> Iterator[bytes]:
        self._send(path, body)
        response = self.connection.getresponse()
        assert response.status == 200
        while line := response.readline():
            yield line

    def _send(self, path: str, body: dict[str, Any] | None) -> None:
        data = None if body is None else json.dumps(body).encode()
        headers = {} if body is None else {"content-type": "application/json"}
        self.connection.request("GET" if body is None else "POST", path, data, headers)


class _Http2:
    def __init__(self, server: Server) -> None:
        self.client = H2Client(server.host, server.port)

    def close(self) -> None:
        self.client.socket.close()

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Answer:
        client = self.client
        stream = client.get(path) if body is None else client.post(path, body)
        content = client.finish(stream)
        return Answer(client.status[stream], client.headers[stream], content)

    def stream(self, path: str, body: dict[str, Any]) -> Iterator[bytes]:
        client = self.client
        stream = client.post(path, body)
        while stream not in client.ended or client.bodies[stream]:
            client.read_until(lambda: client.bodies[stream] or stream in client.ended)
            lines, client.bodies[stream] = client.bodies[stream], b""
            yield from lines.splitlines(keepends=True)


Kept = _Http1 | _Http2


@contextmanager
def kept(server: Server, version: str) -> Iterator[Kept]:
    """A connection of ``version`` http1 or http2."""
    connection = _Http1(server) if version == "http1" else _Http2(server)
    try:
        yield connection
    finally:
        connection.close()


def events(lines: Iterator[bytes]) -> Iterator[str]:
    """The data of the events of a stream, as they come."""
    return (line[6:].decode().strip() for line in lines if line.startswith(b"data: "))
