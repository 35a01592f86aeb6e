"""RFC 9113, section 8: requests that must not be taken, and those that must."""

from __future__ import annotations

import json

import pytest
from hyperframe.frame import DataFrame, HeadersFrame, RstStreamFrame

from support.frames import NO_ERROR, FrameClient

from .expect import Case, answered, malformed

BODY = b'{"prompt": "x"}'


def fields(change):
    """A GET whose header fields were changed."""
    return lambda client: client.send(client.headers(1, change(client.get())))


def more(*extra):
    """A GET with further fields."""
    return fields(lambda headers: [*headers, *extra])


def without(name):
    """A GET without one of its fields."""
    return fields(lambda headers: [field for field in headers if field[0] != name])


def valued(name, value):
    """A GET with another value of one field."""
    return fields(lambda headers: [(field, value if field == name else old) for field, old in headers])


def body(*parts, length=None, trailers=None, end=True):
    """A POST with a body in parts, a length of one's own and trailers."""

    def sent(client):
        extra = [] if length is None else [("content-length", str(length))]
        frames = [client.headers(1, [*client.post("/tokenize"), *extra], end=False)]
        frames += [DataFrame(1, part) for part in parts]
        if trailers is not None:
            frames.append(client.headers(1, trailers, end=end))
        elif end:
            frames[-1].flags.add("END_STREAM")
        client.send(*frames)

    return sent


