"""What all requests together and each key may have holds over all entry workers, on HTTP/1.1 and HTTP/2."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from llmrt import wire
from llmrt.supervisor import facts
from support.server import Server, wait_for

from .test_http import assert_openai_error

MANY = 3
ROOT = {"LLMRT_ADMIN_API_KEY": "root"}
BOTH = pytest.mark.parametrize("protocol", ["h1", "h2c"])
COMPLETIONS = "/v1/completions"
KEYS = """
{0}-wide concurrent=2
{0}-often rpm=3
{0}-much tpm=100
{0}-plain
"""


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def started(workers: int, *flags: str) -> Server:
    flags = ("--engine", "mock", "--entry-workers", str(workers), "--stat-interval", "0", *flags)
    return Server(*flags, env=ROOT, headers=bearer("root"), clear=True)


def key_file(folder: Path, text: str) -> Path:
    path = folder / "keys"
    path.write_text(text)
    return path


class Doors:
    """Connections to a server, by the worker that has taken them."""

    def __init__(self, server: Server, protocol: str, stack: contextlib.ExitStack, workers: int) -> None:
        self.server = server
        self.http2 = protocol == "h2c"
        self.stack = stack
        self.asked = 0
        """Requests that it took to find the workers."""
        self.of: dict[int, list[httpx2.Client]] = {worker: [] for worker in range(workers)}
        for worker in self.of:
            self.find(worker)

    def find(self, worker: int, count: int = 1) -> None:
        """Opens connections until so many lead to a worker."""
        wait_for(lambda: len(self.of[worker]) >= count or self._open(), f"connections to worker {worker}")

    def _open(self) -> None:
        client = self.connection()
        answer = client.post(COMPLETIONS, json={"prompt": [1], "max_tokens": 1}, headers=bearer("root"))
        if answer.status_code == 503:
            # Another worker has said that the server is ready.
            return
        assert answer.status_code == 200, answer.text
        self.asked += 1
        self.of[wire.worker_of(int(answer.json()["id"][-16:], 16))].append(client)

    def connection(self) -> httpx2.Client:
        """A new one, wherever it leads."""
        # Another connection in its place might lead to another worker.
        lasting = httpx2.Limits(keepalive_expiry=None)
        client = httpx2.Client(
            base_url=self.server.url, http1=not self.http2, http2=self.http2, timeout=60, limits=lasting
        )
        return self.stack.enter_context(client)

    @property
    def all(self) -> list[httpx2.Client]:
        """One connection to each worker."""
        return [clients[0] for clients in self.of.values()]

    @contextlib.contextmanager
    def stream(self, worker: int, key: str, **fields: Any) -> Iterator[None]:
        """An answer that does not end by itself, its first token read, on a connection of its own.

        At the end the connection is closed: this client leaves a stream of HTTP/2 without a word.
        """
        self.find(worker, 2)
        with contextlib.closing(self.of[worker].pop()) as client:
            body = {"prompt": [1], "max_tokens": 4000, "ignore_eos": True, "stream": True, **fields}
            with client.stream("POST", COMPLETIONS, json=body, headers=bearer(key)) as answer:
                assert answer.status_code == 200, answer.read()
                # Kept: with the iterator goes the response.
                lines = answer.iter_lines()
                assert next(lines).startswith("data: ")
                yield

    def replace(self, worker: int) -> None:
        """Finds the successor of a worker."""
        self.of[worker].clear()

        def found() -> bool:
            with contextlib.suppress(httpx2.TransportError):
                self._open()
            return bool(self.of[worker])

        wait_for(found, "a connection to the worker's successor")


def ask(client: httpx2.Client, key: str, tokens: int = 1, prompt: int = 1, **fields: Any) -> httpx2.Response:
    body = {"prompt": [1] * prompt, "max_tokens": tokens, "ignore_eos": True, **fields}
    return client.post(COMPLETIONS, json=body, headers=bearer(key))


def refused(client: httpx2.Client, key: str, most: float, **fields: Any) -> None:
    """Asserts a 429 that tells to come back within so many seconds."""
    response = ask(client, key, **fields)
    assert assert_openai_error(response, 429)["code"] == "rate_limit_exceeded"
    millis = int(response.headers["retry-after-ms"])
    assert 100 <= millis <= most * 1000
    assert int(response.headers["retry-after"]) == -(-millis // 1000)


@pytest.fixture
def own() -> Iterator[Callable[..., Server]]:
    """Starts servers of a test's own; what it leaves is killed."""
    with contextlib.ExitStack() as stack:

        def make(workers: int, *flags: str) -> Server:
            server = started(workers, *flags)
            stack.callback(server.stop, signal.SIGKILL)
            return server

        yield make


