"""Clients that wear a server out, frame by frame: each is stopped or starves, and nobody else notices."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from support.certificates import Authority
from support.frames import CANCEL, ENHANCE_YOUR_CALM, NO_ERROR, PREFACE, Closed, FrameClient, raw
from support.neighbour import Neighbour
from support.server import Server, wait_for

MOCK = ["--engine", "mock", "--mock-step-ms", "1", "--stall-timeout", "2"]
ENDLESS = b'{"prompt": "x", "max_tokens": 7000, "ignore_eos": true, "stream": true}'
CHUNK = 500
BATCH = 32
DONE = b"data: [DONE]\n\n"
BROKEN = (Closed, ConnectionError)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with_server = Server(*MOCK, clear=True)
    yield with_server
    with_server.wait_idle()
    assert with_server.stop() == 0, with_server.log


def pour(client: FrameClient, frames: bytes, times: int) -> int:
    """Sends the same bytes again and again; how often they went before the server had enough of it."""
    client.socket.settimeout(10.0)
    for number in range(times):
        try:
            client.send(frames)
        except (ConnectionError, TimeoutError):
            return number
    return times


def farewell(client: FrameClient, drip: WindowUpdateFrame | None = None) -> int | None:
    """The code of the GOAWAY with which the connection ends, if it comes before a reset."""
    code, end = None, time.monotonic() + 40
    while time.monotonic() < end:
        try:
            if drip is not None:
                client.send(drip)
                time.sleep(0.1)
            frame = client.read(0.3)
        except TimeoutError:
            continue
        except BROKEN:
            return code
        if isinstance(frame, GoAwayFrame):
            code = frame.error_code
    raise AssertionError("the connection was kept")


def test_rapid_reset(server: Server) -> None:
    with Neighbour(server), FrameClient(server.host, server.port) as client:
        head = client.headers(1, client.get()).data
        went = 0
        for first in range(0, 50_000, CHUNK):
            streams = range(2 * first + 1, 2 * (first + CHUNK), 2)
            frames = [raw(1, 0x5, stream, head) + RstStreamFrame(stream, CANCEL).serialize() for stream in streams]
            if pour(client, b"".join(frames), 1) == 0:
                break
            went += CHUNK
        assert went < 50_000
        assert farewell(client) in (ENHANCE_YOUR_CALM, None)


@pytest.mark.parametrize("when", ["before the answer", "in the middle of it"])
def test_requests_that_are_left_half_way_wear_the_client_out(server: Server, when: str) -> None:
    """Each stream is accepted, so that what the library counts does not see it."""
    with Neighbour(server), FrameClient(server.host, server.port) as client:
        client.send(WindowUpdateFrame(0, 1 << 30))
        left = 0
        with pytest.raises(BROKEN):
            for first in range(1, 20_000, 2 * BATCH):
                streams = set(range(first, first + 2 * BATCH, 2))
                for stream in streams:
                    client.send(client.headers(stream, client.post("/v1/completions"), end=False))
                    if when == "in the middle of it":
                        client.send(DataFrame(stream, ENDLESS, flags={"END_STREAM"}))
                waiting = set(streams) if when == "in the middle of it" else set()
                while waiting:
                    frame = client.until(lambda frame: isinstance(frame, DataFrame))
                    waiting.discard(frame.stream_id)
                client.ping()
                client.send(*[RstStreamFrame(stream, CANCEL) for stream in streams])
                left += BATCH
        # It is told to go first, and a polite client would.
        codes = [frame.error_code for frame in client.seen if isinstance(frame, GoAwayFrame)]
        assert codes[:1] == [NO_ERROR] and 500 <= left <= 5000, (codes, left)
    server.wait_idle()


def test_an_answer_whose_end_was_written_is_no_reset(server: Server) -> None:
    """Some clients reset a stream right behind `[DONE]`, and it makes no difference when they have read it."""
    body = b'{"prompt": "x", "max_tokens": 1, "stream": true}'
    with FrameClient(server.host, server.port, {SettingsFrame.INITIAL_WINDOW_SIZE: 0}) as client:
        for first in range(1, 2 * 22 * BATCH, 2 * BATCH):
            streams = range(first, first + 2 * BATCH, 2)
            before = server.metrics()["llmrt_request_success_total"]
            for stream in streams:
                client.send(client.headers(stream, client.post("/v1/completions"), end=False))
                client.send(DataFrame(stream, body, flags={"END_STREAM"}))
            wait_for(lambda done=before + BATCH: server.metrics()["llmrt_request_success_total"] >= done, "the ends")
            client.send(*[RstStreamFrame(stream, CANCEL) for stream in streams])
        client.alive()
        assert not any(isinstance(frame, GoAwayFrame) for frame in client.seen)


def test_errors_that_have_us_reset_streams(server: Server) -> None:
    with Neighbour(server), FrameClient(server.host, server.port) as client:
        head = client.headers(1, client.post("/tokenize"), end=False).data
        for stream in range(1, 2 * 400, 2):
            overflow = WindowUpdateFrame(stream, (1 << 31) - 1).serialize()
            if pour(client, raw(1, 0x4, stream, head) + overflow, 1) == 0:
                break
        assert farewell(client) in (ENHANCE_YOUR_CALM, None)
        resets = sum(isinstance(frame, RstStreamFrame) for frame in client.seen)
        assert resets <= 130


def test_endless_continuation(server: Server) -> None:
    with Neighbour(server):
        # Fields that are never a whole block, and empty frames, which are not even fields.
        for fields in [[("x-pad", "v" * 1000)], []]:
            with FrameClient(server.host, server.port) as client:
                client.send(HeadersFrame(1, client.block(client.get())))
                frame = ContinuationFrame(1, client.block(fields))
                pour(client, frame.serialize() * 100, 200)
                assert farewell(client) != NO_ERROR


def test_header_bomb(server: Server) -> None:
    with Neighbour(server), FrameClient(server.host, server.port) as client:
        # One field of 4,000 bytes goes into the table; each further byte stands for all of it.
        stored = client.encoder.encode([("x-bomb", "v" * 4000)], huffman=False)
        frames = HeadersFrame(1, client.block(client.get()) + stored, flags={"END_STREAM"}).serialize()
        frames += ContinuationFrame(1, b"\xbe" * 16_000, flags={"END_HEADERS"}).serialize()
        client.send(frames)
        frame = client.until(lambda frame: frame.stream_id == 1 or isinstance(frame, GoAwayFrame))
        if isinstance(frame, HeadersFrame):
            assert client.fields[1][":status"] == "431"
        else:
            assert isinstance(frame, RstStreamFrame | GoAwayFrame)


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(lambda client: PingFrame(0, b"12345678"), id="PING"),
        pytest.param(lambda client: SettingsFrame(0, {SettingsFrame.INITIAL_WINDOW_SIZE: 1 << 16}), id="SETTINGS"),
        pytest.param(lambda client: WindowUpdateFrame(1, 1), id="WINDOW_UPDATE"),
        pytest.param(lambda client: DataFrame(1, b""), id="empty DATA"),
        pytest.param(lambda client: raw(2, 0, 1, b"\0\0\0\0\1"), id="PRIORITY"),
        pytest.param(lambda client: raw(0xBB, 0, 1), id="unknown frames"),
    ],
)
def test_floods_of_small_frames(server: Server, frame: Callable[[FrameClient], bytes]) -> None:
    """Nothing that is sent back is read. Whether the flood is cut off, slowed down or taken: nobody suffers."""
    with Neighbour(server), FrameClient(server.host, server.port) as client:
        client.send(client.headers(1, client.post("/tokenize"), end=False))
        one = frame(client)
        client.socket.settimeout(10.0)
        pour(client, (one if isinstance(one, bytes) else one.serialize()) * 2000, 300)


@pytest.mark.parametrize("drip", [False, True], ids=["zero window", "one byte at a time"])
def test_a_stream_that_is_not_read_loses_its_request_alone(server: Server, drip: bool) -> None:
    body = b'{"prompt": "x", "max_tokens": 1500, "ignore_eos": true, "stream": true}'
    with Neighbour(server), FrameClient(server.host, server.port, {SettingsFrame.INITIAL_WINDOW_SIZE: 0}) as client:
        cut = server.log.count("response cut")
        for stream in (1, 3):
            client.send(client.headers(stream, client.post("/v1/completions"), end=False))
            client.send(DataFrame(stream, body, flags={"END_STREAM"}))
        client.send(WindowUpdateFrame(0, 1 << 24), WindowUpdateFrame(3, 1 << 24))
        done = b""
        end = time.monotonic() + 90
        while (server.log.count("response cut") == cut or not done.endswith(DONE)) and time.monotonic() < end:
            if drip:
                client.send(WindowUpdateFrame(1, 1))
            try:
                got = client.read(0.1)
            except TimeoutError:
                continue
            if isinstance(got, DataFrame) and got.stream_id == 3:
                done += got.data
        assert server.log.count("response cut") == cut + 1, "the request that nobody reads was kept"
        assert done.endswith(DONE), "its sibling suffered"
        if not drip:
            # What was never begun goes at once; what was begun leaves as slowly as it is fetched.
            while not any(isinstance(frame, RstStreamFrame) and frame.stream_id == 1 for frame in client.seen):
                client.read()
        client.alive()
    server.wait_idle()


def test_a_tail_that_is_not_fetched_does_not_keep_a_connection() -> None:
    server = Server(*MOCK, "--keep-alive-timeout", "1", clear=True)
    with FrameClient(server.host, server.port, {SettingsFrame.INITIAL_WINDOW_SIZE: 1}) as client:
        client.send(client.headers(1, client.get("/v1/models")))
        # It is pinged and answers, it gives a byte of room now and then: alive, but no end in sight.
        assert farewell(client, drip=WindowUpdateFrame(1, 1)) == NO_ERROR
        assert not any("END_STREAM" in frame.flags for frame in client.seen)
    assert server.stop() == 0, server.log


def test_a_body_that_never_ends(server: Server) -> None:
    with Neighbour(server, growth=80.0), FrameClient(server.host, server.port) as client:
        windows = {0: 65535, 1: 256 << 10}
        # Settings have been acknowledged by then.
        client.ping()
        client.send(client.headers(1, client.post("/v1/completions"), end=False))
        part = DataFrame(1, b"x" * 16384).serialize()
        seen = sent = 0
        while sent < 100 << 20 and 1 not in client.fields:
            for frame in client.seen[seen:]:
                if isinstance(frame, WindowUpdateFrame):
                    windows[frame.stream_id] += frame.window_increment
            seen = len(client.seen)
            if min(windows.values()) < 16384:
                client.read()
                continue
            client.send(part)
            windows = {stream: window - 16384 for stream, window in windows.items()}
            sent += 16384
        assert client.fields[1][":status"] == "413" and sent <= 34 << 20
        client.alive()


def test_slow_beginnings_are_cut_off(server: Server, tmp_path: Path) -> None:
    """Ten seconds for handshake and first bytes, whatever they are part of; all at the same time."""
    authority = Authority(tmp_path)
    tls = Server(*MOCK, *authority.pair("server").flags(), context=authority.context())
    hello = client_hello()
    slow: dict[str, socket.socket] = {}
    began = time.monotonic()
    openings = {
        "nothing": (server, b""),
        "half a preface": (server, PREFACE[:10]),
        "half a request line": (server, b"GET /hea"),
        "half a head": (server, b"GET /health HTTP/1.1\r\nhost: localhost\r\nx-pad: "),
        "no handshake": (tls, b""),
        "half a handshake": (tls, hello[: len(hello) // 2]),
        "a handshake without its end": (tls, hello),
    }
    with Neighbour(server), Neighbour(tls):
        for name, (target, opening) in openings.items():
            slow[name] = socket.create_connection((target.host, target.port), 60)
            slow[name].sendall(opening)
        # The head goes on byte by byte, and gets no more time for it.
        ends: dict[str, float] = {}
        while len(ends) < len(slow) and time.monotonic() < began + 45:
            for name in set(slow) - set(ends):
                if closed(slow[name], b"x" if name == "half a head" else b""):
                    ends[name] = time.monotonic() - began
            time.sleep(0.1)
    for one in slow.values():
        one.close()
    assert set(ends) == set(openings), f"still open: {set(openings) - set(ends)}"
    assert all(8 < seconds < 30 for seconds in ends.values()), ends
    assert tls.stop() == 0, tls.log


def client_hello() -> bytes:
    """The first flight of a real client."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()


