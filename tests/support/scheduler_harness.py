"""Drives a scheduler and fake ranks, and keeps what its frames tell of each request."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from llmrt import wire
from llmrt.cache.pages import PAGE_SIZE
from llmrt.scheduler.plan import Executor, ExecutorInfo, StepPlan
from llmrt.scheduler.scheduler import Scheduler
from tests.support.fake_ranks import EMPTY, FakeRanks, answer, extend, report

EOS = {3}
VOCAB = 97


@dataclass
class Story:
    """What frames told of one request."""

    request: wire.Request
    opened: bool = False
    tokens: list[int] = field(default_factory=list)
    first: wire.First | None = None
    outcome: wire.Outcome | None = None
    chosen: list[float] = field(default_factory=list)
    top_ids: list[int] = field(default_factory=list)
    prompt: wire.PromptLogprobs | None = None


class Engine:
    """A scheduler over an executor that may hold ``depth`` launched steps."""

    def __init__(self, num_pages: int = 65, num_slots: int = 8, max_model_len: int = 4096, depth: int = 1,
                 executor: Executor | None = None, **options: Any) -> None:  # fmt: skip
        self.info = ExecutorInfo(num_pages, PAGE_SIZE, num_slots, max_model_len, VOCAB)
        self.ranks = executor or FakeRanks(self.info)
        self.time = 0
        options.setdefault("max_num_seqs", num_slots)
        self.scheduler = Scheduler(self.info, EOS, seed=1, clock=self._tick, **options)
        self.depth = depth
        self.in_flight: deque[int] = deque()
        self.stories: dict[int, Story] = {}
        self.plans: list[StepPlan] = []
        self.next_id = 1

    def _tick(self) -> int:
        self.time += 1000
        return self.time

    def submit(self, prompt: list[int], id: int | None = None, output: wire.Output | None = None, priority: int = 0,
               salt: str = "", deadline_ms: int | None = None, **sampling: Any) -> int:  # fmt: skip
        """Adds a request and returns its id."""
        id = id or self.next_id
        self.next_id = max(self.next_id, id) + 1
        request = wire.Request(
            id, wire.u32(prompt), wire.Sampling(**sampling), output or wire.Output(), priority, salt, deadline_ms
        )
        self.stories[id] = Story(request)
        assert self.scheduler.add(request)
        return id

    def step(self) -> bool:
        """Launches a step where possible and reads one where the pipeline is full. False when nothing was to do."""
        plan = self.scheduler.schedule()
        if plan is not None:
            self.plans.append(plan)
            self.ranks.launch(plan)
            self.in_flight.append(plan.step)
        if self.in_flight and (plan is None or len(self.in_flight) >= self.depth):
            self.in_flight.popleft()
            self.read(self.scheduler.update(self.ranks.collect()))
            return True
        frame = self.scheduler.take_frame()
        self.read(frame)
        return plan is not None or frame is not None

    def run(self, steps: int = 20_000, verify: bool = True) -> None:
        """Steps until everything has ended."""
        for _ in range(steps):
            if not self.scheduler.has_work:
                self.read(self.scheduler.take_frame())
                return
            assert self.step(), "there is work but nothing is scheduled"
            if verify:
                self.scheduler.verify()
        raise AssertionError(f"work is left after {steps} steps")

    def read(self, frame: wire.TokenFrame | None) -> None:
        """Checks a frame against the wire's rules and adds it to the stories."""
        if frame is None:
            return
        frame = wire.decode(wire.encode(frame))
        assert isinstance(frame, wire.TokenFrame)
        for opened in frame.opened:
            story = self.stories[opened.id]
            assert not story.opened, "opened twice"
            story.opened = True
        ids, counts, tokens = wire.u64s(frame.ids), wire.u32s(frame.counts), wire.u32s(frame.tokens)
        assert len(ids) == len(counts) == len(set(ids)) and len(tokens) == sum(counts)
        position = 0
        for id, count in zip(ids, counts, strict=True):
            story = self.stories[id]
            assert story.opened and story.outcome is None, "a row of a request that is not open"
            story.tokens += tokens[position : position + count]
            position += count
        for first in frame.first:
            story = self.stories[ids[first.row]]
            assert story.first is None and len(story.tokens) == counts[first.row]
            assert counts[first.row] > 0 or not story.request.sampling.max_tokens
            story.first = first
        self._read_logprobs(frame, ids, counts)
        for finished in frame.finished:
            story = self.stories[ids[finished.row]]
            assert story.outcome is None, "finished twice"
            story.outcome = finished.outcome

    def _read_logprobs(self, frame: wire.TokenFrame, ids: Sequence[int], counts: Sequence[int]) -> None:
        for prompt in frame.prompt_logprobs:
            story = self.stories[ids[prompt.row]]
            assert story.prompt is None and len(story.tokens) == counts[prompt.row], "not with the first token"
            story.prompt = prompt
        if frame.logprobs is None:
            return
        tops = dict(zip(wire.u32s(frame.logprobs.rows), wire.u32s(frame.logprobs.top), strict=True))
        chosen, top_ids = iter(wire.f32s(frame.logprobs.chosen)), iter(wire.u32s(frame.logprobs.top_ids))
        for row, top in tops.items():
            story = self.stories[ids[row]]
            assert top == story.request.sampling.logprobs
            story.chosen += itertools.islice(chosen, counts[row])
            story.top_ids += itertools.islice(top_ids, counts[row] * top)

    def check_logprobs(self, story: Story) -> None:
        """Asserts that a request was told the log probabilities that it asked for, once each."""
        sampling = story.request.sampling
        tokens = [*wire.u32s(story.request.prompt), *story.tokens]
        first = len(tokens) - len(story.tokens)
        prefixes = [EMPTY]
        for token in tokens:
            prefixes.append(extend(prefixes[-1], token))
        assert bool(story.chosen) == (sampling.logprobs is not None and bool(story.tokens))
        if sampling.logprobs is not None:
            expected = report(0, sampling.logprobs, prefixes[first:-1], story.tokens)
            assert (wire.f32(story.chosen), wire.u32(story.top_ids)) == (expected.chosen, expected.top_ids)
        assert (story.prompt is not None) == (sampling.prompt_logprobs is not None and story.first is not None)
        if story.prompt is not None:
            expected = report(0, story.prompt.top, prefixes[1:first], tokens[1:first])
            assert (story.prompt.chosen, story.prompt.top_ids) == (expected.chosen, expected.top_ids)
            assert story.prompt.top == sampling.prompt_logprobs
            assert story.prompt.top_logprobs == expected.top_logprobs

    def expected(self, id: int) -> list[int]:
        """What the request generates alone."""
        return answer(self.stories[id].request, EOS, VOCAB, self.scheduler.limits.max_model_len)

    def check(self, id: int) -> Story:
        """Asserts that a request ended as it would have alone."""
        story = self.stories[id]
        expected = self.expected(id)
        assert story.tokens == expected and story.outcome is not None
        self.check_logprobs(story)
        sampling = story.request.sampling
        if not sampling.max_tokens:
            assert (story.outcome.reason, story.outcome.stop_token) == (wire.LENGTH, None)
            return story
        stops = set(sampling.stop_token_ids) | (set() if sampling.ignore_eos else EOS)
        last = expected[-1]
        if last in stops and len(expected) > sampling.min_tokens:
            assert (story.outcome.reason, story.outcome.stop_token) == (wire.STOP, last)
        else:
            assert (story.outcome.reason, story.outcome.stop_token) == (wire.LENGTH, None)
        return story

    def check_empty(self) -> None:
        """Asserts that nothing is held any more."""
        self.scheduler.verify()
        pool = self.scheduler.cache.pool
        assert not self.scheduler.has_work and not self.in_flight
        assert pool.held == 0 and pool.free + pool.cached == pool.total
        assert all(story.outcome is not None for story in self.stories.values())
