"""The Rust links against pyzmq: bare sockets that speak the wire by hand, and the Python twin."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import zmq

from llmrt import link, wire
from tests.conformance.peers import (
    Bare,
    Process,
    drive,
    greet,
    kinds,
    python_inbox,
    python_outbox,
    rust_inbox,
    rust_outbox,
)

MEGABYTE = 1 << 20
GARBAGE = [
    b"",
    b"\xc1",
    b"\x92\x04",
    b"\x92\x63\x01",
    b"\xff" * 1000,
    bytes(range(256)),
    bytes([0x93, 0, wire.VERSION, 0xA1, 0xFF]),
]


@pytest.fixture
def endpoint() -> Iterator[str]:
    """A socket that is gone after the test."""
    with tempfile.TemporaryDirectory(prefix="llmrt-", dir="/tmp") as directory:
        yield f"ipc://{directory}/link"


def welcomed(router: Bare, sender: Process, credit: int = 3, incarnation: int = 42) -> bytes:
    """Answers the sender's greeting; its key."""
    key, hello = router.until(wire.Hello)
    assert isinstance(hello, wire.Hello)
    assert (hello.version, hello.role, hello.index) == (wire.VERSION, "entry", 0)
    router.send(wire.Ready(wire.VERSION, incarnation, credit, '{"a":1}'), key)
    assert sender.expect("ready") == f'{incarnation} {{"a":1}}'
    return key


