"""RFC 9113, sections 6 and 7: every type of frame, settings and windows."""

from __future__ import annotations

import pytest
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    PushPromiseFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from support.frames import (
    FLOW_CONTROL_ERROR,
    FRAME_SIZE_ERROR,
    PROTOCOL_ERROR,
    FrameClient,
    raw,
)
from support.server import Server

from .expect import Case, answered, connection_error, ended, stream_error
from .sending import (
    CONTINUATION,
    DATA,
    GOAWAY,
    HEADERS,
    MAX_FRAME,
    MAX_WINDOW,
    PING,
    PRIORITY,
    RST_STREAM,
    SETTINGS,
    TOKENIZE,
    WINDOW_UPDATE,
    continued,
    frame_size_error,
    get,
    post,
    protocol_error,
    send,
    settings,
)

CASES = [
    # 6.1 DATA
    Case("6.1", "DATA on stream 0", send(raw(DATA, 0, 0, b"x")), protocol_error),
    Case("6.1", "padding as long as the frame", send(post(), raw(DATA, 0x8, 1, b"\x05xxxx")), protocol_error),
    Case("6.1", "padding is dropped", send(post(), raw(DATA, 0x9, 1, b"\x04" + TOKENIZE + b"\0" * 4)), answered()),
    Case(
        "6.1",
        "DATA of nothing but its end",
        send(post(), DataFrame(1, TOKENIZE), DataFrame(1, flags={"END_STREAM"})),
        answered(),
    ),
    # 6.2 HEADERS
    Case("6.2", "HEADERS on stream 0", send(raw(HEADERS, 0x5, 0, b"\x82")), protocol_error),
    Case("6.2", "padding as long as the frame", send(raw(HEADERS, 0xD, 1, b"\x05\x82")), protocol_error),
    Case(
        "6.2",
        "padding and priority are dropped",
        lambda client: client.send(
            raw(HEADERS, 0x2D, 1, b"\x03" + b"\0\0\0\0\x10" + client.block(client.get()) + b"\0\0\0")
        ),
        answered(),
    ),
    # 6.3 PRIORITY
    Case("6.3", "PRIORITY on stream 0", send(raw(PRIORITY, 0, 0, b"\0\0\0\0\1")), protocol_error),
    Case(
        "6.3",
        "PRIORITY of another length",
        send(get(), raw(PRIORITY, 0, 1, b"\0\0\0\0")),
        stream_error(FRAME_SIZE_ERROR),
    ),
    Case(
        "6.3",
        "PRIORITY on streams in any state",
        send(PriorityFrame(9, 0, 1), get(), PriorityFrame(1, 0, 1), PriorityFrame(4, 0, 1)),
        answered(),
    ),
    # 6.4 RST_STREAM
    Case("6.4", "RST_STREAM on stream 0", send(raw(RST_STREAM, 0, 0, b"\0\0\0\x08")), protocol_error),
    Case("6.4", "RST_STREAM of another length", send(post(), raw(RST_STREAM, 0, 1, b"\0\0\x08")), frame_size_error),
    # 6.5 SETTINGS
    Case("6.5", "SETTINGS on a stream", send(raw(SETTINGS, 0, 1)), protocol_error),
    Case("6.5", "SETTINGS of another length", send(raw(SETTINGS, 0, 0, b"\0\x03\0\0\0")), frame_size_error),
    Case("6.5", "an acknowledgement with a payload", send(raw(SETTINGS, 1, 0, b"\0\x03\0\0\0\1")), frame_size_error),
    Case("6.5.2", "ENABLE_PUSH of 2", send(settings(push=2)), protocol_error),
    Case(
        "6.5.2",
        "INITIAL_WINDOW_SIZE beyond the largest window",
        send(settings(window=1 << 31)),
        connection_error(FLOW_CONTROL_ERROR),
    ),
    Case("6.5.2", "MAX_FRAME_SIZE below the least", send(settings(frame=MAX_FRAME - 1)), protocol_error),
    Case("6.5.2", "MAX_FRAME_SIZE beyond the largest", send(settings(frame=1 << 24)), protocol_error),
    Case("6.5.2", "unknown settings are ignored", send(settings(unknown=1), get()), answered()),
    Case(
        "6.5.3",
        "values are taken in order, the last one counts",
        send(settings(window=0) + settings(window=1 << 16), get()),
        answered(),
    ),
    # 6.6 PUSH_PROMISE
    Case(
        "6.6",
        "PUSH_PROMISE from a client",
        lambda client: client.send(PushPromiseFrame(1, 2, client.block(client.get()), flags={"END_HEADERS"})),
        protocol_error,
    ),
    # 6.7 PING
    Case("6.7", "PING on a stream", send(raw(PING, 0, 1, b"12345678")), protocol_error),
    Case("6.7", "PING of another length", send(raw(PING, 0, 0, b"1234567")), frame_size_error),
    # 6.8 GOAWAY
    Case("6.8", "GOAWAY on a stream", send(raw(GOAWAY, 0, 1, b"\0" * 8)), protocol_error),
    # 6.9 WINDOW_UPDATE
    Case("6.9", "an increment of 0 on the connection", send(raw(WINDOW_UPDATE, 0, 0, b"\0\0\0\0")), protocol_error),
    Case(
        "6.9",
        "an increment of 0 on a stream",
        send(post(), raw(WINDOW_UPDATE, 0, 1, b"\0\0\0\0")),
        stream_error(PROTOCOL_ERROR),
    ),
    Case("6.9", "WINDOW_UPDATE of another length", send(raw(WINDOW_UPDATE, 0, 0, b"\0\0\1")), frame_size_error),
    Case(
        "6.9.1",
        "a window beyond the largest on the connection",
        send(WindowUpdateFrame(0, MAX_WINDOW)),
        connection_error(FLOW_CONTROL_ERROR),
    ),
    Case(
        "6.9.1",
        "a window beyond the largest on a stream",
        send(post(), WindowUpdateFrame(1, MAX_WINDOW)),
        stream_error(FLOW_CONTROL_ERROR),
    ),
    Case(
        "6.9.2",
        "a setting that makes a window too large",
        send(post(), WindowUpdateFrame(1, MAX_WINDOW - 65535), settings(window=65536)),
        connection_error(FLOW_CONTROL_ERROR),
    ),
    # 6.10 CONTINUATION
    Case("6.10", "a block in two frames", continued(), answered()),
    Case("6.10", "a block in many frames", continued(pieces=6), answered()),
    Case("6.10", "CONTINUATION of another stream", continued(stream=3), protocol_error),
    Case("6.10", "CONTINUATION on stream 0", continued(stream=0), protocol_error),
    Case("6.10", "CONTINUATION without HEADERS", send(post(), raw(CONTINUATION, 0x4, 1, b"\x82")), protocol_error),
    Case(
        "6.10",
        "CONTINUATION behind DATA",
        send(post(), DataFrame(1, b"x"), ContinuationFrame(1, b"\x82", flags={"END_HEADERS"})),
        protocol_error,
    ),
    # 7 Error codes
    Case("7", "unknown error codes change nothing", send(post(), RstStreamFrame(1, 0xBAD), get(3)), answered(stream=3)),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_rfc9113(client: FrameClient, case: Case) -> None:
    case.sent(client)
    case.check(client)


def test_6_5_3_settings_are_acknowledged(client: FrameClient) -> None:
    for _ in range(3):
        client.send(settings(window=1 << 16))
        client.until(lambda frame: isinstance(frame, SettingsFrame) and "ACK" in frame.flags)


def test_6_7_a_ping_is_answered_with_its_payload_and_an_answer_is_not(client: FrameClient) -> None:
    client.send(PingFrame(0, b"unheard!", flags={"ACK"}))
    for payload in [b"12345678", b"\0" * 8]:
        client.send(PingFrame(0, payload))
        frame = client.until(lambda frame: isinstance(frame, PingFrame))
        assert isinstance(frame, PingFrame) and "ACK" in frame.flags and frame.opaque_data == payload


def test_6_8_open_streams_end_well_after_the_clients_goaway(client: FrameClient) -> None:
    body = b'{"prompt": "x", "max_tokens": 30}'
    client.send(client.headers(1, client.post("/v1/completions"), end=False), GoAwayFrame(0, 0, 0))
    client.send(DataFrame(1, body, flags={"END_STREAM"}))
    assert client.answer(1)[0] == 200
    ended(client)


def test_6_9_1_no_more_is_sent_than_the_window_has_room_for(connect) -> None:
    client = connect({4: 10})
    client.send(client.headers(1, client.get("/v1/models")))
    body = b""
    while len(body) < 10:
        body += client.until(lambda frame: isinstance(frame, DataFrame)).data
    assert len(body) == 10
    client.alive()
    # Empty frames that end a stream need no room.
    client.send(WindowUpdateFrame(1, 1))
    assert len(client.until(lambda frame: isinstance(frame, DataFrame)).data) == 1
    client.send(WindowUpdateFrame(1, 1 << 20))
    assert client.answer(1)[1].endswith(b"}")


def test_6_9_1_the_window_of_the_connection_holds_for_all_streams(connect) -> None:
    client = connect({4: MAX_WINDOW})
    body = b'{"prompt": "x", "max_tokens": 600, "stream": true}'
    for stream in (1, 3):
        client.send(client.headers(stream, client.post("/v1/completions"), end=False))
        client.send(DataFrame(stream, body, flags={"END_STREAM"}))
    got = 0
    while got < 65535:
        got += len(client.until(lambda frame: isinstance(frame, DataFrame)).data)
    assert got == 65535
    client.alive()
    assert not any(isinstance(frame, DataFrame) for frame in client.seen[-1:])


def test_6_9_1_a_client_that_sends_more_than_its_window_is_stopped() -> None:
    server = Server("--engine", "mock", "--http2-initial-stream-window-size", "1000", clear=True)
    with FrameClient(server.host, server.port) as client:
        client.alive()
        client.send(client.headers(1, client.post("/tokenize"), end=False))
        client.send(DataFrame(1, TOKENIZE + b" " * (1000 - len(TOKENIZE))), DataFrame(1, b" " * 1001))
        stream_error(FLOW_CONTROL_ERROR)(client)
    assert server.stop() == 0, server.log


def test_6_9_2_a_setting_changes_the_windows_of_open_streams(connect) -> None:
    client = connect({4: 0})
    client.send(client.headers(1, client.get("/v1/models")))
    client.until(lambda frame: isinstance(frame, HeadersFrame))
    client.send(settings(window=5))
    assert len(client.until(lambda frame: isinstance(frame, DataFrame)).data) == 5
    # The window is below zero now, and an update of it may leave it there.
    client.send(settings(window=0), WindowUpdateFrame(1, 5))
    client.alive()
    assert [frame for frame in client.seen if isinstance(frame, DataFrame)][1:] == []
    client.send(WindowUpdateFrame(1, 3))
    assert len(client.until(lambda frame: isinstance(frame, DataFrame)).data) == 3
