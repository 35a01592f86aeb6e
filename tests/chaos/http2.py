"""HTTP/2 connections with many requests at once, which tell for each how it ended, and never wait for a dead peer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings

from chaos.answers import Broken
from support.h2_client import Farewells

WINDOW = 16 << 10
"""Bytes of an answer that may wait unread here: soon the rest waits in the server."""

CONNECTION_WINDOW = 16 << 20
"""Streams that nobody reads must not block their siblings."""


class ConnectionLost(Exception):
    """The connection ended before the answer did."""


class Reset(Exception):
    """The server ended a stream by RST_STREAM."""


class Response:
    """An answer as it arrives; what is not read is not acknowledged either."""

    def __init__(self, connection: Connection, stream: int) -> None:
        self._connection = connection
        self._stream = stream
        self._status: int | None = None
        self._pieces: list[tuple[bytes, int]] = []
        self._ended = False
        self._failure: Exception | None = None
        self._news = asyncio.Event()

    async def status(self) -> int:
        while self._status is None:
            await self._wait()
        return self._status

    async def body(self) -> AsyncIterator[bytes]:
        while True:
            while self._pieces:
                piece, size = self._pieces.pop(0)
                if not self.over:
                    self._connection.open_window(self._stream, size)
                yield piece
            if self._ended:
                return
            await self._wait()

    async def _wait(self) -> None:
        """Waits for news. Raises what ended the stream too early."""
        if self._failure is not None:
            raise self._failure
        await self._news.wait()
        self._news.clear()

    @property
    def over(self) -> bool:
        return self._ended or self._failure is not None

    def fail(self, failure: Exception) -> None:
        self._failure = self._failure or failure
        self._news.set()

    def take(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.ResponseReceived):
            self._status = int(dict(event.headers)[":status"])
        elif isinstance(event, h2.events.DataReceived):
            self._pieces.append((event.data, event.flow_controlled_length))
        elif isinstance(event, h2.events.StreamEnded):
            self._ended = True
        elif isinstance(event, h2.events.StreamReset) and not self._ended:
            self._failure = Reset(f"RST_STREAM {event.error_code!r}")
        self._news.set()


class Connection(asyncio.Protocol):
    """One connection with prior knowledge."""

    _transport: asyncio.Transport

    def __init__(self, authority: str) -> None:
        self._authority = authority
        self._h2 = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self._farewells = Farewells()
        self._responses: dict[int, Response] = {}
        self._unacknowledged = 0
        self.open = False

    @property
    def usable(self) -> bool:
        return self.open and self._farewells.last_stream is None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.open = True
        self._h2.initiate_connection()
        self._h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: WINDOW})
        self._h2.increment_flow_control_window(CONNECTION_WINDOW)
        self._flush()

    def data_received(self, data: bytes) -> None:
        try:
            events = self._h2.receive_data(self._farewells.without(data))
        except h2.exceptions.ProtocolError as error:
            return self._end(Broken(f"not HTTP/2: {error!r}"))
        for event in events:
            if isinstance(event, h2.events.DataReceived):
                self._unacknowledged += event.flow_controlled_length
            if (response := self._responses.get(getattr(event, "stream_id", None) or 0)) is not None:
                response.take(event)
        if self._unacknowledged > CONNECTION_WINDOW // 2:
            self._h2.increment_flow_control_window(self._unacknowledged)
            self._unacknowledged = 0
        if (last := self._farewells.last_stream) is not None:
            for stream, response in self._responses.items():
                if stream > last:
                    response.fail(ConnectionLost())
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(ConnectionLost())

    def post(self, path: str, body: dict[str, Any]) -> tuple[int, Response]:
        stream = self._h2.get_next_available_stream_id()
        headers = {":method": "POST", ":path": path, ":scheme": "http", ":authority": self._authority}
        self._h2.send_headers(stream, [*headers.items(), ("content-type", "application/json")])
        self._h2.send_data(stream, json.dumps(body).encode(), end_stream=True)
        self._responses[stream] = Response(self, stream)
        self._flush()
        return stream, self._responses[stream]

    def open_window(self, stream: int, size: int) -> None:
        self._h2.increment_flow_control_window(size, stream)
        self._flush()

    def leave(self, stream: int) -> None:
        """Forgets a stream, and resets it if it is not over."""
        if not self._responses.pop(stream).over and self.open:
            self._h2.reset_stream(stream, h2.errors.ErrorCodes.CANCEL)
            self._flush()

    def close(self) -> None:
        self._end(ConnectionLost())

    def _end(self, failure: Exception) -> None:
        self.open = False
        self._transport.abort()
        for response in self._responses.values():
            if not response.over:
                response.fail(failure)

    def _flush(self) -> None:
        if self.open and (data := self._h2.data_to_send()):
            self._transport.write(data)


class Shared:
    """A connection that is opened again when it is lost; requests are its streams."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._connection: Connection | None = None
        self._opening = asyncio.Lock()

    @asynccontextmanager
    async def post(self, path: str, body: dict[str, Any]) -> AsyncIterator[Response]:
        """A request, which is left with the context. Raises :class:`ConnectionLost`."""
        connection = await self._usable()
        stream, response = connection.post(path, body)
        try:
            yield response
        finally:
            connection.leave(stream)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    async def _usable(self) -> Connection:
        async with self._opening:
            if self._connection is None or not self._connection.usable:
                loop, authority = asyncio.get_running_loop(), f"{self._host}:{self._port}"
                try:
                    _, self._connection = await loop.create_connection(
                        lambda: Connection(authority), self._host, self._port
                    )
                except OSError as error:
                    raise ConnectionLost from error
            return self._connection
