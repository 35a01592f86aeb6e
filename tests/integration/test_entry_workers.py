"""Several entry workers on one port: they share the core, count together, and die alone."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from llmrt import wire
from llmrt.cli import probe
from llmrt.supervisor import facts
from support.h2_client import H2Client
from support.server import Server, wait_for

from .test_limits import Doors

WORKERS = 3
TEXT = " The fox says: naïve 🦊."
LONG: dict[str, Any] = {"prompt": "Hi", "max_tokens": 4000, "ignore_eos": True, "stream": True}
needs_proc = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")


def start(*flags: str, **options: Any) -> Server:
    return Server(
        *("--engine", "mock", "--mock-text", TEXT, "--mock-step-ms", "10", "--stat-interval", "0"),
        *("--entry-workers", str(WORKERS), "--detokenizers", "2", *flags),
        **options,
    )


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = start("--max-num-seqs", "256")
    yield server
    assert server.stop() == 0, server.log


@pytest.fixture
def own() -> Iterator[Callable[..., Server]]:
    """Starts servers of a test's own; what it leaves is killed."""
    with contextlib.ExitStack() as stack:

        def make(*flags: str, **options: Any) -> Server:
            server = start(*flags, **options)
            stack.callback(server.stop, signal.SIGKILL)
            return server

        yield make


def the_facts(server: Server) -> facts.Facts:
    return next(each for each in facts.running() if each.pid == server.process.pid)


def pid_of(server: Server, worker: int) -> int:
    return the_facts(server).processes[f"entry[{worker}]"]


def gone(pid: int) -> bool:
    return probe.process_state(pid) in ("is gone", "has ended")


class Stream:
    """A streamed answer on a connection of its own."""

    def __init__(self, server: Server, stack: contextlib.ExitStack, http2: bool, **fields: Any) -> None:
        client = httpx2.Client(base_url=server.url, headers=server.headers, http1=not http2, http2=http2, timeout=60)
        stack.enter_context(client)
        self.response = stack.enter_context(client.stream("POST", "/v1/completions", json={**LONG, **fields}))
        assert self.response.status_code == 200
        self.lines = (line.removeprefix("data: ") for line in self.response.iter_lines() if line.startswith("data: "))
        first = json.loads(next(self.lines))
        id = int(first["id"][-16:], 16)
        self.worker, self.detokenizer = wire.worker_of(id), id % 2
        self.text = first["choices"][0]["text"]

    def rest(self) -> list[dict[str, Any]]:
        """Reads to the end; all events but the last, which is ``[DONE]``."""
        events = list(self.lines)
        assert events[-1] == "[DONE]"
        read = [json.loads(event) for event in events[:-1]]
        self.text += "".join(event["choices"][0]["text"] for event in read if "choices" in event)
        return read

    def more(self) -> None:
        """Reads one event, which must be text."""
        assert "error" not in json.loads(next(self.lines))


def on_every_worker(server: Server, stack: contextlib.ExitStack, http2: bool = True, **fields: Any) -> list[Stream]:
    """Streams, of which every worker has at least one; over HTTP/1.1 and HTTP/2 in turn.

    Without ``http2`` over HTTP/1.1 alone: this client does not read on after a GOAWAY.
    """
    streams: list[Stream] = []
    while {stream.worker for stream in streams} != set(range(WORKERS)):
        assert len(streams) < 100, Counter(stream.worker for stream in streams)
        streams.append(Stream(server, stack, http2 and len(streams) % 2 == 1, **fields))
    return streams


def test_every_worker_answers_and_all_answers_are_whole(server: Server) -> None:
    with contextlib.ExitStack() as stack:
        streams = on_every_worker(server, stack, max_tokens=200)
        for stream in streams:
            end = stream.rest()[-1]
            assert end["choices"][0]["finish_reason"] == "length"
            # The last token may end inside a character.
            assert (TEXT * 200).startswith(stream.text.rstrip("\N{REPLACEMENT CHARACTER}"))
            assert len(stream.text) > 3 * len(TEXT)
    assert server.wait_idle()["llmrt_kv_cache_usage_perc"] == 0


