"""RFC 9113, sections 3 to 6: frames, streams, settings and windows."""

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
    CANCEL,
    COMPRESSION_ERROR,
    FLOW_CONTROL_ERROR,
    FRAME_SIZE_ERROR,
    PREFACE,
    PROTOCOL_ERROR,
    REFUSED_STREAM,
    STREAM_CLOSED,
    FrameClient,
    raw,
)
from support.server import Server

from .expect import Case, alive, answered, connection_error, ended, stream_error

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
MAX_FRAME = 16384
MAX_WINDOW = (1 << 31) - 1
TOKENIZE = b'{"prompt": "x"}'

protocol_error = connection_error(PROTOCOL_ERROR)
frame_size_error = connection_error(FRAME_SIZE_ERROR)


def send(*parts):
    """Sends frames as they are, bytes or made by a function of the client."""
    return lambda client: client.send(*[part(client) if callable(part) else part for part in parts])


def get(stream=1, end=True, **more):
    """A request, its body still to come unless ``end``."""
    return lambda client: client.headers(stream, client.get("/health"), end, **more)


def post(stream=1):
    """The head of a request with a body."""
    return lambda client: client.headers(stream, client.post("/tokenize"), end=False)


def after_answer(*parts):
    """The same once stream 1 is closed."""

    def sent(client):
        client.send(client.headers(1, client.get()))
        assert client.answer(1)[0] == 200
        send(*parts)(client)

    return sent


def half(client, cut, flags=0):
    """A HEADERS frame with the first ``cut`` bytes of a block, and the rest of the block."""
    block = client.block(client.get())
    return raw(HEADERS, 0x1 | flags, 1, block[:cut]), block[cut:]


