"""The engine's loop in this process: what it does when steps fail and when nobody reads its tokens."""

from __future__ import annotations

import json
import os
import select
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import msgspec
import pytest
import zmq

from llmrt import link, topology, wire
from llmrt.cache.pages import PAGE_SIZE
from llmrt.engine.lanes import Lanes
from llmrt.engine.loop import MAX_FAILED_STEPS, EngineError, EngineLoop
from llmrt.engine.steps import StepThread
from llmrt.process.signals import END, Signals
from llmrt.scheduler.plan import ExecutorInfo, StepPlan
from llmrt.scheduler.scheduler import Scheduler
from tests.support.fake_ranks import FAILS, FaultyRanks, answer

INFO = ExecutorInfo(512, PAGE_SIZE, 1, 4096, 97)
WINDOW = 1 << 14
PATIENCE = 30.0


class HeldRanks(FaultyRanks):
    """Ranks whose steps last until ``held`` is set; ``stepping`` says that one has begun."""

    def __init__(self, info: ExecutorInfo, gate: str | None) -> None:
        super().__init__(info, gate)
        self.held, self.stepping = threading.Event(), threading.Event()
        self.held.set()

    def launch(self, plan: StepPlan) -> None:
        self.stepping.set()
        assert self.held.wait(PATIENCE)
        super().launch(plan)


class Rig:
    """A loop on a thread of its own, with an entry, detokenizers and a supervisor that the test drives."""

    def __init__(self, table: topology.Topology, deadline: float = 60.0) -> None:
        self.detokenizers = [link.Inbox(each.tokens) for each in table.detokenizer]
        self.supervisor = link.Inbox(table.control)
        self.entry = link.Outbox(table.scheduler.requests, link.Identity("entry"))
        requests = link.Inbox(table.scheduler.requests, link.Welcome(100))
        identity = link.Identity("scheduler")
        window = link.LinkOptions(window=WINDOW)
        lanes = Lanes([link.Outbox(each.tokens, identity, window) for each in table.detokenizer])
        control = link.Outbox(table.control, identity)
        info = msgspec.structs.replace(INFO, num_slots=len(self.detokenizers))
        self.scheduler = Scheduler(info)
        self.ranks = HeldRanks(info, None)
        self.step_thread = StepThread(self.ranks)
        self.loop = EngineLoop(self.scheduler, self.step_thread, requests, lanes, control, deadline)
        self.links = [*self.detokenizers, self.supervisor, self.entry, requests, *lanes.outboxes, control]
        self.reads = True
        self.replies: list[wire.Reply] = []
        self.tokens: dict[int, list[int]] = {}
        self.outcomes: dict[int, wire.Outcome] = {}
        self._signals = Signals(END)
        self._thread = ThreadPoolExecutor(1)
        self._until(self.links, lambda: lanes.ready and self.entry.ready)

    def start(self) -> Future[None]:
        """Runs the loop until the test ends; the future has its error."""
        return self._thread.submit(self.loop.run, self._signals)

    def until(self, condition: Callable[[], object]) -> None:
        """Serves the peers' links until ``condition`` holds."""
        self._until([self.supervisor, self.entry, *self.detokenizers], condition)

    def replace_detokenizer(self, lane: int) -> None:
        """Starts a successor of one that was closed."""
        self.detokenizers[lane] = link.Inbox(self.detokenizers[lane].endpoint)
        self.links.append(self.detokenizers[lane])

    def submit(self, id: int, prompt: list[int], max_tokens: int = 4) -> wire.Request:
        sampling = wire.Sampling(max_tokens=max_tokens, seed=id, ignore_eos=True)
        request = wire.Request(id, wire.u32(prompt), sampling, wire.Output())
        self.tokens[id] = []
        self.entry.send(wire.Submit([request]))
        return request

    def steps(self) -> int:
        """Steps that the scheduler has counted."""
        return int(self.stats()["steps_total"])

    def stats(self) -> dict[str, float]:
        """The scheduler's counts, by the answer to a call."""
        self.replies.clear()
        self.entry.send(wire.Call(1, "stats", "{}"))
        self.until(lambda: self.replies)
        stats: dict[str, float] = json.loads(self.replies[0].value)
        return stats

    def close(self) -> None:
        # Harmless where the loop has ended already: the handlers are still ours.
        os.kill(os.getpid(), END)
        self.ranks.held.set()
        self._thread.shutdown()
        self._signals.close()
        self.step_thread.close()
        for each in self.links:
            each.close("the test ends")

    def _until(self, links: list[link.Inbox | link.Outbox], condition: Callable[[], object]) -> None:
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end, "the condition did not come true"
            served = [each for each in links if self.reads or each not in self.detokenizers]
            poller = zmq.Poller()
            for each in served:
                each.register(poller)
            link.poll(poller, served, 0.02)
            for each in served:
                for event in each.receive():
                    if isinstance(event, link.Received):
                        self._take(event.message)

    def _take(self, message: wire.Message) -> None:
        if isinstance(message, wire.Reply):
            self.replies.append(message)
        elif isinstance(message, wire.TokenFrame):
            ids, counts, tokens = wire.u64s(message.ids), wire.u32s(message.counts), list(wire.u32s(message.tokens))
            for id, count in zip(ids, counts, strict=True):
                self.tokens[id] += tokens[:count]
                del tokens[:count]
            self.outcomes |= {ids[finished.row]: finished.outcome for finished in message.finished}


