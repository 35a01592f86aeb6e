"""Clients that behave well, leave or stall: each says how its request ended, and objects to a broken answer."""

from __future__ import annotations

import asyncio
import enum
import json
import random
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import httpx2

COMPLETIONS = "/v1/completions"


class Broken(AssertionError):
    """An answer that no client may see."""


class End(enum.Enum):
    """How a request ended, as its client saw it."""

    ANSWERED = "answered"
    FAILED = "failed"
    """An error after the head of a stream."""
    REFUSED = "refused"
    """An error status."""
    LEFT = "left"
    """The client went away first, or was hung up on because it did not read."""
    LOST = "lost"
    """The connection broke: its entry worker died."""


class Manner(enum.Enum):
    READS = "reads"
    UNARY = "unary"
    LEAVES = "leaves"
    RESETS = "resets"
    STALLS = "stalls"


class Stream:
    """Reads the events of one stream: exactly one end, and nothing behind it."""

    def __init__(self) -> None:
        self._rest = b""
        self.events = 0
        self.end: End | None = None
        self.done = False

    def feed(self, data: bytes) -> None:
        *events, self._rest = (self._rest + data).split(b"\n\n")
        for event in events:
            self._take(event)

    def _take(self, event: bytes) -> None:
        if event.startswith(b":"):
            return
        if self.done:
            raise Broken(f"behind [DONE]: {event[:200]!r}")
        self.events += 1
        if event == b"data: [DONE]":
            if self.end is None:
                raise Broken("[DONE] without an end")
            self.done = True
        elif self.end is not None:
            raise Broken(f"behind the end: {event[:200]!r}")
        elif b'"finish_reason":null' not in event:
            chunk = json.loads(event.removeprefix(b"data: "))
            self.end = End.FAILED if "error" in chunk else End.ANSWERED
            if self.end is End.FAILED:
                check_error(chunk)
            elif chunk["choices"][0]["finish_reason"] not in ("length", "stop"):
                raise Broken(f"an odd end: {event[:500]!r}")

    def close(self) -> End:
        """The stream is over."""
        if not self.done or self.end is None or self._rest:
            raise Broken(f"a stream broke off after {self.events} events: {self._rest[:200]!r}")
        return self.end


def check_error(body: Any) -> None:
    """An error of the API has all of its members."""
    error = body["error"]
    if set(error) != {"message", "type", "param", "code"} or not error["message"]:
        raise Broken(f"not an error of the API: {body}")


def check_whole(status: int, body: bytes) -> End:
    """A whole answer, or an error that clients know how to take."""
    value = json.loads(body)
    if status == 200:
        if value["choices"][0]["finish_reason"] not in ("length", "stop"):
            raise Broken(f"an odd end: {body[:500]!r}")
        return End.ANSWERED
    check_error(value)
    if status not in (429, 503):
        raise Broken(f"status {status}: {body[:500]!r}")
    return End.REFUSED


@dataclass
class Request:
    """What a client asks for and how it behaves: when it leaves, behind which event, and for how long it stalls."""

    manner: Manner
    max_tokens: int
    leave_after: int
    stall: float

    @classmethod
    def drawn(cls, dice: random.Random, stall: float) -> Request:
        manner = dice.choices(list(Manner), weights=[8, 3, 3, 2, 2])[0]
        # Who stalls longer than the server allows must have enough left to read that the windows do not take it.
        tokens = 60 if manner is Manner.STALLS else dice.randint(1, 60)
        return cls(manner, tokens, dice.randint(0, 20), stall * dice.uniform(0.2, 7.0))

    @property
    def body(self) -> dict[str, Any]:
        stream = self.manner is not Manner.UNARY
        return {"prompt": "Hi", "max_tokens": self.max_tokens, "ignore_eos": True, "stream": stream}


async def over_http1(host: str, port: int, request: Request) -> End:
    """Makes the request on a connection of its own."""
    try:
        reader, writer = await asyncio.open_connection(host, port)
    except OSError:
        return End.LOST
    try:
        return await _http1(reader, writer, request)
    except (asyncio.IncompleteReadError, ConnectionError):
        return End.LEFT if request.manner is Manner.STALLS else End.LOST
    finally:
        if request.manner is Manner.RESETS:
            # Closing then sends RST, not FIN.
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def _http1(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: Request) -> End:
    body = json.dumps(request.body).encode()
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    if request.manner in (Manner.LEAVES, Manner.RESETS) and request.leave_after == 0:
        await writer.drain()
        return End.LEFT
    status_line, *fields = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
    status = int(status_line.split()[1])
    length = [int(field.split(":")[1]) for field in fields if field.startswith("content-length:")]
    if length:
        return check_whole(status, await reader.readexactly(length[0]))
    stream = Stream()
    while size := int(await reader.readuntil(b"\r\n"), 16):
        stream.feed((await reader.readexactly(size + 2))[:-2])
        if await _turns_away(request, stream):
            return End.LEFT
    return stream.close()


async def over_http2(client: httpx2.AsyncClient, request: Request) -> End:
    """Makes the request as one stream of a shared connection; leaving resets it."""
    try:
        if request.manner is Manner.UNARY:
            answer = await client.post(COMPLETIONS, json=request.body)
            return check_whole(answer.status_code, answer.content)
        stream = Stream()
        async with client.stream("POST", COMPLETIONS, json=request.body) as response:
            if response.status_code != 200:
                return check_whole(response.status_code, await response.aread())
            async for piece in response.aiter_raw():
                stream.feed(piece)
                if await _turns_away(request, stream):
                    return End.LEFT
        return stream.close()
    except httpx2.TransportError:
        return End.LEFT if request.manner is Manner.STALLS else End.LOST


async def _turns_away(request: Request, stream: Stream) -> bool:
    """Whether the client leaves now; one that stalls reads nothing for a while, and then the rest."""
    if stream.events < request.leave_after or stream.done:
        return False
    if request.manner is Manner.STALLS and request.stall:
        await asyncio.sleep(request.stall)
        request.stall = 0.0
    return request.manner in (Manner.LEAVES, Manner.RESETS)


@asynccontextmanager
async def shared_connection(url: str) -> AsyncIterator[httpx2.AsyncClient]:
    """A client whose requests are streams of one HTTP/2 connection."""
    limits = httpx2.Limits(max_connections=1)
    async with httpx2.AsyncClient(base_url=url, http1=False, http2=True, timeout=None, limits=limits) as client:
        yield client
