"""The scheduler: takes requests in, plans steps, reads their results, says what became of each request.

There is no prefill and no decode phase. Each request has tokens it *has* and tokens *computed*, and every step
spends a token budget on closing the gaps (the idea of vLLM's v1 scheduler; see ``budget.py``).

:meth:`Scheduler.schedule` and :meth:`Scheduler.update` are independent: a second step may be planned before the
results of the first are read, because a plan names positions, not token values.

What runs, with its slots and pages, is the batch (see ``batch.py``); what waits for a place in it is the queue.
"""

from __future__ import annotations

import logging
import random
import time
from collections import deque
from collections.abc import Callable, Iterable

from llmrt import wire
from llmrt.cache.pages import PAGE_SIZE, CacheError, PagePool
from llmrt.cache.prefix import PrefixCache
from llmrt.scheduler import budget, policy
from llmrt.scheduler.batch import Batch
from llmrt.scheduler.budget import Rows
from llmrt.scheduler.deadlines import Deadlines
from llmrt.scheduler.frames import FrameBuilder
from llmrt.scheduler.plan import ExecutorInfo, StepPlan, StepResult
from llmrt.scheduler.queue import WaitingQueue
from llmrt.scheduler.request import NO_SLOT, Limits, Rejected, Request, accept
from llmrt.scheduler.stats import Counters

log = logging.getLogger(__name__)

NOT_FINITE = "the model's numbers were not finite for this request (they overflowed, or its weights are damaged)"
"""What a client reads whose row failed alone."""

QUEUE_FULL = "too many requests are open; try again later"
TOO_LATE = wire.Outcome(wire.ERROR, status=408, message="the request did not end before its deadline (deadline_ms)")