@pytest.fixture(scope="module", params=[1, MANY], ids=["E1", "E3"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, int]]:
    # What each protocol's tests use up is their own.
    path = key_file(tmp_path_factory.mktemp("keys"), KEYS.format("h1") + KEYS.format("h2c"))
    with_server = started(request.param, "--mock-step-ms", "5", "--api-key-file", str(path))
    yield with_server, request.param
    assert with_server.stop() == 0, with_server.log


@BOTH
def test_limits_of_a_key_hold_over_all_workers(server: tuple[Server, int], protocol: str) -> None:
    running, workers = server
    with contextlib.ExitStack() as stack:
        doors = Doors(running, protocol, stack, workers)
        with doors.stream(0, f"{protocol}-wide"), doors.stream(workers - 1, f"{protocol}-wide"):
            for client in doors.all:
                refused(client, f"{protocol}-wide", 60)
        wait_for(lambda: ask(doors.all[0], f"{protocol}-wide").status_code == 200, "the places to be free")
        often = Counter(ask(client, f"{protocol}-often").status_code for client in doors.all * 4)
        assert often == {200: 3, 429: 4 * workers - 3}
        assert ask(doors.all[0], f"{protocol}-much", tokens=70, prompt=40).status_code == 200
        for client in doors.all:
            # Ten more than it had, and one to go on: at a hundred a minute.
            refused(client, f"{protocol}-much", 11 * 0.6)
            assert ask(client, f"{protocol}-plain", tokens=70, prompt=40).status_code == 200
    assert running.wait_idle()["llmrt_admission_rejections_total"] > 0


@pytest.fixture(scope="module", params=[1, MANY], ids=["E1", "E3"])
def narrow(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, int]]:
    """Two answers at a time, three places, and room for twenty tokens that wait."""
    path = key_file(tmp_path_factory.mktemp("keys"), "few queued_tokens=10\nplain\nflood\nother\n")
    bounds = ("--max-num-seqs", "2", "--max-num-queued-tokens", "20", "--mock-step-ms", "20")
    with_server = started(request.param, *bounds, "--api-key-file", str(path))
    yield with_server, request.param
    assert with_server.stop() == 0, with_server.log


@BOTH
def test_tokens_that_wait_are_bounded_over_all_workers(narrow: tuple[Server, int], protocol: str) -> None:
    running, workers = narrow
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(2) as pool:
        doors = Doors(running, protocol, stack, workers)
        with doors.stream(0, "plain"), doors.stream(workers - 1, "plain"):
            # More than its limit, but alone.
            first = pool.submit(ask, doors.connection(), "few", prompt=12)
            wait_for(lambda: running.metrics()["llmrt_num_requests_waiting"] == 1, "the first to wait")
            for client in doors.all:
                refused(client, "few", 60, prompt=3)
                refused(client, "plain", 60, prompt=9)
            second = pool.submit(ask, doors.connection(), "plain", prompt=8)
        assert first.result().status_code == second.result().status_code == 200
        assert ask(doors.all[-1], "few", prompt=12).status_code == 200


