"""The sending end of a link."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence

import zmq

from llmrt import wire
from llmrt.link.common import (
    Down,
    Full,
    Identity,
    LinkOptions,
    NotReady,
    OutboxEvent,
    Received,
    Socket,
    Up,
    other_version,
)

_log = logging.getLogger(__name__)


_URGENT = (wire.Abort, wire.Ended)
"""What the window must not hold back: it makes the peer do less. Credit bounds the requests that they name."""

OVERHEAD = 1024
"""Bytes that a queued message takes beside its own."""


class _Window:
    """Bytes on their way, :data:`OVERHEAD` included, and the heartbeats whose echo acknowledges them."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.sent = 0
        self._acknowledged = 0
        self._sequence = 0
        self._marks: deque[tuple[int, int]] = deque()

    def has_room(self, count: int) -> bool:
        """Whether a frame may leave; one that is larger than the whole window passes alone."""
        open_bytes = self.sent - self._acknowledged
        return open_bytes == 0 or open_bytes + count <= self.limit

    def is_due(self) -> bool:
        """Whether enough left since the last heartbeat that another should ask for an acknowledgement."""
        marked = self._marks[-1][1] if self._marks else self._acknowledged
        return self.sent - marked >= self.limit // 4

    def mark(self) -> int:
        """Sequence of a heartbeat that leaves now."""
        self._sequence += 1
        self._marks.append((self._sequence, self.sent))
        return self._sequence

    def acknowledge(self, sequence: int) -> None:
        """The echo of a heartbeat came back."""
        while self._marks and self._marks[0][0] <= sequence:
            self._acknowledged = self._marks.popleft()[1]


class Outbox(Socket):
    """Sending end: a connecting DEALER. Nobody needs to listen at ``endpoint`` yet.

    ``ready`` says whether messages may be sent now; ``receive()`` tells when that changes.
    """

    def __init__(
        self,
        endpoint: str,
        identity: Identity,
        options: LinkOptions | None = None,
        context: zmq.Context | None = None,
    ) -> None:
        events = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
        super().__init__(zmq.DEALER, events, options or LinkOptions(), context)
        self.endpoint = endpoint
        self.identity = identity
        self.ready = False
        self._refused = False
        # Without a connection nothing is queued: frames for a dead peer must not reach its successor.
        self.socket.set(zmq.IMMEDIATE, 1)
        # The window bounds the queue.
        self.socket.set(zmq.SNDHWM, 0)
        self.socket.set(zmq.RECONNECT_IVL, 20)
        self.socket.set(zmq.RECONNECT_IVL_MAX, 1000)
        self.socket.connect(endpoint)
        self._reset()
        self._events: list[OutboxEvent] = []

    def receive(self) -> Sequence[OutboxEvent]:
        """All that has happened, without waiting; call it whenever :func:`poll` returns."""
        for frames in self._frames():
            self._silent = 0
            if len(frames) == 1:
                self._frame(frames[0])
            else:
                _log.warning("message of several frames dropped")
        for notice in self._notices():
            self._lost("the connection is closed")
            if notice == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._reset()
                # Who refused us is asked again with the next heartbeat only.
                if not self._refused and not self._greet():
                    self._try_soon()
        if self._try_is_due() and not self.ready:
            self._greet()
        if self._beat_is_due():
            self._beat()
        events, self._events = self._events, []
        return events

    def send(self, message: wire.Message) -> None:
        """Queues a message; ``Submit`` needs one credit per request, ``Abort`` and ``Ended`` always find room.

        Raises :class:`NotReady` without a peer and :class:`Full` without credit or window.
        """
        if not self.ready:
            raise NotReady(f"{self.endpoint} is not connected")
        cost = len(message.requests) if isinstance(message, wire.Submit) else 0
        if cost > self._credit:
            raise Full("out of credit")
        raw = wire.encode(message)
        size = len(raw) + OVERHEAD
        if not isinstance(message, _URGENT) and not self._window.has_room(size):
            raise Full("the peer does not read")
        if not self._push(raw):
            # The connection broke just now; its notice is on the way.
            raise NotReady(f"{self.endpoint} is not connected")
        self._credit -= cost
        self._window.sent += size
        if self._window.is_due():
            self._push(wire.encode(wire.Heartbeat(self.identity.incarnation, self._window.mark())))

    def close(self, reason: str) -> None:
        """Says ``Dead`` to the peer and disconnects for good."""
        if self._closed:
            return
        self._push(wire.encode(wire.Dead(self.identity.incarnation, reason)))
        self.ready = False
        self._shut()

    def _push(self, raw: bytes) -> bool:
        try:
            self.socket.send(raw, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def _reset(self) -> None:
        self._credit = 0
        self._silent = 0
        self._window = _Window(self.options.window)

    def _greet(self) -> bool:
        hello = wire.Hello(wire.VERSION, self.identity.role, self.identity.index, self.identity.incarnation)
        return self._push(wire.encode(hello))

    def _frame(self, raw: bytes) -> None:
        try:
            message = wire.decode(raw)
        except wire.WireError as error:
            _log.warning("malformed frame dropped: %s", error)
            version = wire.greeting_version(raw)
            if version not in (None, wire.VERSION):
                self._reconnect(other_version(version))
            return
        if isinstance(message, wire.Ready):
            self._welcomed(message)
        elif isinstance(message, wire.Dead):
            self._reconnect(message.reason)
        elif isinstance(message, wire.Credit):
            self._credit += message.count
        elif isinstance(message, wire.Heartbeat):
            self._window.acknowledge(message.sequence)
        else:
            self._events.append(Received(0, message))

    def _welcomed(self, ready: wire.Ready) -> None:
        if ready.version != wire.VERSION:
            self._reconnect(other_version(ready.version))
            return
        if self.ready:
            return  # The answer to a greeting that was said twice.
        self._credit = ready.credit
        self._refused = False
        self.ready = True
        self._events.append(Up(ready.incarnation, ready.info))

    def _lost(self, reason: str) -> None:
        if self.ready:
            self.ready = False
            self._events.append(Down(reason))

    def _reconnect(self, reason: str) -> None:
        """Leaves a peer that is alive for libzmq but not for us, and looks for its successor."""
        self._refused = not self.ready
        self.ready = False
        self._events.append(Down(reason))
        self.socket.disconnect(self.endpoint)
        self.socket.connect(self.endpoint)

    def _beat(self) -> None:
        self._silent += 1
        if not self.ready:
            # A greeting that got lost, or that a refusing peer may accept by now.
            self._greet()
        elif self._silent > self.options.patience:
            self._reconnect(f"the peer was silent for {self.options.silence} s")
        else:
            self._push(wire.encode(wire.Heartbeat(self.identity.incarnation, self._window.mark())))
