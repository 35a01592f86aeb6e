"""``lm-eval`` with ``local-completions``: the scores are those of ``transformers`` on the same model.

The reference is ``tests/golden/lm_eval_smollm2.json``, made by ``tests/reference/make_lm_eval.py``.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from support.server import Server

from .conftest import MODEL
from .environments import HERE, Environment

TASKS = HERE / "lm_eval"
REFERENCE: dict[str, Any] = json.loads((HERE.parent / "golden" / "lm_eval_smollm2.json").read_text())
# Nats of a whole continuation: the sum of some rounding errors of fp32.
TOLERANCE = 1e-3


class Scores:
    """The results and samples that a run of ``lm_eval`` left in a folder."""

    def __init__(self, folder: Path) -> None:
        self.results: dict[str, Any] = json.loads(next(folder.rglob("results_*.json")).read_text())["results"]
        self.samples: dict[str, list[Any]] = {}
        for task in self.results:
            file = next(folder.rglob(f"samples_{task}_*.jsonl"))
            samples = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
            self.samples[task] = sorted(samples, key=lambda sample: sample["doc_id"])


@pytest.fixture(scope="module", params=["concurrent", "batches"])
def scores(request: pytest.FixtureRequest, server: Server, tokenizer: Path, tmp_path_factory: Any) -> Scores:
    """Four requests at once of one prompt each, or one request of eight prompts at a time."""
    folder: Path = tmp_path_factory.mktemp("lm_eval")
    concurrent, batch = {"concurrent": (4, 1), "batches": (1, 8)}[request.param]
    where = f"base_url={server.url}/v1/completions,num_concurrent={concurrent},max_retries=1"
    model = ("--model", "local-completions", "--model_args", f"model={MODEL},tokenizer={tokenizer},{where}")
    tasks = ("--tasks", "llmrt_questions,llmrt_passages", "--include_path", str(TASKS))
    output = ("--output_path", str(folder), "--log_samples")
    Environment("lm-eval").python_output(
        *("-m", "lm_eval", "run", *model, "--batch_size", str(batch), *tasks, *output),
        cwd=TASKS,
        HF_HOME=str(folder / "cache"),
        timeout=250,
    )
    return Scores(folder)


def close(value: float) -> Any:
    return pytest.approx(value, abs=TOLERANCE)


def test_every_likelihood_is_that_of_transformers(scores: Scores) -> None:
    choices = [
        [(float(value), greedy == "True") for [(value, greedy)] in sample["resps"]]
        for sample in scores.samples["llmrt_questions"]
    ]
    assert choices == [[(close(value), greedy) for value, greedy in item] for item in REFERENCE["choices"]]
    passages = [float(sample["resps"][0][0]) for sample in scores.samples["llmrt_passages"]]
    assert passages == [close(value) for value, _ in REFERENCE["passages"]]


def test_the_scores_are_those_of_transformers(scores: Scores) -> None:
    questions, passages = scores.samples["llmrt_questions"], scores.samples["llmrt_passages"]
    right = right_norm = 0
    for sample, item in zip(questions, REFERENCE["choices"], strict=True):
        answer, names = sample["doc"]["answer"], sample["doc"]["choices"]
        values = [value for value, _ in item]
        norms = [value / len(name) for value, name in zip(values, names, strict=True)]
        right += values.index(max(values)) == answer
        right_norm += norms.index(max(norms)) == answer
    assert right == REFERENCE["right"]
    assert scores.results["llmrt_questions"]["acc,none"] == pytest.approx(right / len(questions))
    assert scores.results["llmrt_questions"]["acc_norm,none"] == pytest.approx(right_norm / len(questions))
    size = sum(len(sample["doc"]["text"].encode()) for sample in passages)
    bits = -sum(value for value, _ in REFERENCE["passages"]) / math.log(2) / size
    assert scores.results["llmrt_passages"]["bits_per_byte,none"] == pytest.approx(bits, abs=1e-5)