class Scheduler:
    """Owns requests, queue, batch, pages and prefix cache. Single-threaded; never blocks."""

    def __init__(
        self,
        info: ExecutorInfo,
        eos_token_ids: Iterable[int] = (),
        *,
        schedule_policy: str = "fcfs",
        max_num_seqs: int = 64,
        max_num_batched_tokens: int = 512,
        enable_prefix_caching: bool = True,
        max_requests: int | None = None,
        model: str = "",
        seed: int | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """``max_requests`` may be open at once, running or waiting; ``seed`` makes the seeds of unseeded requests
        repeatable; ``clock`` counts nanoseconds.

        Raises ``ValueError`` for an executor or option that cannot work.
        """
        if info.page_size != PAGE_SIZE:
            raise ValueError(f"the executor has pages of {info.page_size} tokens, the cache of {PAGE_SIZE}")
        pool = PagePool(info.num_pages)
        # The last token of a sequence is never computed, so it needs no room.
        capacity = pool.total * PAGE_SIZE + 1
        if capacity < info.max_model_len:
            log.warning(
                "the KV pages hold %d tokens, fewer than max_model_len (%d): the longest sequence is %d tokens; "
                "raise the KV cache size or lower max_model_len",
                pool.total * PAGE_SIZE,
                info.max_model_len,
                capacity,
            )
        self.limits = Limits(
            max_model_len=min(info.max_model_len, capacity),
            vocab_size=info.vocab_size,
            max_num_seqs=min(max_num_seqs, info.num_slots),
            max_num_batched_tokens=max_num_batched_tokens,
        )
        if min(self.limits.max_num_seqs, max_num_batched_tokens) < 1:
            raise ValueError("max_num_seqs, max_num_batched_tokens and the executor's slots must be at least 1")
        if max_num_batched_tokens < self.limits.max_num_seqs:
            log.warning(
                "max_num_batched_tokens (%d) is below max_num_seqs (%d): when all run, the last of them get no tokens",
                max_num_batched_tokens,
                self.limits.max_num_seqs,
            )
        self.cache = PrefixCache(pool, model, enable_prefix_caching)
        self.counters = Counters()
        self._max_requests = max_requests
        order = policy.by_name(schedule_policy)
        self._eos = frozenset(eos_token_ids)
        self._clock = clock
        self._seeds = random.Random(seed)
        self._requests: dict[int, Request] = {}
        # Only a key that never changes lets a request in without a free slot, by displacing another.
        slots = self.limits.max_num_seqs
        self._batch = Batch(self.cache, slots, displaces=order.static, preempted=self._wait_again)
        self._waiting = WaitingQueue(order, lambda request: len(self._batch.match(request)))
        self._launched: deque[tuple[int, Rows]] = deque()
        self._frames = FrameBuilder()
        self._step = 0
        self._arrivals = 0
        self._deadlines = Deadlines()

    # Requests come and go

    def add(self, request: wire.Request) -> bool:
        """Takes a request in; one that can never run gets its error with the next frame.

        False when a request of this id still lives: an answer could not say which of the two it means, so the
        second is dropped.
        """
        if request.id in self._requests:
            log.error("request %016x was submitted twice; the second is dropped", request.id)
            return False
        if self._is_full():
            self._frames.refuse(request, QUEUE_FULL, status=429)
            self.counters.finished[wire.ERROR] += 1
            return True
        self._arrivals += 1
        try:
            accepted = accept(request, self.limits, self._eos, self._arrivals, self._clock())
        except Rejected as reason:
            self._frames.refuse(request, str(reason))
            self.counters.finished[wire.ERROR] += 1
            return True
        if accepted.sampling.seed is None:
            accepted.sampling.seed = self._seeds.getrandbits(64)
        self._requests[request.id] = accepted
        self._deadlines.add(accepted)
        self._waiting.push(accepted)
        return True

    def _is_full(self) -> bool:
        """Whether no request more may be open; those whose time is over make room first."""
        if self._max_requests is None or len(self._requests) < self._max_requests:
            return False
        self._end_late()
        return len(self._requests) >= self._max_requests

    def _end_late(self) -> None:
        if self._deadlines.any:
            self._end(self._deadlines.passed(self._clock()), TOO_LATE)

    def abort(self, ids: Iterable[int]) -> None:
        """The clients of these requests have left. Slots and pages are free at once; unknown ids are ignored."""
        self._end(ids, wire.Outcome(wire.ABORT))

    def ended(self, ids: Iterable[int]) -> None:
        """The detokenizer found a stop string. As :meth:`abort`, but the requests ended well."""
        self._end(ids, wire.Outcome(wire.STOP))

    def _end(self, ids: Iterable[int], outcome: wire.Outcome) -> None:
        for id in ids:
            request = self._requests.get(id)
            if request is not None:
                self._frames.finish(request, outcome)
                self._drop(request, outcome)

    def fail(self, message: str, status: int = 500) -> int:
        """The executor failed: every running request ends with an error, those that wait go on waiting.

        Returns how many have ended.
        """
        outcome = wire.Outcome(wire.ERROR, status=status, message=message)
        ended = [request.id for request in self._batch.running]
        self._end(ended, outcome)
        self._launched.clear()
        self._batch.forget_changes()
        for request in self._waiting:
            request.length = len(request.tokens)
        return len(ended)

    def lose(self, ids: Iterable[int], message: str, status: int) -> None:
        """Requests end with an error, of which a detokenizer is told that knows none of them yet."""
        lost = [id for id in ids if id in self._requests]
        for id in lost:
            self._requests[id].opened = False
        self._end(lost, wire.Outcome(wire.ERROR, status=status, message=message))

    def _drop(self, request: Request, outcome: wire.Outcome) -> None:
        request.finished = True
        del self._requests[request.id]
        self._deadlines.remove(request)
        self.counters.finished[outcome.reason] += 1
        if request.slot == NO_SLOT:
            self._waiting.remove(request)
        else:
            self._batch.leave(request)

    # Planning

    def schedule(self) -> StepPlan | None:
        """Plans the next step and counts it as launched; ``None`` when there is nothing to compute."""
        self._end_late()
        self._batch.grow()
        if len(self._waiting):
            self._admit()
        rows = budget.spend(self.limits.max_num_batched_tokens, self._batch.running)
        if not rows.slots:
            return None
        self._step += 1
        self._launched.append((self._step, rows))
        return rows.plan(self._step, *self._batch.changes())

    def _wait_again(self, request: Request) -> None:
        self.counters.preemptions += 1
        self._waiting.push(request)

    def _admit(self) -> None:
        """Lets waiting requests run, strictly in order: one that does not fit blocks those behind it."""
        most = self.limits.max_num_batched_tokens
        while len(self._waiting) and self._batch.may_admit:
            request = self._waiting.head(self.cache.version)
            # A sampled token that is not read back yet would be missing from the slot's start.
            if not request.settled or not budget.reaches(most, self._batch.running, request):
                return
            if not self._batch.make_room(request):
                return
            self._start(self._waiting.pop())

    def _start(self, request: Request) -> None:
        self._batch.start(request)
        if not request.scheduled_ns:
            request.scheduled_ns = self._clock()
            request.cached_tokens = request.computed
            self.cache.stats.queries += request.length
            self.cache.stats.hits += request.computed

    # Results

    def update(self, result: StepResult) -> wire.TokenFrame | None:
        """Reads the results of the oldest launched step; returns what there is to tell the detokenizer.

        Raises ``ValueError`` when the result is not of that step. Requests whose rows failed end with an error.
        """
        step, rows = self._launched.popleft() if self._launched else (0, Rows())
        tokens = wire.u32s(result.tokens)
        if result.step != step or len(tokens) != len(rows.sampled):
            raise ValueError(
                f"step {step} samples {len(rows.sampled)} tokens, the result is {len(tokens)} of step {result.step}"
            )
        if result.failed:
            self._end_failed(rows, result.failed)
        for request, computed, admissions in rows.chunks:
            if request.slot != NO_SLOT and request.admissions == admissions:
                self._batch.publish(request, computed)
        self._keep_prompt_logprobs(rows, result)
        frames = self._frames
        ids, counts, out = frames.ids, frames.counts, frames.tokens
        told = list(rows.told(len(ids))) if result.logprobs else []
        for request, token in zip(rows.sampled, tokens, strict=True):
            if request.finished:
                continue
            request.tokens.append(token)
            ids.append(request.id)
            counts.append(1)
            out.append(token)
            if len(request.tokens) >= request.watch or token in request.stops:
                self._consider(request, token)
        for each in result.logprobs:
            place = told[each.row]
            if place is not None:
                frames.logprobs(place, each)
        self.counters.generated_tokens += len(out)
        return self._take_frame(step)

    def _keep_prompt_logprobs(self, rows: Rows, result: StepResult) -> None:
        for each in result.prompt_logprobs:
            rows.requests[each.row].prompt_logprobs.add(rows.begin[each.row], each)

    def _end_failed(self, rows: Rows, failed: list[int]) -> None:
        requests = rows.requests
        if not 0 <= min(failed) <= max(failed) < len(requests):
            raise ValueError(f"rows {failed} failed, but the step has {len(requests)}")
        ids = [requests[row].id for row in failed]
        log.error("%s: %s", NOT_FINITE, ", ".join(f"{id:016x}" for id in ids))
        self._end(ids, wire.Outcome(wire.ERROR, status=500, message=NOT_FINITE))

    def take_frame(self) -> wire.TokenFrame | None:
        """What there is to tell the detokenizer outside of a step: requests that ended while none ran."""
        return self._take_frame(self._step)

    def _take_frame(self, step: int) -> wire.TokenFrame | None:
        if not self._frames.ids:
            return None
        frame = self._frames.build(step)
        self._frames = FrameBuilder()
        return frame

    def _consider(self, request: Request, token: int) -> None:
        """The token just appended is the request's first or last, or completes the computation of a page."""
        if not request.first_sent:
            self._frames.first(request, self._clock())
            self.counters.prompt_tokens += request.prompt_tokens
        length = len(request.tokens)
        if request.slot != NO_SLOT:
            self._batch.publish(request, length - 1)
        if not request.sampling.max_tokens:
            self._frames.drop_token()
            self._finish(request, wire.Outcome(wire.LENGTH))
        # The ranks ban stop tokens before min_tokens; this keeps the promise whatever they do.
        elif token in request.stops and request.generated > request.sampling.min_tokens:
            self._finish(request, wire.Outcome(wire.STOP, stop_token=token))
        elif length >= request.stop_at:
            self._finish(request, wire.Outcome(wire.LENGTH))
        else:
            request.watch_next()

    def _finish(self, request: Request, outcome: wire.Outcome) -> None:
        self._frames.finish_row(outcome)
        self._drop(request, outcome)

    # State

    @property
    def has_work(self) -> bool:
        """Requests run or wait, or a step is launched that was not read yet."""
        return bool(self._requests or self._launched)

    @property
    def has_news(self) -> bool:
        """A request has ended that no frame has told of yet."""
        return bool(self._frames.ids)

    def stats(self) -> dict[str, float]:
        """Gauges and counters, by the names of the metrics they feed."""
        pool = self.cache.pool
        return {
            "num_requests_running": len(self._batch.running),
            "num_requests_waiting": len(self._waiting),
            "kv_cache_usage_perc": pool.held / pool.total,
            "prefix_cache_queries_total": self.cache.stats.queries,
            "prefix_cache_hits_total": self.cache.stats.hits,
            **self.counters.as_dict(),
            "steps_total": self._step,
        }

    def verify(self) -> None:
        """Checks all books against each other. Raises :class:`~llmrt.cache.pages.CacheError`."""
        self._batch.verify()
        if any(request.pages or request.slot != NO_SLOT for request in self._waiting):
            raise CacheError("a waiting request holds pages")
        if len(self._batch.running) + len(self._waiting) != len(self._requests):
            raise CacheError("a request neither runs nor waits")
