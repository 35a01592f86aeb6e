"""The scheduler's promises one by one; field notes, section 5, give the numbers of the cases."""

from __future__ import annotations

import math
import subprocess
import sys
from collections import deque
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmrt import wire
from llmrt.cache.pages import PAGE_SIZE
from llmrt.scheduler import plan as plans
from llmrt.scheduler.plan import ExecutorInfo, StepPlan, StepResult
from llmrt.scheduler.policy import POLICIES
from llmrt.scheduler.scheduler import NOT_FINITE, Scheduler
from tests.support.fake_ranks import FakeRanks
from tests.support.scheduler_harness import VOCAB, Engine

ROOT = Path(__file__).parents[2]


def prompt(length: int, stem: int = 0) -> list[int]:
    return [(7 * i + 13 * stem + i * i) % VOCAB for i in range(length)]


def ranks_of(engine: Engine) -> FakeRanks:
    assert isinstance(engine.ranks, FakeRanks)
    return engine.ranks


# Lifetime


def test_case_8_long_prompt_in_chunks_and_one_token() -> None:
    engine = Engine(max_num_batched_tokens=64)
    id = engine.submit(prompt(500), max_tokens=1, ignore_eos=True)
    engine.run()
    story = engine.check(id)
    assert len(story.tokens) == 1 and len(engine.plans) == math.ceil(500 / 64)
    assert [sum(plan.sample) for plan in engine.plans] == [0] * 7 + [1]
    assert engine.scheduler.stats()["generation_tokens_total"] == 1


def test_case_14_leaving_the_queue() -> None:
    engine = Engine(num_slots=1)
    first = engine.submit(prompt(20), max_tokens=8, ignore_eos=True)
    second = engine.submit(prompt(20, 1), max_tokens=8, ignore_eos=True)
    engine.step()
    engine.scheduler.abort([second])
    engine.run()
    engine.check(first)
    story = engine.stories[second]
    assert story.outcome == wire.Outcome(wire.ABORT) and story.opened and not story.tokens
    engine.check_empty()


def test_case_14_leaving_while_a_10k_prompt_prefills() -> None:
    engine = Engine(num_pages=1000, max_model_len=16_384, max_num_batched_tokens=256)
    stream = engine.submit(prompt(10), max_tokens=30, ignore_eos=True)
    long = engine.submit(prompt(10_000, 1), max_tokens=8)
    for _ in range(5):
        engine.step()
    held = engine.scheduler.cache.pool.held
    engine.scheduler.abort([long])
    assert held > 600 and engine.scheduler.cache.pool.held == 1
    assert engine.scheduler.stats()["num_requests_running"] == 1
    engine.run()
    engine.check(stream)
    assert engine.stories[long].outcome == wire.Outcome(wire.ABORT)
    engine.check_empty()


@pytest.mark.parametrize("depth", [1, 2])
def test_case_15_abort_races_the_last_token(depth: int) -> None:
    for lead in range(8):
        engine = Engine(depth=depth)
        id = engine.submit(prompt(5), max_tokens=4, ignore_eos=True)
        for _ in range(lead):
            engine.step()
        engine.scheduler.abort([id])
        engine.scheduler.ended([id])
        engine.scheduler.abort([id, id, 99])
        engine.run()
        outcome = engine.stories[id].outcome
        assert outcome is not None and outcome.reason in (wire.ABORT, wire.LENGTH)
        assert engine.scheduler.stats()[f"requests_{'abort' if outcome.reason == wire.ABORT else 'length'}_total"] == 1
        engine.check_empty()


def test_a_stop_string_ends_a_request_well() -> None:
    engine = Engine()
    id = engine.submit(prompt(5), max_tokens=50, ignore_eos=True)
    for _ in range(4):
        engine.step()
    engine.scheduler.ended([id])
    engine.run()
    assert engine.stories[id].outcome == wire.Outcome(wire.STOP)
    assert engine.stories[id].tokens == engine.expected(id)[:4]
    engine.check_empty()


def test_a_frame_opens_a_request_with_its_prompt_tail_and_times() -> None:
    engine = Engine()
    id = engine.submit(prompt(20), max_tokens=2, ignore_eos=True, output=wire.Output(stop=["x"]))
    plan = engine.scheduler.schedule()
    assert plan is not None
    ranks_of(engine).launch(plan)
    frame = engine.scheduler.update(engine.ranks.collect())
    assert frame is not None and frame.step == 1
    assert frame.opened == [wire.Opened(id, wire.u32(prompt(20)[4:]), wire.Output(stop=["x"]))]
    assert frame.first == [wire.First(0, 0, 1, 1)]


