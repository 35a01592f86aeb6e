"""The default model says what ``transformers`` says in fp32 (``tests/reference/make_reference.py``)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from llmrt.model_source import resolve
from llmrt.runner.executor import InlineExecutor
from llmrt.runner.model_runner import ModelRunner
from llmrt.runner.options import RunnerOptions
from llmrt.scheduler.plan import StepPlan
from tests.unit.runner_driver import Driver

REFERENCE = Path(__file__).parents[1] / "golden" / "reference_smollm2.json"
CASES: list[dict[str, Any]] = json.loads(REFERENCE.read_text(encoding="utf-8"))["cases"]
PAGES = 300
TIE = 1e-3
"""Where the two best logits are this close, either may win; what follows may differ then."""


@pytest.fixture(scope="module")
def runner() -> Iterator[ModelRunner]:
    executor = InlineExecutor(resolve(None), RunnerOptions(num_slots=16, num_pages=PAGES, threads=2, progress=False))
    executor.load()
    yield executor.runner
    executor.close()


def test_the_reference_is_what_it_should_be() -> None:
    assert len(CASES) == 16
    assert max(len(case["prompt"]) for case in CASES) == 1500
    assert all(len(case["tokens"]) == len(case["gaps"]) == 64 for case in CASES)


def test_greedy_tokens_are_identical(runner: ModelRunner) -> None:
    """All prompts at once, in chunks, as a server would run them."""
    driver = Driver(runner, list(range(1, PAGES)))
    sequences = [driver.add(slot, case["prompt"]) for slot, case in enumerate(CASES)]
    for case, tokens in zip(CASES, driver.run(sequences, 64, 500), strict=True):
        differ = [i for i in range(64) if tokens[i] != case["tokens"][i]]
        if differ:
            gap = case["gaps"][differ[0]]
            assert gap <= TIE, f"{case['name']} differs at token {differ[0]}, where the gap is {gap}"
    runner.execute(StepPlan(0, list(range(16)), [], [], b"", b"", b"", b""))


@pytest.mark.parametrize("case", [c for c in CASES if len(c["prompt"]) > 1], ids=lambda case: case["name"])
def test_prompt_likelihood_agrees(runner: ModelRunner, case: dict[str, Any]) -> None:
    prompt = case["prompt"]
    logits = runner.logits(prompt, list(range(1, len(prompt) // 16 + 2)))[:-1]
    picked = torch.log_softmax(logits.double(), dim=-1).gather(1, torch.tensor(prompt[1:])[:, None])
    assert abs(-picked.mean().item() - case["nll"]) <= 1e-3