class TestRustOutbox:
    """A bare ROUTER receives."""

    def test_greeting_credit_and_aborts(self, endpoint: str) -> None:
        with rust_outbox(endpoint) as sender, Bare(zmq.ROUTER, endpoint, bind=True) as router:
            key = welcomed(router, sender, credit=3)
            assert sender.ask("submit 4", "refused") == "the receiver's queue is full"
            assert sender.ask("submit 3", "sent") == "1"
            sender.ask("submit 1", "refused")
            assert sender.ask("abort 7", "sent") == "1"
            _, submit = router.until(wire.Submit)
            assert isinstance(submit, wire.Submit)
            assert [request.id for request in submit.requests] == [0, 1, 2]
            assert router.until(wire.Abort)[1] == wire.Abort([7])
            router.send(wire.Credit(1), key)
            router.send(wire.Call(1, "stats", "{}"), key)
            # The link is ordered: who has seen the call has seen the credit.
            assert sender.expect("incoming") == "Call"
            assert sender.ask("submit 1", "sent") == "1"
            sender.ask("submit 1", "refused")

    def test_connecting_before_binding(self, endpoint: str) -> None:
        with rust_outbox(endpoint) as sender:
            sender.expect("connecting")
            sender.ask("abort 1", "refused")
            with Bare(zmq.ROUTER, endpoint, bind=True) as router:
                welcomed(router, sender)

    def test_heartbeats_count_up(self, endpoint: str) -> None:
        with rust_outbox(endpoint, heartbeat=20) as sender, Bare(zmq.ROUTER, endpoint, bind=True) as router:
            welcomed(router, sender)
            beats = [router.until(wire.Heartbeat)[1] for _ in range(3)]
            assert [beat.sequence for beat in beats if isinstance(beat, wire.Heartbeat)] == [1, 2, 3]

    def test_big_frames(self, endpoint: str) -> None:
        with rust_outbox(endpoint) as sender, Bare(zmq.ROUTER, endpoint, bind=True) as router:
            welcomed(router, sender)
            for step in range(3):
                sender.ask(f"text {step} {5 * MEGABYTE}", "sent")
            for step in range(3):
                _, frame = router.until(wire.TextFrame)
                assert isinstance(frame, wire.TextFrame)
                assert (frame.step, len(frame.text)) == (step, 5 * MEGABYTE)

    def test_slow_reader_bounds_the_sender(self, endpoint: str) -> None:
        with (
            rust_outbox(endpoint, window=MEGABYTE) as sender,
            Bare(zmq.ROUTER, endpoint, bind=True) as router,
        ):
            key = welcomed(router, sender)
            assert sender.ask("flood 100000", "sent") == "10"
            assert sender.ask("flood 100000", "sent") == "0"
            sender.ask("abort 7", "sent")
            for step in range(10):
                _, frame = router.until(wire.TextFrame)
                assert isinstance(frame, wire.TextFrame) and frame.step == step
            assert router.until(wire.Abort)[1] == wire.Abort([7])
            _, beat = router.until(wire.Heartbeat)
            assert isinstance(beat, wire.Heartbeat)
            router.send(beat, key)
            router.send(wire.Call(1, "stats", "{}"), key)
            sender.expect("incoming")
            assert sender.ask("flood 100000", "sent") == "10"

    def test_another_version_is_refused_until_a_fitting_peer_comes(self, endpoint: str) -> None:
        with rust_outbox(endpoint) as sender:
            with Bare(zmq.ROUTER, endpoint, bind=True) as router:
                key, _ = router.until(wire.Hello)
                router.send(wire.Ready(wire.VERSION + 1, 1, 0, ""), key)
                assert f"wire version {wire.VERSION + 1}" in sender.expect("dead")
                key, _ = router.until(wire.Hello)
                router.raw(msgspec.msgpack.encode([1, 9, "unheard of"]), key=key)
                assert "wire version 9" in sender.expect("dead")
            with Bare(zmq.ROUTER, endpoint, bind=True) as router:
                welcomed(router, sender)

    def test_garbage_is_dropped(self, endpoint: str) -> None:
        with rust_outbox(endpoint) as sender, Bare(zmq.ROUTER, endpoint, bind=True) as router:
            key = welcomed(router, sender)
            for raw in GARBAGE:
                router.raw(raw, key=key)
            router.raw(wire.encode(wire.Credit(9)), b"second frame", key=key)
            router.send(wire.Call(1, "stats", "{}"), key)
            assert sender.expect("incoming") == "Call"
            assert sender.ask("submit 3", "sent") == "1"
            sender.ask("submit 1", "refused")

    def test_farewell_is_heard(self, endpoint: str) -> None:
        with rust_outbox(endpoint) as sender, Bare(zmq.ROUTER, endpoint, bind=True) as router:
            key = welcomed(router, sender)
            router.send(wire.Dead(42, "out of memory"), key)
            assert sender.expect("dead") == "out of memory"
            welcomed(router, sender, incarnation=43)
            sender.ask("close draining", "sent")
            _, dead = router.until(wire.Dead)
            assert isinstance(dead, wire.Dead) and dead.reason == "draining"

    def test_silence_is_death(self, endpoint: str) -> None:
        with (
            rust_outbox(endpoint, heartbeat=20, silence=200) as sender,
            Bare(zmq.ROUTER, endpoint, bind=True) as router,
        ):
            welcomed(router, sender)
            assert "silent" in sender.expect("dead")
            welcomed(router, sender, incarnation=43)


