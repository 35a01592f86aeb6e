"""``guidellm`` and ``llmrt bench serve`` measure the same throughput of the same server.

The mock engine's pace decides how fast the server is, slow enough for a busy machine to keep it. ``guidellm`` starts
its streams one after another and takes its time between two requests, the more so the busier the machine. So each
throughput is taken as the tool reports it and divided by the mean number of open requests during the same time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmrt.cli import bench
from support.server import Server

from .conftest import MODEL
from .environments import Environment

STEP_MS = 20
STREAMS = 8
REQUESTS = 16
PROMPT_TOKENS = 32
OUTPUT_TOKENS = 200


@pytest.fixture(scope="module")
def paced() -> Iterator[Server]:
    server = Server("--engine", "mock", "--mock-step-ms", str(STEP_MS))
    yield server
    assert server.stop() == 0, server.log


@pytest.fixture(scope="module")
def theirs(paced: Server, tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The benchmark of ``guidellm``."""
    file = tmp_path_factory.mktemp("guidellm") / "report.json"
    Environment("guidellm", beside=("torch",)).python_output(
        *("-m", "guidellm", "run", "--disable-console"),
        *("--backend", f"kind=openai_http,target={paced.url},model={MODEL}"),
        *("--profile", f"kind=concurrent,streams={STREAMS}"),
        *("--constraint", f"kind=max_requests,count={REQUESTS}"),
        *("--tokenizer", f"kind=hf_auto,model={tokenizer}"),
        *("--data", f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={OUTPUT_TOKENS}"),
        *("--output", f"kind=json,path={file}"),
        GUIDELLM__MAX_WORKER_PROCESSES="1",
        timeout=250,
    )
    [benchmark] = json.loads(file.read_text())["benchmarks"]
    return benchmark


@pytest.fixture(scope="module")
def ours(paced: Server, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The report of ``llmrt bench serve``."""
    file = tmp_path_factory.mktemp("bench") / "report.json"
    load = ("--max-concurrency", str(STREAMS), "--num-prompts", str(REQUESTS), "--input-len", str(PROMPT_TOKENS))
    answers = ("--output-len", str(OUTPUT_TOKENS), "--ignore-eos")
    assert bench.main(["serve", "--base-url", paced.url, *load, *answers, "--json", str(file)]) == 0
    return json.loads(file.read_text())


def test_both_did_the_same_work(ours: Any, theirs: Any) -> None:
    assert (ours["completed"], ours["failed"], ours["output_tokens"]) == (REQUESTS, 0, REQUESTS * OUTPUT_TOKENS)
    made = theirs["scheduler_metrics"]["requests_made"]
    assert (made["successful"], made["errored"], made["incomplete"]) == (REQUESTS, 0, 0)
    assert [each["output_tokens"] for each in theirs["requests"]["successful"]] == [OUTPUT_TOKENS] * REQUESTS


def test_they_agree_on_throughput(ours: Any, theirs: Any) -> None:
    metrics = theirs["metrics"]
    their_rate = metrics["output_tokens_per_second"]["successful"]["mean"]
    their_streams = metrics["request_concurrency"]["successful"]["mean"]
    our_streams = ours["e2e"]["mean"] / 1000 * ours["completed"] / ours["duration_s"]
    assert their_rate / their_streams == pytest.approx(ours["output_throughput"] / our_streams, rel=0.05)
    # And on what makes it up: the pace of the tokens of one stream.
    their_pace = metrics["inter_token_latency_ms"]["successful"]["mean"]
    assert their_pace == pytest.approx(ours["itl"]["mean"], rel=0.05)
