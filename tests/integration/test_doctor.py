"""``llmrt doctor`` finds a broken hop, and looking hurts nobody."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from llmrt.cli import machine, probe
from llmrt.supervisor import facts
from support.cell import CELL
from support.held import held
from support.hosts import two_hosts
from support.server import Server, wait_for

DOCTOR = [sys.executable, "-m", "llmrt.cli.main", "doctor"]
ENTRY = {f"{name}.results": name for name in CELL.entry_processes} or {
    "entry[0].results": "supervisor",
    # One of several workers answers here, whichever is free.
    "http": "supervisor",
}
HOPS = {
    "control": "supervisor",
    # What several workers ask.
    **({"ledger": "supervisor"} if CELL.workers > 1 else {}),
    **ENTRY,
    "scheduler.requests": "scheduler",
    "detokenizer[0].tokens": "detokenizer",
}


def doctor(*flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*DOCTOR, *flags], capture_output=True, text=True, timeout=60)


def look(server: Server, timeout: float = 30) -> tuple[int, dict[str, Any]]:
    """Exit code and hops by name."""
    return look_at(server.process.pid, timeout)


def look_at(pid: int, timeout: float, before: Sequence[str] = ()) -> tuple[int, dict[str, Any]]:
    """The same; what is ``before`` the command may run it elsewhere."""
    command = [*before, *DOCTOR, "--json", "--pid", str(pid), "--timeout", str(timeout)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    report = json.loads(done.stdout)
    (found,) = report["servers"]
    assert report["ok"] == (done.returncode == 0)
    return done.returncode, {hop["name"]: hop for hop in found["hops"]}


def the_facts(server: Server) -> facts.Facts:
    return facts_of(server.process.pid)


def facts_of(pid: int) -> facts.Facts:
    """What a server says of itself, once it listens."""
    return wait_for(lambda: next((each for each in facts.running() if each.pid == pid), None), "the facts", 60)


@contextmanager
def serving(
    *flags: str, before: Sequence[str] = (), environment: dict[str, str] | None = None
) -> Iterator[facts.Facts]:
    """A server that need not be ready, nor be reached from here."""
    command = [*before, sys.executable, "-m", "llmrt.cli.serve", "--port", "0", "--engine", "mock", *flags]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, env={**os.environ, **(environment or {})}) as process:
        try:
            yield facts_of(process.pid)
        finally:
            process.terminate()


def test_a_sound_server(server: Server) -> None:
    code, hops = look(server)
    assert code == 0
    for name in HOPS:
        assert hops[name]["state"] == "ok", hops[name]
        assert 0 < hops[name]["round_trip"] < 30
    assert hops["scheduler.requests"]["stats"]["num_requests_running"] == 0
    assert hops["http"]["state"] == "ok"
    for name in ENTRY.keys() - {"http"}:
        assert hops[name]["stats"]["core"] == "up"
    assert hops["ranks.plan"]["state"] == "unused"
    assert hops["control"]["stats"]["processes"]["supervisor"] == server.process.pid


def test_the_report_is_readable(server: Server) -> None:
    done = doctor("--pid", str(server.process.pid))
    assert done.returncode == 0, done.stdout
    for word in ("llmrt", "torch", "usable of", f"Server {server.url}", "ok detokenizer[0].tokens", "ipc://"):
        assert word in done.stdout
    assert done.stdout.endswith("Nothing is broken.\n")


def test_looking_disturbs_no_request(server: Server) -> None:
    body = {"prompt": "Once upon a time", "max_tokens": 4000, "ignore_eos": True, "stream": True}
    before = server.wait_idle()["llmrt_generation_tokens_total"]
    with httpx2.Client(base_url=server.url, timeout=120) as client:
        with client.stream("POST", "/v1/completions", json=body) as response:
            lines = (line for line in response.iter_lines() if line)
            assert next(lines).startswith("data: {")
            code, hops = look(server)
            open_requests = [hops[name]["stats"]["open_requests"] for name in ENTRY.keys() - {"http"}]
            assert code == 0 and sum(open_requests) == 1
            # What was made before the doctor left proves nothing.
            made = int(server.metrics()["llmrt_generation_tokens_total"] - before)
            for _ in range(made + 2):
                event = json.loads(next(lines).removeprefix("data: "))
                assert "error" not in event and event["choices"][0]["finish_reason"] is None
        assert client.get("/ready").status_code == 200
    server.wait_idle()


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_for(lambda: probe.process_state(pid) is not None, f"process {pid} to stop")
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_stopped_process_is_found_and_comes_back(server: Server) -> None:
    pids = the_facts(server).processes
    for victim in ("detokenizer", "scheduler", "supervisor"):
        with stopped(pids[victim]):
            code, hops = look(server, timeout=2)
        broken = {name for name, hop in hops.items() if hop["state"] == "broken"}
        mine = {name for name, process in HOPS.items() if process == victim}
        assert code == 1 and mine <= broken, (victim, hops)
        # The front door may see the loss behind it, the other links may not.
        assert broken - mine <= {"http"}, (victim, hops)
        assert all("is stopped" in hops[name]["detail"] for name in mine), hops
        wait_for(lambda: look(server)[0] == 0, "the server to be sound again")
    answer = httpx2.post(f"{server.url}/v1/completions", json={"prompt": "Hi", "max_tokens": 2}, timeout=60)
    assert answer.status_code == 200
    assert the_facts(server).processes == pids


HELD = ("llmrt.engine.mock", "llmrt.detokenizer.process")


@pytest.mark.parametrize("front", [[], ["--api-key", "sesame-open", "--entry-workers", "2"]], ids=str)
def test_a_loading_server_is_not_broken(front: list[str], tmp_path: Path) -> None:
    with serving(*front, environment=held(tmp_path, *HELD)) as found:
        code, hops = look_at(found.pid, 2)
        assert (code, [hop for hop in hops.values() if hop["state"] == "broken"]) == (0, [])
        for name in ("http", "scheduler.requests", "detokenizer[0].tokens", "entry[0].results"):
            assert hops[name]["state"] == "loading", hops[name]


def test_a_process_that_is_stopped_while_it_loads_is_broken(tmp_path: Path) -> None:
    with serving(environment=held(tmp_path, *HELD)) as found:
        with stopped(found.processes["mock engine"]):
            code, hops = look_at(found.pid, 2)
        assert (code, hops["scheduler.requests"]["state"]) == (1, "broken")
        assert "is stopped" in hops["scheduler.requests"]["detail"]


def test_a_server_with_keys_and_a_path_is_sound() -> None:
    with serving("--api-key", "sesame-open", "--root-path", "/llm") as found:
        wait_for(lambda: look_at(found.pid, 30)[1]["entry[0].results"]["state"] == "ok", "the server to be ready")
        code, hops = look_at(found.pid, 30)
        assert code == 0
        assert (hops["http"]["state"], hops["http"]["detail"]) == ("ok", "asks for a key; /health answers 200")


def test_a_server_that_takes_other_hosts_only_is_sound() -> None:
    with two_hosts() as hosts:
        there = hosts.at(hosts.core)
        with serving("--host", hosts.address, "--allowed-hosts", "api.example", before=there) as found:
            assert hosts.address in found.url
            wait_for(lambda: look_at(found.pid, 30, there)[1]["http"]["state"] == "ok", "the server to be ready")
            assert look_at(found.pid, 30, there)[0] == 0


def test_facts_are_private_and_go_with_the_server() -> None:
    server = Server("--engine", "mock", "--served-model-name", "mine")
    found = the_facts(server)
    assert (found.url, found.model) == (server.url, "mine")
    assert set(found.processes) == {"supervisor", "mock engine", "detokenizer", *CELL.entry_processes}
    directory = Path(found.topology.control.removeprefix("ipc://")).parent
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE((directory / facts.FILE).stat().st_mode) == 0o600
    (directory / "detokenizer.0.tokens").unlink()
    code, hops = look(server, timeout=1)
    assert code == 1
    assert [name for name, hop in hops.items() if hop["state"] == "broken"] == ["detokenizer[0].tokens"]
    assert hops["detokenizer[0].tokens"]["detail"] == "nobody listens: the socket is gone"
    server.stop(signal.SIGKILL)
    assert found.pid not in {each.pid for each in facts.running()}
    assert "seconds, at most 3600, not 'x'" in doctor("--timeout", "x").stderr
    missing = doctor("--pid", str(found.pid))
    assert missing.returncode == 1 and "no server of yours runs" in missing.stderr


def test_broken_facts_are_passed_over(tmp_path: Path) -> None:
    directory = tmp_path / f"llmrt-{os.getpid()}-00000000"
    directory.mkdir(mode=0o700)
    for content in (None, b"", b"{", b'{"version":"1"}', b"\xff"):
        with contextlib.suppress(FileNotFoundError):
            (directory / facts.FILE).unlink()
        if content is not None:
            (directory / facts.FILE).write_bytes(content)
        assert facts.running(tmp_path) == []


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"usable_processors": 1}, "few"),
        ({"features": ["sse4_2"]}, "AVX2"),
        ({"available_memory": 1 << 29}, "0.5 GiB"),
        ({"open_files": 1024}, "ulimit -n"),
    ],
)
def test_what_is_slow(change: dict[str, Any], word: str) -> None:
    good = {"usable_processors": 16, "features": ["avx2"], "available_memory": 1 << 36, "open_files": 1 << 20}
    installed = dict.fromkeys(machine.versions(), "1")
    assert [each for each in machine.findings(good, installed) if each.level == "slow"] == []
    (found,) = [each for each in machine.findings({**good, **change}, installed) if each.level == "slow"]
    assert word in found.what and found.advice


def test_what_is_missing() -> None:
    good = {"usable_processors": 16, "features": ["avx2"], "available_memory": None, "open_files": -1}
    installed: dict[str, str | None] = {**dict.fromkeys(machine.versions(), "1"), "torch": None}
    (found,) = machine.findings(good, installed)
    assert (found.level, found.advice) == ("missing", "pip install torch")
