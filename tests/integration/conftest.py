from __future__ import annotations

from collections.abc import Iterator

import httpx2
import pytest

from support.cell import CELL
from support.server import Server

CELL.install()

MODEL = "SmolLM2-135M-Instruct"


@pytest.fixture(scope="session")
def server(shared_server: Server) -> Server:
    """One server with the default model for every test that needs nothing special."""
    return shared_server


@pytest.fixture(scope="session")
def shared_server() -> Iterator[Server]:
    """The same by a name that no file gives to another one."""
    with_server = Server("--kv-cache-memory", "1")
    yield with_server
    assert with_server.stop() == 0, with_server.log


@pytest.fixture(scope="session")
def clear_server(shared_server: Server) -> Iterator[Server]:
    """One in clear text, for programs of ours that speak no TLS."""
    if not CELL.secure:
        yield shared_server
        return
    with_server = Server("--kv-cache-memory", "1", clear=True)
    yield with_server
    assert with_server.stop() == 0, with_server.log


@pytest.fixture(scope="session", params=["http1", "http2"])
def client(request: pytest.FixtureRequest, server: Server) -> Iterator[httpx2.Client]:
    """A plain HTTP client, over HTTP/1.1 and over HTTP/2 with prior knowledge."""
    http2 = request.param == "http2"
    with httpx2.Client(base_url=server.url, http1=not http2, http2=http2, timeout=120) as http:
        yield http
