"""Certificates that change, and files that cannot be used."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmrt.cli import probe
from llmrt.supervisor import facts
from support.certificates import Authority, Format, Pair, rewrite_key
from support.server import Server, wait_for

MOCK = ["--engine", "mock", "--mock-step-ms", "5"]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def pair(authority: Authority) -> Pair:
    return authority.pair("server")


@pytest.fixture
def server(authority: Authority, pair: Pair) -> Iterator[Server]:
    with_server = Server(*MOCK, *pair.flags(), context=authority.context())
    yield with_server
    assert with_server.stop() == 0, with_server.log


def shown(server: Server, authority: Authority) -> bytes:
    """The certificate that a new connection is shown."""
    with (
        socket.create_connection((server.host, server.port), 10) as raw,
        authority.context().wrap_socket(raw, server_hostname="localhost") as stream,
    ):
        return stream.getpeercert(binary_form=True) or b""


def der(pair: Pair) -> bytes:
    """The first certificate of a pair."""
    end = "-----END CERTIFICATE-----\n"
    return ssl.PEM_cert_to_DER_cert(pair.certfile.read_text().partition(end)[0] + end)


def replace(old: Pair, new: Pair) -> None:
    """Puts the files of ``new`` in the place of ``old``'s, as tools that renew certificates do."""
    for source, target in [(new.certfile, old.certfile), (new.keyfile, old.keyfile)]:
        os.replace(source, target)


@pytest.mark.parametrize("how", ["change", "signal"])
def test_a_new_pair_is_taken_without_dropping_a_connection(
    server: Server, authority: Authority, pair: Pair, how: str
) -> None:
    body = {"prompt": "x", "max_tokens": 4000, "stream": True, "ignore_eos": True}
    with server.client() as client, client.stream("POST", "/v1/completions", json=body) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("data: ")
        renewed = authority.pair("renewed")
        wanted = der(renewed)
        assert shown(server, authority) == der(pair) != wanted
        replace(pair, renewed)
        if how == "signal":
            server.process.send_signal(signal.SIGHUP)
        wait_for(lambda: shown(server, authority) == wanted, "the new certificate")
        # The old connection's stream goes on.
        assert sum(next(lines).startswith("data: ") for _ in range(40)) == 20
    assert "certificates reloaded" in server.log


def test_every_worker_takes_the_new_pair(authority: Authority, pair: Pair) -> None:
    server = Server(*MOCK, "--entry-workers", "2", *pair.flags(), context=authority.context())
    renewed = authority.pair("renewed")
    wanted = der(renewed)
    replace(pair, renewed)
    server.process.send_signal(signal.SIGHUP)
    wait_for(lambda: server.log.count("certificates reloaded") == 2, "both workers")
    assert {shown(server, authority) for _ in range(12)} == {wanted}
    assert server.stop() == 0, server.log


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks for processes by /proc")
def test_a_worker_that_dies_over_bad_files_is_missed_until_they_are_good(authority: Authority, pair: Pair) -> None:
    server = Server(*MOCK, "--entry-workers", "2", *pair.flags(), context=authority.context())
    the_facts = next(each for each in facts.running() if each.pid == server.process.pid)
    good = der(pair)
    certificates = pair.certfile.read_text()
    pair.certfile.write_text("nothing")
    os.kill(the_facts.processes["entry[0]"], signal.SIGKILL)
    ended = "entry[0] ended with exit code 1; another one takes its place"
    wait_for(lambda: server.log.count(ended) >= 3, "its successors to fail")
    assert "holds no certificate" in server.log
    # The other worker keeps the old ones, and takes all connections.
    assert {shown(server, authority) for _ in range(8)} == {good}
    assert server.get("/ready").status_code == 200
    pair.certfile.write_text(certificates)

    def whole() -> bool:
        hops = probe.probe(next(each for each in facts.running() if each.pid == server.process.pid), 5.0)
        return all(hop.state in (probe.OK, probe.UNUSED) for hop in hops)

    wait_for(whole, "both workers")
    assert server.stop() == 0, server.log


