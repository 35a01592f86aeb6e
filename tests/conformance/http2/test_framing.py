"""RFC 9113, sections 3 to 5: the opening, frames, header blocks, streams."""

from __future__ import annotations

import pytest
from hyperframe.frame import (
    DataFrame,
    GoAwayFrame,
    PingFrame,
    PriorityFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from support.frames import (
    CANCEL,
    COMPRESSION_ERROR,
    FRAME_SIZE_ERROR,
    PREFACE,
    PROTOCOL_ERROR,
    REFUSED_STREAM,
    STREAM_CLOSED,
    FrameClient,
    raw,
)

from .expect import Case, alive, answered, connection_error, ended, stream_error
from .sending import (
    CONTINUATION,
    DATA,
    HEADERS,
    MAX_FRAME,
    PING,
    SETTINGS,
    TOKENIZE,
    after_answer,
    continued,
    frame_size_error,
    get,
    post,
    protocol_error,
    send,
)

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