def test_a_stop_string_ends_an_answer_whichever_detokenizer_finds_it(server: Server) -> None:
    def one(_: int) -> tuple[str, str]:
        body = {"prompt": "Hi", "max_tokens": 4000, "stop": ["naïve"]}
        answer = httpx2.post(f"{server.url}/v1/completions", json=body, timeout=60).json()
        return answer["choices"][0]["text"], answer["choices"][0]["finish_reason"]

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(one, range(24))) == {(TEXT.partition("naïve")[0], "stop")}
    server.wait_idle()


def test_a_burst_is_answered_whole(server: Server) -> None:
    # More at once than the ledger's answers would fit in a short queue.
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(H2Client(server.host, server.port)) for _ in range(WORKERS)]
        bodies = {"prompt": [1], "max_tokens": 1}
        asked = [(client, client.post("/v1/completions", bodies)) for client in clients for _ in range(400)]
        for client, stream in asked:
            assert json.loads(client.finish(stream))["usage"]["completion_tokens"] == 1
    server.wait_idle()


def samples(server: Server | httpx2.Client) -> dict[str, float]:
    """``/metrics`` of whichever worker answers, or the one at the other end, by name and labels."""
    text = server.get("/metrics").text
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    read = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}
    assert len(read) == len(lines), "a sample stands there twice"
    assert text.endswith("# EOF\n") and text.count("# EOF") == 1
    return read


def tokens_by_worker(read: dict[str, float]) -> list[float]:
    name = "llmrt_worker_generation_tokens_total"
    found = {key.partition('worker="')[2].partition('"')[0]: value for key, value in read.items() if name in key}
    return [value for _, value in sorted(found.items())]


def total(read: dict[str, float], name: str) -> float:
    """The one sample of a name."""
    (value,) = [value for key, value in read.items() if key.partition("{")[0] == name]
    return value


def test_any_worker_tells_the_sums_and_each_workers_counts(own: Callable[..., Server]) -> None:
    server = own()
    with contextlib.ExitStack() as stack:
        doors = Doors(server, "h1", stack, WORKERS)
        streams = on_every_worker(server, stack, max_tokens=7)
        for stream in streams:
            stream.rest()
        made = Counter(stream.worker for stream in streams)
        tokens = [7.0 * made[worker] + len(doors.of[worker]) for worker in range(WORKERS)]
        right = [*tokens, sum(tokens), len(streams) + doors.asked, 0]
        sums = ("generation_tokens_total", "time_to_first_token_seconds_count", "num_requests_running")

        def told(client: httpx2.Client) -> list[float]:
            now = samples(client)
            return [*tokens_by_worker(now), *(total(now, f"llmrt_{name}") for name in sums)]

        for client in doors.all:
            # What a worker counts that is late to tell is what it told before.
            wait_for(lambda client=client: told(client) == right, f"{right}")
            assert told(client) == right


@needs_proc
def test_a_killed_detokenizer_takes_no_answer_of_the_other_with_it(own: Callable[..., Server]) -> None:
    server = own()
    with contextlib.ExitStack() as stack:
        streams: list[Stream] = []
        while {stream.detokenizer for stream in streams} != {0, 1} or len(streams) < 8:
            streams.append(Stream(server, stack, len(streams) % 2 == 1, max_tokens=400))
        os.kill(the_facts(server).processes["detokenizer[1]"], signal.SIGKILL)
        for stream in streams:
            end = stream.rest()[-1]
            assert ("error" in end) == (stream.detokenizer == 1), end
            # The last token may end inside a character.
            assert (TEXT * 400).startswith(stream.text.rstrip("\N{REPLACEMENT CHARACTER}"))
            assert "error" in end or end["choices"][0]["finish_reason"] == "length"
        wait_for(lambda: server.get("/ready").status_code == 200, "another detokenizer to be up")
        assert Stream(server, stack, True, max_tokens=3).rest()[-1]["choices"][0]["finish_reason"] == "length"
    assert server.wait_idle()["llmrt_kv_cache_usage_perc"] == 0