def test_a_bad_pair_is_refused_and_the_old_one_stays(server: Server, authority: Authority, pair: Pair) -> None:
    good = der(pair)
    other = authority.pair("other")
    os.replace(other.certfile, pair.certfile)
    server.process.send_signal(signal.SIGHUP)
    wait_for(lambda: "is not that of the certificate" in server.log, "the refusal")
    assert "the old ones stay" in server.log
    assert shown(server, authority) == good
    pair.certfile.write_text("nothing")
    wait_for(lambda: "holds no certificate" in server.log, "the second refusal")
    pair.certfile.unlink()
    wait_for(lambda: "cannot read" in server.log, "the third refusal")
    assert shown(server, authority) == good
    renewed = authority.pair("renewed")
    wanted = der(renewed)
    replace(pair, renewed)
    wait_for(lambda: shown(server, authority) == wanted, "the pair that is good again")


def test_a_password_file_is_read_again_with_its_key(authority: Authority, pair: Pair, tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("first\n")
    sealed = rewrite_key(pair, "sealed.key", Format.PKCS8, b"first")
    server = Server(*MOCK, *sealed.flags(), "--ssl-keyfile-password-file", str(password), context=authority.context())
    assert shown(server, authority) == der(pair)
    renewed = authority.pair("renewed")
    wanted = der(renewed)
    password.write_text("second\n")
    replace(sealed, rewrite_key(renewed, "renewed-sealed.key", Format.PKCS8, b"second"))
    wait_for(lambda: shown(server, authority) == wanted, "the pair with the new password")
    assert server.stop() == 0, server.log


def refused(*flags: str, env: dict[str, str] | None = None) -> str:
    """What a server says that does not start."""
    done = subprocess.run(
        [sys.executable, "-m", "llmrt.cli.serve", "--check", *flags],
        capture_output=True, text=True, timeout=60, env={**os.environ, **(env or {})},
    )  # fmt: skip
    assert done.returncode == 2, done.stdout
    return done.stderr


def test_files_that_cannot_be_used_are_start_errors(authority: Authority, pair: Pair, tmp_path: Path) -> None:
    other = authority.pair("other")
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    sealed = rewrite_key(pair, "sealed.key", Format.PKCS8, b"secret")
    old = rewrite_key(pair, "old.key", Format.TraditionalOpenSSL, b"secret")
    cert, key = str(pair.certfile), str(pair.keyfile)
    for flags, complaint in [
        (["--ssl-certfile", str(tmp_path / "none.pem")], "cannot read"),
        (["--ssl-certfile", str(empty)], "holds no certificate"),
        (["--ssl-certfile", cert], f"{cert} holds no private key"),
        (["--ssl-certfile", cert, "--ssl-keyfile", str(other.keyfile)], "is not that of the certificate"),
        (sealed.flags(), "is encrypted; give its password"),
        ([*sealed.flags(), "--ssl-keyfile-password", "wrong"], "wrong password"),
        (old.flags(), "openssl pkcs8 -topk8"),
        (["--ssl-certfile", cert, "--ssl-keyfile", key, "--ssl-client-ca", str(empty)], "holds no certificate"),
        (["--ssl-certfile", cert, "--ssl-keyfile", key, "--ssl-client-verify", "optional"], "needs --ssl-client-ca"),
        (["--ssl-keyfile", key], "--ssl-keyfile needs --ssl-certfile"),
        (["--ssl-client-ca", cert], "--ssl-client-ca needs --ssl-certfile"),
        (
            [*sealed.flags(), "--ssl-keyfile-password", "secret", "--ssl-keyfile-password-file", str(empty)],
            "not both",
        ),
    ]:
        message = refused(*flags)
        assert complaint in message, (flags, message)
        assert "wrong" not in message or "--ssl-keyfile-password" not in message