# Ends


def test_stop_tokens_end_after_min_tokens_only() -> None:
    engine = Engine()
    free = engine.submit(prompt(9), max_tokens=40, ignore_eos=True, seed=1)
    engine.run()
    answer = engine.stories[free].tokens
    stop = answer[3]
    early = engine.submit(prompt(9), max_tokens=40, ignore_eos=True, seed=1, stop_token_ids=[stop])
    late = engine.submit(
        prompt(9), max_tokens=40, ignore_eos=True, seed=1, stop_token_ids=[stop, answer[20]], min_tokens=15
    )
    engine.run()
    story = engine.check(early)
    assert story.outcome == wire.Outcome(wire.STOP, stop_token=stop)
    assert story.tokens == answer[: answer.index(stop) + 1]
    assert 15 < len(engine.check(late).tokens) <= 21


def test_the_context_ends_an_answer() -> None:
    engine = Engine(max_model_len=40)
    id = engine.submit(prompt(30), max_tokens=1000, ignore_eos=True)
    engine.run()
    story = engine.check(id)
    assert len(story.tokens) == 10 and story.outcome == wire.Outcome(wire.LENGTH)


def test_the_pool_bounds_the_context() -> None:
    engine = Engine(num_pages=4, max_model_len=4096)
    assert engine.scheduler.limits.max_model_len == 3 * PAGE_SIZE + 1
    id = engine.submit(prompt(40), max_tokens=1000, ignore_eos=True)
    engine.run()
    assert len(engine.check(id).tokens) == 9


# What is refused


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prompt": []}, "the prompt is empty"),
        ({"prompt": [VOCAB]}, "below the vocabulary size, 97"),
        ({"prompt": [1], "stop_token_ids": [VOCAB]}, "below the vocabulary size"),
        ({"prompt": [1], "stop_token_ids": [-1]}, "below the vocabulary size"),
        ({"prompt": [1], "logit_bias": [(VOCAB, 1.0)]}, "below the vocabulary size"),
        ({"prompt": [1], "logit_bias": [(1, math.nan)]}, "logit_bias"),
        ({"prompt": [1], "max_tokens": 0}, "max_tokens must be"),
        ({"prompt": [1], "temperature": math.nan}, "temperature must be"),
        ({"prompt": [1], "repetition_penalty": 0.0}, "repetition_penalty must be"),
        ({"prompt": [1], "repetition_penalty": 1000000.1}, "between 1e-06 and 1e+06, not 1000000.1"),
        ({"prompt": [1], "seed": 1 << 64}, "seed must be"),
        ({"prompt": [1] * 300}, "the prompt has 300 tokens"),
    ],
)
def test_bad_requests_get_an_error_of_their_own(fields: dict[str, Any], message: str) -> None:
    engine = Engine(max_model_len=300)
    good = engine.submit(prompt(9), max_tokens=5)
    engine.step()
    bad = engine.submit(**fields)
    engine.run()
    engine.check(good)
    outcome = engine.stories[bad].outcome
    assert outcome is not None and (outcome.reason, outcome.status) == (wire.ERROR, 400)
    assert message in outcome.message
    engine.check_empty()


def test_a_second_request_of_one_id_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine()
    id = engine.submit(prompt(9), max_tokens=9, ignore_eos=True)
    engine.step()
    assert not engine.scheduler.add(wire.Request(id, wire.u32([1, 2]), wire.Sampling(), wire.Output()))
    assert "submitted twice" in caplog.text
    engine.run()
    engine.check(id)
    again = engine.submit(prompt(9, 1), id=id, max_tokens=3)
    engine.run()
    engine.check(again)


def test_more_requests_than_may_be_open_are_refused() -> None:
    engine = Engine(num_slots=1, max_requests=2)
    first, waiting, refused = (engine.submit([5], max_tokens=2, ignore_eos=True) for _ in range(3))
    engine.step()
    outcome = engine.stories[refused].outcome
    assert outcome is not None and (outcome.reason, outcome.status) == (wire.ERROR, 429)
    engine.run()
    for id in (first, waiting):
        assert engine.stories[id].outcome == wire.Outcome(wire.LENGTH)
    later = engine.submit([5], max_tokens=1)
    engine.run()
    assert engine.stories[later].outcome == wire.Outcome(wire.LENGTH)


