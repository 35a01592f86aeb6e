"""Keys from everywhere, and what the holder of each may do."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from support.server import Server, wait_for

from .test_http import assert_openai_error

# Lines of the log are counted; test_limits.py has limits over several workers.
MOCK = ["--engine", "mock", "--entry-workers", "1"]
ROOT = {"LLMRT_ADMIN_API_KEY": "root"}
LIMITS = """
# What each test uses up is its own.
sha256:{hashed} name=hashed
wide concurrent=2
often rpm=3
much tpm=100
plain
"""


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.fixture
def own() -> Iterator[Callable[..., Server]]:
    """Starts servers of this test alone, and stops them whatever happens."""
    with contextlib.ExitStack() as stack:

        def start(*flags: str) -> Server:
            server = started(*flags)
            stack.callback(server.stop)
            return server

        yield start


def started(*flags: str) -> Server:
    return Server(*MOCK, *flags, env=ROOT, headers=bearer("root"))


def key_file(folder: Path, text: str) -> Path:
    path = folder / "keys"
    path.write_text(text)
    return path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    hashed = hashlib.sha256(b"secret").hexdigest()
    path = key_file(tmp_path_factory.mktemp("keys"), LIMITS.format(hashed=hashed))
    with_server = started("--api-key", "one", "--api-key", "two,three", "--api-key-file", str(path))
    yield with_server
    assert with_server.stop() == 0, with_server.log
    assert "secret" not in with_server.log


def ask(server: Server, key: str, tokens: int = 1, prompt: int = 1, timeout: str | None = None) -> httpx2.Response:
    """An answer of ``tokens`` tokens to a prompt of ``prompt`` tokens, within ``timeout`` seconds."""
    headers = bearer(key) if timeout is None else {**bearer(key), "x-request-timeout": timeout}
    body = {"prompt": [1] * prompt, "max_tokens": tokens, "ignore_eos": True}
    with server.client(headers=headers) as client:
        return client.post("/v1/completions", json=body)


@contextlib.contextmanager
def stream(server: Server, key: str) -> Iterator[Iterator[str]]:
    """A stream that does not end by itself, its first token read."""
    body = {"prompt": [1], "max_tokens": 4000, "ignore_eos": True, "stream": True}
    with (
        server.client(headers=bearer(key)) as client,
        client.stream("POST", "/v1/completions", json=body) as answer,
    ):
        lines = answer.iter_lines()
        assert next(lines).startswith("data: ")
        yield lines


def assert_limited(response: httpx2.Response, least: float, most: float) -> None:
    """It is a 429 that tells to come back between so many seconds from now."""
    assert assert_openai_error(response, 429)["code"] == "rate_limit_exceeded"
    millis = int(response.headers["retry-after-ms"])
    assert least * 1000 <= millis <= most * 1000
    assert int(response.headers["retry-after"]) == -(-millis // 1000)


@pytest.mark.parametrize("key", ["one", "two", "three", "secret", "plain", "root"])
def test_keys_of_every_place_open(server: Server, key: str) -> None:
    assert ask(server, key).status_code == 200


@pytest.mark.parametrize("key", ["four", "two,three", "plai", "hashed"])
def test_other_keys_do_not(server: Server, key: str) -> None:
    assert ask(server, key).status_code == 401
    with server.client(headers={}) as client:
        assert client.get("/health").status_code == 200
        assert client.get("/v1/models").status_code == 401


def test_a_hash_is_no_key(server: Server) -> None:
    hashed = hashlib.sha256(b"secret").hexdigest()
    for key in (hashed, f"sha256:{hashed}"):
        assert ask(server, key).status_code == 401


def test_counts_are_for_the_administrator(server: Server) -> None:
    with server.client(headers=bearer("one")) as client:
        assert_openai_error(client.get("/metrics"), 403)
    assert server.get("/metrics").status_code == 200


def test_open_answers_of_a_key_are_bounded(server: Server) -> None:
    with stream(server, "wide"), stream(server, "wide"):
        assert_limited(ask(server, "wide"), 0.1, 60)
        assert ask(server, "plain").status_code == 200
    wait_for(lambda: ask(server, "wide").status_code == 200, "the places to be free")
    body = {"prompt": [1], "n": 3, "max_tokens": 1}
    with server.client(headers=bearer("wide")) as client:
        assert assert_openai_error(client.post("/v1/completions", json=body), 400)["param"] == "n"


def test_requests_per_minute_are_bounded(server: Server) -> None:
    assert [ask(server, "often").status_code for _ in range(3)] == [200] * 3
    assert_limited(ask(server, "often"), 0.1, 20)
    assert ask(server, "plain").status_code == 200


def test_tokens_per_minute_are_bounded(server: Server) -> None:
    assert ask(server, "much", tokens=70, prompt=40).status_code == 200
    # Ten more than it had, and one to go on: at a hundred a minute.
    assert_limited(ask(server, "much"), 0.1, 11 * 0.6)
    assert ask(server, "plain", tokens=70, prompt=40).status_code == 200
    assert server.metrics()["llmrt_admission_rejections_total"] >= 1


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One answer at a time, two places, and room for twenty tokens that wait."""
    path = key_file(tmp_path_factory.mktemp("keys"), "few queued_tokens=10\nplain\nflood\nheavy weight=3\n")
    flags = ["--max-num-seqs", "1", "--max-num-queued-tokens", "20", "--mock-step-ms", "5"]
    with_server = started(*flags, "--api-key-file", str(path))
    yield with_server
    assert with_server.stop() == 0, with_server.log


