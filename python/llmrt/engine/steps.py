"""The executor on a thread of its own: while a step is computed the loop still hears what comes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from queue import SimpleQueue
from typing import Any

from llmrt.scheduler.plan import Executor, ExecutorInfo, StepPlan, StepResult

FAREWELL = 5.0
"""Seconds that an executor may take to end."""


class StepThread:
    """Has an executor do everything on one thread, whose settings for computing are its own.

    ``fileno()`` is readable once the step under way has ended. The thread does not keep the process from ending: a
    step that hangs would.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._orders: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._reader, self._writer = os.pipe()
        self._taken = True
        threading.Thread(target=self._run, name="llmrt-step", daemon=True).start()

    def load(self) -> ExecutorInfo:
        """As the executor's."""
        info: ExecutorInfo = self._order(self._executor.load).result()
        return info

    def start(self, plan: StepPlan) -> Future[StepResult]:
        """Has a step computed; no other may be under way."""
        step = self._order(lambda: self._compute(plan))
        self._taken = False
        step.add_done_callback(lambda _: os.write(self._writer, b"\0"))
        return step

    def recover(self) -> bool:
        """As the executor's; of a step that nobody has taken nothing is left."""
        sane: bool = self._order(self._executor.recover).result()
        self._take_notice()
        return sane

    def close(self) -> None:
        """Gives the executor's memory back and ends the thread, if what it does now has an end."""
        wait([self._order(self._executor.close)], FAREWELL)
        self._orders.put(None)

    def fileno(self) -> int:
        """Descriptor to poll for reading while a step is under way."""
        return self._reader

    def take(self, step: Future[StepResult]) -> StepResult:
        """The result of a step that has ended. Raises what computing it raised."""
        self._take_notice()
        return step.result()

    def _take_notice(self) -> None:
        """Takes the byte of the step that was started last, if it is still there: that step has ended."""
        if not self._taken:
            os.read(self._reader, 1)
            self._taken = True

    def _order(self, work: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        self._orders.put((future, work))
        return future

    def _compute(self, plan: StepPlan) -> StepResult:
        self._executor.launch(plan)
        return self._executor.collect()

    def _run(self) -> None:
        while (order := self._orders.get()) is not None:
            future, work = order
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)
            # Nothing of a step outlives it here.
            del order, future, work
        os.close(self._reader)
        os.close(self._writer)
