"""CPU time that the scheduler takes per step, with no model behind it.

Every running request decodes; ranks are replaced by an array of tokens. Prints, for each number of running requests,
the median and the 99th percentile of schedule and update together (frame included, links not), in microseconds.

    python benches/engine/scheduler_cost.py [--running 1 32 256] [--steps 2000]
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time

from llmrt import wire
from llmrt.cache.pages import PAGE_SIZE
from llmrt.scheduler.plan import ExecutorInfo, StepResult
from llmrt.scheduler.scheduler import Scheduler

VOCAB = 50_000
PROMPT = 128


def measure(running: int, steps: int) -> tuple[list[float], list[float]]:
    """Microseconds of CPU of each step for ``schedule`` and for ``update``."""
    budget = max(512, 2 * running)
    # The first requests decode while the last ones still prefill.
    answer = steps + running * PROMPT // (budget - running) + running + 16
    length = PROMPT + answer
    pages = running * (length // PAGE_SIZE + 2)
    scheduler = Scheduler(
        ExecutorInfo(pages, PAGE_SIZE, running, length + 1, VOCAB),
        [2],
        max_num_seqs=running,
        max_num_batched_tokens=budget,
    )
    for id in range(running):
        prompt = wire.u32((id * 7919 + i) % VOCAB for i in range(PROMPT))
        sampling = wire.Sampling(max_tokens=answer, ignore_eos=True)
        scheduler.add(wire.Request(id, prompt, sampling, wire.Output()))
    clock = time.process_time_ns
    planning, reading = [], []
    while len(planning) < steps:
        began = clock()
        plan = scheduler.schedule()
        planned = clock()
        if plan is None:
            raise RuntimeError("the requests ended before the steps were measured")
        sampled = sum(plan.sample)
        result = StepResult(plan.step, wire.u32((plan.step + i) % VOCAB for i in range(sampled)))
        computed = clock()
        scheduler.update(result)
        read = clock()
        if sampled == running:
            planning.append((planned - began) / 1000)
            reading.append((read - computed) / 1000)
    scheduler.verify()
    return planning, reading


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--running", type=int, nargs="+", default=[1, 32, 256])
    parser.add_argument("--steps", type=int, default=2000)
    options = parser.parse_args()
    print(f"{'running':>8} {'schedule':>9} {'update':>9} {'step':>9} {'p99':>9}   us of CPU, medians")
    for running in options.running:
        gc.collect()
        gc.freeze()
        planning, reading = measure(running, options.steps)
        steps = sorted(a + b for a, b in zip(planning, reading, strict=True))
        median = statistics.median
        tail = steps[int(len(steps) * 0.99)]
        print(f"{running:>8} {median(planning):>9.1f} {median(reading):>9.1f} {median(steps):>9.1f} {tail:>9.1f}")


if __name__ == "__main__":
    main()
