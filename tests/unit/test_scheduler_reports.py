"""What the scheduler tells besides tokens (log probabilities), and what it holds requests to (deadlines, masks)."""

from __future__ import annotations

from typing import Any

import pytest

from llmrt import wire
from llmrt.scheduler.policy import POLICIES
from llmrt.scheduler.scheduler import TOO_LATE
from tests.support.scheduler_harness import VOCAB, Engine


def prompt(length: int, stem: int = 0) -> list[int]:
    return [(11 * i + stem) % VOCAB for i in range(length)]


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("depth", [1, 2])
def test_case_22_preempted_requests_report_once_and_the_same(policy: str, depth: int) -> None:
    engine = Engine(9, 4, depth=depth, schedule_policy=policy, max_num_batched_tokens=24)
    ids = [
        engine.submit(prompt(40, i), max_tokens=40, ignore_eos=True, logprobs=i, prompt_logprobs=3 - i)
        for i in range(4)
    ]
    engine.run()
    assert engine.scheduler.counters.preemptions > 0
    for id in ids:
        story = engine.check(id)
        assert len(story.chosen) == 40 and story.prompt is not None and len(story.prompt.chosen) == 4 * 39
    engine.check_empty()


def test_prompt_logprobs_read_no_cached_prefix_but_leave_one() -> None:
    engine = Engine(max_num_batched_tokens=30)
    cold = engine.submit(prompt(50), max_tokens=2, prompt_logprobs=2)
    engine.run()
    warm = engine.submit(prompt(50), max_tokens=2, prompt_logprobs=2)
    engine.run()
    plain = engine.submit(prompt(50), max_tokens=2)
    engine.run()
    first, second, third = (engine.check(id) for id in (cold, warm, plain))
    assert first.prompt == second.prompt is not None
    hits = [story.first.cached_tokens for story in (first, second, third) if story.first]
    assert hits == [0, 0, 48]


@pytest.mark.parametrize(("first", "second", "cached"), [(None, 0, 16), (None, None, 64), (0, 0, 64), (0, None, 64)])
def test_logprobs_build_on_exact_pages_alone(first: int | None, second: int | None, cached: int) -> None:
    """Keys of generated tokens come from a faster kernel, unless their request reports log probabilities.

    One page here is prompt alone, four are computed of prompt and answer.
    """
    engine = Engine()
    before = engine.submit(prompt(20), max_tokens=45, ignore_eos=True, logprobs=first)
    engine.run()
    turn = [*prompt(20), *engine.check(before).tokens, 5]
    after = engine.submit(turn, max_tokens=1, logprobs=second)
    engine.run()
    told = engine.check(after).first
    assert told is not None and told.cached_tokens == cached


@pytest.mark.parametrize("length", [1, 2, 16, 70])
def test_nothing_is_generated_where_nothing_is_wanted(length: int) -> None:
    engine = Engine(max_num_batched_tokens=32)
    id = engine.submit(prompt(length), max_tokens=0, prompt_logprobs=1, logprobs=1, stop_token_ids=[*range(VOCAB)])
    engine.run()
    story = engine.check(id)
    assert story.tokens == [] and story.prompt is not None and len(story.prompt.chosen) == 4 * (length - 1)
    assert story.outcome == wire.Outcome(wire.LENGTH)
    assert engine.scheduler.stats()["generation_tokens_total"] == 0
    engine.check_empty()


def test_a_frame_without_wishes_has_no_columns_for_them() -> None:
    engine = Engine()
    engine.submit(prompt(5), max_tokens=2)
    plan = engine.scheduler.schedule()
    assert plan is not None
    engine.ranks.launch(plan)
    frame = engine.scheduler.update(engine.ranks.collect())
    assert frame is not None and frame.logprobs is None and frame.prompt_logprobs == []


# Deadlines


def test_a_deadline_ends_queued_and_running_requests() -> None:
    engine = Engine(num_slots=1)
    running = engine.submit(prompt(5), max_tokens=4000, ignore_eos=True, deadline_ms=50)
    queued = engine.submit(prompt(5), max_tokens=4, deadline_ms=10)
    patient = engine.submit(prompt(5), max_tokens=4, deadline_ms=1000)
    engine.step()
    engine.time += 11_000_000
    engine.step()
    assert engine.stories[queued].outcome == TOO_LATE and engine.stories[running].outcome is None
    engine.time += 50_000_000
    engine.step()
    engine.run()
    assert engine.stories[running].outcome == TOO_LATE and len(engine.stories[running].tokens) == 2
    assert TOO_LATE.status == 408
    engine.check(patient)
    engine.check_empty()


def test_whose_time_is_over_makes_room_for_who_comes() -> None:
    engine = Engine(num_slots=1, max_requests=2)
    running = engine.submit(prompt(5), max_tokens=4, ignore_eos=True)
    late = engine.submit(prompt(5), max_tokens=4, deadline_ms=10)
    refused = engine.submit(prompt(5), max_tokens=4)
    engine.time += 11_000_000
    instead = engine.submit(prompt(5), max_tokens=4, ignore_eos=True)
    engine.run()
    outcome = engine.stories[refused].outcome
    assert outcome is not None and outcome.status == 429
    assert engine.stories[late].outcome == TOO_LATE
    for id in (running, instead):
        engine.check(id)
    engine.check_empty()


# What is refused


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        ({"max_tokens": 0}, "max_tokens must be between 1 and inf, not 0"),
        ({"logprobs": 21}, "logprobs must be between 0 and 20, not 21"),
        ({"prompt_logprobs": 10**6}, "prompt_logprobs must be between 0 and 20"),
        ({"allowed_token_ids": wire.u32([1, VOCAB])}, "token ids must be below the vocabulary size, 97"),
        ({"bad_words": [wire.u32([1, VOCAB, 2])]}, "token ids must be below the vocabulary size, 97"),
        ({"bad_words": [b""]}, "a sequence in bad_words is empty"),
        ({"allowed_token_ids": b""}, "allowed_token_ids leave no token to choose"),
        ({"allowed_token_ids": wire.u32([3, 9]), "stop_token_ids": [9], "min_tokens": 1}, "leave no token to choose"),
        ({"allowed_token_ids": wire.u32([4]), "bad_words": [wire.u32([4])]}, "leave no token to choose"),
    ],
)
def test_impossible_wishes_are_refused(sampling: dict[str, Any], message: str) -> None:
    engine = Engine()
    id = engine.submit(prompt(5), **sampling)
    engine.run()
    outcome = engine.stories[id].outcome
    assert outcome is not None and (outcome.reason, outcome.status) == (wire.ERROR, 400)
    assert message in outcome.message


def test_possible_wishes_are_not() -> None:
    engine = Engine()
    stops = {"allowed_token_ids": wire.u32([3]), "max_tokens": 2}
    words = {"allowed_token_ids": wire.u32([4]), "bad_words": [wire.u32([4, 4])], "max_tokens": 2}
    for sampling in (stops, words, stops | {"min_tokens": 1, "ignore_eos": True}):
        engine.submit(prompt(5), **sampling)
    engine.run()
    assert all(story.outcome and not story.outcome.status for story in engine.stories.values())
