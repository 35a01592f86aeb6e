"""CPU time and memory of llmrt's entry and detokenizer beside those of ``vllm-rs``, both with mock engines.

    python benches/entry/cpu_per_token.py --peer DIR --scripts DIR [--rounds 3] [--only h1-64] [--json FILE]

``--peer`` holds ``vllm-rs``, its ``venv`` and the model folder ``smollm2``, ``--scripts`` holds ``mock_vllm.py``;
``h2load`` (package ``nghttp2-client``) must be on the path. Without ``--peer`` llmrt is measured alone.

CPU is that of every process but the engine, divided by the tokens that clients received. In each round every cell
runs on both servers, one after the other, and in every other round the other way round; the table shows medians and
the ratio of llmrt to its peer. ``vllm-rs`` has no HTTP/2, so its HTTP/1.1 figure of as many streams stands beside
llmrt's HTTP/2. All cells take some two minutes a round on two cores; ``FILE`` holds each figure of each round and is
written after every round.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import resource
import socket
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import load
from servers import Llmrt, Measured, Peer

from llmrt import model_source
from llmrt._core import Tokenizer

STEPS = (10.0, 0.0)
LONG_PROMPT = 2000
CONNECTIONS = 1000

Servers = dict[str, dict[float, Measured]]


@dataclass
class Cell:
    """One figure of both servers. ``aim`` is the ratio that llmrt wants to be below."""

    name: str
    unit: str
    aim: float
    measure: Callable[[Measured, bool], float]
    """Takes a server and whether it may speak HTTP/2."""
    step: float = 0.0
    figures: dict[str, list[float]] = field(default_factory=dict)

    def run(self, servers: Servers, backwards: bool) -> None:
        """Measures every server once."""
        for name, by_step in sorted(servers.items(), reverse=backwards):
            figure = self.measure(by_step[self.step], name == "llmrt")
            self.figures.setdefault(name, []).append(figure)
            print(f"    {self.name:34} {name:8} {figure:10.2f} {self.unit}", file=sys.stderr, flush=True)

    def row(self) -> str:
        """A line of the table."""
        middle = {name: statistics.median(values) for name, values in self.figures.items()}
        line = f"{self.name:34} {middle['llmrt']:9.2f}"
        if "vllm-rs" in middle:
            ratio = middle["llmrt"] / middle["vllm-rs"]
            line += f" {middle['vllm-rs']:9.2f} {ratio:7.3f} {self.aim:6.2f}  {'yes' if ratio <= self.aim else 'no'}"
        return f"{line}  {self.unit}"


def streamed(step: float, http2: bool, count: int, aim: float) -> Cell:
    """CPU per streamed token."""
    # About four seconds at a real pace, and as many tokens again and again where nothing holds them up.
    waves, tokens = (3, 128) if step else (4, 256)

    def measure(server: Measured, can_http2: bool) -> float:
        begin = server.cpu_ns()
        received = load.streams(server, http2 and can_http2, count, waves * count, tokens)
        return (server.cpu_ns() - begin) / received / 1e3

    pace = f"step {step:g} ms" if step else "back to back"
    name = f"{'h2' if http2 else 'h1'}-{count} {pace}"
    return Cell(name, "us/token", aim, measure, step)


def short_requests(http2: bool) -> Cell:
    """CPU per streamed answer of one token."""

    def measure(server: Measured, can_http2: bool) -> float:
        begin = server.cpu_ns()
        return load.streams(server, http2 and can_http2, 64, 4000, 1) and (server.cpu_ns() - begin) / 4000 / 1e3

    return Cell(f"short request {'h2' if http2 else 'h1'}", "us/request", 0.5, measure)


def prompts(warm: bool, tokenizer: Tokenizer, rng: random.Random) -> Cell:
    """CPU per token of long prompts. What comes first, which warms the prefix, is not counted."""

    def measure(server: Measured, _: bool) -> float:
        first, *rest = load.conversations(tokenizer, 61, LONG_PROMPT, warm, rng)
        load.ask_all(server, [first])
        begin = server.cpu_ns()
        tokens = load.ask_all(server, rest)
        return (server.cpu_ns() - begin) / tokens / 1e3

    return Cell(f"prompt {'warm' if warm else 'cold'}", "us/token", 0.05 if warm else 0.3, measure)


def memory_idle(server: Measured, _: bool) -> float:
    """Resident memory while many connections that have asked something are open."""
    with contextlib.ExitStack() as stack:
        for _ in range(CONNECTIONS):
            stack.enter_context(ask_on_connection(server))
        return server.memory_mb()[0]


def memory_active(server: Measured, can_http2: bool) -> float:
    """Resident memory while as many streams run, the most that is seen."""
    most = 0.0
    with load.h2load(server, False, CONNECTIONS, CONNECTIONS, 256) as process:
        while process.poll() is None:
            most = max(most, server.memory_mb()[0])
            time.sleep(0.05)
    return most


def ask_on_connection(server: Measured) -> contextlib.AbstractContextManager[socket.socket]:
    """A connection on which one short answer came and that stays open."""
    body = json.dumps(load.chat(server.model, load.question("Hi"), 1, False)).encode()
    connection = socket.create_connection((server.host, server.port), 30)
    fields = f"host: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    head = f"POST {load.PATH} HTTP/1.1\r\n{fields}\r\n\r\n"
    connection.sendall(head.encode() + body)
    if not connection.recv(65536).startswith(b"HTTP/1.1 200"):
        raise RuntimeError(f"{server.name} refuses a request")
    return connection


def cells(tokenizer: Tokenizer) -> list[Cell]:
    """All figures, with the aims of the project."""
    rng = random.Random(1)
    return [
        streamed(10.0, False, 64, 0.35),
        streamed(10.0, False, 256, 0.3),
        streamed(0.0, False, 64, 0.5),
        streamed(0.0, False, 256, 0.5),
        streamed(10.0, True, 64, 0.3),
        streamed(10.0, True, 256, 0.15),
        streamed(10.0, True, 1024, 0.1),
        streamed(0.0, True, 64, 0.5),
        streamed(0.0, True, 256, 0.5),
        streamed(0.0, True, 1024, 0.5),
        short_requests(False),
        short_requests(True),
        prompts(False, tokenizer, rng),
        prompts(True, tokenizer, rng),
        # Last, because memory stays what it once was.
        Cell("memory at 1000 idle connections", "MB RSS", 0.5, memory_idle, 10.0),
        Cell("memory at 1000 active streams", "MB RSS", 0.5, memory_active, 10.0),
    ]


def start(options: argparse.Namespace, stack: contextlib.ExitStack) -> Servers:
    """Both servers, at a real pace and back to back; ended with ``stack``."""
    servers: Servers = {"llmrt": {}}
    for step in STEPS:
        servers["llmrt"][step] = server = Llmrt(step, options.model or str(options.peer / "smollm2"), *options.flag)
        stack.callback(server.stop)
        if options.peer:
            peer = Peer(step, options.scripts, options.peer)
            stack.callback(peer.stop)
            servers.setdefault("vllm-rs", {})[step] = peer
    for by_step in servers.values():
        for each in by_step.values():
            rss, pss = each.memory_mb()
            print(f"fresh {each.name}: {rss:.0f} MB resident, {pss:.0f} MB proportional", file=sys.stderr)
            # The first load after the start is a warm-up.
            load.streams(each, False, 64, 64, 32)
    return servers


def raw(cells: list[Cell]) -> dict[str, Any]:
    """All figures so far, and what else bears on them."""
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return {
        "machine": {"cpu": cpu[1] if cpu else "?", "cores": os.cpu_count(), "load": os.getloadavg()},
        "cells": {cell.name: {"unit": cell.unit, "aim": cell.aim, **cell.figures} for cell in cells},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--peer", type=Path, help="folder with vllm-rs, venv and smollm2")
    parser.add_argument("--scripts", type=Path, help="folder with mock_vllm.py")
    parser.add_argument("--model", help="model of llmrt (default: the peer's)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="cells whose name contains this")
    parser.add_argument("--flag", action="append", default=[], help="further flag for llmrt-serve, as --flag=--x=1")
    parser.add_argument("--json", type=Path, help="file for all figures")
    options = parser.parse_args()
    if (options.peer is None and options.model is None) or (options.peer and not options.scripts):
        parser.error("give --peer and --scripts, or --model to measure llmrt alone")
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    model = model_source.resolve(options.model or str(options.peer / "smollm2"))
    load_tokenizer = Tokenizer.from_gguf if model.tokenizer.suffix == ".gguf" else Tokenizer.from_file
    chosen = [cell for cell in cells(load_tokenizer(model.tokenizer)) if options.only in cell.name]
    with contextlib.ExitStack() as stack:
        servers = start(options, stack)
        for number in range(options.rounds):
            print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
            for cell in chosen:
                cell.run(servers, number % 2 == 1)
            if options.json:
                options.json.write_text(json.dumps(raw(chosen), indent=1))
    print(f"{'':34} {'llmrt':>9} {'vllm-rs':>9} {'ratio':>7} {'aim':>6}")
    for cell in chosen:
        print(cell.row())


if __name__ == "__main__":
    main()
