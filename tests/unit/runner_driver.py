"""Drives a runner with step plans as a scheduler would, and nothing more: for the tests of the runner."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from llmrt.scheduler.plan import PageGrant, SlotStart, StepPlan, StepResult
from llmrt.wire import Sampling, u32, u32s

PAGE = 16
GREEDY = Sampling(temperature=0.0, seed=0)


class Runs(Protocol):
    def execute(self, plan: StepPlan) -> StepResult: ...


@dataclass
class Sequence:
    """A request in a slot: its tokens, how many are computed, its pages."""

    slot: int
    tokens: list[int]
    sampling: Sampling
    prompt_tokens: int
    computed: int = 0
    pages: list[int] = field(default_factory=list)
    started: bool = False

    @property
    def generated(self) -> list[int]:
        return self.tokens[self.prompt_tokens :]


class Driver:
    """Gives out slots and pages, builds plans and runs them; ``plans`` and ``results`` keep every one."""

    def __init__(self, runner: Runs, pages: list[int]) -> None:
        self._runner = runner
        self._pages = list(pages)
        self._freed: list[int] = []
        self.plans: list[StepPlan] = []
        self.results: list[StepResult] = []

    def add(
        self, slot: int, prompt: list[int], sampling: Sampling = GREEDY, generated: list[int] | None = None
    ) -> Sequence:
        return Sequence(slot, [*prompt, *(generated or [])], sampling, len(prompt))

    def free(self, sequence: Sequence, keep: int = 0) -> None:
        """Frees the slot; the first ``keep`` pages stay with whoever shares them."""
        self._freed.append(sequence.slot)
        self._pages = sequence.pages[keep:] + self._pages

    def step(self, rows: list[tuple[Sequence, int]]) -> None:
        """Computes the next ``count`` tokens of each sequence; those that reach their end get a token."""
        starts, grants, samples = [], [], []
        for sequence, count in rows:
            if not sequence.started:
                tokens = u32(sequence.tokens)
                starts.append(SlotStart(sequence.slot, sequence.prompt_tokens, tokens, sequence.sampling))
                if sequence.pages:
                    grants.append(PageGrant(sequence.slot, u32(sequence.pages)))
                sequence.started = True
            need = -(-(sequence.computed + count) // PAGE) - len(sequence.pages)
            if need > 0:
                new, self._pages = self._pages[:need], self._pages[need:]
                grants.append(PageGrant(sequence.slot, u32(new)))
                sequence.pages += new
            samples.append(sequence.computed + count == len(sequence.tokens))
        plan = StepPlan(
            step=len(self.plans),
            freed=self._freed,
            starts=starts,
            grants=grants,
            slots=u32(sequence.slot for sequence, _ in rows),
            begin=u32(sequence.computed for sequence, _ in rows),
            count=u32(count for _, count in rows),
            sample=bytes(samples),
        )
        self._freed = []
        self.plans.append(plan)
        self.results.append(self._runner.execute(plan))
        tokens = iter(u32s(self.results[-1].tokens))
        for (sequence, count), sampled in zip(rows, samples, strict=True):
            sequence.computed += count
            if sampled:
                sequence.tokens.append(next(tokens))

    def run(self, sequences: list[Sequence], tokens: int, chunk: int = 1 << 30) -> list[list[int]]:
        """Steps until every sequence has generated ``tokens``, computing at most ``chunk`` of each in a step."""
        while True:
            rows = [(s, min(chunk, len(s.tokens) - s.computed)) for s in sequences if len(s.generated) < tokens]
            if not rows:
                return [sequence.generated for sequence in sequences]
            self.step(rows)
