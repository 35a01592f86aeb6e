"""A server on a Unix socket: both protocols, its file's mode, what is in its way, what is left."""

from __future__ import annotations

import shutil
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmrt.cli import probe
from llmrt.supervisor import facts
from support.server import Server

MOCK = ["--engine", "mock", "--mock-step-ms", "1"]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sockets") / "llmrt.sock"


@pytest.fixture(scope="module")
def server(path: Path) -> Iterator[Server]:
    # What a killed server has left does not keep the next from starting.
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    with_server = Server(*MOCK, "--uds", str(path), "--uds-mode", "660", clear=True)
    yield with_server
    assert with_server.stop() == 0, with_server.log
    assert not path.exists()


@pytest.mark.parametrize("http2", [False, True], ids=["http1", "http2"])
def test_both_protocols_stream(server: Server, http2: bool) -> None:
    import httpx2

    transport = httpx2.HTTPTransport(uds=server.path, http1=not http2, http2=http2)
    with server.client(transport=transport) as client:
        body = {"prompt": "x", "max_tokens": 5, "stream": True}
        with client.stream("POST", "/v1/completions", json=body) as answer:
            assert answer.http_version == ("HTTP/2" if http2 else "HTTP/1.1")
            assert [line for line in answer.iter_lines() if line][-1] == "data: [DONE]"
        # Whoever reaches the socket may name any host.
        assert client.get("/health", headers={"host": "whatever.example"}).status_code == 200


def test_the_mode_is_the_flags(server: Server, path: Path) -> None:
    assert stat.S_IMODE(path.stat().st_mode) == 0o660


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_reaches_it(server: Server, path: Path) -> None:
    command = ["curl", "-sf", "--unix-socket", str(path), "http://localhost/ready"]
    subprocess.run(command, timeout=30, check=True, stdout=subprocess.DEVNULL)


def test_doctor_probes_it(server: Server) -> None:
    found = next(each for each in facts.running() if each.pid == server.process.pid)
    assert found.url == f"unix:{server.path}"
    assert [hop.state for hop in probe.probe(found, 10.0) if hop.name == "http"] == [probe.OK]


def refused(*flags: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "llmrt.cli.serve", *MOCK, *flags], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2, done.stderr
    return done.stderr


def test_what_is_in_the_way_is_left_alone(server: Server, path: Path, tmp_path: Path) -> None:
    assert "in use by another server" in refused("--uds", str(path))
    assert server.get("/health").status_code == 200
    file = tmp_path / "notes"
    file.write_text("mine")
    assert "is no socket" in refused("--uds", str(file))
    assert file.read_text() == "mine"
    assert "cannot listen on --uds" in refused("--uds", str(tmp_path / "none" / "llmrt.sock"))
    assert "cannot listen on --uds" in refused("--uds", str(tmp_path / ("x" * 200)))
    assert "must be an octal mode" in refused("--uds", str(tmp_path / "a.sock"), "--uds-mode", "rw")


def test_a_killed_server_is_followed_by_the_next(tmp_path: Path) -> None:
    path = tmp_path / "llmrt.sock"
    first = Server(*MOCK, "--uds", str(path), clear=True)
    first.stop(signal.SIGKILL)
    assert path.exists()
    second = Server(*MOCK, "--uds", str(path), clear=True)
    assert second.get("/health").status_code == 200
    assert second.stop() == 0, second.log
    assert not path.exists()
