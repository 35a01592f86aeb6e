"""Many clients, and processes that die and stop at random: every request ends once, and nothing is left behind.

Runs where ``CHAOS_SECONDS`` is set: how long processes die. ``CHAOS_STREAMS`` (200) how many requests are open at once,
``CHAOS_WORKERS`` (3) how many entry workers there are. ``CHAOS_SEED`` repeats a run's draws, though not its timing.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import sys
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import httpx2
import pytest

from chaos import clients
from chaos.clients import End, Manner, Request
from chaos.monkey import Monkey, processes
from llmrt.cli import probe
from llmrt.supervisor import facts
from support.server import Server, wait_for

SECONDS = float(os.environ.get("CHAOS_SECONDS", "30"))
STREAMS = int(os.environ.get("CHAOS_STREAMS", "200"))
WORKERS = int(os.environ.get("CHAOS_WORKERS", "3"))
SEED = int(os.environ.get("CHAOS_SEED", str(random.SystemRandom().randrange(1 << 32))))

DEADLINE = 3.0
STALL = 2.0
WARM_UP = 8.0
CALM = 120.0
"""Seconds in which all requests must have ended once nothing dies any more."""

# A long name makes long events, so that readers that stall can be noticed without many tokens.
FLAGS = (
    *("--engine", "mock", "--mock-step-ms", "100", "--served-model-name", "m" * 1500),
    *(("--entry-workers", str(WORKERS)) if WORKERS > 1 else ()),
    *("--max-num-seqs", str(2 * STREAMS), "--max-num-queued-reqs", str(2 * STREAMS)),
    *("--step-deadline", str(DEADLINE), "--stall-timeout", str(STALL), "--sse-ping-interval", "1"),
    # A process that is stopped while it starts is found by this alone.
    *("--start-timeout", "20"),
    # Pauses between restarts stay short: here processes die all the time.
    *("--max-core-restarts", "100000", "--core-restart-window", "2"),
)

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux") or "CHAOS_SECONDS" not in os.environ,
    reason="needs /proc, and a machine of its own: set CHAOS_SECONDS",
)


class Crowd:
    """Clients that make one request after the other; ``ends`` counts how those ended, by manner."""

    def __init__(self, server: Server, dice: random.Random) -> None:
        self.server = server
        self.dice = dice
        self.ends: Counter[tuple[Manner, End]] = Counter()
        self.begun = 0
        self._over = False

    async def run(self, during: object, streams: int) -> None:
        """Keeps ``streams`` requests open until the awaitable ``during`` is done, and waits for all to end."""
        async with AsyncExitStack() as stack:
            shared = [
                await stack.enter_async_context(clients.shared_connection(self.server.url))
                for _ in range(max(1, streams // 50))
            ]
            self._over = False
            places = [asyncio.create_task(self._keep(shared, number)) for number in range(streams)]
            await during  # type: ignore[misc]
            self._over = True
            async with asyncio.timeout(CALM):
                await asyncio.gather(*places)

    async def _keep(self, shared: list[httpx2.AsyncClient], number: int) -> None:
        """One request after the other; a quarter of the places share HTTP/2 connections."""
        await asyncio.sleep(self.dice.uniform(0, 2))
        while not self._over:
            request = Request.drawn(self.dice, STALL)
            self.begun += 1
            if number % 4 == 0:
                end = await clients.over_http2(shared[number // 4 % len(shared)], request)
            else:
                end = await clients.over_http1(self.server.host, self.server.port, request)
            self.ends[request.manner, end] += 1
            if end in (End.REFUSED, End.LOST):
                await asyncio.sleep(self.dice.uniform(0.2, 1.0))


def resident(pid: int) -> int:
    """Resident memory, KiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))


def descriptors(pid: int) -> list[str]:
    """What a process has open."""
    found = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.append(os.readlink(entry).split(":")[0])
        except FileNotFoundError:
            continue
    return sorted(found)


class State:
    """What must be the same before and after."""

    def __init__(self, server: Server) -> None:
        now = wait_idle(server)
        self.pages = now["llmrt_kv_cache_usage_perc"]
        self.processes = sorted(processes(server))
        self.children = len(server.children())
        self.files = sorted(path.name for path in directory(server).iterdir())
        self.descriptors = descriptors(server.process.pid)
        entries = [pid for name, pid in processes(server).items() if name.startswith("entry")]
        self.memory = sum(map(resident, [server.process.pid, *entries]))


def directory(server: Server) -> Path:
    the_facts = next(each for each in facts.running() if each.pid == server.process.pid)
    return Path(the_facts.topology.control.removeprefix("ipc://")).parent


def wait_idle(server: Server) -> dict[str, float]:
    """Waits until the core is up and nothing is open anywhere: in the scheduler, the entry, the kernel."""

    def idle() -> dict[str, float] | None:
        if server.get("/ready").status_code != 200:
            return None
        now = server.metrics()
        if now["llmrt_num_requests_running"] + now["llmrt_num_requests_waiting"] > 0:
            return None
        the_facts = next(each for each in facts.running() if each.pid == server.process.pid)
        entries = [hop for hop in probe.probe(the_facts, 5.0) if hop.name.startswith("entry")]
        quiet = entries and all(
            hop.stats is not None
            and not any(hop.stats[key] for key in ("open_requests", "permits", "open_connections"))
            for hop in entries
        )
        return now if quiet else None

    return wait_for(idle, "everything to be idle", 60)


@pytest.mark.timeout(SECONDS + 4 * CALM)
def test_every_request_ends_once_and_nothing_is_left() -> None:
    print(f"\nCHAOS_SEED={SEED} CHAOS_SECONDS={SECONDS:g} CHAOS_STREAMS={STREAMS} CHAOS_WORKERS={WORKERS}")
    dice = random.Random(SEED)
    server = Server(*FLAGS)
    try:
        crowd = Crowd(server, dice)
        asyncio.run(crowd.run(asyncio.sleep(WARM_UP), STREAMS))
        assert not {end for _, end in crowd.ends} & {End.FAILED, End.LOST}, crowd.ends
        before = State(server)

        monkey = Monkey(server, dice, DEADLINE)
        asyncio.run(crowd.run(monkey.rage(SECONDS), STREAMS))
        after = State(server)
        print(f"did: {dict(monkey.done)}")
        ends = {f"{manner.value} {end.value}": count for (manner, end), count in crowd.ends.items()}
        print(f"ends: {dict(sorted(ends.items()))}")
        print(f"memory: {before.memory} KiB before, {after.memory} KiB after")

        assert crowd.begun == sum(crowd.ends.values())
        lost = sum(n for (_, end), n in crowd.ends.items() if end is End.LOST)
        # An entry worker takes its own connections along, and no others.
        assert lost == 0 or monkey.killed_entries, "no part of the front door died, but connections were lost"
        assert after.pages == 0
        assert after.processes == before.processes and after.children == before.children
        assert after.files == before.files
        assert after.descriptors == before.descriptors
        assert after.memory <= 1.1 * before.memory

        children = server.children()
        asyncio.run(killed_under_load(server, crowd))
        for child in children:
            wait_for(lambda child=child: probe.process_state(child) == "is gone", f"child {child} to be gone")
        with socket.socket() as taken:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind((server.host, server.port))
    except BaseException:
        print(server.log[-20_000:])
        raise
    finally:
        server.stop(signal.SIGKILL)


async def killed_under_load(server: Server, crowd: Crowd) -> None:
    async def kill() -> None:
        await asyncio.sleep(2)
        server.process.kill()

    await crowd.run(kill(), 20)
