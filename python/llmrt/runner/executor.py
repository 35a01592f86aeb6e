"""The executor that computes in the scheduler's own process."""

from __future__ import annotations

from collections import deque

import torch

from llmrt import cpus
from llmrt.model_source import ModelSource
from llmrt.runner.model_runner import ModelRunner
from llmrt.runner.options import RunnerOptions
from llmrt.scheduler.plan import ExecutorInfo, StepPlan, StepResult


class InlineExecutor:
    """Implements :class:`llmrt.scheduler.plan.Executor` with one rank; a step is computed in ``launch``."""

    def __init__(self, source: ModelSource, options: RunnerOptions | None = None) -> None:
        self._source = source
        self._options = options or RunnerOptions()
        self._runner: ModelRunner | None = None
        self._results: deque[StepResult] = deque()

    def load(self) -> ExecutorInfo:
        """Loads the model. Raises :class:`llmrt.model_config.ModelError`."""
        torch.set_num_threads(self._options.threads or cpus.available())
        self._runner = ModelRunner.load(self._source, self._options)
        return self._runner.info

    @property
    def runner(self) -> ModelRunner:
        """The loaded rank. Raises ``RuntimeError`` before ``load`` and after ``close``."""
        if self._runner is None:
            raise RuntimeError("the executor has no model loaded")
        return self._runner

    def launch(self, plan: StepPlan) -> None:
        """Computes a step. Raises :class:`llmrt.runner.slots.PlanError` on a plan that contradicts the slots."""
        self._results.append(self.runner.execute(plan))

    def collect(self) -> StepResult:
        """The oldest result not yet collected. Raises ``RuntimeError`` when no step was launched."""
        if not self._results:
            raise RuntimeError("no step was launched")
        return self._results.popleft()

    def recover(self) -> bool:
        """Drops what was launched. True while a model is loaded: every step begins from the slots' own state."""
        self._results.clear()
        return self._runner is not None

    def close(self) -> None:
        """Lets go of the model and its memory."""
        self._runner = None
        self._results.clear()