@needs_proc
def test_a_killed_worker_takes_no_other_stream_with_it(own: Callable[..., Server]) -> None:
    server = own()
    with contextlib.ExitStack() as stack:
        streams = on_every_worker(server, stack)
        victim = streams[0].worker
        counted = samples(server)
        old = pid_of(server, victim)
        os.kill(old, signal.SIGKILL)
        for stream in streams:
            if stream.worker == victim:
                with pytest.raises(httpx2.TransportError):
                    list(stream.lines)
        survivors = [stream for stream in streams if stream.worker != victim]
        # The requests of the dead one are aborted, and only those.
        wait_for(lambda: total(samples(server), "llmrt_num_requests_running") == len(survivors), "the dead one's slots")
        wait_for(lambda: pid_of(server, victim) != old, "a successor")
        for stream in survivors:
            for _ in range(20):
                stream.more()
        # New connections are served, by the successor too, whose ids are new.
        streams = on_every_worker(server, stack, max_tokens=5)
        for stream in streams:
            assert stream.rest()[-1]["choices"][0]["finish_reason"] == "length"
        for after, then in zip(tokens_by_worker(samples(server)), tokens_by_worker(counted), strict=True):
            assert after >= then
    assert server.wait_idle()["llmrt_kv_cache_usage_perc"] == 0
    assert server.stop() == 0, server.log
    assert f"entry[{victim}] was killed by SIGKILL; another one takes its place" in server.log


@needs_proc
def test_a_worker_told_to_end_drains_alone_and_is_replaced(own: Callable[..., Server]) -> None:
    server = own()
    with contextlib.ExitStack() as stack:
        streams = on_every_worker(server, stack, http2=False, max_tokens=150)
        old = pid_of(server, 1)
        os.kill(old, signal.SIGTERM)
        for stream in streams:
            assert stream.rest()[-1]["choices"][0]["finish_reason"] == "length"
    wait_for(lambda: pid_of(server, 1) != old, "a successor")
    with contextlib.ExitStack() as stack:
        on_every_worker(server, stack, max_tokens=1)
    assert server.stop() == 0, server.log


@needs_proc
def test_a_stopped_worker_is_found_holds_up_nobody_and_is_replaced(own: Callable[..., Server]) -> None:
    server = own("--step-deadline", "10")
    with contextlib.ExitStack() as stack:
        streams = on_every_worker(server, stack)
        victim = pid_of(server, 2)
        os.kill(victim, signal.SIGSTOP)
        wait_for(lambda: probe.process_state(victim) is not None, "the worker to stop")
        hops = {hop.name: hop for hop in probe.probe(the_facts(server), 2.0)}
        assert [name for name, hop in hops.items() if hop.state == probe.BROKEN] == ["entry[2].results"]
        assert "is stopped" in hops["entry[2].results"].detail
        assert re.search(r"registered, last frame \d\.", hops["entry[0].results"].detail)
        for stream in streams:
            for _ in range(20 if stream.worker != 2 else 0):
                stream.more()
        for _ in range(6):
            assert httpx2.get(f"{server.url}/health", timeout=5).status_code == 200
        wait_for(lambda: gone(victim), "the worker that hangs to be killed")
        wait_for(lambda: pid_of(server, 2) != victim, "a successor")
        on_every_worker(server, stack, max_tokens=1)
    assert server.wait_idle()["llmrt_kv_cache_usage_perc"] == 0
    assert "entry[2] gave no sign of life; another one takes its place" in server.log
    assert server.stop() == 0, server.log


