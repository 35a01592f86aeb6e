"""The report of ``llmrt bench serve`` as text."""

from __future__ import annotations

from typing import Any

LATENCIES = (("TTFT", "ttft"), ("TPOT", "tpot"), ("ITL", "itl"), ("E2E", "e2e"), ("send lag", "send_lag"))
COLUMNS = ("mean", "p50", "p90", "p95", "p99", "max")
TOKEN_SOURCES = {
    "usage": "by usage",
    "chunks": "chunks counted: no usage given",
    "mixed": "by usage, or chunks where none was given",
}


def render(report: dict[str, Any]) -> str:
    """The tables of a report, without a line break at the end."""
    blocks = [_head(report), _aligned(_counts(report)), _latencies(report), _failures(report), _costs(report)]
    return "\n\n".join(block for block in blocks if block)


def _head(report: dict[str, Any]) -> str:
    connections = f"{report['connections']} connection{'' if report['connections'] == 1 else 's'}"
    at = f"{report['base_url']} {report['endpoint']}, {report['protocol']}, {connections}"
    cut = f"\nCut: {report['cut']}; rates and percentiles are of what was done until then." if report["cut"] else ""
    return f"{report['model']} at {at}{cut}"


def _counts(report: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [("Requests completed", f"{report['completed']} of {report['requests']}")]
    for name in ("failed", "unfinished", "not_sent"):
        if report[name]:
            rows.append((f"Requests {name.replace('_', ' ')}", str(report[name])))
    rows += [
        ("Peak concurrency", str(report["peak_concurrency"])),
        ("Duration, s", f"{report['duration_s']:.2f}"),
        ("Prompt tokens", "-" if report["prompt_tokens"] is None else str(report["prompt_tokens"])),
        ("Output tokens", f"{report['output_tokens']} ({TOKEN_SOURCES[report['token_source']]})"),
        ("Chunks with text", str(report["chunks"])),
        ("Requests/s", _number(report["request_throughput"])),
        ("Output tokens/s", _number(report["output_throughput"])),
        ("Total tokens/s", _number(report["total_throughput"])),
    ]
    if report["goodput"] is not None:
        rows.append(("Good requests/s", _number(report["goodput"])))
    return rows


def _latencies(report: dict[str, Any]) -> str:
    rows: list[tuple[str, ...]] = [("ms", *COLUMNS)]
    for title, name in LATENCIES:
        if report[name] is not None:
            rows.append((title, *(_number(report[name][column]) for column in COLUMNS)))
    return _columns(rows)


def _failures(report: dict[str, Any]) -> str:
    rows = [(f"Failed: {each['kind']}", f"{each['count']} x  {each['message']}") for each in report["failures"]]
    return _aligned(rows)


def _costs(report: dict[str, Any]) -> str:
    rows: list[tuple[str, ...]] = [("process", "CPU s", "us/token", "us/request", "RSS MiB", "before", "peak")]
    for each in report["processes"]:
        title = f"{each['pid']} {each['name']}"
        memory = (each["rss_after_mib"], each["rss_before_mib"], each["rss_peak_mib"])
        seconds = "ended" if each["cpu_s"] is None else _number(each["cpu_s"])
        rows.append((title, seconds, "", "", *(_number(value) for value in memory)))
    for title, use in (("server, all", report["server"]), ("client", report["client"])):
        if use is not None:
            costs = (use["cpu_s"], use["cpu_us_per_output_token"], use["cpu_us_per_request"], use["rss_mib"])
            rows.append((title, *(_number(value) for value in costs), "", ""))
    return _columns(rows)


def _number(value: float | None) -> str:
    """Two decimals, fewer where they say nothing."""
    if value is None:
        return "-"
    return f"{value:.2f}" if abs(value) < 1000 else f"{value:.0f}"


def _aligned(rows: list[tuple[str, str]]) -> str:
    width = max((len(left) for left, _ in rows), default=0) + 2
    return "\n".join(f"{left:<{width}}{right}" for left, right in rows)


def _columns(rows: list[tuple[str, ...]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = (
        "  ".join(f"{cell:<{width}}" if not at else f"{cell:>{width}}" for at, (cell, width) in enumerate(cells))
        for cells in (zip(row, widths, strict=True) for row in rows)
    )
    return "\n".join(line.rstrip() for line in lines)
