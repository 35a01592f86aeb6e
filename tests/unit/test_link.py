"""The Python links with each other; ``tests/conformance`` runs them against the Rust twins."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import zmq

from llmrt import link, wire

QUICK = link.LinkOptions(heartbeat=0.02)
PATIENCE = 30.0


@pytest.fixture
def endpoint() -> Iterator[str]:
    """A socket that is gone after the test."""
    with tempfile.TemporaryDirectory(prefix="llmrt-", dir="/tmp") as directory:
        yield f"ipc://{directory}/link"


class Loop:
    """The links of a test; runs them until something has happened and closes them in the end."""

    def __init__(self) -> None:
        self.links: list[Any] = []
        self.poller = zmq.Poller()

    def add(self, one: Any) -> Any:
        self.links.append(one)
        one.register(self.poller)
        return one

    def close(self, one: Any, reason: str) -> None:
        self.links.remove(one)
        one.unregister(self.poller)
        one.close(reason)

    def until(self, condition: Callable[[list[Any]], bool]) -> list[Any]:
        events: list[Any] = []
        deadline = time.monotonic() + PATIENCE
        while not condition(events):
            assert time.monotonic() < deadline, f"only {events}"
            link.poll(self.poller, self.links, 1.0)
            for one in self.links:
                events += one.receive()
        return events

    def until_event(self, *kinds: type) -> list[Any]:
        """One event of each kind, in this order."""
        events = self.until(lambda events: set(kinds) <= {type(event) for event in events})
        return [next(event for event in events if type(event) is kind) for kind in kinds]


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    for one in list(loop.links):
        loop.close(one, "the test is over")


def request(number: int) -> wire.Request:
    return wire.Request(number, wire.u32([1]), wire.Sampling(), wire.Output())


def test_greeting_credit_and_grant(loop: Loop, endpoint: str) -> None:
    inbox = loop.add(link.Inbox(endpoint, link.Welcome(credit=1, info='{"a":1}', incarnation=7), QUICK))
    outbox = loop.add(link.Outbox(endpoint, link.Identity("entry", 3, 9), QUICK))
    with pytest.raises(link.NotReady):
        outbox.send(wire.Abort([1]))
    joined, up = loop.until_event(link.Joined, link.Up)
    assert joined.hello == wire.Hello(wire.VERSION, "entry", 3, 9)
    assert up == link.Up(7, '{"a":1}')
    outbox.send(wire.Submit([request(1)]))
    with pytest.raises(link.Full):
        outbox.send(wire.Submit([request(2)]))
    outbox.send(wire.Abort([1]))
    events = loop.until(lambda events: len(events) == 2)
    assert events == [
        link.Received(joined.peer, wire.Submit([request(1)])),
        link.Received(joined.peer, wire.Abort([1])),
    ]
    inbox.grant(joined.peer, 2)
    inbox.send(joined.peer, wire.Call(1, "stats", "{}"))
    assert loop.until_event(link.Received) == [link.Received(0, wire.Call(1, "stats", "{}"))]
    outbox.send(wire.Submit([request(2), request(3)]))
    with pytest.raises(link.Full):
        outbox.send(wire.Submit([request(4)]))


def test_successor_of_a_receiver(loop: Loop, endpoint: str) -> None:
    outbox = loop.add(link.Outbox(endpoint, link.Identity("entry"), QUICK))
    incarnations = []
    for _ in range(3):
        inbox = loop.add(link.Inbox(endpoint, options=QUICK))
        incarnations.append(inbox.welcome.incarnation)
        _, up = loop.until_event(link.Joined, link.Up)
        assert up.incarnation == incarnations[-1]
        loop.close(inbox, "going down")
        loop.until_event(link.Down)
        assert not outbox.ready
    assert len(set(incarnations)) == 3


def test_successor_of_a_sender(loop: Loop, endpoint: str) -> None:
    loop.add(link.Inbox(endpoint, options=QUICK))
    loop.add(link.Outbox(endpoint, link.Identity("entry", 0), QUICK))
    (first,) = loop.until_event(link.Joined)
    second = loop.add(link.Outbox(endpoint, link.Identity("entry", 0), QUICK))
    left, joined = loop.until_event(link.Left, link.Joined)
    assert left.peer == first.peer and "replaced" in left.reason
    loop.close(second, "draining")
    assert loop.until_event(link.Left) == [link.Left(joined.peer, "draining")]


def test_sender_that_vanishes_is_noticed_at_once(loop: Loop, endpoint: str) -> None:
    inbox = loop.add(link.Inbox(endpoint))
    outbox = link.Outbox(endpoint, link.Identity("entry"))
    loop.links.append(outbox)
    outbox.register(loop.poller)
    (joined,) = loop.until_event(link.Joined)
    loop.links.remove(outbox)
    outbox.unregister(loop.poller)
    start = time.monotonic()
    outbox.socket.close(linger=0)
    (left,) = loop.until_event(link.Left)
    assert left.peer == joined.peer
    assert time.monotonic() - start < inbox.options.silence / 2
    with pytest.raises(link.NotReady):
        inbox.send(joined.peer, wire.Credit(1))
    inbox.grant(joined.peer, 1)


def test_silent_receiver_is_dead_until_it_speaks(loop: Loop, endpoint: str) -> None:
    inbox = loop.add(link.Inbox(endpoint, options=link.LinkOptions()))
    outbox = loop.add(link.Outbox(endpoint, link.Identity("entry"), link.LinkOptions(heartbeat=0.02, silence=0.1)))
    loop.until_event(link.Joined, link.Up)
    loop.links.remove(inbox)
    (down,) = loop.until_event(link.Down)
    assert "silent" in down.reason
    loop.links.append(inbox)
    loop.until_event(link.Up)
    assert outbox.ready


def test_receiver_that_still_starts_is_waited_for(loop: Loop, endpoint: str) -> None:
    """Bound, but busy for longer than the silence: no loss, and ready as soon as it receives."""
    quick = link.LinkOptions(heartbeat=0.02, silence=0.1)
    inbox = loop.add(link.Inbox(endpoint, options=link.LinkOptions()))
    loop.links.remove(inbox)
    outbox = loop.add(link.Outbox(endpoint, link.Identity("entry"), quick))
    # Another link with the same options tells that the silence has passed.
    witness = loop.add(link.Inbox("tcp://127.0.0.1:0", options=link.LinkOptions()))
    other = loop.add(link.Outbox(witness.endpoint, link.Identity("entry", 1), quick))
    loop.until(lambda _: bool(other.ready))
    loop.links.remove(witness)
    events = loop.until(lambda _: not other.ready)
    assert [type(event) for event in events] == [link.Down], "only the witness's"
    loop.links += [inbox, witness]
    events = loop.until(lambda _: bool(outbox.ready))
    assert link.Down not in {type(event) for event in events}


def test_silent_sender_is_dropped(loop: Loop, endpoint: str) -> None:
    loop.add(link.Inbox(endpoint, options=link.LinkOptions(heartbeat=0.02, silence=0.1)))
    outbox = loop.add(link.Outbox(endpoint, link.Identity("entry"), QUICK))
    (joined,) = loop.until_event(link.Joined)
    loop.until(lambda _: outbox.ready)
    loop.links.remove(outbox)
    assert loop.until_event(link.Left) == [link.Left(joined.peer, "no sign of life", silent=True)]
    loop.links.append(outbox)
    # It is told to greet again, and does.
    loop.until_event(link.Down, link.Joined, link.Up)


def test_strangers_that_leave_do_not_make_others_silent(loop: Loop, endpoint: str) -> None:
    """Each connection that ends has the inbox look who it was; such looks are no heartbeats."""
    options = link.LinkOptions(heartbeat=300.0, silence=900.0)
    inbox = loop.add(link.Inbox(endpoint, options=options))
    guest = zmq.Context.instance().socket(zmq.DEALER)
    guest.connect(endpoint)
    guest.send(wire.encode(wire.Hello(wire.VERSION, "entry", 0, 1)))
    (joined,) = loop.until_event(link.Joined)
    assert isinstance(wire.decode(guest.recv()), wire.Ready)
    for _ in range(2 * options.patience):
        stranger = zmq.Context.instance().socket(zmq.DEALER)
        stranger.connect(endpoint)
        stranger.send(wire.encode(wire.Abort([1])))
        assert loop.until(lambda _, stranger=stranger: bool(stranger.poll(1))) == []
        stranger.close(linger=0)
        assert loop.until(lambda _: bool(guest.poll(1))) == [], "the guest is still there"
        assert isinstance(wire.decode(guest.recv()), wire.Heartbeat)
    inbox.send(joined.peer, wire.Credit(1))
    guest.close(linger=0)


def test_looks_do_not_put_heartbeats_off(loop: Loop, endpoint: str) -> None:
    inbox = loop.add(link.Inbox(endpoint, options=link.LinkOptions(heartbeat=0.05, silence=0.2)))
    guest = loop.add(link.Outbox(endpoint, link.Identity("entry"), link.LinkOptions(heartbeat=300.0)))
    (joined,) = loop.until_event(link.Joined)
    loop.until(lambda _: guest.ready)

    def looking(events: list[Any]) -> bool:
        inbox._try_soon()
        return bool(events)

    assert loop.until(looking) == [link.Left(joined.peer, "no sign of life", silent=True)]


def test_credit_for_a_peer_that_does_not_read_is_not_lost(loop: Loop, endpoint: str) -> None:
    inbox = loop.add(link.Inbox(endpoint, options=QUICK))
    outbox = loop.add(link.Outbox(endpoint, link.Identity("entry"), QUICK))
    joined, _ = loop.until_event(link.Joined, link.Up)
    loop.links.remove(outbox)
    with pytest.raises(link.Full):
        while True:
            inbox.send(joined.peer, wire.Call(1, "x" * 1000, ""))
    inbox.grant(joined.peer, 2)
    inbox.grant(joined.peer, 3)
    with pytest.raises(link.Full):
        outbox.send(wire.Submit([request(1)]))
    loop.links.append(outbox)
    submit = wire.Submit([request(number) for number in range(5)])

    def is_submitted(_: list[Any]) -> bool:
        try:
            outbox.send(submit)
        except link.Full:
            return False
        return True

    loop.until(is_submitted)
    assert link.Received(joined.peer, submit) in loop.until_event(link.Received)
    with pytest.raises(link.Full):
        outbox.send(wire.Submit([request(6)]))


def test_window_bounds_what_a_slow_reader_leaves(loop: Loop, endpoint: str) -> None:
    options = link.LinkOptions(heartbeat=0.02, window=1 << 20)
    inbox = loop.add(link.Inbox(endpoint, options=options))
    outbox = loop.add(link.Outbox(endpoint, link.Identity("entry"), options))
    loop.until_event(link.Joined, link.Up)
    message = wire.Call(1, "x" * 100_000, "")
    loop.links.remove(inbox)
    for _ in range(10):
        outbox.send(message)
    urgent: list[wire.Message] = [wire.Abort([1]), wire.Ended([2])]
    for one in urgent:
        with pytest.raises(link.Full):
            outbox.send(message)
        outbox.send(one)
    loop.links.append(inbox)
    events = loop.until(lambda events: sum(isinstance(event, link.Received) for event in events) == 12)
    assert [event.message for event in events] == [message] * 10 + urgent

    def has_room(_: list[Any]) -> bool:
        try:
            outbox.send(message)
        except link.Full:
            return False
        return True

    loop.until(has_room)


def test_refusing_receiver_is_not_pestered(loop: Loop, endpoint: str) -> None:
    """Another version: the outbox asks again with each heartbeat, not in a hot loop."""
    outbox = loop.add(link.Outbox(endpoint, link.Identity("entry"), link.LinkOptions(heartbeat=0.2)))
    router = zmq.Context.instance().socket(zmq.ROUTER)
    router.bind(endpoint)
    loop.poller.register(router, zmq.POLLIN)
    greetings: list[float] = []

    def refused_thrice(_: list[Any]) -> bool:
        while router.get(zmq.EVENTS) & zmq.POLLIN:
            key, raw = router.recv_multipart()
            assert isinstance(wire.decode(raw), wire.Hello)
            greetings.append(time.monotonic())
            router.send_multipart((key, wire.encode(wire.Dead(1, "wrong version"))))
        return len(greetings) >= 4

    events = loop.until(refused_thrice)
    loop.poller.unregister(router)
    router.close(linger=0)
    assert link.Down("wrong version") in events
    assert greetings[-1] - greetings[1] > 0.3
    assert not outbox.ready


def test_options_count_patience_in_heartbeats() -> None:
    assert link.LinkOptions(heartbeat=1, silence=30).patience == 30
    assert link.LinkOptions(heartbeat=1, silence=0.1).patience == 1


def test_tcp_port_is_told(loop: Loop) -> None:
    inbox = loop.add(link.Inbox("tcp://127.0.0.1:0", options=QUICK))
    assert not inbox.endpoint.endswith(":0")
    loop.add(link.Outbox(inbox.endpoint, link.Identity("entry"), QUICK))
    loop.until_event(link.Joined, link.Up)