def test_an_executor_with_other_pages_is_refused() -> None:
    with pytest.raises(ValueError, match="pages of 32 tokens"):
        Scheduler(ExecutorInfo(10, 32, 1, 100, 100))


# The cache


@pytest.mark.parametrize("pages", [1, 2, 4])
def test_case_20_a_fully_cached_prompt_of_whole_pages(pages: int) -> None:
    engine = Engine()
    first = engine.submit(prompt(pages * PAGE_SIZE), max_tokens=5, seed=1)
    engine.run()
    second = engine.submit(prompt(pages * PAGE_SIZE), max_tokens=5, seed=1)
    engine.run()
    assert engine.check(first).tokens == engine.check(second).tokens
    told = engine.stories[second].first
    assert told is not None and told.cached_tokens == (pages - 1) * PAGE_SIZE


@pytest.mark.parametrize("caching", [False, True])
def test_case_21_twice_at_once_then_a_third(caching: bool) -> None:
    engine = Engine(enable_prefix_caching=caching)
    twins = [engine.submit(prompt(50), max_tokens=20, seed=seed, ignore_eos=True) for seed in (1, 2)]
    engine.run()
    twins.append(engine.submit(prompt(50), max_tokens=20, seed=3, ignore_eos=True))
    engine.run()
    for id in twins:
        engine.check(id)
    told = engine.stories[twins[2]].first
    assert told is not None and told.cached_tokens == (48 if caching else 0)
    assert engine.scheduler.stats()["prefix_cache_hits_total"] == (48 if caching else 0)
    assert engine.scheduler.stats()["prefix_cache_queries_total"] == 150


def test_a_prefix_is_shared_while_it_is_in_use() -> None:
    engine = Engine(num_pages=10)
    first = engine.submit(prompt(64), max_tokens=30, ignore_eos=True)
    engine.step()
    second = engine.submit([*prompt(64), 5], max_tokens=10, ignore_eos=True)
    engine.step()
    (own,), (*_, shared) = (plan.grants for plan in engine.plans)
    assert list(wire.u32s(shared.pages))[:4] == list(wire.u32s(own.pages))
    assert engine.scheduler.cache.pool.held == 4 + 2
    engine.run()
    engine.check(first)
    engine.check(second)


def test_salts_keep_prefixes_apart() -> None:
    engine = Engine()
    for salt in ("", "a", "b", "a"):
        engine.submit(prompt(50), max_tokens=2, salt=salt)
        engine.run()
    hits = [story.first.cached_tokens for story in engine.stories.values() if story.first]
    assert hits == [0, 0, 0, 48]


def test_a_following_turn_finds_the_answer() -> None:
    engine = Engine()
    first = engine.submit(prompt(10), max_tokens=30, ignore_eos=True)
    engine.run()
    turn = [*prompt(10), *engine.stories[first].tokens, 1, 2, 3]
    second = engine.submit(turn, max_tokens=5)
    engine.run()
    told = engine.check(second).first
    # The last token of the answer was never computed, so 39 of 40 are: two whole pages.
    assert told is not None and told.cached_tokens == 32


# Memory


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("depth", [1, 2])
def test_case_22_preemption_changes_no_answer(policy: str, caching: bool, depth: int) -> None:
    engine = Engine(9, 4, depth=depth, schedule_policy=policy, enable_prefix_caching=caching)
    ids = [engine.submit(prompt(20, i), max_tokens=60, ignore_eos=True, priority=-i) for i in range(4)]
    engine.run()
    for id in ids:
        engine.check(id)
    assert engine.scheduler.counters.preemptions > 0
    engine.check_empty()


def test_case_22_a_preempted_slot_starts_again_with_all_it_had() -> None:
    engine = Engine(7, 2)
    ids = [engine.submit(prompt(20, i), max_tokens=50, ignore_eos=True, seed=i) for i in range(2)]
    engine.run()
    starts = [start for plan in engine.plans for start in plan.starts]
    assert len(starts) > 2
    again = starts[2]
    had = list(wire.u32s(again.tokens))
    assert again.prompt_tokens == 20 and again.sampling.seed == 1 and len(had) > 20
    assert had[20:] == engine.check(ids[1]).tokens[: len(had) - 20]


