"""Log probabilities of the real default model equal those of ``transformers`` (``tests/reference``)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmrt.model_source import resolve
from llmrt.runner.executor import InlineExecutor
from llmrt.runner.model_runner import ModelRunner
from llmrt.runner.options import RunnerOptions
from llmrt.scheduler.plan import RowLogprobs, StepPlan
from llmrt.wire import Sampling, f32s, u32s
from tests.unit.runner_driver import GREEDY, Driver, Sequence

GOLDEN = Path(__file__).parents[1] / "golden"
REFERENCE = json.loads((GOLDEN / "logprobs_smollm2.json").read_text(encoding="utf-8"))
CASES = {case["name"]: case for case in json.loads((GOLDEN / "reference_smollm2.json").read_text())["cases"]}
TOP = REFERENCE["top"]
REPORTS = Sampling(temperature=0.0, seed=0, logprobs=TOP, prompt_logprobs=TOP)
TOLERANCE = 1e-3
TOKENS = 8
PAGES = 100


@pytest.fixture(scope="module")
def runner() -> Iterator[ModelRunner]:
    options = RunnerOptions(num_slots=4, max_model_len=1024, num_pages=PAGES, threads=2, progress=False)
    executor = InlineExecutor(resolve(None), options)
    executor.load()
    yield executor.runner
    executor.close()


@pytest.fixture
def driver(runner: ModelRunner) -> Iterator[Driver]:
    yield Driver(runner, list(range(1, PAGES)))
    runner.execute(StepPlan(0, list(range(4)), [], [], b"", b"", b"", b""))


def values(parts: list[RowLogprobs]) -> tuple[np.ndarray, list[int], np.ndarray]:
    """What consecutive parts report, as one."""
    chosen = np.concatenate([f32s(part.chosen) for part in parts])
    ids = [id for part in parts for id in u32s(part.top_ids)]
    return chosen, ids, np.concatenate([f32s(part.top_logprobs) for part in parts])


def reported(driver: Driver, row: int = 0) -> list[RowLogprobs]:
    """All that was reported of a row of each plan, its prompt first."""
    results = driver.results
    prompt = [part for result in results for part in result.prompt_logprobs if part.row == row]
    return prompt + [part for result in results for part in result.logprobs if part.row == row]


def check(parts: list[RowLogprobs], reference: dict[str, Any], prompt_tokens: int) -> None:
    chosen, ids, top = values(parts)
    number = prompt_tokens - 1 + TOKENS
    assert len(chosen) == number and len(ids) == len(top) == number * TOP
    assert np.abs(chosen - reference["chosen"][:number]).max() <= TOLERANCE
    expected = np.array(reference["top_logprobs"][:number])
    assert np.abs(top.reshape(-1, TOP) - expected).max() <= TOLERANCE
    for found, wanted, near in zip(np.array(ids).reshape(-1, TOP), reference["top_ids"], expected, strict=False):
        # Where two are as good as equal, either may come first.
        if (np.diff(near) < -2 * TOLERANCE).all():
            assert found[:-1].tolist() == wanted[:-1]


def start(driver: Driver, slot: int, name: str, sampling: Sampling = REPORTS) -> Sequence:
    return driver.add(slot, CASES[name]["prompt"], sampling)


@pytest.mark.parametrize(
    ("name", "chunk"), [("chat_short", 1 << 30), ("story", 7), ("chinese", 16), ("code_python", 1 << 30)]
)
def test_log_probabilities_equal_the_reference(driver: Driver, name: str, chunk: int) -> None:
    sequence = start(driver, 0, name)
    assert driver.run([sequence], TOKENS, chunk)[0] == CASES[name]["tokens"][:TOKENS]
    reference = next(case for case in REFERENCE["cases"] if case["name"] == name)
    check(reported(driver), reference, sequence.prompt_tokens)


def test_neighbours_that_did_not_ask_change_nothing(driver: Driver) -> None:
    asking = start(driver, 2, "chat_short")
    plain = start(driver, 1, "story", GREEDY)
    driver.run([asking, plain], TOKENS, 20)
    reference = next(case for case in REFERENCE["cases"] if case["name"] == "chat_short")
    check(reported(driver, row=0), reference, asking.prompt_tokens)
    assert not reported(driver, row=1)
    assert plain.generated == CASES["story"]["tokens"][:TOKENS]


def test_recomputing_a_preempted_request_reports_the_rest(driver: Driver) -> None:
    case = CASES["story"]
    again = driver.add(0, case["prompt"], Sampling(temperature=0.0, seed=0, logprobs=TOP), case["tokens"][:4])
    driver.run([again], TOKENS)
    chosen, _, _ = values(reported(driver))
    reference = next(case for case in REFERENCE["cases"] if case["name"] == "story")["chosen"]
    first = again.prompt_tokens - 1 + 4
    assert np.abs(chosen - reference[first : first + TOKENS - 4]).max() <= TOLERANCE


def test_biased_requests_report_what_the_model_said(driver: Driver) -> None:
    sampling = Sampling(temperature=1.5, seed=3, logprobs=0, logit_bias=[(7, 100.0)], repetition_penalty=1.5)
    driver.run([start(driver, 0, "chat_short", sampling)], 1)
    [part] = reported(driver)
    assert u32s(driver.results[-1].tokens).tolist() == [7] and f32s(part.chosen)[0] < -5 and part.top == 0
