"""Control calls that the scheduler answers."""

from __future__ import annotations

import json
from collections.abc import Callable

from llmrt import wire
from llmrt.scheduler.scheduler import Scheduler


def _stats(scheduler: Scheduler) -> object:
    return scheduler.stats()


def _flush_cache(scheduler: Scheduler) -> object:
    return {"evicted_pages": scheduler.cache.flush()}


METHODS: dict[str, Callable[[Scheduler], object]] = {"stats": _stats, "flush_cache": _flush_cache}


def answer(call: wire.Call, scheduler: Scheduler) -> wire.Reply:
    """Carries a call out; an unknown method gets an answer that is not ``ok``."""
    method = METHODS.get(call.method)
    if method is None:
        message = f"the scheduler has no method {call.method!r}; it has {', '.join(METHODS)}"
        return wire.Reply(call.call, False, message)
    return wire.Reply(call.call, True, json.dumps(method(scheduler)))
