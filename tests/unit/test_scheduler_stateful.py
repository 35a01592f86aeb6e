"""Random arrivals, aborts and faults under every policy, with tiny pools and budgets: books balance, answers hold."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from llmrt import wire
from llmrt.scheduler.policy import POLICIES
from llmrt.scheduler.scheduler import TOO_LATE
from tests.support.fake_ranks import FakeRanks
from tests.support.scheduler_harness import VOCAB, Engine, Story

# Prompts that share prefixes of whole pages, of parts of pages, and nothing.
STEMS = [[(7 * i + stem) % VOCAB for i in range(120)] for stem in range(3)]
ENDED = (wire.ABORT, wire.STOP, wire.ERROR)


@st.composite
def requests(draw: st.DrawFn) -> dict[str, Any]:
    stem = draw(st.sampled_from(STEMS))
    length = draw(st.one_of(st.integers(0, 60), st.sampled_from([15, 16, 17, 31, 32, 33, 48, 64, 96, 120])))
    tail = draw(st.lists(st.integers(0, VOCAB - 1), max_size=3))
    prompt_logprobs = draw(st.sampled_from([None, None, None, 0, 3]))
    return {
        "prompt": (stem[:length] + tail) or [5],
        "max_tokens": draw(st.integers(1 if prompt_logprobs is None else 0, 40)),
        "logprobs": draw(st.sampled_from([None, None, 0, 2])),
        "prompt_logprobs": prompt_logprobs,
        "deadline_ms": draw(st.sampled_from([None, None, None, 0, 1])),
        "min_tokens": draw(st.sampled_from([0, 0, 5])),
        "ignore_eos": draw(st.booleans()),
        "stop_token_ids": draw(st.sampled_from([[], [11, 12]])),
        "seed": draw(st.sampled_from([None, 1, 2])),
        "priority": draw(st.integers(-2, 2)),
        "salt": draw(st.sampled_from(["", "", "salt"])),
    }


class Machine(RuleBasedStateMachine):
    """The entry, the detokenizer and the engine's loop at once."""

    @initialize(
        policy=st.sampled_from(sorted(POLICIES)),
        num_pages=st.integers(2, 14),
        num_slots=st.integers(1, 5),
        budget=st.sampled_from([1, 2, 5, 17, 40, 512]),
        caching=st.booleans(),
        depth=st.integers(1, 3),
    )
    def start(self, policy: str, num_pages: int, num_slots: int, budget: int, caching: bool, depth: int) -> None:
        self.engine = Engine(
            num_pages,
            num_slots,
            max_model_len=200,
            depth=depth,
            schedule_policy=policy,
            max_num_batched_tokens=budget,
            enable_prefix_caching=caching,
        )
        self.cut_short: set[int] = set()

    @rule(request=requests())
    def submit(self, request: dict[str, Any]) -> None:
        self.engine.submit(**request)

    @rule(request=requests(), copies=st.integers(2, 4))
    def submit_burst(self, request: dict[str, Any], copies: int) -> None:
        for _ in range(copies):
            self.engine.submit(**request)

    @precondition(lambda self: self.engine.stories)
    @rule(data=st.data(), request=requests())
    def follow_up(self, data: st.DataObject, request: dict[str, Any]) -> None:
        """A next turn: the prompt is another request's prompt and what it was answered so far."""
        story = data.draw(st.sampled_from(list(self.engine.stories.values())))
        earlier = [*wire.u32s(story.request.prompt), *story.tokens]
        self.engine.submit(**(request | {"prompt": earlier[:180] + request["prompt"][:2], "salt": ""}))

    @rule(count=st.integers(1, 12))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.engine.step()
            self.engine.scheduler.verify()

    @precondition(lambda self: self.engine.stories)
    @rule(data=st.data(), ended=st.booleans())
    def leave(self, data: st.DataObject, ended: bool) -> None:
        ids = data.draw(st.lists(st.sampled_from(sorted(self.engine.stories)), min_size=1, max_size=2))
        self.cut_short.update(id for id in ids if self.engine.stories[id].outcome is None)
        (self.engine.scheduler.ended if ended else self.engine.scheduler.abort)(ids)

    @rule()
    def flush(self) -> None:
        self.engine.scheduler.cache.flush()

    @precondition(lambda self: self.engine.scheduler.has_work)
    @rule(early=st.booleans())
    def executor_fails(self, early: bool) -> None:
        ranks = self.engine.ranks
        assert isinstance(ranks, FakeRanks)
        ranks.fail_steps, ranks.fail_early = 1, early
        try:
            self.engine.step()
        except RuntimeError:
            assert ranks.recover()
            self.engine.in_flight.clear()
            running = {r.id for r in self.engine.scheduler._batch.running}
            self.cut_short |= running
            self.engine.scheduler.fail("the ranks failed")
        ranks.fail_steps = 0

    @invariant()
    def books_balance(self) -> None:
        if hasattr(self, "engine"):
            self.engine.scheduler.verify()

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        self.engine.run()
        self.engine.check_empty()
        for id, story in self.engine.stories.items():
            assert story.outcome is not None
            if story.outcome.status == 400:
                assert not story.tokens
            elif (id in self.cut_short and story.outcome.reason in ENDED) or story.outcome == TOO_LATE:
                assert story.tokens == self.engine.expected(id)[: len(story.tokens)]
                self.engine.check_logprobs(story)
                assert story.outcome != TOO_LATE or story.request.deadline_ms is not None
            else:
                self.engine.check(id)


TestMachine = Machine.TestCase
TestMachine.settings = settings(
    max_examples=120, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_no_page_is_lost_in_10000_steps(policy: str) -> None:
    dice = random.Random(policy)
    engine = Engine(24, 6, 300, schedule_policy=policy, max_num_batched_tokens=48)
    cut_short: set[int] = set()
    recent: deque[Story] = deque(maxlen=4)
    while len(engine.plans) < 10_000:
        scheduler = engine.scheduler
        if dice.random() < 0.25 and scheduler.stats()["num_requests_waiting"] < 8:
            turns = [wire.u32s(story.request.prompt)[:100].tolist() + story.tokens for story in recent]
            stem = dice.choice([*STEMS, *turns])
            prompt = [*stem[: dice.randrange(1, 160)], dice.randrange(VOCAB)]
            engine.submit(prompt, max_tokens=dice.randrange(1, 60), priority=dice.randrange(3), ignore_eos=True)
        if dice.random() < 0.03 and scheduler.has_work:
            id = dice.choice([id for id, story in engine.stories.items() if story.outcome is None])
            cut_short.add(id)
            scheduler.abort([id])
        engine.step()
        scheduler.verify()
        for id in [id for id, story in engine.stories.items() if story.outcome is not None]:
            if id not in cut_short:
                engine.check(id)
            recent.append(engine.stories.pop(id))
    engine.run()
    engine.check_empty()
    assert engine.scheduler.counters.preemptions > 10
    assert engine.scheduler.cache.stats.hits > 1000
    assert engine.scheduler.cache.flush() and engine.scheduler.cache.pool.free == engine.scheduler.cache.pool.total