@pytest.fixture
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    with topology.RuntimeDirectory() as directory:
        told = {"detokenizers": 1, "deadline": 60.0, **getattr(request, "param", {})}
        rig = Rig(topology.build(directory.path, 1, told["detokenizers"]), told["deadline"])
        yield rig
        rig.close()


def test_steps_that_fail_one_after_the_other_end_the_engine(rig: Rig) -> None:
    running = rig.start()
    for id in range(1, MAX_FAILED_STEPS + 3):
        rig.submit(id, [FAILS, id])
    rig.until(running.done)
    with pytest.raises(EngineError, match=f"{MAX_FAILED_STEPS} steps in a row have failed"):
        running.result()
    rig.until(lambda: len(rig.outcomes) == MAX_FAILED_STEPS - 1)
    assert {(outcome.reason, outcome.status) for outcome in rig.outcomes.values()} == {(wire.ERROR, 500)}


def test_a_step_that_succeeds_forgives_those_that_failed(rig: Rig) -> None:
    running = rig.start()
    good = [MAX_FAILED_STEPS, 2 * MAX_FAILED_STEPS]
    for id in range(1, good[-1] + 1):
        rig.submit(id, [1 if id in good else FAILS, id])
    rig.until(lambda: len(rig.outcomes) == good[-1])
    assert [id for id, outcome in rig.outcomes.items() if outcome.reason == wire.LENGTH] == good
    assert not running.done()


