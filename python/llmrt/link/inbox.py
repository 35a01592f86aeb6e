"""The receiving end of a link."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import zmq

from llmrt import wire
from llmrt.link.common import (
    Full,
    InboxEvent,
    Joined,
    Left,
    LinkOptions,
    NotReady,
    Received,
    Socket,
    Welcome,
    other_version,
)

_log = logging.getLogger(__name__)


@dataclass
class _Guest:
    peer: int
    hello: wire.Hello
    silent: int = 0
    """Heartbeats since the guest was last heard."""
    owed: int = 0
    """Credit that the guest was too busy to be told of."""


class Inbox(Socket):
    """Receiving end: a bound ROUTER.

    Raises ``zmq.ZMQError`` when the endpoint cannot be bound. ``endpoint`` is the address as bound: a ``tcp`` port
    of 0 is replaced by the real one.
    """

    def __init__(
        self,
        endpoint: str,
        welcome: Welcome | None = None,
        options: LinkOptions | None = None,
        context: zmq.Context | None = None,
    ) -> None:
        super().__init__(zmq.ROUTER, zmq.EVENT_DISCONNECTED, options or LinkOptions(), context)
        self.welcome = welcome or Welcome()
        # A send to a peer that is gone fails instead of vanishing: that is how its death is noticed.
        self.socket.set(zmq.ROUTER_MANDATORY, 1)
        self.socket.bind(endpoint)
        self.endpoint = self.socket.get_string(zmq.LAST_ENDPOINT)
        self._guests: dict[bytes, _Guest] = {}
        self._keys: dict[int, bytes] = {}
        self._last_peer = 0
        self._events: list[InboxEvent] = []

    def receive(self) -> Sequence[InboxEvent]:
        """All that has happened, without waiting; call it whenever :func:`poll` returns."""
        for frames in self._frames():
            if len(frames) == 2:
                self._frame(*frames)
            else:
                _log.warning("message of several frames dropped")
        # Whose connection it was shows when something is sent there.
        if any(True for _ in self._notices()):
            self._try_soon()
        if self._beat_is_due():
            self._beat()
        elif self._try_is_due():
            self._probe()
        events, self._events = self._events, []
        return events

    def send(self, peer: int, message: wire.Message) -> None:
        """Queues a message. Raises :class:`NotReady` when the peer has left, :class:`Full` when it does not read."""
        key = self._keys.get(peer)
        if key is None:
            raise NotReady(f"peer {peer} has left")
        self._push(key, message)

    def grant(self, peer: int, count: int) -> None:
        """Lets the peer submit ``count`` more requests; nothing happens when it has left.

        A peer that does not read now gets them with a later grant or heartbeat.
        """
        key = self._keys.get(peer)
        if key is not None:
            self._guests[key].owed += count
            self._pay(key, self._guests[key])

    def close(self, reason: str) -> None:
        """Says ``Dead`` to all peers and unbinds."""
        if self._closed:
            return
        for key in list(self._guests):
            self._answer(key, wire.Dead(self.welcome.incarnation, reason))
        self._shut()

    def _push(self, key: bytes, message: wire.Message) -> None:
        try:
            self.socket.send_multipart((key, wire.encode(message)), zmq.NOBLOCK)
        except zmq.Again:
            raise Full("the peer does not read") from None
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self._leave(key, "the connection is closed")
            raise NotReady("the connection is closed") from None

    def _answer(self, key: bytes, message: wire.Message) -> bool:
        try:
            self._push(key, message)
        except (NotReady, Full) as error:
            _log.debug("answer dropped: %s", error)
            return False
        return True

    def _frame(self, key: bytes, raw: bytes) -> None:
        try:
            message = wire.decode(raw)
        except wire.WireError as error:
            _log.warning("malformed frame dropped: %s", error)
            version = wire.greeting_version(raw)
            if version not in (None, wire.VERSION):
                self._refuse(key, other_version(version))
            return
        if isinstance(message, wire.Hello):
            self._greeted(key, message)
            return
        guest = self._guests.get(key)
        if guest is None:
            self._refuse(key, "not greeted: say Hello first")
            return
        guest.silent = 0
        if isinstance(message, wire.Heartbeat):
            self._answer(key, wire.Heartbeat(self.welcome.incarnation, message.sequence))
        elif isinstance(message, wire.Dead):
            self._leave(key, message.reason)
        else:
            self._events.append(Received(guest.peer, message))

    def _greeted(self, key: bytes, hello: wire.Hello) -> None:
        if hello.version != wire.VERSION:
            self._refuse(key, other_version(hello.version))
            return
        place = (hello.role, hello.index)
        for other, guest in list(self._guests.items()):
            same = other == key and guest.hello.incarnation == hello.incarnation
            if (guest.hello.role, guest.hello.index) == place and not same:
                self._leave(other, "replaced by a successor")
        ready = wire.Ready(wire.VERSION, self.welcome.incarnation, self.welcome.credit, self.welcome.info)
        # Who is gone again before it was answered never joined.
        if self._answer(key, ready) and key not in self._guests:
            self._last_peer += 1
            self._guests[key] = _Guest(self._last_peer, hello)
            self._keys[self._last_peer] = key
            self._events.append(Joined(self._last_peer, hello))

    def _refuse(self, key: bytes, reason: str) -> None:
        _log.warning("peer refused: %s", reason)
        self._answer(key, wire.Dead(self.welcome.incarnation, reason))

    def _leave(self, key: bytes, reason: str, silent: bool = False) -> None:
        guest = self._guests.pop(key, None)
        if guest is not None:
            del self._keys[guest.peer]
            self._events.append(Left(guest.peer, reason, silent))

    def _pay(self, key: bytes, guest: _Guest) -> None:
        if guest.owed and self._answer(key, wire.Credit(guest.owed)):
            guest.owed = 0

    def _beat(self) -> None:
        for key, guest in list(self._guests.items()):
            guest.silent += 1
            if guest.silent > self.options.patience:
                self._leave(key, "no sign of life", silent=True)
        self._probe()

    def _probe(self) -> None:
        """Sends everybody a heartbeat; who is gone is noticed by it."""
        for key, guest in list(self._guests.items()):
            self._pay(key, guest)
            self._answer(key, wire.Heartbeat(self.welcome.incarnation, 0))
