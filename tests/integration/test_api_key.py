"""With a key set, every route but the health check asks for it."""

from __future__ import annotations

from collections.abc import Iterator

import httpx2
import openai
import pytest
from openai import OpenAI

from support.cell import CELL
from support.server import Server

from .test_http import assert_openai_error

KEY = "sesame-open"


@pytest.fixture(scope="module")
def locked() -> Iterator[Server]:
    server = Server("--engine", "mock", env={"LLMRT_API_KEY": KEY}, headers={"authorization": f"Bearer {KEY}"})
    yield server
    assert server.stop() == 0, server.log


@pytest.mark.parametrize("route", ["/v1/models", "/ready", "/metrics", "/version"])
@pytest.mark.parametrize("token", [None, "Bearer", "Bearer wrong", f"Bearer {KEY}x", f"Basic {KEY}"])
def test_routes_ask_for_the_key(locked: Server, route: str, token: str | None) -> None:
    response = httpx2.get(locked.url + route, headers={"authorization": token} if token else {})
    assert assert_openai_error(response, 401)["code"] == "invalid_api_key"
    assert httpx2.get(locked.url + "/health").status_code == 200


@pytest.mark.parametrize("token", ["Bearer ", "Bearer  ", "Bearer schlüssel", "Bearer 🔑"])
def test_empty_and_non_ascii_tokens_are_401(locked: Server, token: str) -> None:
    with CELL.connect(locked.host, locked.port) as raw:
        head = f"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nauthorization: {token}\r\n\r\n"
        raw.sendall(head.encode())
        answer = b"".join(iter(lambda: raw.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 401 ") and b"invalid_api_key" in answer


@pytest.mark.parametrize("http2", [False, True])
def test_the_right_key_opens(locked: Server, http2: bool) -> None:
    transport = openai.DefaultHttpxClient(http1=not http2, http2=http2)
    with OpenAI(base_url=f"{locked.url}/v1", api_key=KEY, http_client=transport) as client:
        model = client.models.list().data[0].id
        answer = client.chat.completions.create(model=model, messages=[{"role": "user", "content": "Hi"}], max_tokens=4)
        assert answer.usage is not None and answer.usage.completion_tokens == 4
    with (
        OpenAI(base_url=f"{locked.url}/v1", api_key="wrong", max_retries=0) as stranger,
        pytest.raises(openai.AuthenticationError),
    ):
        stranger.models.list()