def test_case_23_bigger_than_the_pool() -> None:
    engine = Engine(num_pages=5)
    small = [engine.submit(prompt(20, i), max_tokens=9) for i in range(2)]
    big = engine.submit(prompt(65), max_tokens=9)
    small.append(engine.submit(prompt(20, 3), max_tokens=9))
    engine.run()
    outcome = engine.stories[big].outcome
    assert outcome is not None and (outcome.reason, outcome.status) == (wire.ERROR, 400)
    assert "the longest sequence that this server can hold is 65 tokens" in outcome.message
    for id in small:
        engine.check(id)
    engine.check_empty()


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_case_24_two_that_fit_one_at_a_time(policy: str) -> None:
    engine = Engine(9, 2, schedule_policy=policy)
    ids = [engine.submit(prompt(60, i), max_tokens=60, ignore_eos=True) for i in range(2)]
    engine.run(steps=200)
    for id in ids:
        engine.check(id)
    assert engine.scheduler.counters.preemptions <= 1
    # What is computed twice is at most what the one preempted request had.
    assert ranks_of(engine).computed <= 2 * 120 + 120


def test_nothing_behind_a_blocked_head_holds_pages() -> None:
    engine = Engine(num_pages=13, num_slots=4)
    first = engine.submit(prompt(100), max_tokens=40, ignore_eos=True)
    engine.step()
    head = engine.submit(prompt(120, 1), max_tokens=4)
    behind = engine.submit(prompt(5, 2), max_tokens=4)
    for _ in range(20):
        engine.step()
        assert engine.scheduler.stats()["num_requests_running"] == 1
        assert engine.scheduler.cache.pool.held <= 9
    engine.run()
    for id in (first, head, behind):
        engine.check(id)


def test_who_enters_leaves_room_for_those_that_run_to_grow() -> None:
    engine = Engine(num_pages=7)
    first = engine.submit(prompt(20), max_tokens=40, ignore_eos=True)
    engine.step()
    tight = engine.submit(prompt(60, 1), max_tokens=4)
    engine.step()
    assert engine.scheduler.stats()["num_requests_waiting"] == 1 and engine.scheduler.cache.pool.free == 4
    engine.run()
    engine.check(first)
    engine.check(tight)
    assert engine.scheduler.counters.preemptions == 0


# Order


def test_case_25_a_seed_beside_neighbours() -> None:
    alone = Engine()
    id = alone.submit(prompt(30), max_tokens=40, ignore_eos=True, seed=5)
    alone.run()
    crowd = Engine(num_slots=5)
    for i in range(3):
        crowd.submit(prompt(30), max_tokens=10 + i, ignore_eos=True)
    same = crowd.submit(prompt(30), max_tokens=40, ignore_eos=True, seed=5)
    crowd.run()
    assert crowd.check(same).tokens == alone.check(id).tokens
    seeds = [story.request.sampling.seed for story in crowd.stories.values()]
    assert None not in seeds and len(set(seeds)) == 4


def test_running_streams_go_on_beside_a_long_prompt() -> None:
    engine = Engine(num_pages=500, max_model_len=8000, max_num_batched_tokens=64)
    streams = [engine.submit(prompt(4, i), max_tokens=60, ignore_eos=True) for i in range(3)]
    engine.step()
    engine.submit(prompt(5000, 9), max_tokens=4)
    for step in range(2, 30):
        engine.step()
        assert [len(engine.stories[id].tokens) for id in streams] == [step] * 3
        assert sum(wire.u32s(engine.plans[-1].count)) == 64
    engine.run()


def test_a_budget_below_the_number_of_streams_still_ends() -> None:
    engine = Engine(num_slots=6, max_num_batched_tokens=2)
    ids = [engine.submit(prompt(10, i), max_tokens=12) for i in range(6)]
    engine.run()
    for id in ids:
        engine.check(id)
    assert all(sum(wire.u32s(plan.count)) <= 2 for plan in engine.plans)


def test_priority_displaces_what_comes_after_it() -> None:
    engine = Engine(num_slots=2, schedule_policy="priority")
    low = [engine.submit(prompt(20, i), max_tokens=30, ignore_eos=True, priority=5) for i in range(2)]
    for _ in range(5):
        engine.step()
    urgent = engine.submit(prompt(20, 7), max_tokens=3, ignore_eos=True, priority=-1)
    for _ in range(3):
        engine.step()
    assert engine.stories[urgent].outcome is not None
    assert engine.scheduler.counters.preemptions == 1
    equal = engine.submit(prompt(20, 8), max_tokens=3, ignore_eos=True, priority=5)
    engine.run()
    for id in (*low, urgent, equal):
        engine.check(id)
    assert engine.scheduler.counters.preemptions == 1


