"""Metrics of all entry workers: who is asked, who is answered, and what a dead worker leaves."""

from __future__ import annotations

import pytest

from llmrt import link, wire
from llmrt.supervisor import scrape
from llmrt.supervisor.scrape import Scrapes

ASKER, OTHER = 50, 51
PEERS = {0: 10, 1: 11}


def text(tokens: int, open_requests: int = 0) -> str:
    return (
        "# HELP llmrt_tokens Tokens.\n# TYPE llmrt_tokens counter\n"
        f"llmrt_tokens_total {tokens}\n"
        "# HELP llmrt_open Open requests.\n# TYPE llmrt_open gauge\n"
        f"llmrt_open {open_requests}\n# EOF\n"
    )


class Control:
    """The control link, with workers that count."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, wire.Message]] = []
        self.deaf: set[int] = set()

    def send(self, peer: int, message: wire.Message) -> None:
        if peer in self.deaf:
            raise link.Full("the peer does not read")
        self.sent.append((peer, message))

    def take(self) -> dict[int, wire.Message]:
        sent, self.sent = dict(self.sent), []
        return sent


class Rig:
    def __init__(self) -> None:
        self.control = Control()
        self.scrapes = Scrapes(self.control)  # type: ignore[arg-type]

    def ask(self, peer: int = ASKER, number: int = 7) -> dict[int, int]:
        """The numbers of the calls that go out to the workers, by peer."""
        self.scrapes.ask(peer, wire.Call(number, "metrics", "{}"), PEERS)
        sent = self.control.take()
        return {peer: call.call for peer, call in sent.items() if isinstance(call, wire.Call)}

    def answer(self, call: int, value: str) -> None:
        self.scrapes.answered(wire.Reply(call, True, value), PEERS)

    def told(self, peer: int = ASKER, number: int = 7) -> list[str]:
        """The samples that a peer was answered with."""
        reply = self.control.take()[peer]
        assert isinstance(reply, wire.Reply) and reply.ok and reply.call == number
        return [line for line in reply.value.splitlines() if not line.startswith("#")]

    def scrape(self, *values: str) -> list[str]:
        """One scrape, by workers that say ``values``."""
        calls = self.ask()
        for peer, value in zip(PEERS.values(), values, strict=True):
            self.answer(calls[peer], value)
        return self.told()


def test_all_are_asked_and_the_sum_is_told_when_all_have_answered() -> None:
    rig = Rig()
    calls = rig.ask()
    assert calls.keys() == {10, 11}
    rig.answer(calls[10], text(3, 1))
    assert rig.control.take() == {}
    rig.answer(calls[11], text(4, 1))
    assert rig.told() == [
        "llmrt_tokens_total 7",
        "llmrt_open 2",
        'llmrt_worker_tokens_total{worker="0"} 3',
        'llmrt_worker_tokens_total{worker="1"} 4',
        'llmrt_worker_open{worker="0"} 1',
        'llmrt_worker_open{worker="1"} 1',
    ]
    assert rig.scrapes.until_deadline() is None


def test_who_asks_meanwhile_shares_the_next_round() -> None:
    rig = Rig()
    first = rig.ask(ASKER)
    assert rig.ask(OTHER, 8) == rig.ask(OTHER, 9) == {}
    rig.answer(first[10], text(1))
    rig.scrapes.answered(wire.Reply(first[11], True, text(1)), PEERS)
    sent = rig.control.sent
    assert [peer for peer, _ in sent] == [ASKER, 10, 11], "one answer, then one round for both"
    calls = {peer: message.call for peer, message in rig.control.take().items() if isinstance(message, wire.Call)}
    rig.answer(calls[10], text(2))
    rig.answer(calls[11], text(2))
    assert [peer for peer, _ in rig.control.sent] == [OTHER, OTHER]


def test_counters_do_not_fall_when_a_worker_dies_and_gauges_end_with_it() -> None:
    rig = Rig()
    rig.scrape(text(100, 5), text(1))
    rig.scrapes.ended(0)
    # Before its successor has joined.
    rig.scrapes.ask(ASKER, wire.Call(7, "metrics", "{}"), {1: 11})
    (call,) = (message.call for message in rig.control.take().values() if isinstance(message, wire.Call))
    rig.answer(call, text(2))
    assert rig.told()[:2] == ["llmrt_tokens_total 102", "llmrt_open 0"]
    assert rig.scrape(text(3, 1), text(2))[:2] == ["llmrt_tokens_total 105", "llmrt_open 1"]
    rig.scrapes.ended(0)
    assert rig.scrape(text(1, 1), text(2))[:3] == [
        "llmrt_tokens_total 106", "llmrt_open 1", 'llmrt_worker_tokens_total{worker="0"} 104'
    ]  # fmt: skip


def test_one_that_does_not_answer_counts_as_it_did_last(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    rig.scrape(text(5), text(6))
    rig.control.deaf = {11}
    calls = rig.ask()
    assert calls.keys() == {10}
    rig.answer(calls[10], text(7))
    assert rig.told()[0] == "llmrt_tokens_total 13"
    rig.control.deaf = set()
    monkeypatch.setattr(scrape, "PATIENCE", 0.0)
    calls = rig.ask()
    assert rig.scrapes.until_deadline() == 0.0
    rig.answer(calls[10], text(8))
    assert rig.told()[0] == "llmrt_tokens_total 14"


def test_a_worker_that_dies_while_it_is_asked_holds_up_nobody() -> None:
    rig = Rig()
    rig.scrape(text(5), text(6))
    calls = rig.ask()
    rig.answer(calls[10], text(7))
    rig.scrapes.ended(1)
    rig.scrapes.go_on({0: 10})
    assert rig.told()[0] == "llmrt_tokens_total 13"