def continued(*between, pieces=2, stream=1):
    """A request in pieces, with something between the first and the second."""

    def sent(client):
        first, rest = half(client, 5)
        size = -(-len(rest) // (pieces - 1))
        parts = [rest[at : at + size] for at in range(0, len(rest), size)]
        frames = [raw(CONTINUATION, 0x4 if part is parts[-1] else 0, stream, part) for part in parts]
        client.send(first, *[part(client) if callable(part) else part for part in between], *frames)

    return sent


def settings(**values):
    """A SETTINGS frame with one value."""
    numbers = {"table": 1, "push": 2, "streams": 3, "window": 4, "frame": 5, "list": 6, "connect": 8, "unknown": 0xF0F0}
    pairs = [numbers[name].to_bytes(2, "big") + value.to_bytes(4, "big") for name, value in values.items()]
    return raw(SETTINGS, 0, 0, b"".join(pairs))


CASES = [
    # 4 Frames
    Case(
        "4.1",
        "frames of unknown types are ignored",
        send(raw(0xBB, 0xFF, 0, b"x" * 9), raw(0xBB, 0, 7), get()),
        answered(),
    ),
    Case("4.1", "undefined flags are ignored", send(raw(PING, 0xF6, 0, b"12345678"), get()), answered()),
    Case("4.1", "the reserved bit is ignored", send(raw(PING, 0, 1 << 31, b"12345678"), get()), answered()),
    Case(
        "4.2",
        "a frame of the largest size is taken",
        send(post(), DataFrame(1, TOKENIZE + b" " * (MAX_FRAME - len(TOKENIZE)), flags={"END_STREAM"})),
        answered(),
    ),
    Case(
        "4.2",
        "DATA beyond the largest size",
        send(post(), raw(DATA, 0, 1, b"x" * (MAX_FRAME + 1))),
        stream_error(FRAME_SIZE_ERROR),
    ),
    Case(
        "4.2", "HEADERS beyond the largest size", send(raw(HEADERS, 0x5, 1, b"x" * (MAX_FRAME + 1))), frame_size_error
    ),
    Case("4.2", "SETTINGS beyond the largest size", send(raw(SETTINGS, 0, 0, b"\0" * 6 * 2731)), frame_size_error),
    Case(
        "4.3",
        "a block that cannot be decoded",
        send(raw(HEADERS, 0x5, 1, b"\xff\xff\xff\xff\xff\xff\xff\xff")),
        connection_error(COMPRESSION_ERROR),
    ),
    Case(
        "4.3",
        "an index that is not in the table",
        send(raw(HEADERS, 0x5, 1, b"\xbe")),
        connection_error(COMPRESSION_ERROR),
    ),
    Case(
        "4.3",
        "a table larger than was allowed",
        send(raw(HEADERS, 0x5, 1, b"\x3f\xe2\x1f")),
        connection_error(COMPRESSION_ERROR),
    ),
    Case("4.3", "a frame of another kind inside a block", continued(PingFrame(0, b"12345678")), protocol_error),
    Case("4.3", "a frame of another stream inside a block", continued(get(3)), protocol_error),
    Case("4.3", "a frame of an unknown type inside a block", continued(raw(0xBB, 0, 1)), protocol_error),
    # 5.1 Stream states
    Case("5.1", "DATA on an idle stream", send(DataFrame(1, b"x")), protocol_error),
    Case("5.1", "RST_STREAM on an idle stream", send(RstStreamFrame(1, CANCEL)), protocol_error),
    Case("5.1", "WINDOW_UPDATE on an idle stream", send(WindowUpdateFrame(1, 9)), protocol_error),
    Case("5.1", "CONTINUATION on an idle stream", send(raw(CONTINUATION, 0x4, 1)), protocol_error),
    Case("5.1", "DATA on a half-closed stream", send(get(), DataFrame(1, b"x")), stream_error(STREAM_CLOSED)),
    Case("5.1", "HEADERS on a half-closed stream", send(get(), get()), stream_error(STREAM_CLOSED, PROTOCOL_ERROR)),
    Case(
        "5.1",
        "WINDOW_UPDATE and PRIORITY on a half-closed stream",
        send(get(), WindowUpdateFrame(1, 9), PriorityFrame(1, 0, 9)),
        answered(),
    ),
    Case(
        "5.1",
        "DATA on a stream that was reset",
        send(post(), RstStreamFrame(1, CANCEL), DataFrame(1, b"x")),
        stream_error(STREAM_CLOSED),
    ),
    Case(
        "5.1",
        "HEADERS on a stream that was reset",
        send(post(), RstStreamFrame(1, CANCEL), get()),
        stream_error(STREAM_CLOSED, PROTOCOL_ERROR),
    ),
    Case("5.1", "DATA on a closed stream", after_answer(DataFrame(1, b"x")), stream_error(STREAM_CLOSED)),
    Case("5.1", "HEADERS on a closed stream", after_answer(get()), stream_error(STREAM_CLOSED, PROTOCOL_ERROR)),
    Case(
        "5.1",
        "WINDOW_UPDATE and RST_STREAM on a closed stream",
        after_answer(WindowUpdateFrame(1, 9), RstStreamFrame(1, CANCEL), PriorityFrame(1, 0, 9)),
        alive,
    ),
    Case("5.1.1", "an even stream", send(get(2)), protocol_error),
    Case(
        "5.1.1",
        "a stream below one that was used",
        send(get(5), get(3)),
        connection_error(PROTOCOL_ERROR, STREAM_CLOSED),
    ),
    Case(
        "5.1.2",
        "more streams than were allowed",
        send(*[post(1 + 2 * number) for number in range(65)]),
        stream_error(PROTOCOL_ERROR, REFUSED_STREAM, stream=129),
    ),
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


def test_3_4_the_server_opens_with_settings(connect) -> None:
    client = connect(hello=False)
    client.send(PREFACE, SettingsFrame(0))
    first = client.read()
    assert isinstance(first, SettingsFrame) and "ACK" not in first.flags
    client.alive()


@pytest.mark.parametrize(
    "opening",
    [PREFACE[:-1] + b"x" + raw(SETTINGS), PREFACE + raw(PING, 0, 0, b"12345678"), PREFACE + raw(SETTINGS, 1)],
    ids=["a preface with a fault", "PING before SETTINGS", "an acknowledgement before SETTINGS"],
)
def test_3_4_a_wrong_opening_ends_the_connection(connect, opening: bytes) -> None:
    client = connect(hello=False)
    client.send(opening)
    ended(client)


def test_5_1_2_room_comes_back_with_the_end_of_a_stream(client: FrameClient) -> None:
    for stream in range(1, 64 * 2, 2):
        client.send(post(stream)(client))
    client.send(RstStreamFrame(1, CANCEL), client.headers(129, client.get()))
    assert client.answer(129)[0] == 200


def test_5_4_1_an_error_of_the_connection_names_the_last_stream(client: FrameClient) -> None:
    client.send(client.headers(1, client.get()), client.headers(3, client.get()))
    client.answer(3)
    client.send(raw(SETTINGS, 0, 1))
    frame = client.until(lambda frame: isinstance(frame, GoAwayFrame))
    assert isinstance(frame, GoAwayFrame) and frame.last_stream_id == 3


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