def test_priority_comes_before_a_long_prompt_without_throwing_it_out() -> None:
    engine = Engine(num_pages=500, max_model_len=8000, max_num_batched_tokens=64, schedule_policy="priority")
    long = engine.submit(prompt(2000), max_tokens=4, priority=1)
    later = engine.submit(prompt(10, 1), max_tokens=4, priority=1)
    for _ in range(3):
        engine.step()
    urgent = engine.submit(prompt(100, 2), max_tokens=4, ignore_eos=True, priority=0)
    for _ in range(5):
        engine.step()
    assert engine.stories[urgent].outcome is not None and not engine.stories[later].tokens
    engine.run()
    for id in (long, later, urgent):
        engine.check(id)
    assert engine.scheduler.counters.preemptions == 0


def test_lpm_runs_what_is_cached_first() -> None:
    engine = Engine(num_slots=1, schedule_policy="lpm")
    engine.submit(prompt(40), max_tokens=2)
    engine.run()
    blocker = engine.submit(prompt(8, 5), max_tokens=8, ignore_eos=True)
    engine.step()
    cold = engine.submit(prompt(40, 1), max_tokens=2)
    warm = engine.submit(prompt(40), max_tokens=2)
    while engine.stories[warm].outcome is None:
        engine.step()
    assert engine.stories[blocker].outcome is not None and engine.stories[cold].outcome is None
    engine.run()
    engine.check(cold)


# Faults


@pytest.mark.parametrize("early", [False, True])
def test_a_failed_step_ends_what_ran_and_nothing_else(early: bool) -> None:
    engine = Engine(num_slots=3)
    done = engine.submit(prompt(20, 5), max_tokens=1)
    ids = [engine.submit(prompt(20, i), max_tokens=10, ignore_eos=True) for i in range(2)]
    engine.step()
    engine.check(done)
    # The plan that fails also frees a slot; that may or may not be carried out.
    ranks_of(engine).fail_steps, ranks_of(engine).fail_early = 1, early
    with pytest.raises(RuntimeError, match="as they were told to"):
        engine.step()
    assert engine.ranks.recover()
    engine.in_flight.clear()
    later = [engine.submit(prompt(20, i), max_tokens=10) for i in range(4)]
    engine.scheduler.fail("the step failed")
    engine.run()
    for id in ids:
        assert engine.stories[id].outcome == wire.Outcome(wire.ERROR, status=500, message="the step failed")
    for id in later:
        engine.check(id)
    engine.check_empty()


@pytest.mark.parametrize("result", [StepResult(9, wire.u32([1])), StepResult(1, b""), StepResult(1, wire.u32([1, 2]))])
def test_results_of_another_step_are_noticed(result: StepResult) -> None:
    engine = Engine()
    engine.submit(prompt(3))
    assert engine.scheduler.schedule() is not None
    with pytest.raises(ValueError, match="step 1 samples 1 tokens"):
        engine.scheduler.update(result)


# Plans


class RemoteRanks:
    """An executor whose ranks live in another process and get serialised plans alone."""

    def __init__(self, info: ExecutorInfo) -> None:
        fields = [info.num_pages, info.page_size, info.num_slots, info.max_model_len, info.vocab_size]
        self.info = info
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.fake_ranks", *map(str, fields)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.results: deque[StepResult] = deque()

    def load(self) -> ExecutorInfo:
        return self.info

    def launch(self, plan: StepPlan) -> None:
        assert self.process.stdin is not None
        raw = plans.encode(plan)
        self.process.stdin.write(len(raw).to_bytes(4, "little") + raw)
        self.process.stdin.flush()

    def collect(self) -> StepResult:
        assert self.process.stdout is not None
        size = int.from_bytes(self.process.stdout.read(4), "little")
        return plans.decode_result(self.process.stdout.read(size))

    def recover(self) -> bool:
        return False

    def close(self) -> None:
        self.process.communicate()
        assert self.process.returncode == 0


