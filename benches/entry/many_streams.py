"""4,000 streams on 40 HTTP/2 connections, by number of entry workers: tokens per second, CPU, memory per stream.

    python benches/entry/many_streams.py --model MODEL [--workers 1,2,3] [--rounds 3] [--step-ms 100] [--tokens 100]

``h2load`` (package ``nghttp2-client``) must be on the path; it takes one core. The engine is the mock one: a step makes
a token for each stream. CPU and memory are those of every process but the engine; memory per stream is what the
proportional set size of a fresh server has grown by while all streams are open. Every round has a server of its own.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import time
from typing import NamedTuple

import load
from servers import Llmrt

STREAMS, CONNECTIONS = 4000, 40


class Figures(NamedTuple):
    tokens_per_second: float
    cpu_us_per_token: float
    kib_per_stream: float


def measure(server: Llmrt, tokens: int) -> Figures:
    """One load of all streams, begun together."""
    idle, begin = server.memory_mb()[1], server.cpu_ns()
    largest = idle
    with load.h2load(server, True, STREAMS, STREAMS, tokens, CONNECTIONS) as process:
        while process.poll() is None:
            time.sleep(0.25)
            largest = max(largest, server.memory_mb()[1])
        output = process.communicate()[0]
    done = re.search(rf"{STREAMS} succeeded, 0 failed, 0 errored", output)
    took = re.search(r"finished in ([\d.]+)(ms|s)", output)
    if done is None or took is None:
        raise RuntimeError(f"not every answer came:\n{output}")
    seconds = float(took[1]) / (1000 if took[2] == "ms" else 1)
    made = STREAMS * tokens
    memory = (largest - idle) * 1e6 / 1024 / STREAMS
    return Figures(made / seconds, (server.cpu_ns() - begin) / made / 1e3, memory)


def measured(workers: str, options: argparse.Namespace) -> Figures:
    """One round."""
    server = Llmrt(options.step_ms, options.model, "--entry-workers", workers)
    try:
        # The first load after the start is a warm-up.
        load.streams(server, True, 40, 40, 32, CONNECTIONS)
        return measure(server, options.tokens)
    finally:
        server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--workers", default="1,2,3", help="numbers of entry workers")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--step-ms", type=float, default=100.0, help="time of a step of the engine")
    parser.add_argument("--tokens", type=int, default=100, help="tokens of an answer")
    options = parser.parse_args()
    for workers in options.workers.split(","):
        rounds = [measured(workers, options) for _ in range(options.rounds)]
        for each in rounds:
            print(f"    E={workers} {each}", file=sys.stderr, flush=True)
        middle = Figures(*(statistics.median(column) for column in zip(*rounds, strict=True)))
        print(
            f"E={workers}: {middle.tokens_per_second:9.0f} tokens/s of {STREAMS * 1000 / options.step_ms:.0f} made,"
            f" {middle.cpu_us_per_token:.2f} us CPU/token, {middle.kib_per_stream:.1f} KiB/stream",
            flush=True,
        )


if __name__ == "__main__":
    main()
