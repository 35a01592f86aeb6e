"""Entry nodes on other hosts: they serve like any worker, and cables, nodes and gateways may fail."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h2.connection
import httpx2
import pytest

from llmrt.supervisor import facts
from support.hosts import Hosts, two_hosts
from support.server import Server, wait_for

PYTHON = [sys.executable, "-m"]
SECRET = "0123456789abcdef0123456789abcdef"
MOCK = ("--engine", "mock", "--mock-step-ms", "20", "--stat-interval", "0")
LONG: dict[str, Any] = {"prompt": "Hi", "max_tokens": 8000, "ignore_eos": True, "stream": True}
SHORT: dict[str, Any] = {"prompt": "Hi", "max_tokens": 5, "ignore_eos": True}
DEADLINE = 5
"""Seconds of --step-deadline, within which a cut cable has to be noticed."""

Start = Callable[..., Server]


class Stream:
    """A streamed answer on a connection of its own."""

    def __init__(self, server: Server, stack: contextlib.ExitStack, http2: bool = False) -> None:
        transport = httpx2.HTTPTransport(uds=server.path, http1=not http2, http2=http2)
        client = stack.enter_context(server.client(transport=transport))
        self.response = stack.enter_context(client.stream("POST", "/v1/completions", json=LONG))
        assert self.response.status_code == 200
        self.lines = (line.removeprefix("data: ") for line in self.response.iter_lines() if line.startswith("data: "))
        self.more()

    def more(self, count: int = 1) -> None:
        """Reads events, which must be text."""
        for _ in range(count):
            assert "error" not in json.loads(next(self.lines))

    def ends_with_error(self) -> None:
        """Reads to the end, which must be an error event and ``[DONE]``."""
        events = list(self.lines)
        assert events[-1] == "[DONE]"
        assert json.loads(events[-2])["error"]["message"]


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    with two_hosts() as hosts:
        yield hosts


@pytest.fixture(scope="module")
def core(hosts: Hosts, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with one place for a node. Unix sockets are reached from any namespace."""
    path = tmp_path_factory.mktemp("core") / "core.sock"
    server = Server(
        *(*MOCK, "--uds", str(path), "--core-listen", f"tcp://{hosts.address}:7700", "--max-entry-nodes", "1"),
        *("--step-deadline", str(DEADLINE), "--max-core-restarts", "100", "--max-num-queued-reqs", "8192"),
        command=hosts.at(hosts.core, *PYTHON, "llmrt.cli.serve"),
        env={"LLMRT_CORE_SECRET": SECRET},
        clear=True,
    )
    yield server
    assert server.stop() == 0, server.log


