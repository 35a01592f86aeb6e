"""What each process of a server is told, made from the configuration, the model and the topology."""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import time
from typing import TYPE_CHECKING, Any

from llmrt import cpus, link
from llmrt.config import Config, MockOptions
from llmrt.engine.config import EngineConfig
from llmrt.model_source import ModelSource
from llmrt.supervisor import front
from llmrt.supervisor.children import Child, stop
from llmrt.supervisor.errors import StartError
from llmrt.topology import Topology

if TYPE_CHECKING:
    from llmrt._core import Entry, Ledger

HEARTBEAT = 1.0
MIB = 1 << 20
GIB = 1 << 30
LOCAL_BUFFER = 256 * MIB
"""Bytes of an unread answer that may wait for a reader in the entry's own process."""


def children(config: Config, source: ModelSource, topology: Topology) -> list[Child]:
    """Starts the processes of the core: the scheduler's first, then the detokenizers'."""
    with contextlib.ExitStack() as undo:
        started = [engine(config, source, topology)]
        undo.callback(stop, started)
        for index in range(len(topology.detokenizer)):
            told = json.dumps(detokenizer_config(config, source, topology, index)).encode()
            name = "the detokenizer" if len(topology.detokenizer) == 1 else f"detokenizer[{index}]"
            started.append(Child(name, "detokenizer", "llmrt.detokenizer.process", told, index=index))
        undo.pop_all()
    return started


def engine(config: Config, source: ModelSource, topology: Topology) -> Child:
    """Starts what answers requests: the scheduler, or the mock engine in its place."""
    if config.mock.engine == "mock":
        told = json.dumps(mock_config(config, source, topology)).encode()
        return Child("the mock engine", "scheduler", "llmrt.engine.mock", told)
    told = engine_config(config, source, topology).to_json()
    return Child("the scheduler", "scheduler", "llmrt.engine.process", told)


def entry(config: Config, source: ModelSource, topology: Topology, listener: socket.socket | None) -> Entry:
    """Starts the entry worker inside this process, on a descriptor of its own for ``listener`` where there is one."""
    from llmrt._core import Entry

    with contextlib.ExitStack() as undo:
        descriptor = None
        if listener is not None:
            descriptor = os.dup(listener.fileno())
            undo.callback(close_if_open, descriptor, listener)
        try:
            worker = Entry(json.dumps(entry_config(config, source, topology, descriptor)))
            worker.start()
        except (ValueError, RuntimeError, OSError) as error:
            raise StartError(str(error)) from error
        undo.pop_all()
    return worker


def entry_process(
    config: Config, source: ModelSource, topology: Topology, listener: socket.socket, worker: int
) -> Child:
    """Starts an entry worker as a process of its own, which inherits ``listener``."""
    told = entry_config(config, source, topology, listener.fileno(), worker)
    # Who has the control link is told by it when to end; SIGTERM is for everybody else.
    told["supervisor"] = {"control": topology.control, "shutdown_timeout_s": config.entry.shutdown_timeout}
    told["parent"] = os.getpid()
    inherited = [listener.fileno()]
    configuration = json.dumps(told).encode()
    return Child(f"entry[{worker}]", "entry", "llmrt.entry.process", configuration, index=worker, inherited=inherited)


def close_if_open(descriptor: int, listener: socket.socket) -> None:
    """A worker that fails to start may have taken its descriptor, and closed it, or not."""
    with contextlib.suppress(OSError):
        if os.path.sameopenfile(descriptor, listener.fileno()):
            os.close(descriptor)


def link_options(config: Config) -> link.LinkOptions:
    """How the links of this process behave; as :func:`link_times` tells the others."""
    return link.LinkOptions(heartbeat=HEARTBEAT, silence=config.process.step_deadline)


def max_model_len(config: Config, source: ModelSource) -> int:
    """Longest prompt plus answer, tokens. Raises :class:`StartError` when more is asked than the model can do."""
    limit = source.config.max_position_embeddings
    wanted = config.model.max_model_len
    if wanted is not None and wanted > limit:
        raise StartError(f"--max-model-len {wanted} is more than the model's {limit}")
    return wanted or limit


