"""The loop of the scheduler process: messages in, one step, one frame out. It sleeps when there is nothing to do.

While a step is computed requests, aborts and calls are heard: who leaves during a long prefill is gone at once.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from functools import partial

import zmq

from llmrt import link, wire
from llmrt.engine import calls
from llmrt.engine.lanes import Lanes
from llmrt.engine.steps import StepThread
from llmrt.process.signals import END, Signals
from llmrt.scheduler.plan import StepPlan, StepResult
from llmrt.scheduler.scheduler import Scheduler

log = logging.getLogger(__name__)

VERIFY_EVERY = 60.0
"""Seconds between two checks of the books; they take place only where the process would sleep."""

DETOKENIZER_LOST = "the text of this answer got lost with a process of the server"

STEP_FAILED = "the server failed while it computed this request"

MAX_FAILED_STEPS = 8
"""Steps in a row that may fail: an executor that computes nothing any more must not take every request that comes."""


class EngineError(Exception):
    """The engine cannot go on."""


class EngineLoop:
    """Wires the links to scheduler and executor, whose steps must end within ``step_deadline`` seconds.

    ``requests`` takes Submit, Abort and Call from entries and Ended from detokenizers; ``tokens`` leads to the
    detokenizers, ``control`` to the supervisor. Without one of the detokenizers nothing is scheduled: its requests
    would not hear of it.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        steps: StepThread,
        requests: link.Inbox,
        tokens: Lanes,
        control: link.Outbox,
        step_deadline: float,
    ) -> None:
        self.scheduler = scheduler
        self.steps = steps
        self.requests = requests
        self.tokens = tokens
        self.control = control
        self._step_deadline = step_deadline
        self._links = (requests, *tokens.outboxes, control)
        self._during_steps = zmq.Poller()
        for each in (requests, control):
            each.register(self._during_steps)
        self._during_steps.register(steps.fileno(), zmq.POLLIN)
        self._owners: dict[int, int] = {}
        self._failed_steps = 0
        self._verified = time.monotonic()

    def run(self, signals: Signals) -> None:
        """Serves until the signal ``END``. Raises :class:`EngineError` when the engine cannot go on."""
        poller = zmq.Poller()
        for each in self._links:
            each.register(poller)
        poller.register(signals.fileno(), zmq.POLLIN)
        while END not in signals.take():
            self._drain()
            if self._can_step():
                self._step()
            else:
                self._verify()
                link.poll(poller, self._links)

    # Messages

    def _drain(self) -> None:
        self._hear()
        for lane, reason in self.tokens.receive():
            self._detokenizer_lost(lane, reason)

    def _hear(self) -> None:
        """Takes what entries, detokenizers and the supervisor ask for. Sends no frame."""
        for event in self.requests.receive():
            if isinstance(event, link.Received):
                self._message(event.peer, event.message)
            elif isinstance(event, link.Joined):
                log.debug("%s %d has joined", event.hello.role, event.hello.index)
            else:
                self._left(event)
        for order in self.control.receive():
            if isinstance(order, link.Received) and isinstance(order.message, wire.Call):
                self._reply(order.message, self.control.send)

    def _message(self, peer: int, message: wire.Message) -> None:
        if isinstance(message, wire.Submit):
            for request in message.requests:
                if self.scheduler.add(request):
                    self._owners[request.id] = peer
                else:
                    self.requests.grant(peer, 1)
        elif isinstance(message, wire.Abort):
            self.scheduler.abort(id for id in message.ids if self._owners.get(id) == peer)
        elif isinstance(message, wire.Ended):
            self.scheduler.ended(message.ids)
        elif isinstance(message, wire.Call):
            self._reply(message, partial(self.requests.send, peer))
        else:
            log.warning("unexpected %s from peer %d is ignored", type(message).__name__, peer)

    def _reply(self, call: wire.Call, send: Callable[[wire.Message], None]) -> None:
        try:
            send(calls.answer(call, self.scheduler))
        except (link.NotReady, link.Full) as error:
            log.warning("the answer to the call %s is lost: %s", call.method, error)

    def _left(self, event: link.Left) -> None:
        orphans = [id for id, owner in self._owners.items() if owner == event.peer]
        if orphans:
            log.warning("peer %d has left (%s): %d requests are aborted", event.peer, event.reason, len(orphans))
        self.scheduler.abort(orphans)

    def _detokenizer_lost(self, lane: int, reason: str) -> None:
        """Its successor does not know the requests that are open, so they end; it is told so, and passes it on.

        Entries that have seen the death have told their clients themselves; but a request may have been sent when the
        successor was there already, and this process did not know.
        """
        orphans = [id for id in self._owners if self.tokens.lane_of(id) == lane]
        self.scheduler.lose(orphans, DETOKENIZER_LOST, 503)
        if orphans:
            log.error("detokenizer %d is gone (%s): %d requests end with an error", lane, reason, len(orphans))
        # Now, where no frame waits: what has ended costs no credit, though its successor may be long in coming.
        if self.tokens.flush():
            frame = self.scheduler.take_frame()
            self._settle(frame)
            self.tokens.send(frame)

    # Steps

    def _can_step(self) -> bool:
        if not self.tokens.ready or not self.tokens.flush():
            return False
        return self.scheduler.has_work or self.scheduler.has_news

    def _step(self) -> None:
        try:
            frame = self._compute()
        except EngineError:
            raise
        except Exception:
            log.exception("a step failed; the requests in it end with an error")
            frame = self._recover()
        self._settle(frame)
        self.tokens.send(frame)

    def _compute(self) -> wire.TokenFrame | None:
        plan = self.scheduler.schedule()
        if plan is None:
            return self.scheduler.take_frame()
        frame = self.scheduler.update(self._computed(plan))
        self._failed_steps = 0
        return frame

    def _computed(self, plan: StepPlan) -> StepResult:
        """Has a step computed, and listens meanwhile."""
        end = time.monotonic() + self._step_deadline
        step = self.steps.start(plan)
        while not step.done():
            if (left := end - time.monotonic()) <= 0:
                raise EngineError(f"a step takes longer than {self._step_deadline:g} s (--step-deadline)")
            link.poll(self._during_steps, (self.requests, self.control), left)
            self._hear()
        return self.steps.take(step)

    def _recover(self) -> wire.TokenFrame | None:
        self._failed_steps += 1
        if self._failed_steps >= MAX_FAILED_STEPS:
            raise EngineError(f"{self._failed_steps} steps in a row have failed")
        try:
            ended = self.scheduler.fail(STEP_FAILED)
            self.scheduler.verify()
            sane = self.steps.recover()
        except Exception as error:
            raise EngineError(f"the engine cannot go on after a failed step: {error}") from error
        if not sane:
            raise EngineError("the executor cannot go on after a failed step")
        if ended == 0:
            # Nothing has changed, so the next attempt would fail the same way.
            raise EngineError("a step failed in which no request ran")
        return self.scheduler.take_frame()

    def _settle(self, frame: wire.TokenFrame | None) -> None:
        """Gives the credit of ended requests back."""
        if frame is None or not frame.finished:
            return
        ids = wire.u64s(frame.ids)
        owners = Counter(self._owners.pop(ids[finished.row], None) for finished in frame.finished)
        for peer, count in owners.items():
            if peer is not None:
                self.requests.grant(peer, count)

    def _verify(self) -> None:
        if time.monotonic() - self._verified > VERIFY_EVERY:
            self._verified = time.monotonic()
            try:
                self.scheduler.verify()
            except AssertionError as error:
                raise EngineError(f"the books do not balance: {error}") from error
