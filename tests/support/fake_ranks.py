"""Ranks without a model: they execute plans as the runner does and check every one against the contract.

A page remembers, for each of its positions, a hash of all tokens up to it, so a page shared wrongly, overwritten or
read before it was computed is noticed by whoever reads it. The next token is a function of the whole prefix and the
seed, so neither batching nor preemption nor the cache may change an answer. As a program it executes serialised
plans from its standard input.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from llmrt import wire
from llmrt.cache.pages import PAGE_SIZE
from llmrt.runner.options import RunnerOptions
from llmrt.scheduler import plan as plans
from llmrt.scheduler.plan import ExecutorInfo, RowLogprobs, StepPlan, StepResult

MASK = (1 << 64) - 1
EMPTY = 0x9E3779B97F4A7C15


def extend(prefix: int, token: int) -> int:
    """Hash of a prefix and one more token."""
    mixed = (prefix ^ (token + 1)) * 0xBF58476D1CE4E5B9 & MASK
    return mixed ^ mixed >> 29


def next_token(prefix: int, seed: int, vocab_size: int) -> int:
    """The model of these tests."""
    return extend(extend(prefix, seed & 0xFFFF), 7) % vocab_size


def logprobs(prefix: int, token: int, top: int) -> tuple[float, list[int], list[float]]:
    """What these ranks report of a token behind a prefix: small whole numbers, which survive the wire."""
    ids = [(prefix + rank) % 97 for rank in range(top)]
    return float(-(extend(prefix, token) % 1000)), ids, [float(-(id + prefix % 50)) for id in ids]


def report(row: int, top: int, prefixes: list[int], tokens: list[int]) -> RowLogprobs:
    """Log probabilities of ``tokens``, each behind the prefix of the same place."""
    values = [logprobs(prefix, token, top) for prefix, token in zip(prefixes, tokens, strict=True)]
    return RowLogprobs(
        row,
        top,
        wire.f32(value[0] for value in values),
        wire.u32(id for value in values for id in value[1]),
        wire.f32(each for value in values for each in value[2]),
    )


def answer(request: wire.Request, eos: set[int], vocab_size: int, max_model_len: int) -> list[int]:
    """What a request generates when it is alone in the world."""
    prompt = list(wire.u32s(request.prompt))
    sampling = request.sampling
    assert sampling.seed is not None
    stops = set(sampling.stop_token_ids) | (set() if sampling.ignore_eos else eos)
    prefix = EMPTY
    for token in prompt:
        prefix = extend(prefix, token)
    out: list[int] = []
    while len(out) < sampling.max_tokens and len(prompt) + len(out) < max_model_len:
        token = next_token(prefix, sampling.seed, vocab_size)
        out.append(token)
        if token in stops and len(out) > sampling.min_tokens:
            break
        prefix = extend(prefix, token)
    return out


@dataclass
class Slot:
    """State of a slot: its tokens, the hash up to each of them, its page table."""

    tokens: list[int]
    sampling: wire.Sampling
    prompt_tokens: int
    prefixes: list[int] = field(default_factory=list)
    pages: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        for token in self.tokens:
            self.hash(token)

    def hash(self, token: int) -> None:
        self.prefixes.append(extend(self.prefixes[-1] if self.prefixes else EMPTY, token))


class FakeRanks:
    """An executor that computes when it is launched, and asserts what the contract promises."""

    def __init__(self, info: ExecutorInfo) -> None:
        self.info = info
        self.slots: dict[int, Slot] = {}
        self.memory: dict[int, list[int]] = {}
        self.results: deque[StepResult] = deque()
        self.rows = 0
        self.computed = 0
        self.fail_steps = 0
        self.fail_early = False
        self.overflows: set[tuple[int, int]] = set()
        """First token of a prompt and position whose numbers are not finite."""

    def load(self) -> ExecutorInfo:
        return self.info

    def close(self) -> None:
        pass

    def recover(self) -> bool:
        self.results.clear()
        return True

    def collect(self) -> StepResult:
        return self.results.popleft()

    def launch(self, plan: StepPlan) -> None:
        if self.fail_steps and self.fail_early:
            self._fail()
        self._change(plan)
        slots, begins, counts = (wire.u32s(column) for column in (plan.slots, plan.begin, plan.count))
        assert len(slots) == len(begins) == len(counts) == len(plan.sample) == len(set(slots)), "columns differ"
        if self.fail_steps:
            self._fail()
        sampled = []
        result = StepResult(plan.step, b"")
        for row, (slot, begin, count, sample) in enumerate(zip(slots, begins, counts, plan.sample, strict=True)):
            state = self.slots[slot]
            if any((state.tokens[0], position) in self.overflows for position in range(begin, begin + count)):
                result.failed.append(row)
            self._compute(slot, state, begin, begin + count)
            end = min(begin + count, state.prompt_tokens - 1)
            top = state.sampling.prompt_logprobs
            if top is not None and begin < end:
                targets = state.tokens[begin + 1 : end + 1]
                result.prompt_logprobs.append(report(row, top, state.prefixes[begin:end], targets))
            assert bool(sample) == (begin + count == len(state.tokens)), "samples exactly where the tokens end"
            if sample:
                token = next_token(state.prefixes[-1], state.sampling.seed or 0, self.info.vocab_size)
                if state.sampling.logprobs is not None:
                    result.logprobs.append(report(row, state.sampling.logprobs, state.prefixes[-1:], [token]))
                state.tokens.append(token)
                state.hash(token)
                sampled.append(token)
        self.rows += len(slots)
        result.tokens = wire.u32(sampled)
        self.results.append(result)

    def _fail(self) -> None:
        self.fail_steps -= 1
        raise RuntimeError("the ranks failed, as they were told to")

    def _change(self, plan: StepPlan) -> None:
        for slot in plan.freed:
            self.slots.pop(slot, None)
        for start in plan.starts:
            assert start.slot not in self.slots, "a slot is started twice"
            assert 0 <= start.slot < self.info.num_slots
            assert start.sampling.seed is not None
            tokens = list(wire.u32s(start.tokens))
            assert 1 <= start.prompt_tokens <= len(tokens)
            self.slots[start.slot] = Slot(tokens, start.sampling, start.prompt_tokens)
        for grant in plan.grants:
            pages = list(wire.u32s(grant.pages))
            assert all(0 < page < self.info.num_pages for page in pages)
            self.slots[grant.slot].pages += pages
            assert len(set(self.slots[grant.slot].pages)) == len(self.slots[grant.slot].pages), "a page twice"

    def _compute(self, slot: int, state: Slot, begin: int, end: int) -> None:
        assert 0 <= begin < end <= len(state.tokens)
        assert end <= len(state.pages) * PAGE_SIZE, "a token has no page"
        for position in range(begin, end):
            page, offset = divmod(position, PAGE_SIZE)
            page = state.pages[page]
            others = [other for other, s in self.slots.items() if other != slot and page in s.pages]
            assert not others, f"slots {slot} and {others} share page {page} while it is written"
            self.memory.setdefault(page, [0] * PAGE_SIZE)[offset] = state.prefixes[position]
        self.computed += end - begin
        for position in range(end):
            page, offset = divmod(position, PAGE_SIZE)
            content = self.memory.get(state.pages[page])
            assert content is not None and content[offset] == state.prefixes[position], "a page has foreign tokens"


FAILS, KILLS = 95, 96
"""First tokens of prompts at which :class:`FaultyRanks` fail: so that they can go on, and for good."""


class FaultyRanks(FakeRanks):
    """Ranks for a whole scheduler process: they fail on demand, and load when the file ``gate`` exists."""

    def __init__(self, info: ExecutorInfo, gate: str | None) -> None:
        super().__init__(info)
        self.gate = gate
        self.sane = True

    def load(self) -> ExecutorInfo:
        if self.gate:
            Path(self.gate + ".loading").touch()
            while not Path(self.gate).exists():
                time.sleep(0.01)
        return super().load()

    def launch(self, plan: StepPlan) -> None:
        firsts = {wire.u32s(start.tokens)[0] for start in plan.starts}
        self.sane = self.sane and KILLS not in firsts
        if firsts & {FAILS, KILLS}:
            raise RuntimeError("the ranks failed, as they were told to")
        super().launch(plan)

    def recover(self) -> bool:
        return super().recover() and self.sane


def build(source: object, options: RunnerOptions) -> FaultyRanks:
    """Makes the executor of a scheduler process, as ``EngineConfig.executor`` names it."""
    if "LLMRT_TEST_NO_END" in os.environ:
        # As a step that hangs in native code does to a process that ends.
        atexit.register(time.sleep, 600)
    length = options.max_model_len or 4096
    info = ExecutorInfo(options.num_pages or 512, PAGE_SIZE, options.num_slots, length, 97)
    return FaultyRanks(info, os.environ.get("LLMRT_TEST_GATE"))


def serve(info: ExecutorInfo) -> None:
    """Executes plans, each with its length in four bytes before it, until the input ends."""
    ranks = FakeRanks(info)
    while size := sys.stdin.buffer.read(4):
        ranks.launch(plans.decode_plan(sys.stdin.buffer.read(int.from_bytes(size, "little"))))
        raw = plans.encode(ranks.collect())
        sys.stdout.buffer.write(len(raw).to_bytes(4, "little") + raw)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    serve(ExecutorInfo(*(int(argument) for argument in sys.argv[1:])))
