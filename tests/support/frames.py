"""HTTP/2 frame by frame, for what no client would send."""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Callable, Iterable

import hpack
from hyperframe.exceptions import UnknownFrameError
from hyperframe.frame import (
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
)

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
PATIENCE = 20.0

NO_ERROR, PROTOCOL_ERROR, INTERNAL_ERROR, FLOW_CONTROL_ERROR, SETTINGS_TIMEOUT, STREAM_CLOSED = range(6)
FRAME_SIZE_ERROR, REFUSED_STREAM, CANCEL, COMPRESSION_ERROR, CONNECT_ERROR, ENHANCE_YOUR_CALM = range(6, 12)

Headers = list[tuple[str, str]]


def raw(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"", length: int | None = None) -> bytes:
    """A frame of any kind; ``length`` may say something else than the payload's."""
    size = len(payload) if length is None else length
    return size.to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


class Closed(AssertionError):
    """The server has closed the connection."""


class FrameClient:
    """One connection with prior knowledge. What the server sends is read frame by frame, in order."""

    def __init__(self, host: str, port: int, settings: dict[int, int] | None = None, hello: bool = True) -> None:
        self.authority = f"{host}:{port}"
        self.socket = socket.create_connection((host, port), PATIENCE)
        self.encoder = hpack.Encoder()
        self.decoder = hpack.Decoder()
        self.seen: list[Frame] = []
        self.fields: dict[int, dict[str, str]] = {}
        """Header fields of the answers, by stream."""
        self.answers_pings = True
        self._unread = b""
        if hello:
            self.send(PREFACE, SettingsFrame(0, settings or {}))

    def __enter__(self) -> FrameClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the socket; what was not read makes the kernel say so."""
        self.socket.close()

    def send(self, *parts: bytes | Frame) -> None:
        """Sends bytes and frames at one stroke."""
        self.socket.sendall(b"".join(part if isinstance(part, bytes) else part.serialize() for part in parts))

    def block(self, headers: Iterable[tuple[str, str]]) -> bytes:
        """A header block; nothing goes into the table, so that blocks may be sent in any order, or not at all."""
        return self.encoder.encode([(name, value, True) for name, value in headers])

    def get(self, path: str = "/health", *more: tuple[str, str]) -> Headers:
        """The header fields of a GET."""
        scheme = [(":method", "GET"), (":scheme", "http"), (":path", path), (":authority", self.authority)]
        return [*scheme, *more]

    def post(self, path: str, *more: tuple[str, str]) -> Headers:
        """The header fields of a POST with JSON."""
        return [(":method", "POST"), *self.get(path)[1:], ("content-type", "application/json"), *more]

    def headers(self, stream: int, fields: Headers, end: bool = True, flags: Iterable[str] = ()) -> HeadersFrame:
        """A HEADERS frame with a whole block."""
        frame = HeadersFrame(stream, self.block(fields), flags={"END_HEADERS", *flags})
        if end:
            frame.flags.add("END_STREAM")
        return frame

    def read(self, timeout: float = PATIENCE) -> Frame:
        """The next frame. Raises :class:`Closed` at the connection's end."""
        end = time.monotonic() + timeout
        while (frame := self._parse()) is None:
            ready, _, _ = select.select([self.socket], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                raise TimeoutError(f"no frame within {timeout:g} s; so far {self.seen}")
            try:
                data = self.socket.recv(1 << 16)
            except ConnectionError as error:
                raise Closed("the connection was reset") from error
            if not data:
                raise Closed("the connection was closed")
            self._unread += data
        self.seen.append(frame)
        if isinstance(frame, HeadersFrame):
            # Blocks make sense in their order alone.
            self.fields[frame.stream_id] = dict(self.decoder.decode(frame.data))
        elif isinstance(frame, SettingsFrame) and "ACK" not in frame.flags:
            # They hold from then on.
            self.send(SettingsFrame(0, flags={"ACK"}))
        elif isinstance(frame, PingFrame) and "ACK" not in frame.flags and self.answers_pings:
            self.send(PingFrame(0, frame.opaque_data, flags={"ACK"}))
        return frame

    def until(self, wanted: Callable[[Frame], bool], timeout: float = PATIENCE) -> Frame:
        """Reads up to the first frame that is wanted."""
        end = time.monotonic() + timeout
        while not wanted(frame := self.read(max(0.0, end - time.monotonic()))):
            pass
        return frame

    def answer(self, stream: int) -> tuple[int, bytes]:
        """Reads a response to its end; status and body."""
        status, body = 0, b""
        while True:
            frame = self.until(lambda frame: frame.stream_id == stream)
            assert not isinstance(frame, RstStreamFrame), f"stream {stream} was reset with {frame.error_code}"
            if isinstance(frame, HeadersFrame):
                status = int(self.fields[stream][":status"])
            elif isinstance(frame, DataFrame):
                body += frame.data
            if "END_STREAM" in frame.flags:
                return status, body

    def goaway(self) -> int:
        """Reads up to the connection's end; the code that it ended with."""
        code = None
        with contextlib.suppress(Closed):
            while True:
                frame = self.read()
                if isinstance(frame, GoAwayFrame):
                    code = frame.error_code
        assert code is not None, f"closed without GOAWAY after {self.seen}"
        return code

    def closed(self) -> int | None:
        """The same, where the server need not say why it closes."""
        with contextlib.suppress(AssertionError):
            return self.goaway()
        return None

    def reset(self, stream: int) -> int:
        """Reads up to the reset of a stream; its code."""
        frame = self.until(lambda frame: frame.stream_id == stream and isinstance(frame, RstStreamFrame))
        assert isinstance(frame, RstStreamFrame)
        return frame.error_code

    def ping(self) -> Frame:
        """Waits until the server has taken everything up to here: the answer to a ping, or a GOAWAY before it."""
        payload = len(self.seen).to_bytes(8, "big")
        self.send(PingFrame(0, payload))
        frame = self.until(lambda frame: isinstance(frame, GoAwayFrame) or _answers(frame, payload))
        return frame

    def alive(self) -> None:
        """The connection still answers, and has not been told to end."""
        assert isinstance(self.ping(), PingFrame)

    def _parse(self) -> Frame | None:
        if len(self._unread) < 9:
            return None
        try:
            frame, length = Frame.parse_frame_header(memoryview(self._unread[:9]))
        except UnknownFrameError as error:
            raise AssertionError(f"the server sent a frame of no known kind: {error}") from error
        if len(self._unread) < 9 + length:
            return None
        frame.parse_body(memoryview(self._unread[9 : 9 + length]))
        self._unread = self._unread[9 + length :]
        return frame


def _answers(frame: Frame, payload: bytes) -> bool:
    return isinstance(frame, PingFrame) and "ACK" in frame.flags and frame.opaque_data == payload
