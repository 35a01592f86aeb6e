"""What a server holds: pages, permits, connections, processes, descriptors, files, memory."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path

from llmrt.cli import probe
from llmrt.supervisor import facts
from support.server import Server, wait_for


def facts_of(server: Server) -> facts.Facts:
    """What the supervisor last told of itself."""
    return next(each for each in facts.running() if each.pid == server.process.pid)


def processes(server: Server) -> dict[str, int]:
    """Process ids by name, as the supervisor last told them."""
    return facts_of(server).processes


def resident(pid: int) -> int:
    """Resident memory, KiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))


def _descriptors(pid: int) -> Counter[str]:
    """How many descriptors of each kind a process has open."""
    found: Counter[str] = Counter()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found[os.readlink(entry).split(":")[0]] += 1
        except FileNotFoundError:
            continue
    return found


def descriptors(server: Server, expected: dict[str, Counter[str]] | None = None) -> dict[str, Counter[str]]:
    """Those of each process by name, as soon as they are as ``expected``, or have not changed for a second.

    Sockets of whoever asked last are closed a moment later. What still is not so after 30 seconds is returned as it is.
    """
    end = time.monotonic() + 30
    seen: list[dict[str, Counter[str]]] = []
    while True:
        now = {name: _descriptors(pid) for name, pid in processes(server).items()}
        seen = [*(each for each in seen if each == now), now]
        if now == expected or (expected is None and len(seen) > 10) or time.monotonic() > end:
            return now
        time.sleep(0.1)


class State:
    """What must be the same before and after, of a server that nobody uses; ``before`` is where that is known."""

    def __init__(self, server: Server, before: State | None = None) -> None:
        self.pages = wait_idle(server)["llmrt_kv_cache_usage_perc"]
        now = processes(server)
        self.processes = sorted(now)
        self.children = len(server.children())
        directory = Path(facts_of(server).topology.control.removeprefix("ipc://")).parent
        self.files = sorted(path.name for path in directory.iterdir())
        self.descriptors = descriptors(server, before.descriptors if before is not None else None)
        self.memory = {name: resident(pid) for name, pid in now.items()}


def wait_idle(server: Server) -> dict[str, float]:
    """Waits until the core is up and nothing is open anywhere: in the scheduler, the entry, the kernel."""

    def idle() -> dict[str, float] | None:
        if server.get("/ready").status_code != 200:
            return None
        now = server.metrics()
        if now["llmrt_num_requests_running"] + now["llmrt_num_requests_waiting"] > 0:
            return None
        entries = [hop for hop in probe.probe(facts_of(server), 5.0) if hop.name.startswith("entry")]
        quiet = entries and all(
            hop.stats is not None
            and not any(hop.stats[key] for key in ("open_requests", "permits", "open_connections"))
            for hop in entries
        )
        return now if quiet else None

    return wait_for(idle, "everything to be idle", 60)
