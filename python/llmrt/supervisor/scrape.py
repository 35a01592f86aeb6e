"""What all entry workers count, asked of each of them when one is scraped."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from llmrt import link, wire

PATIENCE = 1.0
"""Seconds that a worker gets to answer; then what it said the last time counts."""


@dataclass
class _Round:
    """One question to all workers, for all who want to know."""

    askers: list[tuple[int, wire.Call]]
    until: float
    open: dict[int, int] = field(default_factory=dict)
    """Number of a call -> the worker that has not answered it yet."""


class Scrapes:
    """Rounds of questions, one at a time: who asks meanwhile shares the next one.

    Counters never fall when a worker dies: those that it told last are kept. What it counted after that is lost.
    """

    def __init__(self, control: link.Inbox) -> None:
        self._control = control
        self._texts: dict[int, str] = {}
        self._left: dict[int, str] = {}
        self._askers: list[tuple[int, wire.Call]] = []
        self._round: _Round | None = None
        self._calls = 0

    def ask(self, peer: int, call: wire.Call, workers: Mapping[int, int]) -> None:
        """``peer`` wants to know; ``workers`` are the peers of all by their number."""
        self._askers.append((peer, call))
        self.go_on(workers)

    def answered(self, reply: wire.Reply, workers: Mapping[int, int]) -> None:
        """Takes a worker's answer."""
        if self._round is not None and (worker := self._round.open.pop(reply.call, None)) is not None:
            if reply.ok:
                self._texts[worker] = reply.value
            self.go_on(workers)

    def ended(self, worker: int) -> None:
        """A worker's process has ended: its successor counts from zero."""
        from llmrt._core import add_metrics

        if (text := self._texts.pop(worker, None)) is not None:
            self._left[worker] = add_metrics([self._left.get(worker, ""), text], counters_only=True)
        if self._round is not None:
            self._round.open = {call: other for call, other in self._round.open.items() if other != worker}

    def until_deadline(self) -> float | None:
        """Seconds until :meth:`go_on` must be called, ``None`` when nobody waits."""
        return None if self._round is None else max(0.0, self._round.until - time.monotonic())

    def go_on(self, workers: Mapping[int, int]) -> None:
        """Ends a round that has all its answers or has waited long enough, and begins the next one."""
        if self._round is not None and (not self._round.open or self._round.until <= time.monotonic()):
            self._tell(self._round)
            self._round = None
        if self._round is None and self._askers:
            self._round = _Round(self._askers, time.monotonic() + PATIENCE)
            self._askers = []
            for worker, peer in workers.items():
                self._calls += 1
                with contextlib.suppress(link.NotReady, link.Full):
                    self._control.send(peer, wire.Call(self._calls, "metrics", "{}"))
                    self._round.open[self._calls] = worker

    def _tell(self, round: _Round) -> None:
        text = self._merged()
        for peer, call in round.askers:
            with contextlib.suppress(link.NotReady, link.Full):
                self._control.send(peer, wire.Reply(call.call, True, text))

    def _merged(self) -> str:
        from llmrt._core import add_metrics, merge_metrics

        known = sorted(self._texts.keys() | self._left.keys())
        own = [(worker, [each[worker] for each in (self._left, self._texts) if worker in each]) for worker in known]
        return merge_metrics([(worker, add_metrics(texts)) for worker, texts in own])