def closed(stream: socket.socket, drip: bytes) -> bool:
    """Whether the server has closed a connection, to which it gets ``drip`` more."""
    stream.setblocking(False)
    try:
        stream.sendall(drip)
        while stream.recv(65536):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        pass
    return True


def test_a_connection_that_is_idle_or_old_is_told_to_go() -> None:
    server = Server("--engine", "mock", "--keep-alive-timeout", "1.5", "--max-connection-age", "4", clear=True)
    with FrameClient(server.host, server.port) as idle:
        began = time.monotonic()
        idle.alive()
        assert farewell(idle) == NO_ERROR
        assert time.monotonic() - began > 1.4
    with FrameClient(server.host, server.port) as busy:
        began = time.monotonic()
        # One that is in use lives until its age, and its last answer comes all the same.
        stream, codes = 1, []
        while not codes and time.monotonic() - began < 30:
            busy.send(busy.headers(stream, busy.get()))
            assert busy.answer(stream)[0] == 200
            stream += 2
            codes = [frame.error_code for frame in busy.seen if isinstance(frame, GoAwayFrame)]
            time.sleep(0.05)
        assert codes == [NO_ERROR] and time.monotonic() - began > 3.0
    assert server.stop() == 0, server.log


def test_a_client_that_answers_no_ping_is_gone() -> None:
    server = Server(
        "--engine", "mock", "--http2-keep-alive-interval", "1", "--http2-keep-alive-timeout", "1", clear=True
    )
    with FrameClient(server.host, server.port) as client:
        client.answers_pings = False
        client.alive()
        client.until(lambda frame: isinstance(frame, PingFrame) and "ACK" not in frame.flags)
        farewell(client)
        wait_for(lambda: server.get("/health").status_code == 200, "an answer")
    assert server.stop() == 0, server.log