CASES = [
    # 8.1 A message
    Case("8.1", "trailers end a request", body(BODY, trailers=[("x-sum", "1")]), answered()),
    Case("8.1", "trailers that do not end it", body(BODY, trailers=[("x-sum", "1")], end=False), malformed),
    Case("8.1.1", "a content-length that holds", body(BODY[:4], BODY[4:], length=len(BODY)), answered()),
    Case("8.1.1", "less than content-length says", body(BODY, length=len(BODY) + 1), malformed),
    Case("8.1.1", "more than content-length says", body(BODY, length=len(BODY) - 1), malformed),
    Case("8.1.1", "a content-length without a body", fields(lambda old: [*old, ("content-length", "1")]), malformed),
    Case("8.1.1", "a content-length that is no number", body(BODY, length="many"), malformed),
    # 8.2 Header fields
    Case("8.2.1", "a name in capitals", more(("X-Big", "1")), malformed),
    Case("8.2.1", "a name with a space", more(("x big", "1")), malformed),
    Case("8.2.1", "a name with a colon", more(("x:big", "1")), malformed),
    Case("8.2.1", "an empty name", more(("", "1")), malformed),
    Case("8.2.1", "a name beyond ASCII", more(("x-\xe9", "1")), malformed),
    Case("8.2.1", "a value with a line feed", more(("x-a", "1\nx-b: 2")), malformed),
    Case("8.2.1", "a value with a carriage return", more(("x-a", "1\r")), malformed),
    Case("8.2.1", "a value with a zero", more(("x-a", "1\x00")), malformed),
    Case("8.2.2", "connection", more(("connection", "close")), malformed),
    Case("8.2.2", "keep-alive", more(("keep-alive", "timeout=5")), malformed),
    Case("8.2.2", "proxy-connection", more(("proxy-connection", "keep-alive")), malformed),
    Case("8.2.2", "transfer-encoding", more(("transfer-encoding", "chunked")), malformed),
    Case("8.2.2", "upgrade", more(("upgrade", "h2c")), malformed),
    Case("8.2.2", "te of another value", more(("te", "gzip")), malformed),
    Case("8.2.2", "te of trailers", more(("te", "trailers")), answered()),
    Case("8.2.3", "a cookie in pieces", more(("cookie", "a=1"), ("cookie", "b=2")), answered()),
    # 8.3 Control data
    Case("8.3", "a pseudo-header behind a field", fields(lambda old: [*old[:3], ("x-a", "1"), old[3]]), malformed),
    Case("8.3", "an unknown pseudo-header", fields(lambda old: [(":x", "1"), *old]), malformed),
    Case("8.3", "a pseudo-header of responses", fields(lambda old: [(":status", "200"), *old]), malformed),
    # Malformed by the letter; the library drops it before anybody could see it.
    Case("8.3", "a pseudo-header in trailers says nothing", body(BODY, trailers=[(":path", "/")]), answered()),
    Case("8.3.1", "no :method", without(":method"), malformed),
    Case("8.3.1", "no :scheme", without(":scheme"), malformed),
    Case("8.3.1", "no :path", without(":path"), malformed),
    Case("8.3.1", "an empty :path", valued(":path", ""), malformed),
    Case("8.3.1", "a :path that is none", valued(":path", "health"), malformed),
    Case("8.3.1", "two :method", fields(lambda old: [(":method", "GET"), *old]), malformed),
    Case("8.3.1", "two :path", fields(lambda old: [(":path", "/health"), *old]), malformed),
    Case("8.3.1", "two :scheme", fields(lambda old: [(":scheme", "http"), *old]), malformed),
    Case("8.3.1", "a host that differs from :authority", more(("host", "other.example")), malformed),
    Case("8.3.1", "host in the place of :authority", fields(lambda old: [*old[:3], ("host", old[3][1])]), answered()),
    Case("8.3.1", "* asks for nothing with GET", valued(":path", "*"), malformed),
    # 8.5 CONNECT
    Case("8.5", "CONNECT with a path", valued(":method", "CONNECT"), malformed),
    Case("8.5", "CONNECT is no route", fields(lambda old: [(":method", "CONNECT"), old[3]]), malformed),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_rfc9113(client: FrameClient, case: Case) -> None:
    case.sent(client)
    case.check(client)


def test_8_1_an_answer_to_head_has_no_body(client: FrameClient) -> None:
    client.send(client.headers(1, [(":method", "HEAD"), *client.get("/v1/models")[1:]]))
    frame = client.until(lambda frame: frame.stream_id == 1)
    assert isinstance(frame, HeadersFrame) and "END_STREAM" in frame.flags
    assert int(client.fields[1]["content-length"]) > 0


def test_8_1_an_early_answer_stops_the_request_without_an_error(client: FrameClient) -> None:
    client.send(client.headers(1, [(":method", "POST"), *client.get("/nothing")[1:]], end=False))
    status, body = 0, b""
    while True:
        frame = client.until(lambda frame: frame.stream_id == 1)
        if isinstance(frame, HeadersFrame):
            status = int(client.fields[1][":status"])
        elif isinstance(frame, DataFrame):
            body += frame.data
        if "END_STREAM" in frame.flags:
            break
        assert not isinstance(frame, RstStreamFrame)
    assert status == 404 and json.loads(body)["error"]
    assert client.reset(1) == NO_ERROR


def test_8_1_interleaved_requests_are_told_apart(client: FrameClient) -> None:
    streams = [1, 3, 5, 7]
    for stream in streams:
        client.send(client.headers(stream, client.post("/detokenize"), end=False))
    bodies = {stream: b'{"tokens": [%d]}' % (100 + stream) for stream in streams}
    for at in range(max(map(len, bodies.values()))):
        for stream in reversed(streams):
            client.send(DataFrame(stream, bodies[stream][at : at + 1]))
    answers = {}
    for stream in streams:
        client.send(DataFrame(stream, flags={"END_STREAM"}))
        status, answer = client.answer(stream)
        assert status == 200
        answers[stream] = json.loads(answer)["prompt"]
    assert len(set(answers.values())) == len(streams)


def test_8_2_3_field_names_of_answers_are_in_small_letters(client: FrameClient) -> None:
    client.send(client.headers(1, client.get("/v1/models")))
    client.until(lambda frame: isinstance(frame, HeadersFrame))
    names = list(client.fields[1])
    assert names[0] == ":status" and names == [name.lower() for name in names]
    assert not {"connection", "keep-alive", "transfer-encoding", "upgrade"} & set(names)


def test_8_4_nothing_is_pushed(client: FrameClient) -> None:
    for stream in (1, 3):
        client.send(client.headers(stream, client.get("/v1/models")))
        client.answer(stream)
    assert all(frame.stream_id in (0, 1, 3) for frame in client.seen)


@pytest.mark.parametrize(
    ("name", "count", "length", "status"),
    [("many", 101, 1, 431), ("as many as may be", 90, 1, 200), ("long", 1, 20_000, 431)],
    ids=["10.5.1 too many fields", "10.5.1 many fields", "10.5.1 a long field"],
)
def test_rfc9113_limits(client: FrameClient, name: str, count: int, length: int, status: int) -> None:
    extra = [(f"x-{number}", "v" * length) for number in range(count)]
    first = client.headers(1, client.get("/health", *extra))
    block, first.data = first.data[16000:], first.data[:16000]
    if block:
        from hyperframe.frame import ContinuationFrame

        first.flags.discard("END_HEADERS")
        client.send(first, ContinuationFrame(1, block, flags={"END_HEADERS"}))
    else:
        client.send(first)
    assert client.answer(1)[0] == status, name
    client.alive()
