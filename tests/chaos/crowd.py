"""Many clients at once, which make one request after the other."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable

from chaos import clients
from chaos.answers import Broken, End
from chaos.clients import MOST_TOKENS, Manner, Request
from chaos.http2 import Shared
from support.server import Server

PATIENCE = 60.0
"""Seconds that a request may take beyond the time of its tokens: a process that hangs is found and replaced in less."""

STREAMS_PER_CONNECTION = 50


class Crowd:
    """``ends`` counts how requests ended, by protocol and manner.

    ``step`` is the time of a token, ``stall_timeout`` what the server bears of a client that does not read.
    """

    def __init__(self, server: Server, dice: random.Random, step: float, stall_timeout: float) -> None:
        self.server = server
        self.dice = dice
        self.step = step
        self.stall_timeout = stall_timeout
        self.ends: Counter[tuple[str, Manner, End]] = Counter()
        self.lost: list[tuple[float, int]] = []
        """When answers broke off, and the entry workers that gave them."""
        self.begun = 0
        self._over = False

    async def run(self, during: Awaitable[None], streams: int) -> None:
        """Keeps ``streams`` requests open until ``during`` is done, and waits for all to end."""
        connections = max(1, streams // 4 // STREAMS_PER_CONNECTION)
        shared = [Shared(self.server.host, self.server.port) for _ in range(connections)]
        self._over = False
        places = asyncio.gather(*(self._keep(shared, number) for number in range(streams)))
        try:
            # A place that finds a broken answer ends everything at once.
            await asyncio.wait([places, asyncio.ensure_future(during)], return_when=asyncio.FIRST_COMPLETED)
            self._over = True
            await places
        finally:
            for connection in shared:
                connection.close()

    def count(self, end: End, *, of: str = "") -> int:
        """How many requests ended so, of one protocol or all."""
        return sum(n for (protocol, _, each), n in self.ends.items() if each is end and of in protocol)

    def told(self) -> str:
        """How requests ended."""
        ends = {f"{protocol} {how.value} {end.value}": n for (protocol, how, end), n in self.ends.items()}
        return str(dict(sorted(ends.items())))

    async def _keep(self, shared: list[Shared], number: int) -> None:
        """One request after the other; a quarter of the places share HTTP/2 connections."""
        await asyncio.sleep(self.dice.uniform(0, 2))
        protocol = "h2" if number % 4 == 0 else "h1"
        while not self._over:
            request = Request.drawn(self.dice, self.step, self.stall_timeout)
            self.begun += 1
            if protocol == "h2":
                asked = clients.over_http2(shared[number // 4 % len(shared)], request)
            else:
                asked = clients.over_http1(self.server.host, self.server.port, request)
            limit = PATIENCE + 2 * MOST_TOKENS * self.step
            try:
                end = await asyncio.wait_for(asked, limit)
            except asyncio.TimeoutError:
                raise Broken(f"{protocol}, {request}: no end in {limit:g} s") from None
            self.ends[protocol, request.manner, end] += 1
            # Who reads nothing for long does not notice when it happens.
            if end is End.LOST and request.worker is not None and request.manner is not Manner.STALLS:
                self.lost.append((time.monotonic(), request.worker))
            if end in (End.REFUSED, End.LOST):
                await asyncio.sleep(self.dice.uniform(0.2, 1.0))