def engine_config(config: Config, source: ModelSource, topology: Topology) -> EngineConfig:
    """What the scheduler process is told."""
    return EngineConfig(
        topology=topology,
        model=None if config.model.model is None else str(source.path),
        max_model_len=max_model_len(config, source),
        dtype=config.model.dtype,
        schedule_policy=config.scheduler.schedule_policy,
        max_num_seqs=config.scheduler.max_num_seqs,
        max_num_batched_tokens=config.scheduler.max_num_batched_tokens,
        max_num_queued_reqs=_backstop(config),
        enable_prefix_caching=config.scheduler.enable_prefix_caching,
        # Rounded up: 0 would mean that nothing was said.
        kv_cache_bytes=math.ceil(config.scheduler.kv_cache_memory * GIB),
        num_pages=config.scheduler.num_pages,
        num_threads=config.process.num_threads or cpus.available(),
        step_deadline=config.process.step_deadline,
        parent=os.getpid(),
        log_level=config.log.log_level,
        log_format=config.log.log_format,
    )


def mock_config(config: Config, source: ModelSource, topology: Topology) -> dict[str, Any]:
    """What the mock engine is told. Raises :class:`StartError` for options that it would refuse."""
    from llmrt._core import check_mock_faults

    faults = config.mock.mock_faults or ""
    try:
        check_mock_faults(faults)
    except ValueError as error:
        raise StartError(f"--mock-faults: {error}") from error
    return {
        "parent": os.getpid(),
        "topology": json.loads(topology.to_json()),
        "tokenizer": _tokenizer(source),
        "model": config.model.served_model_name or source.name,
        "max_model_len": max_model_len(config, source),
        "vocab_size": source.config.vocab_size,
        "eos_token_ids": source.eos_token_ids,
        "max_num_seqs": config.scheduler.max_num_seqs,
        "max_num_queued_reqs": _backstop(config),
        "pattern": _mock_pattern(config.mock, source.config.vocab_size),
        "step_ms": config.mock.mock_step_ms,
        "answer_tokens": config.mock.mock_answer_tokens,
        "cached_tokens": config.mock.mock_cached_tokens,
        "faults": faults,
        "log": log(config),
        "link": link_times(config),
    }


def _mock_pattern(options: MockOptions, vocab_size: int) -> dict[str, Any]:
    kind = options.mock_pattern
    if kind == "text":
        if not options.mock_text:
            raise StartError("--mock-text must not be empty")
        return {"kind": kind, "text": options.mock_text}
    if kind == "tokens":
        words = [word.strip() for word in (options.mock_tokens or "").split(",")]
        if not all(word.isdecimal() and int(word) < vocab_size for word in words):
            raise StartError(
                f"--mock-tokens {options.mock_tokens!r} must be token ids below {vocab_size}, separated by commas"
            )
        return {"kind": kind, "tokens": [int(word) for word in words]}
    return {"kind": kind, "seed": options.mock_seed} if kind == "random" else {"kind": kind}


def detokenizer_config(config: Config, source: ModelSource, topology: Topology, index: int = 0) -> dict[str, Any]:
    """What a detokenizer process is told."""
    return {
        "index": index,
        "parent": os.getpid(),
        "topology": json.loads(topology.to_json()),
        "tokenizer": _tokenizer(source),
        "log": log(config),
        "link": link_times(config),
    }


def entry_config(
    config: Config, source: ModelSource, topology: Topology, descriptor: int | None, worker: int = 0
) -> dict[str, Any]:
    """What an entry worker is told; ``descriptor`` is that of its listening socket, if it has one."""
    return {
        "endpoints": {
            "requests": topology.scheduler.requests,
            "results": topology.entry[worker].results,
            "ledger": topology.ledger,
        },
        **front_door(config, source, descriptor, worker, topology.workers),
    }