class TestRustInbox:
    """Bare DEALERs and the Python outbox send."""

    def test_greeting(self, endpoint: str) -> None:
        with rust_inbox(endpoint, credit=4) as receiver, Bare(zmq.DEALER, endpoint) as dealer:
            greet(dealer, index=3)
            _, ready = dealer.receive()
            assert isinstance(ready, wire.Ready)
            assert (ready.version, ready.credit) == (wire.VERSION, 4)
            assert receiver.expect("joined") == "1 entry 3"
            dealer.send(wire.Heartbeat(1, 77))
            assert dealer.receive()[1] == wire.Heartbeat(ready.incarnation, 77)
            greet(dealer, index=3)
            assert dealer.receive()[1] == ready, "greeting twice changes nothing"

    def test_strangers_are_told_to_greet(self, endpoint: str) -> None:
        with rust_inbox(endpoint) as receiver, Bare(zmq.DEALER, endpoint) as dealer:
            dealer.send(wire.Abort([1]))
            _, dead = dealer.receive()
            assert isinstance(dead, wire.Dead) and "Hello" in dead.reason
            greet(dealer)
            assert isinstance(dealer.receive()[1], wire.Ready)
            assert receiver.expect("joined") == "1 entry 0"

    def test_another_version_is_refused(self, endpoint: str) -> None:
        with rust_inbox(endpoint) as receiver, Bare(zmq.DEALER, endpoint) as dealer:
            greet(dealer, version=7)
            _, dead = dealer.receive()
            assert isinstance(dead, wire.Dead) and "wire version 7" in dead.reason
            dealer.raw(msgspec.msgpack.encode([0, 9, {"shape": "unknown"}]))
            _, dead = dealer.receive()
            assert isinstance(dead, wire.Dead) and "wire version 9" in dead.reason
            greet(dealer)
            assert isinstance(dealer.receive()[1], wire.Ready)
            assert receiver.expect("joined") == "1 entry 0"

    def test_garbage_is_dropped(self, endpoint: str) -> None:
        with rust_inbox(endpoint) as receiver, Bare(zmq.DEALER, endpoint) as dealer:
            greet(dealer)
            for raw in GARBAGE:
                dealer.raw(raw)
            dealer.raw(wire.encode(wire.Abort([1])), b"second frame")
            dealer.raw(*[b"x"] * 100)
            dealer.send(wire.Ended([1]))
            receiver.expect("joined")
            assert receiver.expect("message").startswith("1 Ended")

    def test_big_frames(self, endpoint: str) -> None:
        text = "é" * (2 * MEGABYTE)
        frame = wire.TextFrame(1, wire.u64([1]), wire.u32([1]), wire.u32([len(text.encode())]), text, [], [])
        tokens = wire.u32(range(2 * MEGABYTE))
        block = wire.TokenFrame(1, [], wire.u64([1]), wire.u32([2 * MEGABYTE]), tokens, [], [])
        with rust_inbox(endpoint) as receiver, Bare(zmq.DEALER, endpoint) as dealer:
            greet(dealer)
            for message in (frame, block):
                dealer.send(message)
                raw = wire.encode(message)
                assert receiver.expect("message") == f"1 {type(message).__name__} {len(raw)}"

    @pytest.mark.parametrize("identity", [None, b"entry-0"])
    def test_restart_with_the_same_identity(self, endpoint: str, identity: bytes | None) -> None:
        """The same role and number; with and without the same routing identity of ZMQ."""
        with rust_inbox(endpoint) as receiver:
            for life in range(1, 6):
                with Bare(zmq.DEALER, endpoint, identity=identity) as dealer:
                    greet(dealer, incarnation=life)
                    assert isinstance(dealer.receive()[1], wire.Ready)
                    if life > 1:
                        receiver.expect(f"left {life - 1}")
                    assert receiver.expect("joined") == f"{life} entry 0"
                    dealer.send(wire.Abort([life]))
                    assert receiver.expect("message").startswith(f"{life} Abort")

    def test_successor_replaces_who_is_still_connected(self, endpoint: str) -> None:
        with rust_inbox(endpoint) as receiver, Bare(zmq.DEALER, endpoint) as old, Bare(zmq.DEALER, endpoint) as new:
            greet(old, incarnation=1)
            receiver.expect("joined 1")
            greet(new, incarnation=2)
            assert "replaced" in receiver.expect("left 1")
            receiver.expect("joined 2")

    def test_farewell_both_ways(self, endpoint: str) -> None:
        with rust_inbox(endpoint) as receiver, Bare(zmq.DEALER, endpoint) as dealer:
            greet(dealer)
            receiver.expect("joined")
            dealer.send(wire.Dead(1, "draining"))
            assert receiver.expect("left") == "1 draining"
            greet(dealer)
            receiver.expect("joined 2")
            receiver.tell("close going down")
            _, dead = dealer.until(wire.Dead)
            assert isinstance(dead, wire.Dead) and "going down" in dead.reason
            assert receiver.child.wait() == 0
            assert not Path(endpoint.removeprefix("ipc://")).exists(), "the socket file is left"

    def test_silence_is_death(self, endpoint: str) -> None:
        with rust_inbox(endpoint, silence=200) as receiver, Bare(zmq.DEALER, endpoint) as dealer:
            greet(dealer)
            assert receiver.expect("left") == "1 no sign of life"

    def test_slow_reader_bounds_the_python_outbox(self, endpoint: str) -> None:
        frame = wire.TextFrame(1, wire.u64([1]), wire.u32([1]), wire.u32([100_000]), "x" * 100_000, [], [])
        options = link.LinkOptions(heartbeat=0.05, window=MEGABYTE)
        outbox = link.Outbox(endpoint, link.Identity("scheduler"), options)
        with rust_inbox(endpoint) as receiver:
            drive([outbox], lambda events: "Up" in kinds(events))
            receiver.ask("pause", "done")
            for _ in range(10):
                outbox.send(frame)
            with pytest.raises(link.Full):
                outbox.send(frame)
            outbox.send(wire.Abort([7]))
            receiver.ask("resume", "done")
            drive([outbox], lambda _: _is_taken(outbox, frame))
            outbox.close("done")
            assert receiver.expect("left") == "1 done"

    def test_credit_and_calls_reach_the_python_outbox(self, endpoint: str) -> None:
        request = wire.Request(1, wire.u32([1]), wire.Sampling(), wire.Output())
        outbox = link.Outbox(endpoint, link.Identity("entry"), link.LinkOptions(heartbeat=0.05))
        with rust_inbox(endpoint, credit=1) as receiver:
            drive([outbox], lambda events: "Up" in kinds(events))
            outbox.send(wire.Submit([request]))
            with pytest.raises(link.Full):
                outbox.send(wire.Submit([request]))
            receiver.ask("credit 1 2", "done")
            receiver.ask("call 1", "done")
            events = drive([outbox], lambda events: "Received" in kinds(events))
            assert events[-1] == link.Received(0, wire.Call(1, "stats", "{}"))
            outbox.send(wire.Submit([request] * 2))
            outbox.close("done")


