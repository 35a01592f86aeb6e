"""Clients with certificates: asked for by a flag of its own, never by one of the server's."""

from __future__ import annotations

import ssl
from collections.abc import Iterator

import httpx2
import pytest
from openai import DefaultHttpxClient, OpenAI

from support.certificates import Authority, Pair
from support.server import Server

MOCK = ["--engine", "mock", "--mock-step-ms", "1"]
REFUSED = (httpx2.ConnectError, httpx2.ReadError, httpx2.RemoteProtocolError, httpx2.WriteError)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("server"))


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Issues clients' certificates, and no server's."""
    return Authority(tmp_path_factory.mktemp("clients"))


@pytest.fixture(scope="module")
def member(clients: Authority) -> Pair:
    return clients.pair("member", "member@example.org")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Authority(tmp_path_factory.mktemp("strangers")).pair("stranger", "stranger@example.org")


@pytest.fixture(scope="module", params=["required", "optional"])
def server(request: pytest.FixtureRequest, authority: Authority, clients: Authority, member: Pair) -> Iterator[Server]:
    flags = [*authority.pair("server").flags(), "--ssl-client-ca", str(clients.file)]
    # Required is what the flag of the authority alone means.
    if request.param == "optional":
        flags += ["--ssl-client-verify", "optional"]
    with_server = Server(*MOCK, *flags, context=authority.context(client=member))
    with_server.anyone = request.param == "optional"  # type: ignore[attr-defined]
    yield with_server
    assert with_server.stop() == 0, with_server.log


def get(server: Server, context: ssl.SSLContext, http2: bool) -> int:
    with httpx2.Client(verify=context, http2=http2) as client:
        return client.get(f"{server.url}/health").status_code


@pytest.mark.parametrize("http2", [False, True], ids=["http1", "http2"])
def test_members_come_in_and_strangers_do_not(
    server: Server, authority: Authority, member: Pair, stranger: Pair, http2: bool
) -> None:
    assert get(server, authority.context(client=member), http2) == 200
    # One that does not hold is refused even where none is needed.
    with pytest.raises(REFUSED):
        get(server, authority.context(client=stranger), http2)
    if server.anyone:  # type: ignore[attr-defined]
        assert get(server, authority.context(), http2) == 200
    else:
        with pytest.raises(REFUSED):
            get(server, authority.context(), http2)
    assert get(server, authority.context(client=member), http2) == 200


def test_the_servers_own_authority_opens_nothing(server: Server, authority: Authority) -> None:
    own = authority.pair("own", "own@example.org")
    with pytest.raises(REFUSED):
        get(server, authority.context(client=own), False)


@pytest.mark.parametrize("http2", [False, True], ids=["http1", "http2"])
def test_openai_client_streams_with_a_certificate(
    server: Server, authority: Authority, member: Pair, http2: bool
) -> None:
    with DefaultHttpxClient(http2=http2, verify=authority.context(client=member)) as http:
        client = OpenAI(base_url=f"{server.url}/v1", api_key="none", http_client=http)
        model = client.models.list().data[0].id
        stream = client.completions.create(model=model, prompt="x", max_tokens=3, stream=True)
        assert "".join(chunk.choices[0].text for chunk in stream)
