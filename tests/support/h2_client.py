"""A small HTTP/2 client over raw frames, for what ordinary clients do not do: resetting one stream of a connection."""

from __future__ import annotations

import json
from typing import Any

import h2.config
import h2.connection
import h2.events

from support.cell import CELL

FRAME = 1 << 14
"""Bytes that a frame may always have (RFC 9113, section 6.5.2)."""

GOAWAY = 7
"""Type of the frame (RFC 9113, section 6.8)."""


class Farewells:
    """Takes GOAWAY out of what is received: ``h2`` would take it for the end of streams that go on."""

    def __init__(self) -> None:
        self._rest = b""
        self.last_stream: int | None = None
        """The last stream that the server answers, if it has sent GOAWAY."""

    def without(self, data: bytes) -> bytes:
        """The whole frames that ``data`` completes, but for GOAWAY."""
        self._rest += data
        passed = b""
        while len(self._rest) >= 9 and len(self._rest) >= (size := 9 + int.from_bytes(self._rest[:3], "big")):
            frame, self._rest = self._rest[:size], self._rest[size:]
            if frame[3] == GOAWAY:
                self.last_stream = int.from_bytes(frame[9:13], "big") & 0x7FFF_FFFF
            else:
                passed += frame
        return passed


class H2Client:
    """One connection with prior knowledge; requests are streams that can be read, and reset, apart."""

    def __init__(self, host: str, port: int, timeout: float = 60.0) -> None:
        self.authority = f"{host}:{port}"
        self.socket = CELL.connect(host, port, "h2", timeout=timeout)
        self.connection = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self.connection.initiate_connection()
        self._farewells = Farewells()
        self.bodies: dict[int, bytes] = {}
        self.status: dict[int, int] = {}
        self.headers: dict[int, dict[str, str]] = {}
        self.ended: set[int] = set()
        self._flush()

    def __enter__(self) -> H2Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    @property
    def said_goodbye(self) -> bool:
        """Whether the server has sent GOAWAY."""
        return self._farewells.last_stream is not None

    def post(self, path: str, body: dict[str, Any], *fields: tuple[str, str]) -> int:
        """Sends a JSON request with further header ``fields``; returns its stream."""
        stream = self._begin("POST", path, ("content-type", "application/json"), *fields)
        data = json.dumps(body).encode()
        for start in range(0, len(data), FRAME):
            self.connection.send_data(stream, data[start : start + FRAME])
        self.connection.end_stream(stream)
        self._flush()
        return stream

    def get(self, path: str) -> int:
        """Sends a request without a body; returns its stream."""
        stream = self._begin("GET", path)
        self.connection.end_stream(stream)
        self._flush()
        return stream

    def reset(self, stream: int) -> None:
        """Leaves a request: RST_STREAM with CANCEL."""
        self.connection.reset_stream(stream, error_code=8)
        self._flush()

    def read_until(self, done: Any) -> None:
        """Reads frames until ``done()`` is true."""
        while not done():
            data = self.socket.recv(65536)
            if not data:
                raise AssertionError("the server closed the connection")
            for event in self.connection.receive_data(self._farewells.without(data)):
                self._take(event)
            self._flush()

    def finish(self, stream: int) -> bytes:
        """Reads a response to its end."""
        self.read_until(lambda: stream in self.ended)
        return self.bodies[stream]

    def _begin(self, method: str, path: str, *fields: tuple[str, str]) -> int:
        stream = self.connection.get_next_available_stream_id()
        headers = [(":method", method), (":path", path), (":scheme", "http"), (":authority", self.authority)]
        self.connection.send_headers(stream, [*headers, *fields])
        self.bodies[stream] = b""
        return stream

    def _take(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.ResponseReceived):
            self.headers[event.stream_id] = dict(event.headers)
            self.status[event.stream_id] = int(self.headers[event.stream_id][":status"])
        elif isinstance(event, h2.events.DataReceived):
            self.bodies[event.stream_id] += event.data
            self.connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, h2.events.StreamEnded | h2.events.StreamReset):
            self.ended.add(event.stream_id)

    def _flush(self) -> None:
        self.socket.sendall(self.connection.data_to_send())
