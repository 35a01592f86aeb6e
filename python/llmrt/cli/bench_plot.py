"""The report of ``llmrt bench serve`` as a picture. It needs matplotlib, which llmrt does not install."""

from __future__ import annotations

import importlib.util
from itertools import accumulate
from pathlib import Path
from typing import Any

SUFFIXES = (".png", ".svg", ".pdf")


class PlotError(ValueError):
    """A picture that cannot be drawn; the message says what to change."""


def check(file: Path) -> None:
    """Raises :class:`PlotError` if matplotlib is missing or the file is of no known kind."""
    if file.suffix.lower() not in SUFFIXES:
        raise PlotError(f"--plot: {file} must end in {', '.join(SUFFIXES)}")
    if importlib.util.find_spec("matplotlib") is None:
        raise PlotError("--plot needs matplotlib: pip install matplotlib (or llmrt[plot])")


def plot(report: dict[str, Any], file: Path) -> None:
    """Draws the cumulative distributions of TTFT and ITL, and the chunks per second over time."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 7), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplot_mosaic([["ttft", "itl"], ["time", "time"]])
    for name, title in (("ttft", "TTFT"), ("itl", "ITL")):
        _distribution(axes[name], report[name], title)
    _over_time(axes["time"], report["timeline"])
    throughput = f"{report['output_throughput']:.1f} output tokens/s, {report['completed']} requests"
    figure.suptitle(f"{report['model']}, {report['protocol']}: {throughput}")
    figure.savefig(file, dpi=120)


def _distribution(axes: Any, found: dict[str, Any], title: str) -> None:
    times = [time for time, _ in found["histogram"]]
    shares = [100 * count / found["count"] for count in accumulate(count for _, count in found["histogram"])]
    axes.step(times, shares, where="post")
    for name in ("p50", "p99"):
        if found[name] is not None:
            axes.axvline(found[name], linestyle=":", color="gray")
            axes.annotate(f"{name} {found[name]:.1f}", (found[name], 2), rotation=90, va="bottom", ha="right")
    # Times from microseconds to seconds are of one interest; zero is drawn too.
    axes.set_xscale("symlog", linthresh=1)
    axes.set(title=title, xlabel="ms", ylabel="% of samples", ylim=(0, 101))
    axes.grid(alpha=0.3)


def _over_time(axes: Any, timeline: dict[str, Any]) -> None:
    interval = timeline["interval_s"]
    # Some ten chunks of time per second would show the steps of the server, not its throughput.
    width = max(1, round(0.5 / interval), len(timeline["chunks"]) // 200)
    starts = range(0, len(timeline["chunks"]), width)
    groups = [timeline["chunks"][at : at + width] for at in starts]
    rates = [sum(group) / (len(group) * interval) for group in groups]
    axes.step([at * interval for at in starts], rates, where="post")
    axes.set(title="Throughput", xlabel="s", ylabel="chunks with text per s", ylim=(0, None))
    axes.grid(alpha=0.3)
