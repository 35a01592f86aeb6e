"""TLS: keys in every usual form, both protocols by ALPN, versions, clear text on the wrong port."""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
import trustme
from openai import DefaultHttpxClient, OpenAI

from support.certificates import Authority, Format, Pair, rewrite_key
from support.server import Server

MOCK = ["--engine", "mock", "--mock-step-ms", "1"]
CHAT = "/v1/chat/completions"
HI = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def pair(authority: Authority) -> Pair:
    return authority.pair("server")


@pytest.fixture(scope="module")
def server(authority: Authority, pair: Pair) -> Iterator[Server]:
    """A server with a key of OpenSSL's usual form (SEC1)."""
    assert b"BEGIN EC PRIVATE KEY" in pair.keyfile.read_bytes()
    with_server = Server(*MOCK, *pair.flags(), context=authority.context())
    yield with_server
    assert with_server.stop() == 0, with_server.log


@pytest.mark.parametrize("http2", [False, True], ids=["http1", "http2"])
def test_openai_client_streams_over_tls(server: Server, authority: Authority, http2: bool) -> None:
    with DefaultHttpxClient(http2=http2, verify=authority.context()) as http:
        versions: list[str] = []
        http.event_hooks = {"response": [lambda response: versions.append(response.http_version)]}
        client = OpenAI(base_url=f"{server.url}/v1", api_key="none", http_client=http)
        stream = client.chat.completions.create(model=client.models.list().data[0].id, stream=True, **HI)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        assert set(versions) == {"HTTP/2" if http2 else "HTTP/1.1"}


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize(("flag", "version"), [("--http1.1", "1.1"), ("--http2", "2"), ("--tlsv1.3", "2")])
def test_curl_negotiates(server: Server, authority: Authority, flag: str, version: str) -> None:
    command = ["curl", "-s", flag, "--cacert", str(authority.file), "-w", "%{http_version}", "-o", "/dev/null"]
    done = subprocess.run([*command, f"{server.url}/health"], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == version


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [(("h2", "http/1.1"), "h2"), (("http/1.1", "h2"), "h2"), (("http/1.1",), "http/1.1"), ((), None)],
)
def test_the_protocol_is_negotiated(
    server: Server, authority: Authority, offered: tuple[str, ...], chosen: str | None
) -> None:
    with shake(server, authority.context(*offered)) as stream:
        assert stream.selected_alpn_protocol() == chosen


def test_a_client_that_offers_other_protocols_alone_is_refused(server: Server, authority: Authority) -> None:
    with pytest.raises(ssl.SSLError, match=r"(?i)no.application.protocol"):
        shake(server, authority.context("spdy/3"))


def test_versions_before_1_2_are_refused(server: Server, authority: Authority) -> None:
    for version, taken in [(ssl.TLSVersion.TLSv1_2, "TLSv1.2"), (ssl.TLSVersion.TLSv1_3, "TLSv1.3")]:
        context = authority.context()
        context.minimum_version = context.maximum_version = version
        with shake(server, context) as stream:
            assert stream.version() == taken
    # By hand: our own library would refuse before the server could.
    hello = bytes.fromhex("16030100310100002d0301" + "00" * 32 + "00" + "0006002f00350005" + "0100")
    with socket.create_connection((server.host, server.port), 10) as raw:
        raw.sendall(hello)
        alert = raw.recv(7)
    handshake_failure, protocol_version = 40, 70
    assert alert[:1] == b"\x15" and alert[5] == 2 and alert[6] in (handshake_failure, protocol_version), alert


def test_a_request_in_clear_text_is_told_so(server: Server) -> None:
    body = json.dumps({"pad": "x" * 60_000}).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    for request in [
        b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n",
        head + body,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ]:
        with socket.create_connection((server.host, server.port), 10) as raw:
            raw.sendall(request)
            raw.shutdown(socket.SHUT_WR)
            answer = b""
            # A reset instead of an end would raise.
            while data := raw.recv(65536):
                answer += data
        status, _, rest = answer.partition(b"\r\n")
        assert status == b"HTTP/1.1 400 Bad Request"
        assert json.loads(rest.partition(b"\r\n\r\n")[2])["error"]["code"] == "tls_required"
    assert server.get("/health").status_code == 200


def test_clients_without_trust_are_no_trouble(server: Server) -> None:
    with pytest.raises(httpx2.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx2.get(f"{server.url}/health")
    assert server.get("/health").status_code == 200


@pytest.mark.parametrize("form", ["pkcs8", "pkcs8-encrypted", "pkcs1", "combined"])
def test_other_forms_of_keys(authority: Authority, pair: Pair, tmp_path: Path, form: str) -> None:
    env: dict[str, str] = {}
    if form == "pkcs1":
        issued = authority.pair("rsa", key=trustme.KeyType.RSA)
        assert b"BEGIN RSA PRIVATE KEY" in issued.keyfile.read_bytes()
        flags = issued.flags()
    elif form == "combined":
        both = tmp_path / "both.pem"
        both.write_bytes(pair.keyfile.read_bytes() + pair.certfile.read_bytes())
        flags = ["--ssl-certfile", str(both)]
    elif form == "pkcs8":
        flags = rewrite_key(pair, "pkcs8.key", Format.PKCS8).flags()
    else:
        flags = rewrite_key(pair, "encrypted.key", Format.PKCS8, b"open sesame").flags()
        env = {"LLMRT_SSL_KEYFILE_PASSWORD": "open sesame"}
    server = Server(*MOCK, *flags, env=env, context=authority.context())
    assert server.get("/health").status_code == 200
    assert server.stop() == 0, server.log


def test_http2_can_be_left_out(authority: Authority, pair: Pair) -> None:
    server = Server(*MOCK, *pair.flags(), "--no-http2", context=authority.context())
    with shake(server, authority.context("h2", "http/1.1")) as stream:
        assert stream.selected_alpn_protocol() == "http/1.1"
    with server.client(http2=True) as client:
        assert client.get("/health").http_version == "HTTP/1.1"
    assert server.stop() == 0, server.log


def shake(server: Server, context: ssl.SSLContext) -> ssl.SSLSocket:
    """A connection whose handshake is over."""
    raw = socket.create_connection((server.host, server.port), 10)
    try:
        return context.wrap_socket(raw, server_hostname=server.host)
    except BaseException:
        raw.close()
        raise
