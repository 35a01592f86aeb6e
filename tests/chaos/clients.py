"""Clients that behave well, leave, pause or stall: each says how its request ended, and objects to a broken answer."""

from __future__ import annotations

import asyncio
import enum
import json
import random
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from chaos.answers import Broken, End, Stream, check_whole
from chaos.http2 import ConnectionLost, Reset, Shared

COMPLETIONS = "/v1/completions"
MOST_TOKENS = 60


class Manner(enum.Enum):
    READS = "reads"
    UNARY = "unary"
    LEAVES = "leaves"
    RESETS = "resets"
    PAUSES = "pauses"
    """Reads nothing for a while that the server must bear."""
    STALLS = "stalls"
    """Reads nothing for so long that the server hangs up."""

    @property
    def turns_away(self) -> bool:
        return self in (Manner.LEAVES, Manner.RESETS)

    @property
    def stops_reading(self) -> bool:
        return self in (Manner.PAUSES, Manner.STALLS)


@dataclass
class Request:
    """What a client asks for and how it behaves; ``turn`` is the event behind which it leaves or stops reading."""

    manner: Manner
    max_tokens: int
    turn: int
    pause: float
    """Seconds in which it reads nothing; 0 when they are over."""
    worker: int | None = None
    """The entry worker that answers, once it is known."""

    @classmethod
    def drawn(cls, dice: random.Random, step: float, stall_timeout: float) -> Request:
        """``step`` is the time of a token, ``stall_timeout`` what the server bears once it cannot write."""
        manner = dice.choices(list(Manner), weights=[8, 3, 3, 2, 1, 1])[0]
        if manner is Manner.PAUSES:
            return cls(manner, MOST_TOKENS, dice.randint(0, 20), dice.uniform(0.1, 0.4) * stall_timeout)
        if manner is Manner.STALLS:
            # The windows are full, or the answer has ended, before the timeout begins to run.
            return cls(manner, MOST_TOKENS, dice.randint(0, 5), MOST_TOKENS * step + 2 * stall_timeout)
        return cls(manner, dice.randint(1, MOST_TOKENS), dice.randint(0, 20), 0.0)

    @property
    def body(self) -> dict[str, Any]:
        how = {"stream": self.manner is not Manner.UNARY, "n": self.choices}
        return {"prompt": "Hi", "max_tokens": self.max_tokens, "ignore_eos": True, **how}

    @property
    def choices(self) -> int:
        """Who stops reading asks for more than the kernel's buffers hold."""
        return 3 if self.manner.stops_reading else 1

    @property
    def leaves_at_once(self) -> bool:
        return self.manner.turns_away and self.turn == 0

    async def leaves(self, stream: Stream) -> bool:
        """Whether the client leaves now; one that stops reading does so for a while, and then reads the rest."""
        self.worker = stream.worker
        if stream.events < self.turn or stream.done:
            return False
        if self.manner.stops_reading and self.pause:
            await asyncio.sleep(self.pause)
            self.pause = 0.0
        return self.manner.turns_away

    @property
    def may_be_cut(self) -> bool:
        """Whether it has given the server reason to hang up. A server that was stopped meanwhile counts that in."""
        return self.manner.stops_reading and not self.pause


async def over_http1(host: str, port: int, request: Request) -> End:
    """Makes the request on a connection of its own."""
    with socket.socket() as sock:
        sock.setblocking(False)
        if request.manner is Manner.RESETS:
            # Closing then sends RST, not FIN.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if request.manner.stops_reading:
            # Small packets and buffers: what is not read soon waits in the server.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 300)
        try:
            await asyncio.get_running_loop().sock_connect(sock, (host, port))
        except OSError:
            return End.LOST
        reader, writer = await asyncio.open_connection(sock=sock, limit=8192)
        try:
            return await _http1(reader, writer, request)
        except (asyncio.IncompleteReadError, ConnectionError):
            return End.CUT if request.may_be_cut else End.LOST
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


async def _http1(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: Request) -> End:
    body = json.dumps(request.body).encode()
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    await writer.drain()
    if request.leaves_at_once:
        return End.LEFT
    status_line, *fields = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
    status = int(status_line.split()[1])
    length = [int(field.split(":")[1]) for field in fields if field.startswith("content-length:")]
    if length:
        return check_whole(status, await reader.readexactly(length[0]))
    stream = Stream(request.choices)
    while size := int(await reader.readuntil(b"\r\n"), 16):
        stream.feed((await reader.readexactly(size + 2))[:-2])
        if await request.leaves(stream):
            return End.LEFT
    await reader.readexactly(len(b"\r\n"))
    return stream.close()


async def over_http2(shared: Shared, request: Request) -> End:
    """Makes the request as one stream of a shared connection; leaving resets it."""
    try:
        async with shared.post(COMPLETIONS, request.body) as response:
            if request.leaves_at_once:
                return End.LEFT
            if request.manner is Manner.UNARY or await response.status() != 200:
                return check_whole(await response.status(), b"".join([piece async for piece in response.body()]))
            stream = Stream(request.choices)
            async for piece in response.body():
                stream.feed(piece)
                if await request.leaves(stream):
                    return End.LEFT
            return stream.close()
    except ConnectionLost:
        return End.LOST
    except Reset as reset:
        if not request.may_be_cut:
            raise Broken(f"{reset} of a client that reads") from reset
        return End.CUT
