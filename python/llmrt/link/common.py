"""What both ends of a link share: options, events, the socket with its monitor."""

from __future__ import annotations

import math
import os
import struct
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

import zmq

from llmrt import wire

BATCH = 1024
"""Messages that one ``receive()`` takes at most, so that a flood cannot hold up the loop."""

_SOON = 0.01
"""Seconds until something is tried again that libzmq's I/O thread has not finished yet."""

_READABLE = int(zmq.POLLIN)
"""A plain number: masking with the enum costs more than asking the socket."""

_LINGER_MS = 200
"""How long a closed socket may go on sending its death notice."""


class Full(Exception):
    """Out of credit or window: try again later or refuse the work."""


class NotReady(Exception):
    """The peer is not connected."""


def incarnation() -> int:
    """A random u64 that tells this process start from others."""
    return int.from_bytes(os.urandom(8), "little")


@dataclass(frozen=True)
class LinkOptions:
    """How a link behaves; both ends should agree on ``silence``. Times in seconds, sizes in bytes."""

    heartbeat: float = 1.0
    silence: float = 30.0
    window: int = 64 << 20
    max_frame: int = 256 << 20

    @property
    def patience(self) -> int:
        """Heartbeats that fit into a silence, at least one."""
        return max(1, math.ceil(self.silence / max(self.heartbeat, 1e-3)))


@dataclass(frozen=True)
class Welcome:
    """What a receiver answers to ``Hello``: initial ``credit`` in requests, ``info`` a JSON object or empty."""

    credit: int = 0
    info: str = ""
    incarnation: int = field(default_factory=incarnation)


@dataclass(frozen=True)
class Identity:
    """Who connects: role ``entry``, ``scheduler``, ``detokenizer``, ``supervisor`` or ``doctor``, and its number."""

    role: str
    index: int = 0
    incarnation: int = field(default_factory=incarnation)


@dataclass(frozen=True)
class Joined:
    """A peer has greeted and was answered; ``peer`` stands for it until it is :class:`Left`."""

    peer: int
    hello: wire.Hello


@dataclass(frozen=True)
class Left:
    """The peer said that it ends, vanished, fell silent (then ``silent``), or was replaced by a successor."""

    peer: int
    reason: str
    silent: bool = False


@dataclass(frozen=True)
class Received:
    """A message other than greetings, heartbeats and credit. ``peer`` is 0 at an outbox."""

    peer: int
    message: wire.Message


@dataclass(frozen=True)
class Up:
    """An outbox's peer is ready; ``info`` is its JSON description. A restart shows as a new incarnation."""

    incarnation: int
    info: str


@dataclass(frozen=True)
class Down:
    """An outbox's peer is gone or refuses us; the outbox keeps trying."""

    reason: str


InboxEvent = Joined | Left | Received
OutboxEvent = Up | Down | Received


def other_version(version: int) -> str:
    """What both ends say about a peer of another version."""
    return f"the peer speaks wire version {version}, this process {wire.VERSION}: run the same llmrt on both ends"


def poll(poller: zmq.Poller, links: Iterable[Socket], timeout: float | None = None) -> None:
    """Sleeps until a registered link has something to read or to do, at most ``timeout`` seconds."""
    now = time.monotonic()
    due = min((link.due for link in links), default=now + 3600)
    wait = due - now if timeout is None else min(due - now, timeout)
    poller.poll(max(0, math.ceil(wait * 1000)))


def _is_readable(socket: zmq.Socket) -> bool:
    """Whether a message waits; a tenth of the cost of asking a poller or of catching ``zmq.Again``."""
    return bool(int(socket.get(zmq.EVENTS)) & _READABLE)


class Socket:
    """A ZMQ socket with its monitor: what both ends of a link share."""

    def __init__(self, kind: int, events: int, options: LinkOptions, context: zmq.Context | None) -> None:
        self.options = options
        self.socket = (context or zmq.Context.instance()).socket(kind)
        self.socket.linger = _LINGER_MS
        self.socket.set(zmq.MAXMSGSIZE, options.max_frame)
        self._monitor = self.socket.get_monitor_socket(events)
        self._next_beat = time.monotonic() + options.heartbeat
        self._next_try = math.inf
        self._closed = False

    @property
    def due(self) -> float:
        """Monotonic time by which ``receive()`` must be called even when there is nothing to read."""
        return min(self._next_beat, self._next_try)

    def register(self, poller: zmq.Poller) -> None:
        """Adds the link to the poller of a loop."""
        poller.register(self.socket, zmq.POLLIN)
        poller.register(self._monitor, zmq.POLLIN)

    def unregister(self, poller: zmq.Poller) -> None:
        """Takes the link out of the poller of a loop, before ``close``."""
        poller.unregister(self.socket)
        poller.unregister(self._monitor)

    def _frames(self) -> Iterable[list[bytes]]:
        for _ in range(BATCH):
            if not _is_readable(self.socket):
                return
            yield self.socket.recv_multipart(zmq.NOBLOCK)

    def _notices(self) -> Iterable[int]:
        while _is_readable(self._monitor):
            # Event and value, as in zmq_socket_monitor(3). pyzmq's own reader imports asyncio, some 6 MB, with it.
            event, _ = struct.unpack("=HI", self._monitor.recv_multipart(zmq.NOBLOCK)[0])
            yield event

    def _beat_is_due(self) -> bool:
        now = time.monotonic()
        if now < self._next_beat:
            return False
        self._next_beat = now + self.options.heartbeat
        return True

    def _try_soon(self) -> None:
        """Asks for one more try before the next beat. Beats themselves stay regular: they measure silence."""
        self._next_try = min(self._next_try, time.monotonic() + _SOON)

    def _try_is_due(self) -> bool:
        if time.monotonic() < self._next_try:
            return False
        self._next_try = math.inf
        return True

    def _shut(self) -> None:
        self._closed = True
        self.socket.disable_monitor()
        self._monitor.close(linger=0)
        self.socket.close(linger=_LINGER_MS)
