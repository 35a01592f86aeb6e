"""Flags of ``llmrt bench serve``, and the configuration that they make."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

DEFAULT_URL = "http://127.0.0.1:8000"
DEFAULT_PROMPTS = 100
ENDPOINTS = ("chat", "completions")
DATASETS = {
    "random": ("input_len", "output_len", "range_ratio", "token_ids"),
    "file": ("dataset_path", "output_len"),
    "shared-prefix": ("num_prefixes", "prefix_len", "suffix_len", "output_len", "token_ids"),
}
"""The workloads, and the flags that shape each."""

DEFAULTS: dict[str, Any] = {
    "input_len": 1024,
    "output_len": 128,
    "range_ratio": 0.0,
    "num_prefixes": 8,
    "prefix_len": 512,
    "suffix_len": 128,
    "token_ids": None,
}


class FlagError(ValueError):
    """Flags that cannot work, alone or together; the message says what to change."""


def parser(program: str) -> argparse.ArgumentParser:
    """The flags of the command."""
    flags = argparse.ArgumentParser(
        prog=program,
        description="Send a load to a server that speaks the OpenAI API and measure its latency and throughput.",
        epilog="Times run from sending a request. TTFT: to the first chunk with text. ITL: between chunks with text. "
        "TPOT: per token after the first. E2E: to [DONE]. TTFT, TPOT and E2E are of completed requests.",
        allow_abbrev=False,
    )
    flags.add_argument("what", choices=("serve",), metavar="serve", help="measure a running server")
    _add_server(flags.add_argument_group("Server"))
    _add_workload(flags.add_argument_group("Workload"))
    _add_load(flags.add_argument_group("Load"))
    _add_output(flags.add_argument_group("Measurement and output"))
    return flags


def _add_server(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--base-url", default=DEFAULT_URL, metavar="URL", help=f"http or https (default: {DEFAULT_URL})")
    group.add_argument(
        "--endpoint", type=_endpoint, choices=ENDPOINTS, default="chat", help="route, or its path (default: chat)"
    )
    group.add_argument("--model", metavar="NAME", help="model to ask for (default: the first of /v1/models)")
    group.add_argument("--api-key", metavar="KEY", help="sent as bearer token")
    group.add_argument(
        "--ssl-ca-certs", type=Path, metavar="FILE", help="authorities that vouch for it (default: the system's)"
    )
    group.add_argument(
        "--header", action="append", default=[], type=_header, metavar="'NAME: VALUE'", help="may be repeated"
    )
    group.add_argument(
        "--extra-body", type=_object, default={}, metavar="JSON", help="members for every body, such as temperature"
    )
    group.add_argument("--http2", action="store_true", help="HTTP/2 instead of HTTP/1.1")
    group.add_argument(
        "--streams-per-connection", type=int, metavar="N", help="most requests at once on an HTTP/2 connection (128)"
    )


def _add_workload(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--dataset", choices=sorted(DATASETS), help="where prompts come from (default: random)")
    group.add_argument("--input-len", "--random-input-len", type=int, metavar="N", help="random: prompt, tokens (1024)")
    group.add_argument(
        "--output-len", "--random-output-len", type=int, metavar="N", help="max_tokens of a request (128)"
    )
    group.add_argument(
        "--range-ratio", "--random-range-ratio", type=float, metavar="X", help="random: lengths vary by 1 +- X (0)"
    )
    group.add_argument(
        "--token-ids",
        type=_id_range,
        metavar="LOW:HIGH",
        help="prompts are random token ids of this range instead of words (completions only)",
    )
    group.add_argument(
        "--dataset-path",
        type=Path,
        metavar="FILE",
        help="file: JSON lines with prompt or messages, and max_tokens if it is not --output-len",
    )
    group.add_argument("--num-prefixes", type=int, metavar="N", help="shared-prefix: different prefixes (8)")
    group.add_argument("--prefix-len", type=int, metavar="N", help="shared-prefix: tokens of a prefix (512)")
    group.add_argument("--suffix-len", type=int, metavar="N", help="shared-prefix: tokens after it (128)")
    group.add_argument("--ignore-eos", action="store_true", help="ask for answers of full length")
    group.add_argument("--seed", type=int, default=0, metavar="N", help="seed of prompts and arrivals (default: 0)")


def _add_load(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--num-prompts", type=int, metavar="N", help=f"requests (default: {DEFAULT_PROMPTS}, or the file's lines)"
    )
    group.add_argument("--max-concurrency", type=int, metavar="N", help="most requests at once (default: no limit)")
    group.add_argument(
        "--request-rate",
        type=float,
        default=math.inf,
        metavar="X",
        help="arrivals per second, Poisson; inf sends all at once, or as the concurrency allows (default: inf)",
    )
    group.add_argument("--warmup", type=int, default=1, metavar="N", help="requests before, not counted (default: 1)")
    group.add_argument(
        "--timeout", type=float, default=1800.0, metavar="X", help="seconds after which a run is cut (default: 1800)"
    )


def _add_output(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--goodput", nargs="+", type=_limit, metavar="NAME:MS", help="limits on ttft, tpot, e2e, such as ttft:500"
    )
    group.add_argument("--pids", type=_pids, default=[], metavar="PID,...", help="processes whose CPU and memory count")
    group.add_argument("--pid-tree", action="store_true", help="their descendants count too")
    group.add_argument("--json", type=Path, metavar="FILE", help="write the whole report")
    group.add_argument("--plot", type=Path, metavar="FILE", help="draw distributions and throughput (.png, .svg, .pdf)")
    group.add_argument("--no-progress", action="store_true", help="no progress bar")


def configuration(options: argparse.Namespace) -> dict[str, Any]:
    """What ``llmrt._core.run_bench`` takes. Raises :class:`FlagError` for flags that contradict each other."""
    if options.streams_per_connection is not None and not options.http2:
        raise FlagError("--streams-per-connection needs --http2")
    if options.pid_tree and not options.pids:
        raise FlagError("--pid-tree needs --pids")
    for name in ("warmup", "seed"):
        if getattr(options, name) < 0:
            raise FlagError(f"--{name} must not be negative")
    workload = _workload(options)
    is_file = workload["kind"] == "file"
    config = {
        "base_url": options.base_url,
        "endpoint": options.endpoint,
        "model": options.model,
        "api_key": options.api_key,
        "ssl_ca_certs": None if options.ssl_ca_certs is None else str(options.ssl_ca_certs),
        "headers": options.header,
        "extra_body": options.extra_body,
        "http2": options.http2,
        "workload": workload,
        "num_prompts": DEFAULT_PROMPTS if options.num_prompts is None and not is_file else options.num_prompts,
        "max_concurrency": options.max_concurrency,
        "request_rate": _rate(options.request_rate),
        "warmup": options.warmup,
        "ignore_eos": options.ignore_eos,
        "seed": options.seed,
        "timeout": _finite("--timeout", options.timeout),
        "goodput": dict(options.goodput) if options.goodput else None,
        "pids": options.pids,
        "pid_tree": options.pid_tree,
    }
    if options.streams_per_connection is not None:
        config["streams_per_connection"] = options.streams_per_connection
    for name in ("num_prompts", "max_concurrency", "streams_per_connection"):
        value = config.get(name)
        if value is not None and value < 1:
            raise FlagError(f"--{name.replace('_', '-')} must be at least 1")
    return config


def _workload(options: argparse.Namespace) -> dict[str, Any]:
    kind = options.dataset or ("file" if options.dataset_path is not None else "random")
    shaping = DATASETS[kind]
    for name in sorted({flag for each in DATASETS.values() for flag in each} - set(shaping)):
        if getattr(options, name) is not None:
            raise FlagError(f"--{name.replace('_', '-')} does not go with --dataset {kind}")
    if kind == "file":
        if options.dataset_path is None:
            raise FlagError("--dataset file needs --dataset-path")
        given: dict[str, Any] = {"path": str(options.dataset_path), "output_len": options.output_len}
    else:
        given = {name: getattr(options, name) for name in shaping}
    workload = {name: DEFAULTS[name] if value is None else value for name, value in given.items()}
    for name, value in workload.items():
        if name.endswith(("_len", "_prefixes")) and value < 1:
            raise FlagError(f"--{name.replace('_', '-')} must be at least 1")
    return {"kind": kind.replace("-", "_"), **workload}


def _rate(rate: float) -> float | None:
    return None if rate == math.inf else _finite("--request-rate", rate)


def _finite(flag: str, value: float) -> float:
    if not (math.isfinite(value) and value > 0):
        raise FlagError(f"{flag} must be a number above 0")
    return value


def _endpoint(text: str) -> str:
    paths = {"/v1/chat/completions": "chat", "/v1/completions": "completions"}
    return paths.get(text, text)


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise argparse.ArgumentTypeError("must look like 'name: value'")
    return name.strip(), value.strip()


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("must be a JSON object")
    if value.get("stream", True) is not True:
        raise argparse.ArgumentTypeError("cannot turn streaming off: latencies are measured on the stream")
    return value


def _id_range(text: str) -> tuple[int, int]:
    try:
        low, high = (int(part) for part in text.split(":"))
    except ValueError:
        raise argparse.ArgumentTypeError("must look like 1000:30000") from None
    if not 0 <= low < high < 1 << 32:
        raise argparse.ArgumentTypeError("must be a range of token ids that is not empty")
    return low, high


def _limit(text: str) -> tuple[str, float]:
    name, _, value = text.partition(":")
    try:
        limit = float(value)
    except ValueError:
        limit = math.nan
    if name not in ("ttft", "tpot", "e2e") or not (math.isfinite(limit) and limit > 0):
        raise argparse.ArgumentTypeError(f"must be ttft, tpot or e2e with milliseconds, such as ttft:500, not {text!r}")
    return name, limit


def _pids(text: str) -> list[int]:
    try:
        pids = [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError("must be process ids with commas between them") from None
    if not all(0 < pid < 1 << 31 for pid in pids):
        raise argparse.ArgumentTypeError("must be process ids")
    return sorted(set(pids))
