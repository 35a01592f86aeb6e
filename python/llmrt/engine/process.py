"""Main of the scheduler process; started by the supervisor with its configuration on a descriptor."""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import logging
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import zmq

from llmrt import link, logs, model_source
from llmrt.engine import farewell
from llmrt.engine.config import EngineConfig
from llmrt.engine.lanes import Lanes
from llmrt.engine.loop import EngineError, EngineLoop
from llmrt.engine.steps import StepThread
from llmrt.model_config import ModelError
from llmrt.process.child import die_with_parent, read_configuration
from llmrt.process.signals import END, Signals
from llmrt.scheduler.plan import Executor, ExecutorInfo
from llmrt.scheduler.scheduler import Scheduler

# By name: as a main module this one is called otherwise, and would log past the handler of llmrt.
log = logging.getLogger("llmrt.engine.process")

FAILED = 1
FAREWELL_MS = 200
"""Milliseconds in which the links of a process that ends may still send."""


def main(arguments: list[str] | None = None) -> int:
    """Serves until it is told to end; returns the exit code."""
    config = EngineConfig.from_json(read_configuration(sys.argv[1:] if arguments is None else arguments))
    die_with_parent(config.parent)
    logs.setup("scheduler", config.log_level, config.log_format)
    try:
        return serve(config)
    except ModelError as error:
        log.error("%s", error)
        farewell.say(config.topology.control, str(error))
    except Exception as error:
        log.exception("the scheduler failed")
        farewell.say(config.topology.control, repr(error))
    return FAILED


def serve(config: EngineConfig) -> int:
    """Loads, then runs the loop. Raises what loading raises."""
    options = link.LinkOptions(silence=config.step_deadline)
    # Bound before the model is loaded, so that whoever connects meanwhile waits in its queue instead of retrying.
    requests = link.Inbox(config.topology.scheduler.requests, options=options)
    source = model_source.resolve(config.model)
    steps = StepThread(_executor(config, source))
    info = steps.load()
    scheduler = Scheduler(
        info,
        source.eos_token_ids,
        schedule_policy=config.schedule_policy,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        enable_prefix_caching=config.enable_prefix_caching,
        max_requests=config.credit,
        model=source.name,
    )
    requests.welcome = link.Welcome(config.credit, json.dumps(_description(source.name, info, scheduler)))
    identity = link.Identity("scheduler", incarnation=requests.welcome.incarnation)
    tokens = Lanes([link.Outbox(each.tokens, identity, options) for each in config.topology.detokenizer])
    control = link.Outbox(config.topology.control, identity, options)
    # What loading made lives as long as the process: collections need not look at it.
    gc.collect()
    gc.freeze()
    signals = Signals(END)
    reason = "the scheduler failed; its log says how"
    try:
        EngineLoop(scheduler, steps, requests, tokens, control, config.step_deadline).run(signals)
        reason = "the server ends"
        return 0
    except EngineError as error:
        log.critical("%s", error)
        reason = str(error)
        return FAILED
    finally:
        tokens.close(reason)
        for each in (requests, control):
            each.close(reason)
        signals.close_at_the_end()
        steps.close()


def _executor(config: EngineConfig, source: model_source.ModelSource) -> Executor:
    """Imports and makes the executor; only here may torch come in."""
    from llmrt.runner.options import RunnerOptions

    module, _, name = config.executor.partition(":")
    make: Callable[[Any, RunnerOptions], Executor] = getattr(importlib.import_module(module), name)
    return make(
        source,
        RunnerOptions(
            num_slots=config.max_num_seqs,
            max_model_len=config.max_model_len,
            num_pages=config.num_pages,
            kv_cache_bytes=config.kv_cache_bytes or None,
            threads=config.num_threads,
            dtype=config.dtype,
        ),
    )


def _description(model: str, info: ExecutorInfo, scheduler: Scheduler) -> dict[str, Any]:
    """What an entry must know of this core."""
    return {
        "model": model,
        "max_model_len": scheduler.limits.max_model_len,
        "vocab_size": info.vocab_size,
        "max_num_seqs": scheduler.limits.max_num_seqs,
        "num_pages": info.num_pages,
        "page_size": info.page_size,
    }


def _end(code: int) -> NoReturn:
    """Ends the process when what the links have to say is on its way.

    Python's own end would not wait for them, and might wait for ever for a step that hangs in native code.
    """
    zmq.Context.instance().destroy(linger=FAREWELL_MS)
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    _end(main())
