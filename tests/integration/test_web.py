"""Browsers and proxies in front: hosts, origins, a path of one's own; over HTTP/1.1 and HTTP/2."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from support.server import Server

from .test_http import assert_openai_error

MOCK = ["--engine", "mock", "--mock-step-ms", "1"]
PAGE = "https://chat.example"
BODY: dict[str, Any] = {"prompt": "x", "max_tokens": 2}


def clients(server: Server) -> Iterator[httpx2.Client]:
    for http2 in (False, True):
        with httpx2.Client(base_url=server.url, http1=not http2, http2=http2, timeout=60) as client:
            yield client


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server as it is by default."""
    with_server = Server(*MOCK, clear=True)
    yield with_server
    assert with_server.stop() == 0, with_server.log


@pytest.fixture(scope="module")
def open_server() -> Iterator[Server]:
    """A server that lets one page in, and two more hosts, behind a proxy and a key."""
    flags = ["--allowed-origins", f'["{PAGE}"]', "--allowed-hosts", "api.example, *.lan.example"]
    key = {"authorization": "Bearer sesame"}
    with_server = Server(*MOCK, *flags, "--root-path", "/llm/", "--api-key", "sesame", headers=key, clear=True)
    yield with_server
    assert with_server.stop() == 0, with_server.log


def test_other_hosts_are_refused_on_the_loopback_interface(server: Server) -> None:
    for client in clients(server):
        for host in ["localhost", f"localhost:{server.port}", "127.0.0.1:1", "[::1]", "[::1]:8000"]:
            assert client.get("/health", headers={"host": host}).status_code == 200, host
        for host in ["evil.example", f"evil.example:{server.port}", "localhost.evil.example", "10.0.0.1"]:
            error = assert_openai_error(client.get("/health", headers={"host": host}), 421)
            assert error["code"] == "host_not_allowed" and "--allowed-hosts" in error["message"]


def test_a_refused_host_is_told_so_before_its_body_has_come(server: Server) -> None:
    body = b"x" * (1 << 20)
    head = f"POST /v1/completions HTTP/1.1\r\nhost: evil.example\r\ncontent-length: {len(body)}\r\n\r\n"
    with socket.create_connection((server.host, server.port), 30) as connection:
        connection.sendall(head.encode())
        assert connection.recv(12, socket.MSG_WAITALL) == b"HTTP/1.1 421"
        # The body still finds somebody who reads it: a reset could overtake the answer.
        connection.sendall(body)
        with connection.makefile("rb") as answer:
            assert b"host_not_allowed" in answer.read()


def test_allowed_hosts_are_served(open_server: Server) -> None:
    for client in clients(open_server):
        for host, status in [("api.example", 200), ("a.b.lan.example:80", 200), ("localhost", 200), ("b.example", 421)]:
            assert client.get("/health", headers={"host": host}).status_code == status, host


def test_on_other_addresses_every_host_is_served() -> None:
    server = Server(*MOCK, "--host", "0.0.0.0", clear=True)
    assert httpx2.get(f"{server.url}/health", headers={"host": "any.example"}).status_code == 200
    assert server.stop() == 0, server.log


def test_by_default_no_page_is_let_in(server: Server) -> None:
    for client in clients(server):
        ask = {"origin": PAGE, "access-control-request-method": "POST"}
        refused = client.options("/v1/completions", headers=ask)
        assert assert_openai_error(refused, 403)["code"] == "origin_not_allowed"
        assert "access-control-allow-origin" not in refused.headers
        # A browser would send this one without asking first.
        simple = client.post("/v1/completions", content=b'{"prompt": "x"}', headers={"origin": PAGE})
        assert "--allowed-origins" in assert_openai_error(simple, 403)["message"]
        seen = client.get("/v1/models", headers={"origin": PAGE})
        assert seen.status_code == 200 and "access-control-allow-origin" not in seen.headers
        # Pages that this very host serves, by a proxy's doing, are its own.
        own = client.post("/v1/completions", json=BODY, headers={"origin": server.url})
        assert own.status_code == 200
        told = client.post("/v1/completions", json=BODY, headers={"origin": PAGE, "sec-fetch-site": "same-origin"})
        assert told.status_code == 200
        assert client.options("/v1/completions").status_code == 405