def front_door(
    config: Config, source: ModelSource, descriptor: int | None, worker: int = 0, workers: int = 1
) -> dict[str, Any]:
    """The part of it that is the same for a worker whose core is on another host.

    Workers share what is bounded by number or bytes; each must be able to hold one of the largest bodies.
    """
    bodies = max(math.ceil(config.entry.max_bodies_mb * MIB / workers), config.entry.max_body_mb * MIB)
    served = config.model.served_model_name
    # Whoever reads slowly in this process holds up nobody but itself, and no proxy is in between.
    patience = {} if descriptor is not None else {"response_buffer_bytes": LOCAL_BUFFER, "ping_interval_s": 0}
    return {
        "worker": worker,
        "listen_fd": descriptor,
        "detokenizers": config.process.detokenizers,
        "model": {
            "name": served or source.name,
            "max_model_len": max_model_len(config, source),
            "vocab_size": source.config.vocab_size,
            "tokenizer": _tokenizer(source),
            "chat_template": source.chat_template,
            "bos_token": source.bos_token,
            "eos_token": source.eos_token,
            "created": int(time.time()),
        },
        "tokenizer_threads": config.entry.tokenizer_threads or math.ceil(cpus.available() / workers),
        "tokenizer_cache_bytes": config.entry.tokenizer_cache_mb * MIB,
        **front.keys(config),
        "limits": {
            "max_body_bytes": config.entry.max_body_mb * MIB,
            "max_bodies_bytes": bodies,
            "max_connections": math.ceil(config.entry.max_connections / workers),
            **_bounds(config),
            "request_timeout_s": config.entry.request_timeout,
            "max_choices": config.entry.max_choices,
            "keep_alive_timeout_s": config.entry.keep_alive_timeout,
            "max_connection_age_s": config.entry.max_connection_age,
            "max_concurrent_streams": config.http.http2_max_concurrent_streams,
            "stall_timeout_s": config.entry.stall_timeout,
            "ping_interval_s": config.entry.sse_ping_interval,
            "health_timeout_s": config.entry.health_timeout,
            **patience,
        },
        "http2": front.http2(config.http),
        "web": front.web(config.http, descriptor),
        "tls": front.tls(config.tls),
        "log": log(config),
        "stat_interval_s": config.log.stat_interval,
        "link": link_times(config),
    }


def ledger(config: Config, topology: Topology) -> Ledger | None:
    """Starts to count for several entry workers what their requests hold and use; one alone does that itself.

    Raises :class:`StartError`.
    """
    from llmrt._core import Ledger

    if topology.ledger is None:
        return None
    told = {
        "endpoint": topology.ledger,
        **_bounds(config),
        **front.keys(config),
        "log": log(config),
        "link": link_times(config),
    }
    try:
        return Ledger(json.dumps(told))
    except (ValueError, OSError) as error:
        raise StartError(str(error)) from error


def _backstop(config: Config) -> int:
    """Requests that the scheduler lets wait.

    The entry bounds them, exactly. But it takes the next one when another is given up, and the scheduler gives that
    one's place back with its next step: until then it may have all of them twice.
    """
    return config.scheduler.max_num_seqs + 2 * config.entry.max_num_queued_reqs


def _bounds(config: Config) -> dict[str, int]:
    """What all requests together may have."""
    return {
        "max_requests": config.scheduler.max_num_seqs + config.entry.max_num_queued_reqs,
        "max_running": config.scheduler.max_num_seqs,
        "max_queued_tokens": config.entry.max_num_queued_tokens,
    }


def _tokenizer(source: ModelSource) -> dict[str, str]:
    return {"kind": "gguf" if source.tokenizer.suffix == ".gguf" else "json", "path": str(source.tokenizer)}


def log(config: Config) -> dict[str, str]:
    """How the Rust parts of processes log."""
    return {"format": config.log.log_format, "level": config.log.log_level}


def link_times(config: Config) -> dict[str, float]:
    """How the links of other processes behave."""
    return {"heartbeat_s": HEARTBEAT, "silence_s": config.process.step_deadline}
