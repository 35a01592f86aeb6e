"""Processes and bare sockets at the other end of a link."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import TracebackType

import zmq

from llmrt import link, wire

ROOT = Path(__file__).parents[2]
PATIENCE = 30.0
"""Seconds: long enough for a loaded machine; no test waits for them to pass."""


@cache
def example(name: str) -> str:
    """Path of a Rust example. ``make test`` has built it with the workspace already, then this takes no time.

    ``LLMRT_EXAMPLES`` names a folder of examples that are to be taken as they are.
    """
    folder = os.environ.get("LLMRT_EXAMPLES")
    if folder is None:
        command = ["cargo", "build", "-q", "--release", "--workspace", "--exclude", "llmrt-core", "--examples"]
        subprocess.run(command, cwd=ROOT, check=True)
        folder = str(ROOT / "target" / "release" / "examples")
    return os.path.join(folder, name)


class Process:
    """A child that takes commands on standard input and prints what happens, a line each."""

    def __init__(self, *command: str) -> None:
        self.child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=sys.stderr, text=True, bufsize=1
        )
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.child.stdout
        for line in self.child.stdout:
            self._lines.put(line.rstrip("\n"))

    def tell(self, command: str) -> None:
        """Gives a command."""
        assert self.child.stdin
        self.child.stdin.write(command + "\n")
        self.child.stdin.flush()

    def expect(self, start: str) -> str:
        """The rest of the next line that begins with ``start``; lines before it are skipped."""
        skipped = []
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no line {start!r}, but {skipped}") from None
            if line.startswith(start):
                return line[len(start) :].strip()
            skipped.append(line)

    def ask(self, command: str, start: str) -> str:
        """Gives a command and awaits its answer."""
        self.tell(command)
        return self.expect(start)

    def kill(self) -> None:
        """Ends the child without any chance of a farewell."""
        self.child.send_signal(signal.SIGKILL)
        self.child.wait()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self.child.stdin and self.child.stdout
        if self.child.poll() is None:
            self.child.kill()
        self.child.wait()
        self.child.stdin.close()
        self._reader.join(PATIENCE)
        self.child.stdout.close()


def rust_outbox(
    endpoint: str,
    role: str = "entry",
    index: int = 0,
    heartbeat: int = 50,
    silence: int = 30_000,
    window: int = 1 << 26,
) -> Process:
    """A process with a Rust outbox; times in milliseconds."""
    numbers = (index, heartbeat, silence, window)
    return Process(example("outbox_peer"), endpoint, role, *map(str, numbers))


def rust_inbox(endpoint: str, credit: int = 4, silence: int = 30_000) -> Process:
    """A process with a Rust inbox, bound already."""
    process = Process(example("inbox_peer"), endpoint, str(credit), str(silence))
    process.expect("bound")
    return process


_PYTHON_INBOX = """
import sys, zmq
from llmrt import link
inbox = link.Inbox(sys.argv[1], link.Welcome(credit=4), link.LinkOptions(heartbeat=0.05))
poller = zmq.Poller()
inbox.register(poller)
print("bound", flush=True)
while True:
    link.poll(poller, [inbox])
    for event in inbox.receive():
        print(type(event).__name__.lower(), event.peer, flush=True)
"""


def python_inbox(endpoint: str) -> Process:
    """A process with a Python inbox, bound already; it takes no commands."""
    process = Process(sys.executable, "-c", _PYTHON_INBOX, endpoint)
    process.expect("bound")
    return process


_PYTHON_OUTBOX = """
import sys, zmq
from llmrt import link
outbox = link.Outbox(sys.argv[1], link.Identity("entry"), link.LinkOptions(heartbeat=0.05))
poller = zmq.Poller()
outbox.register(poller)
while True:
    link.poll(poller, [outbox])
    for event in outbox.receive():
        print({"Up": "ready", "Down": "dead"}.get(type(event).__name__, "incoming"), event, flush=True)
"""


def python_outbox(endpoint: str) -> Process:
    """A process with a Python outbox; it takes no commands."""
    return Process(sys.executable, "-c", _PYTHON_OUTBOX, endpoint)


class Bare:
    """A pyzmq socket that speaks the wire by hand."""

    def __init__(self, kind: int, endpoint: str, bind: bool = False, identity: bytes | None = None) -> None:
        self.socket = zmq.Context.instance().socket(kind)
        self.socket.linger = 0
        self.socket.rcvtimeo = int(PATIENCE * 1000)
        if identity is not None:
            self.socket.set(zmq.IDENTITY, identity)
        if bind:
            self.socket.bind(endpoint)
        else:
            self.socket.connect(endpoint)

    def receive(self) -> tuple[bytes, wire.Message]:
        """The next message and, at a ROUTER, who sent it."""
        *key, raw = self.socket.recv_multipart()
        return (key[0] if key else b""), wire.decode(raw)

    def until(self, kind: type) -> tuple[bytes, wire.Message]:
        """The next message of a kind; others are skipped."""
        while True:
            key, message = self.receive()
            if isinstance(message, kind):
                return key, message

    def send(self, message: wire.Message, key: bytes | None = None) -> None:
        """Sends a message, at a ROUTER to ``key``."""
        self.raw(wire.encode(message), key=key)

    def raw(self, *frames: bytes, key: bytes | None = None) -> None:
        """Sends frames as they are, at a ROUTER to ``key``."""
        self.socket.send_multipart(frames if key is None else (key, *frames))

    def __enter__(self) -> Bare:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


def greet(dealer: Bare, version: int = wire.VERSION, index: int = 0, incarnation: int = 1) -> None:
    """Says Hello as an entry worker."""
    dealer.send(wire.Hello(version, "entry", index, incarnation))


def drive(links: list[link.Inbox | link.Outbox], until: Callable[[list[object]], bool]) -> list[object]:
    """Runs Python links until their events satisfy ``until``."""
    poller = zmq.Poller()
    for one in links:
        one.register(poller)
    events: list[object] = []
    deadline = time.monotonic() + PATIENCE
    while not until(events):
        assert time.monotonic() < deadline, f"only {events}"
        link.poll(poller, links, 0.5)
        for one in links:
            events.extend(one.receive())
    return events


def kinds(events: list[object]) -> list[str]:
    """Names of the events' types."""
    return [type(event).__name__ for event in events]
