"""CPU of entry workers and detokenizer per streamed token and per request at several numbers of entry workers.

    python benches/entry/by_workers.py --model MODEL [--workers 1,2,3] [--rounds 3] [--only h1-64] [--json FILE]

``h2load`` (package ``nghttp2-client``) must be on the path. The engine is the mock one, with a step every 10 ms. CPU is
that of every process but the engine. HTTP/2 uses 12 connections, so that every worker gets some. The spread is that of
200 connections which are opened at once, one after the other, and stay: how many each worker has.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import load
from servers import Llmrt, Measured

from llmrt.cli import probe
from llmrt.supervisor import facts

CONNECTIONS = 12
SPREAD = 200


def streamed(http2: bool, count: int) -> Callable[[Measured], float]:
    """Microseconds of CPU per streamed token of ``count`` streams."""

    def measure(server: Measured) -> float:
        begin = server.cpu_ns()
        received = load.streams(server, http2, count, 3 * count, 128, CONNECTIONS)
        return (server.cpu_ns() - begin) / received / 1e3

    return measure


def short_requests(http2: bool) -> Callable[[Measured], float]:
    """Microseconds of CPU per streamed answer of one token."""

    def measure(server: Measured) -> float:
        begin = server.cpu_ns()
        load.streams(server, http2, 60, 4000, 1, CONNECTIONS)
        return (server.cpu_ns() - begin) / 4000 / 1e3

    return measure


CELLS = {
    "h1-60 us/token": streamed(False, 60),
    "h1-240 us/token": streamed(False, 240),
    "h2-60 us/token": streamed(True, 60),
    "h2-240 us/token": streamed(True, 240),
    "short request h1 us/request": short_requests(False),
    "short request h2 us/request": short_requests(True),
}


def spread(server: Llmrt) -> list[int]:
    """Open connections of each worker after :data:`SPREAD` were opened."""
    before = open_connections(server)
    with contextlib.ExitStack() as stack:
        for _ in range(SPREAD):
            connection = stack.enter_context(socket.create_connection((server.host, server.port), 30))
            connection.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        # One that is open has been taken by a worker, which the last answer proves for all before it in the queue.
        if not connection.recv(1024).startswith(b"HTTP/1.1"):
            raise RuntimeError("the last connection was not answered")
        return [now - then for now, then in zip(open_connections(server), before, strict=True)]


def open_connections(server: Llmrt) -> list[int]:
    """What each worker says on its results link."""
    found = next(each for each in facts.running() if each.pid == server.pids[0])
    hops = [hop for hop in probe.probe(found, 20.0) if hop.name.startswith("entry[")]
    return [hop.stats["open_connections"] for hop in hops]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--workers", default="1,2,3", help="numbers of entry workers")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="cells whose name contains this")
    parser.add_argument("--json", type=Path, help="file for all figures")
    options = parser.parse_args()
    figures: dict[str, dict[str, Any]] = {name: {} for name in CELLS if options.only in name}
    spreads: dict[str, list[list[int]]] = {}
    counts = options.workers.split(",")
    with contextlib.ExitStack() as stack:
        servers = {}
        for count in counts:
            servers[count] = server = Llmrt(10.0, options.model, "--entry-workers", count)
            stack.callback(server.stop)
            # The first load after the start is a warm-up.
            load.streams(server, False, 64, 64, 32)
        for _ in range(options.rounds):
            for count, server in servers.items():
                spreads.setdefault(count, []).append(spread(server))
                for name, cell in figures.items():
                    cell.setdefault(count, []).append(CELLS[name](server))
                    print(f"    E={count} {name:30} {cell[count][-1]:8.2f}", file=sys.stderr, flush=True)
    print(f"{'':30}" + "".join(f"  E={count:<6}" for count in counts))
    for name, cell in figures.items():
        print(f"{name:30}" + "".join(f"{statistics.median(cell[count]):10.2f}" for count in counts))
    for count in counts:
        print(f"spread of {SPREAD} connections, E={count}: {spreads[count]}")
    if options.json:
        options.json.write_text(json.dumps({"figures": figures, "spread": spreads}, indent=1))


if __name__ == "__main__":
    main()