@BOTH
def test_keys_take_turns_over_all_workers(narrow: tuple[Server, int], protocol: str) -> None:
    running, workers = narrow
    done: list[int] = []
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(20) as pool:
        doors = Doors(running, protocol, stack, workers)

        def one_of_many(number: int) -> None:
            assert ask(connections[number], "flood", tokens=20).status_code == 200
            done.append(number)

        # A connection each: threads that share one of this client's wait for each other.
        connections = [doors.connection() for _ in range(20)]
        many = [pool.submit(one_of_many, number) for number in range(20)]
        wait_for(lambda: len(done) >= 2, "the flood to flow")
        before = len(done)
        assert ask(doors.connection(), "other").status_code == 200
        # Those that were submitted before it, and a few while the answer was on its way.
        assert len(done) - before <= 8 < 20 - before
        for each in many:
            each.result()


@pytest.mark.parametrize("workers", [1, MANY], ids=["E1", "E3"])
@BOTH
def test_queued_requests_are_bounded_over_all_workers(own: Callable[..., Server], protocol: str, workers: int) -> None:
    server = own(workers, "--max-num-seqs", "2", "--max-num-queued-reqs", "3")
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(20) as pool:
        doors = Doors(server, protocol, stack, workers)

        def one(_: int) -> tuple[int, bool]:
            body = {"prompt": [1], "max_tokens": 100, "ignore_eos": True, "stream": True}
            answer = doors.connection().post(COMPLETIONS, json=body)
            return answer.status_code, "retry-after" in answer.headers or answer.text.endswith("[DONE]\n\n")

        # None is let in first and refused by the scheduler, as an event of its stream.
        assert Counter(pool.map(one, range(20))) == {(200, True): 5, (429, True): 15}
    server.wait_idle()
    assert server.stop() == 0, server.log


# --- Workers that die, files that change, a supervisor that does not answer


def pid_of(server: Server, name: str) -> int:
    return next(each for each in facts.running() if each.pid == server.process.pid).processes[name]


@BOTH
def test_what_a_dead_worker_held_is_free_and_all_else_is_not(
    own: Callable[..., Server], tmp_path: Path, protocol: str
) -> None:
    path = key_file(tmp_path, "wide concurrent=2\nhere rpm=1\nthere rpm=1\nplain\n")
    server = own(MANY, "--mock-step-ms", "5", "--api-key-file", str(path))
    with contextlib.ExitStack() as stack:
        doors = Doors(server, protocol, stack, MANY)
        assert ask(doors.all[0], "here").status_code == ask(doors.all[1], "there").status_code == 200
        with doors.stream(1, "wide"):
            with contextlib.suppress(httpx2.TransportError), doors.stream(0, "wide"):
                refused(doors.all[2], "wide", 60)
                os.kill(pid_of(server, "entry[0]"), signal.SIGKILL)
            wait_for(lambda: ask(doors.all[2], "wide").status_code == 200, "the dead worker's place")
            with doors.stream(2, "wide"):
                doors.replace(0)
                for client in doors.all:
                    refused(client, "wide", 60)
                    # What was used up outlives a worker, whichever has let it in.
                    refused(client, "here", 60)
                    refused(client, "there", 60)
    server.wait_idle()
    assert server.stop() == 0, server.log


def test_new_keys_hold_on_all_workers_and_on_successors(own: Callable[..., Server], tmp_path: Path) -> None:
    path = key_file(tmp_path, "old\nboth concurrent=3\n")
    server = own(MANY, "--mock-step-ms", "5", "--api-key-file", str(path))
    with contextlib.ExitStack() as stack:
        doors = Doors(server, "h1", stack, MANY)
        with doors.stream(2, "both"):
            new = path.with_suffix(".new")
            new.write_text("new rpm=1\nboth concurrent=1\n")
            os.replace(new, path)
            for client in doors.all:
                wait_for(lambda client=client: ask(client, "old").status_code == 401, "the new file on every worker")
                # The ledger reads the file by itself.
                wait_for(lambda client=client: ask(client, "both").status_code == 429, "the new limit")
                refused(client, "both", 60)
            assert ask(doors.all[0], "new").status_code == 200
            os.kill(pid_of(server, "entry[1]"), signal.SIGKILL)
            doors.replace(1)
            assert ask(doors.all[1], "old").status_code == 401
            refused(doors.all[1], "both", 60)
            for client in doors.all:
                refused(client, "new", 60)
    assert server.stop() == 0, server.log