def _is_taken(outbox: link.Outbox, message: wire.Message) -> bool:
    try:
        outbox.send(message)
    except link.Full:
        return False
    return True


INBOXES = [rust_inbox, python_inbox]
OUTBOXES = [rust_outbox, python_outbox]


@pytest.mark.parametrize("make_outbox", OUTBOXES)
@pytest.mark.parametrize("make_inbox", INBOXES)
def test_killed_receiver_and_its_successor(
    endpoint: str, make_inbox: Callable[[str], Process], make_outbox: Callable[[str], Process]
) -> None:
    """The sender finds whoever takes the place of a receiver that had no time for a farewell."""
    with make_outbox(endpoint) as sender:
        for _ in range(3):
            with make_inbox(endpoint) as receiver:
                sender.expect("ready")
                receiver.expect("joined")
                receiver.kill()
                sender.expect("dead")


@pytest.mark.parametrize("make_outbox", OUTBOXES)
@pytest.mark.parametrize("make_inbox", INBOXES)
def test_killed_sender_and_its_successor(
    endpoint: str, make_inbox: Callable[[str], Process], make_outbox: Callable[[str], Process]
) -> None:
    """The receiver notices at once, long before the silence would tell."""
    with make_inbox(endpoint) as receiver:
        for life in range(1, 4):
            with make_outbox(endpoint) as sender:
                sender.expect("ready")
                receiver.expect(f"joined {life}")
                sender.kill()
                receiver.expect(f"left {life}")
