"""Time from a client's leave to its freed slot: in the queue, in prefill and in decode; FIN, RST and RST_STREAM.

    python benches/engine/leaving.py [--trials 30] [-- FLAGS OF THE SERVER]

The scheduler is asked for its counts over its own link, again and again; each answer is one more chance to see it.
"""

from __future__ import annotations

import argparse
import json
import random
import socket
import statistics
import struct
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import zmq

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from llmrt import link, wire
from llmrt.supervisor import facts
from support.h2_client import H2Client
from support.server import Server

PATH = "/v1/completions"
LONG: dict[str, Any] = {"prompt": "Once upon a time", "max_tokens": 4000, "ignore_eos": True, "stream": True}


class Scheduler:
    """Counts of a server's scheduler, asked without the entry in between."""

    def __init__(self, server: Server) -> None:
        the_facts = next(each for each in facts.running() if each.pid == server.process.pid)
        self._outbox = link.Outbox(the_facts.topology.scheduler.requests, link.Identity("doctor"))
        self._poller = zmq.Poller()
        self._outbox.register(self._poller)
        while not self._outbox.ready:
            self._turn()

    def until(self, key: str, value: int) -> None:
        """Asks until a count has a value."""
        while self._stats()[key] != value:
            pass

    def _stats(self) -> dict[str, float]:
        self._outbox.send(wire.Call(1, "stats", "{}"))
        while True:
            for event in self._turn():
                if isinstance(event, link.Received) and isinstance(event.message, wire.Reply):
                    stats: dict[str, float] = json.loads(event.message.value)
                    return stats

    def _turn(self) -> Any:
        link.poll(self._poller, [self._outbox], 1.0)
        return self._outbox.receive()


def http1(server: Server, body: dict[str, Any], reset: bool) -> tuple[socket.socket, Callable[[], None]]:
    """Makes a request; returns its socket, and what leaves it."""
    sock = socket.create_connection((server.host, server.port))
    data = json.dumps(body).encode()
    head = f"POST {PATH} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    sock.sendall(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
    if reset:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return sock, sock.close


def leaver(server: Server, how: str, body: dict[str, Any], started: bool) -> Callable[[], None]:
    """A request under way, behind its first token if ``started``; returns what leaves it."""
    if how == "RST_STREAM":
        client = H2Client(server.host, server.port)
        stream = client.post(PATH, body)
        if started:
            client.read_until(lambda: client.bodies[stream])
        return lambda: client.reset(stream)
    sock, leave = http1(server, body, how == "RST")
    if started:
        received = b""
        while b"data:" not in received:
            received += sock.recv(65536)
    return leave


def prompts() -> Iterator[list[int]]:
    """Long prompts that share no prefix, in ordinary tokens."""
    dice = random.Random(1)
    while True:
        yield [dice.randrange(300, 45000) for _ in range(4000)]


def measure(server: Server, trials: int) -> None:
    scheduler, prompt = Scheduler(server), prompts()
    for phase in ("queue", "prefill", "decode"):
        for how in ("FIN", "RST", "RST_STREAM"):
            times = []
            for _ in range(trials):
                body = {**LONG, "prompt": next(prompt)} if phase == "prefill" else LONG
                waiting = "num_requests_waiting" if phase == "queue" else "num_requests_running"
                first = leaver(server, "FIN", LONG, started=True) if phase == "queue" else None
                leave = leaver(server, how, body, started=phase == "decode")
                scheduler.until(waiting, 1)
                began = time.perf_counter()
                leave()
                scheduler.until(waiting, 0)
                times.append((time.perf_counter() - began) * 1e3)
                if first is not None:
                    first()
                scheduler.until("num_requests_running", 0)
            times.sort()
            p99 = times[min(len(times) - 1, int(0.99 * len(times)))]
            print(f"{phase:8} {how:10} median {statistics.median(times):8.1f} ms   p99 {p99:8.1f} ms", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=30, help="leaves of each kind")
    parser.add_argument("flags", nargs="*", help="flags of the server, behind --")
    arguments = parser.parse_args()
    server = Server("--max-num-seqs", "1", *arguments.flags)
    try:
        measure(server, arguments.trials)
    finally:
        server.stop()


if __name__ == "__main__":
    main()
