"""What a step costs: milliseconds by number of rows and by part, tokens per second, time to first token.

    python benches/engine/model_step.py [model] [--threads 2] [--dtype auto] [--json out.json]

Every figure is the best of its repetitions; other work on the machine shows in the medians. ``decode`` steps run rows
with 192 tokens of context, as a stream of 128 in and 128 out has on average.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from llmrt.model_source import resolve
from llmrt.runner.executor import InlineExecutor
from llmrt.runner.options import PAGE_SIZE, RunnerOptions
from llmrt.scheduler.plan import PageGrant, SlotStart, StepPlan
from llmrt.wire import Sampling, u32

CONTEXT = 192
GREEDY = Sampling(temperature=0.0, seed=0)
RANDOM = Sampling(temperature=0.8, top_p=0.95, seed=0)


class Bench:
    """Runs sequences of made-up tokens in all slots."""

    def __init__(self, executor: InlineExecutor, slots: int) -> None:
        self._executor = executor
        self._slots = slots

    def start(self, rows: int, tokens: int, room: int, sampling: Sampling = GREEDY) -> None:
        """Puts ``tokens`` tokens of prompt into ``rows`` slots with pages for ``room`` and computes nothing."""
        pages = -(-room // PAGE_SIZE)
        starts = [
            SlotStart(slot, tokens, u32((7 * slot + 31 * i) % 5000 + 100 for i in range(tokens)), sampling)
            for slot in range(rows)
        ]
        grants = [PageGrant(slot, u32(range(1 + slot * pages, 1 + (slot + 1) * pages))) for slot in range(rows)]
        self.launch(StepPlan(0, list(range(self._slots)), starts, grants, b"", b"", b"", b""))

    def step(self, rows: int, begin: int, count: int, sample: bool = True) -> float:
        """Seconds of one step that computes ``count`` tokens of each row."""
        plan = StepPlan(
            0, [], [], [], u32(range(rows)), u32([begin] * rows), u32([count] * rows), bytes([sample] * rows)
        )
        return self.launch(plan)

    def launch(self, plan: StepPlan) -> float:
        begin = time.perf_counter()
        self._executor.launch(plan)
        self._executor.collect()
        return time.perf_counter() - begin


@contextmanager
def timed(owner: type, method: str, spent: list[float]) -> Iterator[None]:
    """Adds up the seconds spent in a method of a class."""
    original: Callable[..., Any] = getattr(owner, method)

    def call(*args: Any) -> Any:
        begin = time.perf_counter()
        result = original(*args)
        spent[0] += time.perf_counter() - begin
        return result

    setattr(owner, method, call)
    try:
        yield
    finally:
        setattr(owner, method, original)


def decode(bench: Bench, rows: int, repeat: int, sampling: Sampling) -> dict[str, float]:
    """Milliseconds of a decode step of ``rows`` rows, split into linears, attention and the rest."""
    from llmrt.attention.torch_sdpa import TorchSdpa
    from llmrt.layers.linear import Linear

    bench.start(rows, CONTEXT, CONTEXT + repeat + 2, sampling)
    bench.step(rows, 0, CONTEXT)
    parts = []
    for i in range(repeat):
        linears, attention = [0.0], [0.0]
        with timed(Linear, "__call__", linears), timed(TorchSdpa, "forward", attention):
            total = bench.step(rows, CONTEXT + i, 1)
        parts.append((total, linears[0], attention[0]))
    best = min(parts)
    return {
        "step_ms": 1000 * best[0],
        "linears_ms": 1000 * best[1],
        "attention_ms": 1000 * best[2],
        "rest_ms": 1000 * (best[0] - best[1] - best[2]),
        "median_ms": 1000 * statistics.median(part[0] for part in parts),
    }


def streams(bench: Bench, rows: int, length: int) -> float:
    """Tokens per second of ``rows`` streams of ``length`` tokens in and out, prompts included."""
    bench.start(rows, length, 2 * length)
    seconds = 0.0
    at_once = max(1, 512 // length)
    for first in range(0, rows, at_once):
        slots = range(first, min(first + at_once, rows))
        n = len(slots)
        plan = StepPlan(0, [], [], [], u32(slots), u32([0] * n), u32([length] * n), bytes([1] * n))
        seconds += bench.launch(plan)
    seconds += sum(bench.step(rows, length + i, 1) for i in range(length - 1))
    return rows * length / seconds


def first_token(bench: Bench, tokens: int, chunk: int) -> float:
    """Seconds from a prompt of ``tokens`` to its first token, computed in chunks."""
    bench.start(1, tokens, tokens + 1)
    seconds = 0.0
    for begin in range(0, tokens, chunk):
        count = min(chunk, tokens - begin)
        seconds += bench.step(1, begin, count, begin + count == tokens)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32, 256])
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--repeat", type=int, default=8)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    slots = max(args.rows + args.streams)
    pages = slots * -(-(CONTEXT + args.repeat + 2) // PAGE_SIZE) + 100
    source = resolve(args.model)
    executor = InlineExecutor(
        source, RunnerOptions(num_slots=slots, num_pages=pages, threads=args.threads, dtype=args.dtype)
    )
    begin = time.perf_counter()
    executor.load()
    figures: dict[str, Any] = {"load_s": time.perf_counter() - begin}
    bench = Bench(executor, slots)
    for rows in args.rows:
        figures[f"decode_{rows}"] = decode(bench, rows, args.repeat, GREEDY)
        print(rows, "rows", {key: round(value, 1) for key, value in figures[f"decode_{rows}"].items()}, flush=True)
    figures["decode_32_sampled"] = decode(bench, min(32, slots), args.repeat, RANDOM)
    print("32 rows sampled", {key: round(value, 1) for key, value in figures["decode_32_sampled"].items()}, flush=True)
    figures["prompt_1000_s"] = min(first_token(bench, 1000, 512) for _ in range(2))
    for rows in args.streams:
        figures[f"streams_{rows}_tok_s"] = streams(bench, rows, args.length)
    print({key: round(value, 2) for key, value in figures.items() if isinstance(value, float)})
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