def test_plans_are_executed_in_another_process() -> None:
    info = ExecutorInfo(12, PAGE_SIZE, 4, 4096, VOCAB)
    remote = RemoteRanks(info)
    engine = Engine(12, 4, depth=2, executor=remote, max_num_batched_tokens=40)
    ids = [engine.submit(prompt(30, i // 2), max_tokens=40, seed=i, ignore_eos=True) for i in range(6)]
    engine.run()
    remote.close()
    for id in ids:
        engine.check(id)
    assert engine.scheduler.counters.preemptions > 0


def test_a_decoding_step_names_positions_alone() -> None:
    engine = Engine()
    for i in range(3):
        engine.submit(prompt(4, i), max_tokens=8, ignore_eos=True)
    for _ in range(3):
        engine.step()
    plan = plans.decode_plan(plans.encode(engine.plans[-1]))
    assert plan == engine.plans[-1]
    assert (plan.freed, plan.starts, plan.grants) == ([], [], [])
    assert list(wire.u32s(plan.slots)) == [0, 1, 2] and list(wire.u32s(plan.begin)) == [5, 5, 5]
    assert list(wire.u32s(plan.count)) == [1, 1, 1] and plan.sample == b"\x01\x01\x01"
    assert len(plans.encode(plan)) < 80


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 3), st.integers(1, 60), st.lists(st.integers(1, 90), min_size=1, max_size=6))
def test_overlap_gives_the_same_answers(depth: int, budget: int, lengths: list[int]) -> None:
    engine = Engine(11, 3, depth=depth, max_num_batched_tokens=budget)
    ids = [engine.submit(prompt(length, length % 2), max_tokens=30) for length in lengths]
    engine.run()
    for id in ids:
        engine.check(id)
    engine.check_empty()


def test_a_preempted_request_waits_for_tokens_in_flight() -> None:
    engine = Engine(7, 2)
    first = engine.submit(prompt(47), max_tokens=60, ignore_eos=True)
    second = engine.submit(prompt(30, 1), max_tokens=30, ignore_eos=True)
    for _ in range(4):
        plan = engine.scheduler.schedule()
        assert plan is not None
        engine.ranks.launch(plan)
    # Two tokens of the second are sampled but not read, and it has just given up its pages.
    assert engine.scheduler.counters.preemptions == 1
    engine.scheduler.abort([first])
    assert engine.scheduler.schedule() is None
    for _ in range(4):
        engine.read(engine.scheduler.update(engine.ranks.collect()))
    engine.run()
    engine.check(second)


# Rows that fail alone


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("position", [5, 70, 101], ids=["in a chunk", "in the last chunk", "while it generates"])
def test_a_row_that_is_not_finite_ends_its_request_alone(depth: int, position: int) -> None:
    engine = Engine(depth=depth, max_num_batched_tokens=48)
    poisoned = [40, *prompt(95)]
    ranks_of(engine).overflows.add((40, position))
    others = [engine.submit(prompt(30, stem), max_tokens=20, ignore_eos=True) for stem in (1, 2)]
    bad = engine.submit(poisoned, max_tokens=30, ignore_eos=True)
    engine.run()
    for id in others:
        engine.check(id)
    story = engine.stories[bad]
    assert story.outcome == wire.Outcome(wire.ERROR, status=500, message=NOT_FINITE)
    assert story.tokens == engine.expected(bad)[: max(0, position - 95)], "tokens before the failure were good"
    assert engine.scheduler.stats()["requests_error_total"] == 1
    engine.check_empty()
    # What was computed before may be used again, the page that failed and those after it may not.
    ranks_of(engine).overflows.clear()
    again = engine.submit(poisoned, max_tokens=3, ignore_eos=True)
    engine.run()
    first = engine.check(again).first
    assert first is not None and first.cached_tokens <= position // PAGE_SIZE * PAGE_SIZE
    engine.check_empty()


def test_a_failed_row_that_is_not_in_the_step_is_an_error() -> None:
    engine = Engine()
    engine.submit(prompt(9), max_tokens=3)
    plan = engine.scheduler.schedule()
    assert plan is not None
    with pytest.raises(ValueError, match=r"rows \[1\] failed, but the step has 1"):
        engine.scheduler.update(StepResult(plan.step, wire.u32([5]), [1]))


def test_failed_rows_survive_the_wire() -> None:
    result = StepResult(3, wire.u32([5, 6]), [1])
    assert plans.decode_result(plans.encode(result)) == result


def test_a_pool_below_the_longest_sequence_is_told_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine(num_pages=5, max_model_len=64 + 1)
    assert engine.scheduler.limits.max_model_len == 65 and not caplog.records
    engine = Engine(num_pages=5, max_model_len=66)
    assert engine.scheduler.limits.max_model_len == 65
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert "hold 64 tokens, fewer than max_model_len (66): the longest sequence is 65" in record.getMessage()
