"""What the specification lets a server do about an error.

A generic code can always stand for a more specific one (RFC 9113, section 5.4), and the library that llmrt uses makes
use of that: it says PROTOCOL_ERROR where sizes, header blocks and settings are wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hyperframe.frame import GoAwayFrame, HeadersFrame, RstStreamFrame

from support.frames import INTERNAL_ERROR, PROTOCOL_ERROR, Closed, FrameClient

GENERIC = (PROTOCOL_ERROR, INTERNAL_ERROR)

Check = Callable[[FrameClient], None]
Sent = Callable[[FrameClient], None]


@dataclass(frozen=True)
class Case:
    """One demand of RFC 9113: its section, what is sent, what must come of it."""

    section: str
    name: str
    sent: Sent
    check: Check

    @property
    def id(self) -> str:
        return f"{self.section} {self.name}"


def connection_error(*codes: int) -> Check:
    """The connection ends with GOAWAY and one of ``codes`` (section 5.4.1)."""

    def check(client: FrameClient) -> None:
        code = client.goaway()
        assert code in (*codes, *GENERIC), f"GOAWAY with {code}"

    return check


def stream_error(*codes: int, stream: int = 1) -> Check:
    """The stream is reset with one of ``codes`` and the connection lives on (5.4.2), or that is an error of the
    connection."""

    def check(client: FrameClient) -> None:
        frame = client.until(
            lambda frame: (
                isinstance(frame, GoAwayFrame) or (isinstance(frame, RstStreamFrame) and frame.stream_id == stream)
            )
        )
        assert isinstance(frame, GoAwayFrame | RstStreamFrame)
        assert frame.error_code in (*codes, *GENERIC), f"{type(frame).__name__} with {frame.error_code}"
        if isinstance(frame, RstStreamFrame):
            client.alive()

    return check


def malformed(client: FrameClient) -> None:
    """A request that must not be taken (8.1.1): a stream error, before which the server may answer with 400."""
    frame = client.until(
        lambda frame: (
            (frame.stream_id == 1 and isinstance(frame, HeadersFrame | RstStreamFrame))
            or isinstance(frame, GoAwayFrame)
        )
    )
    if isinstance(frame, HeadersFrame):
        assert client.fields[1][":status"].startswith("4")
        client.alive()
        return
    assert isinstance(frame, GoAwayFrame | RstStreamFrame)
    assert frame.error_code == PROTOCOL_ERROR, f"{type(frame).__name__} with {frame.error_code}"
    if isinstance(frame, RstStreamFrame):
        client.alive()


def answered(status: int = 200, stream: int = 1) -> Check:
    """The request is answered and the connection lives on."""

    def check(client: FrameClient) -> None:
        got, body = client.answer(stream)
        assert got == status, body
        client.alive()

    return check


def alive(client: FrameClient) -> None:
    """Nothing comes of it."""
    client.alive()
    client.send(client.headers(101, client.get()))
    assert client.answer(101)[0] == 200


def ended(client: FrameClient) -> None:
    """The connection ends, with or without GOAWAY."""
    try:
        while True:
            client.read()
    except Closed:
        return
