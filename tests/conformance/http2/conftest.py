from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from support.frames import FrameClient
from support.server import Server


@pytest.fixture(scope="package")
def server() -> Iterator[Server]:
    """One server for all frames; whatever a client has sent, the next one is answered."""
    with_server = Server("--engine", "mock", "--mock-step-ms", "1", "--http2-max-concurrent-streams", "64", clear=True)
    yield with_server
    assert with_server.stop() == 0, with_server.log


@pytest.fixture
def connect(server: Server) -> Iterator[Callable[..., FrameClient]]:
    """Opens connections, closed with the test. Each has exchanged settings."""
    opened: list[FrameClient] = []

    def one(settings: dict[int, int] | None = None, hello: bool = True) -> FrameClient:
        client = FrameClient(server.host, server.port, settings, hello)
        opened.append(client)
        if hello:
            client.alive()
        return client

    yield one
    for client in opened:
        client.close()
    assert server.process.poll() is None, server.log


@pytest.fixture
def client(connect: Callable[..., FrameClient]) -> FrameClient:
    """One connection."""
    return connect()