def test_an_allowed_page_asks_and_is_answered(open_server: Server) -> None:
    for client in clients(open_server):
        ask = {
            "origin": PAGE,
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization, content-type",
        }
        # A preflight bears no key.
        allowed = client.options("/v1/completions", headers=ask)
        assert allowed.status_code == 204 and allowed.content == b""
        assert allowed.headers["access-control-allow-origin"] == PAGE
        assert allowed.headers["access-control-allow-methods"] == "POST"
        assert allowed.headers["access-control-allow-headers"] == "authorization, content-type"
        assert "origin" in allowed.headers["vary"]
        with_key = {"origin": PAGE, **open_server.headers}
        for stream in (False, True):
            answer = client.post("/v1/completions", json={**BODY, "stream": stream}, headers=with_key)
            assert answer.status_code == 200
            assert answer.headers["access-control-allow-origin"] == PAGE
            assert "x-request-id" in answer.headers["access-control-expose-headers"]
        # Errors can be read by the page, too.
        error = client.post("/v1/completions", json=BODY, headers={"origin": PAGE})
        assert assert_openai_error(error, 401)
        assert error.headers["access-control-allow-origin"] == PAGE
        foreign = client.post("/v1/completions", json=BODY, headers={**with_key, "origin": "https://evil.example"})
        assert assert_openai_error(foreign, 403)["code"] == "origin_not_allowed"


def test_paths_are_taken_with_and_without_the_root(open_server: Server) -> None:
    for client in clients(open_server):
        for path, status in [("/health", 200), ("/llm/health", 200), ("/llm/llm/health", 404), ("/llmx/health", 404)]:
            assert client.get(path, headers=open_server.headers).status_code == status, path
        answer = client.post("/llm/v1/completions", json=BODY, headers=open_server.headers)
        assert answer.status_code == 200
        assert client.post("/llm/v1/completions", json=BODY).status_code == 401


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--allowed-origins", "chat.example"], "is no origin"),
        (["--allowed-origins", "https://chat.example/"], "is no origin"),
        (["--allowed-origins", "[1]"], "must be names"),
        (["--allowed-origins", "*", "--allow-credentials"], "would let every page in"),
        (["--allowed-hosts", "a b"], "must be visible ASCII"),
        (["--root-path", "llm"], "must be a path that begins with /"),
    ],
)
def test_contradictions_are_start_errors(flags: list[str], complaint: str) -> None:
    command = [sys.executable, "-m", "llmrt.cli.serve", "--check", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and complaint in done.stderr


def test_an_upgrade_to_h2c_is_answered_over_http1_with_its_body(server: Server) -> None:
    headers = {"connection": "upgrade, http2-settings", "upgrade": "h2c", "http2-settings": "AAMAAABkAAQAoAAA"}
    body = {"prompt": "x" * 20_000, "max_tokens": 2}
    with server.client(http2=False) as client:
        for _ in range(2):
            answer = client.post("/tokenize", json=body, headers=headers)
            assert (answer.status_code, answer.http_version) == (200, "HTTP/1.1")
            assert answer.json()["count"] == client.post("/tokenize", json=body).json()["count"]


def test_http2_can_be_left_out() -> None:
    server = Server(*MOCK, "--no-http2", clear=True)
    assert server.get("/health").http_version == "HTTP/1.1"
    with httpx2.Client(http1=False, http2=True) as client, pytest.raises(httpx2.RemoteProtocolError):
        client.get(f"{server.url}/health")
    assert server.get("/health").status_code == 200
    assert server.stop() == 0, server.log