@pytest.fixture(scope="module")
def start(hosts: Hosts, core: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Starts nodes on the other host."""
    folder = tmp_path_factory.mktemp("node")
    secret = folder / "secret"
    secret.write_text(f"{SECRET}\n")
    with contextlib.ExitStack() as stack:

        def make() -> Server:
            node = Server(
                *("--core", f"tcp://{hosts.address}:7700", "--core-secret-file", str(secret)),
                *("--uds", str(folder / "node.sock"), "--entry-workers", "1", "--stat-interval", "0"),
                command=hosts.at(hosts.node, *PYTHON, "llmrt.cli.main", "entry"),
                clear=True,
            )
            stack.callback(node.stop, signal.SIGKILL)
            return node

        yield make


@pytest.fixture(scope="module")
def nodes(start: Start) -> list[Server]:
    """The node that runs now, as its only element: a test that kills it puts its successor there."""
    return [start()]


@pytest.fixture
def node(nodes: list[Server]) -> Server:
    ready(nodes[0])
    return nodes[0]


def ready(server: Server) -> None:
    wait_for(lambda: server.get("/ready").status_code == 200, "the server to be ready", 60)


def answers(server: Server) -> None:
    """Asks until an answer comes: who is ready may still find out that a part of the core is not."""

    def answered() -> bool:
        with server.client() as client:
            return client.post("/v1/completions", json=SHORT).status_code == 200

    wait_for(answered, "an answer", 60)


def running(core: Server, wanted: int) -> None:
    """Waits until so many requests run in the core, and, if none do, until no page is held."""

    def fits() -> bool:
        now = core.metrics()
        return now["llmrt_num_requests_running"] == wanted and (wanted > 0 or now["llmrt_kv_cache_usage_perc"] == 0)

    wait_for(fits, f"{wanted} running requests")


def the_facts(server: Server) -> facts.Facts:
    return next(each for each in facts.running() if each.pid == server.process.pid)


def test_a_node_streams_while_the_core_serves_its_own_clients(core: Server, node: Server) -> None:
    with contextlib.ExitStack() as stack:
        streams = [Stream(server, stack, http2) for server in (core, node) for http2 in (False, True)]
        running(core, 4)
        for stream in streams:
            stream.more(5)
    running(core, 0)
    with node.client() as client:
        answer = client.post("/v1/completions", json=SHORT).json()
        assert answer["usage"]["completion_tokens"] == 5
        assert client.get("/v1/models").json()["data"][0]["id"] == answer["model"]
    # What a node counts is its own.
    assert node.metrics()["llmrt_generation_tokens_total"] >= 15


def test_the_doctor_sees_through_to_the_node(core: Server, node: Server) -> None:
    with contextlib.ExitStack() as stack:
        stream = Stream(node, stack)
        command = ["llmrt.cli.main", "doctor", "--json", "--pid", str(core.process.pid), "--timeout", "20"]
        done = subprocess.run([*PYTHON, *command], capture_output=True, text=True, timeout=60)
        stream.more()
    (server,) = json.loads(done.stdout)["servers"]
    hops = {hop["name"]: hop for hop in server["hops"]}
    place = f"entry[{len(the_facts(core).topology.entry) - 1}].results"
    assert hops[place]["state"] == "ok", hops[place]
    assert hops[place]["stats"]["open_requests"] == 1
    assert hops[place]["stats"]["node"].startswith("10.213.7.2:")
    assert hops["gateway.status"]["state"] == "ok" and hops["gateway.status"]["stats"]["nodes"] == 1


def submit_many(node: Server, count: int, each: int) -> socket.socket:
    """``count`` requests for ``each`` answers on one HTTP/2 connection."""
    connection = h2.connection.H2Connection()
    connection.initiate_connection()
    head = {":method": "POST", ":path": "/v1/completions", ":scheme": "http", ":authority": "node"}
    for number in range(count):
        stream = 2 * number + 1
        connection.send_headers(stream, [*head.items(), ("content-type", "application/json")])
        connection.send_data(stream, json.dumps({**LONG, "n": each}).encode(), end_stream=True)
    client = socket.socket(socket.AF_UNIX)
    client.connect(node.path)
    client.sendall(connection.data_to_send())
    return client


def test_a_client_that_leaves_many_answers_at_once_ends_no_other(core: Server, node: Server) -> None:
    count, each = 48, 128
    with contextlib.ExitStack() as stack:
        other = Stream(node, stack)
        before = node.log.count("joined the core")
        with submit_many(node, count, each):

            def submitted() -> bool:
                now = core.metrics()
                names = ("llmrt_num_requests_running", "llmrt_num_requests_waiting")
                return sum(now[name] for name in names) == count * each + 1

            wait_for(submitted, "all to be submitted", 60)
        running(core, 1)
        other.more(20)
        assert node.log.count("joined the core") == before
    running(core, 0)


def test_all_places_taken_is_said(core: Server, node: Server, hosts: Hosts) -> None:
    flags = ["llmrt.cli.main", "entry", "--core", f"tcp://{hosts.address}:7700", "--port", "0"]
    done = subprocess.run(
        hosts.at(hosts.node, *PYTHON, *flags),
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "LLMRT_CORE_SECRET": SECRET},
    )
    assert done.returncode == 2 and "--max-entry-nodes" in done.stderr, done.stderr


def test_a_cut_cable_ends_the_nodes_streams_alone_and_heals(core: Server, node: Server, hosts: Hosts) -> None:
    with contextlib.ExitStack() as stack:
        here, there = Stream(core, stack), [Stream(node, stack, http2) for http2 in (False, True)]
        running(core, 3)
        hosts.cut()
        try:
            for stream in there:
                stream.ends_with_error()
            with node.client() as client:
                assert [client.get(path).status_code for path in ("/ready", "/health")] == [503, 503]
                refused = client.post("/v1/completions", json=SHORT)
                assert refused.status_code == 503 and int(refused.headers["retry-after"]) > 0
            running(core, 1)
            here.more(20)
        finally:
            hosts.heal()
        ready(node)
        answers(node)
        here.more(20)
    running(core, 0)


def test_a_killed_node_frees_what_it_held_and_another_takes_its_place(
    core: Server, node: Server, nodes: list[Server], start: Start
) -> None:
    with contextlib.ExitStack() as stack:
        here, there = Stream(core, stack), Stream(node, stack)
        running(core, 2)
        node.process.kill()
        running(core, 1)
        with contextlib.suppress(httpx2.HTTPError):
            list(there.lines)
        node.process.wait()
        nodes[0] = start()
        answers(nodes[0])
        here.more(20)


def test_a_killed_gateway_is_replaced_and_the_node_comes_back(core: Server, node: Server) -> None:
    with contextlib.ExitStack() as stack:
        here, there = Stream(core, stack), Stream(node, stack)
        before = the_facts(core).processes["gateway"]
        os.kill(before, signal.SIGKILL)
        there.ends_with_error()
        running(core, 1)
        ready(node)
        answers(node)
        here.more(20)
        wait_for(lambda: the_facts(core).processes["gateway"] != before, "the new gateway to be told")


@pytest.mark.parametrize("victim", ["mock engine", "detokenizer"])
def test_a_node_outlives_the_core(core: Server, node: Server, victim: str) -> None:
    with contextlib.ExitStack() as stack:
        stream = Stream(node, stack)
        os.kill(the_facts(core).processes[victim], signal.SIGKILL)
        stream.ends_with_error()
        answers(node)
    running(core, 0)


def test_a_node_drains(core: Server, nodes: list[Server], node: Server, start: Start) -> None:
    with contextlib.ExitStack() as stack:
        transport = httpx2.HTTPTransport(uds=node.path)
        client = stack.enter_context(node.client(transport=transport))
        body = {**SHORT, "max_tokens": 50, "stream": True}
        response = stack.enter_context(client.stream("POST", "/v1/completions", json=body))
        lines = (line for line in response.iter_lines() if line)
        next(lines)
        node.process.send_signal(signal.SIGTERM)
        read = list(lines)
        assert read[-1] == "data: [DONE]" and json.loads(read[-2][6:])["choices"][0]["finish_reason"] == "length"
    assert node.stop() == 0, node.log
    nodes[0] = start()


# Without namespaces


@pytest.fixture(scope="module")
def real() -> Iterator[tuple[Server, str, socket.socket]]:
    """A server with the default model, where its nodes join, and somebody who has connected there and says nothing."""
    server = Server(
        *("--kv-cache-memory", "0.5", "--core-listen", "tcp://127.0.0.1:0", "--max-entry-nodes", "2"),
        env={"LLMRT_CORE_SECRET": SECRET},
    )
    address = the_facts(server).nodes
    assert address is not None and address in server.log
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    with socket.create_connection((host, int(port)), 30) as silent:
        yield server, address, silent
    assert server.stop() == 0, server.log


def entry(address: str, *flags: str, secret: str = SECRET) -> subprocess.CompletedProcess[str]:
    """A node that is expected not to start."""
    return subprocess.run(
        [*PYTHON, "llmrt.cli.main", "entry", "--core", address, "--port", "0", *flags],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "LLMRT_CORE_SECRET": secret},
    )


def test_a_node_answers_as_its_core_does(real: tuple[Server, str, socket.socket]) -> None:
    core, address, _ = real
    node = Server(
        *("--core", address, "--entry-workers", "1"),
        command=[*PYTHON, "llmrt.cli.main", "entry"],
        env={"LLMRT_CORE_SECRET": SECRET},
    )
    try:
        body = {"messages": [{"role": "user", "content": "Name a colour."}], "max_tokens": 16, "temperature": 0}
        told = []
        for server in (core, node):
            with server.client() as client:
                answer = client.post("/v1/chat/completions", json=body).json()
                told.append((answer["model"], answer["choices"], answer["usage"]["completion_tokens"]))
        assert told[0] == told[1]
        assert told[0][1][0]["message"]["content"]
    finally:
        assert node.stop() == 0, node.log


def test_strangers_are_hung_up_on(real: tuple[Server, str, socket.socket]) -> None:
    core, address, silent = real
    for bytes_sent in (b"GET / HTTP/1.1\r\n\r\n", b"\0\x30" + bytes(48), b"\xff\xff"):
        with socket.create_connection(silent.getpeername(), 30) as stranger:
            stranger.sendall(bytes_sent)
            # At most a short refusal in clear text; then it is over.
            heard = b""
            with contextlib.suppress(ConnectionError):
                while piece := stranger.recv(4096):
                    heard += piece
            assert len(heard) < 64
    other = entry(address, secret="another secret, which is long")
    assert other.returncode == 2 and "shared secret" in other.stderr, other.stderr
    assert silent.recv(1) == b"", "the deadline has passed"
    line = r"not let in address=127\.0\.0\.1:\d+ reason=.the two ends have not the same shared secret"
    assert re.search(line, core.log)
    assert core.get("/health").status_code == 200


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        return f"tcp://127.0.0.1:{nobody.getsockname()[1]}"


def test_a_node_ends_when_its_core_comes_back_as_another() -> None:
    address, shared = free_address(), {"LLMRT_CORE_SECRET": SECRET}
    core = Server(*MOCK, "--core-listen", address, env=shared)
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: core.stop(signal.SIGKILL))
        command = [*PYTHON, "llmrt.cli.main", "entry"]
        node = Server("--core", address, "--entry-workers", "1", command=command, env=shared)
        stack.callback(node.stop, signal.SIGKILL)
        assert core.stop() == 0
        with node.client() as client:
            assert client.post("/v1/completions", json=SHORT).status_code == 503
        # Somebody else has the address meanwhile, as a load balancer may.
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        with socket.create_server((host, int(port))) as stranger:
            stranger.settimeout(60)
            for _ in range(3):
                asked, _ = stranger.accept()
                with asked:
                    asked.recv(64)
                    asked.sendall(b"HTTP/1.1 503 Service Unavailable\r\n\r\n")
        assert "is no llmrt core" in node.log
        core = Server(*MOCK, "--core-listen", address, "--max-num-seqs", "3", env=shared)
        assert node.process.wait(60) == 1
        assert "another configuration" in node.log
        assert core.stop() == 0


def test_what_a_node_cannot_do_is_said() -> None:
    free = free_address()
    for flags, message in (
        (["--start-timeout", "1"], "--start-timeout"),
        (["--entry-workers", "2"], "start more nodes"),
        (["--max-num-seqs", "3"], "unrecognized arguments: --max-num-seqs"),
    ):
        done = entry(free, *flags)
        assert done.returncode == 2 and message in done.stderr, done.stderr
    assert "openssl rand" in entry(free, secret="short").stderr
    shown = entry(free, "--check")
    assert shown.returncode == 0 and f'core: "{free}"' in shown.stdout, shown.stderr
    assert SECRET not in shown.stdout and "max_num_seqs" not in shown.stdout
    assert "tcp://HOST:PORT" in entry("127.0.0.1:1").stderr


def test_a_core_says_what_it_needs_for_nodes(tmp_path: Path) -> None:
    def serve(*flags: str, **env: str) -> str:
        command = [*PYTHON, "llmrt.cli.serve", "--check", *flags]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, **env})
        return done.stderr + done.stdout

    assert "openssl rand" in serve("--core-listen", "tcp://127.0.0.1:0")
    assert "--core-listen" in serve(LLMRT_CORE_SECRET=SECRET)
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    assert "not both" in serve(
        "--core-listen", "tcp://127.0.0.1:0", "--core-secret-file", str(secret), LLMRT_CORE_SECRET=SECRET
    )
    shown = serve("--core-listen", "tcp://127.0.0.1:0", LLMRT_CORE_SECRET=SECRET)
    assert "core_secret: {hidden}" in shown and SECRET not in shown