def test_the_doctor_finds_a_planted_broken_hop(own: Callable[..., Server]) -> None:
    server = own()
    found = the_facts(server)
    Path(found.topology.entry[1].results.removeprefix("ipc://")).unlink()
    doctor = [sys.executable, "-m", "llmrt.cli.main", "doctor", "--pid", str(found.pid), "--timeout", "2"]
    done = subprocess.run(doctor, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert f"Broken: entry[1].results of {server.url}." in done.stdout
    assert "nobody listens: the socket is gone" in done.stdout
    assert "ok entry[2].results" in done.stdout and "ok detokenizer[1].tokens" in done.stdout
    assert "registered, last frame never, 0 prompts queued, 0 open requests on" in done.stdout


@needs_proc
def test_draining_lets_the_streams_of_all_workers_end_and_leaves_nothing(own: Callable[..., Server]) -> None:
    server = own("--shutdown-timeout", "60")
    found = the_facts(server)
    directory = Path(found.topology.control.removeprefix("ipc://")).parent
    with contextlib.ExitStack() as stack:
        streams = on_every_worker(server, stack, http2=False, max_tokens=300)
        server.process.send_signal(signal.SIGTERM)
        wait_for(lambda: refused(server), "the port to be closed")
        for stream in streams:
            assert stream.rest()[-1]["choices"][0]["finish_reason"] == "length"
    assert server.process.wait(30) == 0, server.log
    assert len(found.processes) == 1 + 1 + 2 + WORKERS
    for name, pid in found.processes.items():
        assert gone(pid), name
    assert not directory.exists()


def refused(server: Server) -> bool:
    try:
        httpx2.get(f"{server.url}/ready", timeout=5)
    except httpx2.TransportError:
        return True
    return False


def test_a_second_signal_ends_the_streams_of_all_workers_with_an_error(own: Callable[..., Server]) -> None:
    server = own("--shutdown-timeout", "60")
    with contextlib.ExitStack() as stack:
        streams = on_every_worker(server, stack, http2=False)
        server.process.send_signal(signal.SIGTERM)
        wait_for(lambda: "draining" in server.log, "the server to drain")
        server.process.send_signal(signal.SIGTERM)
        for stream in streams:
            assert stream.rest()[-1]["error"]["message"]
    assert server.process.wait(30) == 0, server.log


@needs_proc
def test_a_killed_supervisor_takes_all_workers_along(own: Callable[..., Server]) -> None:
    server = own()
    processes = the_facts(server).processes
    with contextlib.ExitStack() as stack:
        on_every_worker(server, stack)
        server.stop(signal.SIGKILL)
        for name, pid in processes.items():
            wait_for(lambda pid=pid: gone(pid), f"{name} to be gone")
    assert refused(server)


def test_bounds_and_keys_hold_over_all_workers(own: Callable[..., Server]) -> None:
    key = {"authorization": "Bearer secret"}
    server = own("--max-num-seqs", "1", "--max-num-queued-reqs", "2", "--api-key", "secret", headers=key)

    def ask(_: int) -> int:
        body = {"prompt": "Hi", "max_tokens": 200, "ignore_eos": True}
        return httpx2.post(f"{server.url}/v1/completions", json=body, headers=key, timeout=120).status_code

    with ThreadPoolExecutor(16) as pool:
        statuses = Counter(pool.map(ask, range(16)))
    assert statuses == {200: 3, 429: 13}
    for _ in range(12):
        assert httpx2.get(f"{server.url}/v1/models").status_code == 401
        assert httpx2.get(f"{server.url}/v1/models", headers=key).status_code == 200
    server.wait_idle()
    assert server.stop() == 0, server.log


def test_log_lines_name_their_worker(own: Callable[..., Server]) -> None:
    server = own("--log-format", "json")
    with contextlib.ExitStack() as stack:
        for stream in on_every_worker(server, stack, max_tokens=1):
            stream.rest()
    assert server.stop() == 0
    lines = [json.loads(line) for line in server.log.splitlines() if line.startswith("{")]
    ends = [line for line in lines if line.get("message") == "finished"]
    assert {line["span"]["worker"] for line in ends} == set(range(WORKERS))


def test_a_worker_that_cannot_start_is_a_start_error(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "llmrt.cli.serve", "--engine", "mock", "--port", "0", "--entry-workers", "2"]
    done = subprocess.run(
        [*command, "--served-model-name", "x"],
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "PYTHONPATH": str(blocked(tmp_path))},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "ended with exit code 1; its lines above say why" in done.stderr
    assert "entry: not here" in done.stderr
    assert list(tmp_path.glob("llmrt-*")) == []


def blocked(folder: Path) -> Path:
    """A folder that, on the path of a process, keeps an entry worker from starting."""
    code = "import sys\nif 'llmrt.entry.process' in sys.orig_argv: sys.exit('entry: not here')\n"
    (folder / "sitecustomize.py").write_text(code)
    return folder
