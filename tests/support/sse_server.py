"""A server of scripted answers on the loopback interface: HTTP/1.1 by hand, so that it can also misbehave."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

EVENT_STREAM = "text/event-stream; charset=utf-8"


@dataclass
class Request:
    """A request as it arrived."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]


class Reply:
    """Writes one answer."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self.keep_alive = True

    async def head(self, status: int = 200, content_type: str = EVENT_STREAM, *headers: str) -> None:
        """Begins an answer in chunks."""
        lines = [f"HTTP/1.1 {status} x", f"content-type: {content_type}", "transfer-encoding: chunked", *headers]
        await self._write("\r\n".join(lines) + "\r\n\r\n")

    async def part(self, text: str) -> None:
        """Sends a piece of the body."""
        data = text.encode()
        await self._write(f"{len(data):x}\r\n{text}\r\n")

    async def event(self, data: Any) -> None:
        """Sends one event, in the spaced JSON that Python servers write."""
        await self.part(f"data: {data if isinstance(data, str) else json.dumps(data)}\n\n")

    async def token(self, text: str = "a") -> None:
        await self.event({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]})

    async def end(self) -> None:
        """Ends the body by the book."""
        await self._write("0\r\n\r\n")

    async def whole(self, status: int, body: str, content_type: str = "application/json") -> None:
        await self.head(status, content_type)
        await self.part(body)
        await self.end()

    def hang_up(self) -> None:
        """Closes the connection after this answer, wherever it stands, without having said so."""
        self.keep_alive = False

    async def _write(self, text: str) -> None:
        self._writer.write(text.encode())
        await self._writer.drain()


Script = Callable[[Request, Reply], Awaitable[None]]


@dataclass
class ScriptedServer:
    """What the server saw so far."""

    url: str
    requests: list[Request] = field(default_factory=list)
    connections: int = 0
    open: int = 0
    peak: int = 0


@contextmanager
def scripted_server(script: Script) -> Iterator[ScriptedServer]:
    """Runs ``script`` for every request but ``GET /v1/models``, in a thread with a loop of its own."""
    seen = ScriptedServer("")
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def start() -> asyncio.Server:
        return await asyncio.start_server(lambda r, w: _serve(r, w, script, seen), "127.0.0.1", 0)

    async def stop() -> None:
        server.close()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    server = asyncio.run_coroutine_threadsafe(start(), loop).result(10)
    seen.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield seen
    finally:
        asyncio.run_coroutine_threadsafe(stop(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


async def _serve(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, script: Script, seen: ScriptedServer
) -> None:
    seen.connections += 1
    try:
        while (request := await _read(reader)) is not None:
            reply = Reply(writer)
            if request.path.endswith("/models"):
                await reply.whole(200, json.dumps({"data": [{"id": "scripted"}]}))
                continue
            seen.requests.append(request)
            seen.open += 1
            seen.peak = max(seen.peak, seen.open)
            try:
                await script(request, reply)
            finally:
                seen.open -= 1
            if not reply.keep_alive:
                return
    except (ConnectionError, asyncio.IncompleteReadError):
        pass
    finally:
        writer.close()


async def _read(reader: asyncio.StreamReader) -> Request | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.strip().split("\r\n")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    data = await reader.readexactly(int(headers.get("content-length", "0")))
    return Request(first.split(" ")[1], headers, json.loads(data) if data else {})