def test_requests_go_on_while_the_supervisor_does_not_answer(own: Callable[..., Server], tmp_path: Path) -> None:
    path = key_file(tmp_path, "two concurrent=2\nplain\n")
    server = own(MANY, "--mock-step-ms", "20", "--api-key-file", str(path))
    with contextlib.ExitStack() as stack:
        doors = Doors(server, "h2c", stack, MANY)
        with doors.stream(0, "two"):
            server.process.send_signal(signal.SIGSTOP)
            stack.callback(server.process.send_signal, signal.SIGCONT)
            began = time.monotonic()
            assert ask(doors.all[1], "plain").status_code == 200
            assert time.monotonic() - began < 15
            # Each counts for itself meanwhile.
            with doors.stream(1, "two"), doors.stream(2, "two"), doors.stream(2, "two"):
                refused(doors.all[2], "two", 60)
                server.process.send_signal(signal.SIGCONT)
                wait_for(lambda: ask(doors.all[0], "two").status_code == 429, "all to be counted together again")
            wait_for(lambda: ask(doors.all[1], "two").status_code == 200, "the places to be free")
            with doors.stream(2, "two"):
                refused(doors.all[1], "two", 60)
    server.wait_idle()
    assert server.stop() == 0, server.log


# --- Deadlines


@pytest.mark.parametrize("workers", [1, MANY], ids=["E1", "E3"])
def test_who_cannot_make_it_makes_room(own: Callable[..., Server], workers: int) -> None:
    server = own(workers, "--max-num-seqs", "1", "--max-num-queued-reqs", "2", "--mock-step-ms", "5")
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(3) as pool:
        doors = Doors(server, "h2c", stack, workers)

        def waiting(count: int, **fields: Any) -> Future[httpx2.Response]:
            asked = pool.submit(ask, doors.connection(), "root", **fields)
            wait_for(lambda: server.metrics()["llmrt_num_requests_waiting"] == count, f"{count} to wait")
            return asked

        with doors.stream(0, "root", deadline_ms=600_000):
            # At the rate of what has begun so far its prompt takes long, and so the next one's turn is far.
            long = waiting(1, prompt=4000, deadline_ms=600_000)
            hopeless = waiting(2, deadline_ms=40_000)
            began = time.monotonic()
            instead = waiting(2)
            assert assert_openai_error(hopeless.result(), 408)["code"] == "deadline_exceeded"
            assert time.monotonic() - began < 20
            # Nobody else goes for it.
            refused(doors.all[0], "root", 60)
        assert long.result().status_code == instead.result().status_code == 200
    server.wait_idle()
    assert server.stop() == 0, server.log


@pytest.mark.parametrize("workers", [1, MANY], ids=["E1", "E3"])
def test_who_waits_is_told_at_its_deadline(own: Callable[..., Server], tmp_path: Path, workers: int) -> None:
    path = key_file(tmp_path, "flood\nother\n")
    server = own(workers, "--max-num-seqs", "1", "--mock-step-ms", "5", "--api-key-file", str(path))
    with contextlib.ExitStack() as stack:
        doors = Doors(server, "h2c", stack, workers)
        # One runs, one is submitted with it: whoever comes now waits in its line, in the entry.
        with ThreadPoolExecutor(1) as pool, doors.stream(0, "flood"):
            next_one = pool.submit(ask, doors.connection(), "flood")
            wait_for(lambda: server.metrics()["llmrt_num_requests_waiting"] == 1, "the second to be submitted")
            for client in doors.all:
                began = time.monotonic()
                late = ask(client, "other", deadline_ms=300)
                took = time.monotonic() - began
                assert assert_openai_error(late, 408)["code"] == "deadline_exceeded"
                assert 0.29 <= took < 5
        assert next_one.result().status_code == 200
        # None of them was submitted, to wait there.
        assert server.wait_idle()["llmrt_prompt_tokens_total"] == doors.asked + 2
    assert server.stop() == 0, server.log