def test_tokens_that_wait_are_bounded(narrow: Server) -> None:
    with ThreadPoolExecutor(2) as pool:
        with stream(narrow, "plain"):
            # More than its limit, but alone.
            first = pool.submit(ask, narrow, "few", prompt=12)
            wait_for(lambda: narrow.metrics()["llmrt_num_requests_waiting"] == 1, "the first to wait")
            assert_limited(ask(narrow, "few", prompt=3), 0.1, 60)
            assert_limited(ask(narrow, "plain", prompt=9), 0.1, 60)
            second = pool.submit(ask, narrow, "plain", prompt=5)
        assert first.result().status_code == second.result().status_code == 200
    assert ask(narrow, "few", prompt=12).status_code == 200


def test_a_flood_of_one_key_delays_another_by_a_few_answers(own: Callable[..., Server], tmp_path: Path) -> None:
    path = key_file(tmp_path, "flood\nother\n")
    server = own("--max-num-seqs", "2", "--mock-step-ms", "20", "--api-key-file", str(path))
    done: list[int] = []

    def one_of_many(number: int) -> None:
        assert ask(server, "flood", tokens=20).status_code == 200
        done.append(number)

    with ThreadPoolExecutor(40) as pool, server.client(headers=bearer("other")) as other:
        assert other.get("/v1/models").status_code == 200
        many = [pool.submit(one_of_many, number) for number in range(40)]
        # Each waits for an answer by now, but for the few that had one.
        wait_for(lambda: len(done) >= 5, "the flood to flow")
        before = len(done)
        assert other.post("/v1/completions", json={"prompt": [1], "max_tokens": 1}).status_code == 200
        # Those that were submitted before it, and a few while the answer was on its way; the scheduler's own queue
        # would have let all of them go first.
        assert len(done) - before <= 12 < 40 - before
        for each in many:
            each.result()
    assert server.stop() == 0, server.log


def replace(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(text)
    os.replace(new, path)


@pytest.mark.parametrize("how", ["change", "signal"])
def test_a_new_file_is_taken_and_a_bad_one_is_not(own: Callable[..., Server], tmp_path: Path, how: str) -> None:
    path = key_file(tmp_path, "old rpm=1000\nboth concurrent=1\n")
    server = own("--api-key-file", str(path))

    def put(text: str, arrived: Callable[[], Any], what: str) -> None:
        replace(path, text)
        if how == "signal":
            server.process.send_signal(signal.SIGHUP)
        wait_for(arrived, what)

    with stream(server, "both") as lines:
        put("new\nboth concurrent=1\n", lambda: ask(server, "new").status_code == 200, "the new key")
        assert ask(server, "old").status_code == 401
        # What was open before counts on.
        assert ask(server, "both").status_code == 429
        put("", lambda: server.log.count("keys not reloaded") == 1, "the empty file to be refused")
        put("new new\n", lambda: server.log.count("keys not reloaded") == 2, "the bad file to be refused")
        assert ask(server, "new").status_code == 200
        assert any(line.startswith("data: ") for line in itertools.islice(lines, 4))
    assert "behind the key stand limits" in server.log
    assert server.stop() == 0, server.log


def test_a_request_has_the_servers_time_and_no_more(own: Callable[..., Server]) -> None:
    server = own("--request-timeout", "0.5", "--mock-step-ms", "5")
    assert assert_openai_error(ask(server, "root", 4000), 408)["code"] == "deadline_exceeded"
    assert ask(server, "root", 4000, timeout="60").status_code == 408
    assert ask(server, "root", 1, timeout="60").status_code == 200
    for bad in ("0", "soon", "-1", "nan", "1e9"):
        assert_openai_error(ask(server, "root", 1, timeout=bad), 400)
    body = {"prompt": [1], "max_tokens": 4000, "ignore_eos": True, "stream": True}
    with server.client() as client, client.stream("POST", "/v1/completions", json=body) as answer:
        events = [line for line in answer.iter_lines() if line.startswith("data: ")]
    assert json.loads(events[-2].removeprefix("data: "))["error"]["code"] == "deadline_exceeded"
    assert server.stop() == 0, server.log