def test_a_plan_that_cannot_be_made_ends_the_engine(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    attempts: list[int] = []

    def schedule() -> StepPlan | None:
        attempts.append(1)
        raise RuntimeError("the planner is broken")

    monkeypatch.setattr(rig.scheduler, "schedule", schedule)
    running = rig.start()
    rig.submit(1, [1, 2])
    rig.until(running.done)
    with pytest.raises(EngineError, match="no request ran"):
        running.result()
    assert len(attempts) == 1


def test_what_was_lost_with_a_detokenizer_is_told_by_its_successor(rig: Rig) -> None:
    running = rig.start()
    rig.submit(1, [3, 4], max_tokens=10_000)
    rig.until(lambda: rig.tokens[1])
    rig.detokenizers[0].close("gone")
    # This one was never told of to the dead one.
    rig.submit(2, [5, 6], max_tokens=10_000)
    rig.replace_detokenizer(0)
    rig.until(lambda: 1 in rig.outcomes)
    assert (rig.outcomes[1].reason, rig.outcomes[1].status) == (wire.ERROR, 503)
    rig.submit(3, [7, 8], max_tokens=2)
    rig.until(lambda: 3 in rig.outcomes)
    assert rig.outcomes[3] == wire.Outcome(wire.LENGTH)
    # It runs or was lost too, as the order of events may be; in either case somebody is told.
    rig.entry.send(wire.Abort([2]))
    rig.until(lambda: 2 in rig.outcomes)
    assert not running.done()


@pytest.mark.parametrize("rig", [{"detokenizers": 2}], indirect=True)
def test_what_the_other_detokenizers_have_goes_on_when_one_is_lost(rig: Rig) -> None:
    running = rig.start()
    rig.submit(1, [3, 4], max_tokens=3000)
    kept = rig.submit(2, [5, 6], max_tokens=3000)
    rig.until(lambda: rig.tokens[1] and rig.tokens[2])
    assert not rig.outcomes
    rig.detokenizers[1].close("gone")
    rig.replace_detokenizer(1)
    rig.until(lambda: {1, 2} == rig.outcomes.keys())
    assert (rig.outcomes[1].reason, rig.outcomes[1].status) == (wire.ERROR, 503)
    assert rig.outcomes[2] == wire.Outcome(wire.LENGTH)
    assert rig.tokens[2] == answer(kept, set(), INFO.vocab_size, INFO.max_model_len)
    assert len(rig.tokens[1]) < 3000 and not running.done()


def test_a_detokenizer_that_does_not_read_holds_up_the_steps_and_loses_nothing(rig: Rig) -> None:
    running = rig.start()
    rig.reads = False
    request = rig.submit(1, [3, 4], max_tokens=200)
    seen = [-1, rig.steps()]
    # A loop that may step does so between two calls.
    while seen[-1] != seen[-2] or not seen[-1]:
        seen.append(rig.steps())
    assert 0 < seen[-1] <= WINDOW // 1024 + 1
    rig.reads = True
    rig.until(lambda: rig.outcomes)
    assert rig.outcomes == {1: wire.Outcome(wire.LENGTH)}
    assert rig.tokens[1] == answer(request, set(), INFO.vocab_size, INFO.max_model_len)
    assert not running.done()


def test_who_leaves_during_a_step_is_gone_before_its_end(rig: Rig) -> None:
    running = rig.start()
    rig.ranks.held.clear()
    rig.submit(1, [3, 4], max_tokens=50)
    assert rig.ranks.stepping.wait(PATIENCE)
    # The one slot is taken.
    rig.submit(2, [5, 6], max_tokens=50)
    third = rig.submit(3, [7, 8], max_tokens=5)
    assert (rig.stats()["num_requests_running"], rig.stats()["num_requests_waiting"]) == (1, 2)
    rig.entry.send(wire.Abort([1, 2]))
    now = rig.stats()
    assert (now["num_requests_running"], now["num_requests_waiting"]) == (0, 1)
    assert now["kv_cache_usage_perc"] == 0
    rig.ranks.held.set()
    rig.until(lambda: len(rig.outcomes) == 3)
    assert [rig.outcomes[id].reason for id in (1, 2, 3)] == [wire.ABORT, wire.ABORT, wire.LENGTH]
    assert rig.tokens == {1: [], 2: [], 3: answer(third, set(), INFO.vocab_size, INFO.max_model_len)}
    rig.scheduler.verify()
    assert not running.done()


def test_a_fault_during_a_step_leaves_nothing_of_it_behind(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    running = rig.start()
    rig.ranks.held.clear()
    rig.submit(1, [3, 4], max_tokens=50)
    assert rig.ranks.stepping.wait(PATIENCE)
    hear, faults = rig.loop._hear, [RuntimeError("a message that trips the loop")]

    def trip() -> None:
        if faults:
            raise faults.pop()
        hear()

    monkeypatch.setattr(rig.loop, "_hear", trip)
    rig.entry.send(wire.Call(1, "stats", "{}"))
    rig.until(lambda: not faults)
    rig.ranks.held.set()
    rig.until(lambda: 1 in rig.outcomes)
    assert rig.outcomes[1].status == 500
    rig.ranks.held.clear()
    rig.ranks.stepping.clear()
    rig.submit(2, [5, 6], max_tokens=5)
    assert rig.ranks.stepping.wait(PATIENCE)
    # Otherwise the loop would turn without a pause through this step and all that follow.
    assert not select.select([rig.step_thread.fileno()], [], [], 0)[0]
    rig.ranks.held.set()
    rig.until(lambda: 2 in rig.outcomes)
    assert rig.outcomes[2] == wire.Outcome(wire.LENGTH) and not running.done()


@pytest.mark.parametrize("rig", [{"deadline": 0.2}], indirect=True)
def test_a_step_that_hangs_ends_the_engine(rig: Rig) -> None:
    running = rig.start()
    rig.ranks.held.clear()
    rig.submit(1, [3, 4])
    rig.until(running.done)
    with pytest.raises(EngineError, match=r"longer than 0\.2 s \(--step-deadline\)"):
        running.result()
