"""``llmrt bench serve``: measures a server that speaks the OpenAI API."""

from __future__ import annotations

import contextlib
import json
import resource
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from llmrt.cli import bench_plot, bench_table
from llmrt.cli.bench_flags import FlagError, configuration, parser

__all__ = ["main", "parser"]

FAILURE = 1
INTERRUPTED = 130
MAX_OPEN_FILES = 1 << 16

OnProgress = Callable[[bool, int, int, int, int], None]


def main(arguments: Sequence[str] | None = None, program: str = "llmrt bench") -> int:
    """Runs the load and prints what it found.

    Returns 0 when a request was answered, 1 when none was or nothing could be measured, 2 for flags that cannot work,
    130 when it was interrupted.
    """
    flags = parser(program)
    options = flags.parse_args(arguments)
    try:
        config = configuration(options)
        _check_outputs(options.json, options.plot)
    except (FlagError, bench_plot.PlotError) as error:
        flags.error(str(error))

    from llmrt import _core

    _raise_file_limit()
    try:
        with _progress(options.no_progress) as on_progress:
            report = json.loads(_core.run_bench(json.dumps(config), on_progress))
    except ValueError as error:
        flags.error(str(error))
    except (OSError, RuntimeError) as error:
        print(f"{program}: {error}", file=sys.stderr)
        return FAILURE
    except KeyboardInterrupt:
        print(f"{program}: interrupted before the measurement began", file=sys.stderr)
        return INTERRUPTED
    return _show(report, options.json, options.plot, program)


def _show(report: dict[str, Any], json_file: Path | None, plot_file: Path | None, program: str) -> int:
    print(bench_table.render(report))
    try:
        if json_file is not None:
            json_file.write_text(json.dumps(report, indent=2) + "\n")
        if plot_file is not None:
            bench_plot.plot(report, plot_file)
    except OSError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return FAILURE
    if report["cut"] == "interrupted":
        return INTERRUPTED
    return 0 if report["completed"] else FAILURE


def _check_outputs(json_file: Path | None, plot_file: Path | None) -> None:
    """Finds out before the run, not after it, that its result could not be kept."""
    for flag, file in (("--json", json_file), ("--plot", plot_file)):
        if file is not None and not file.parent.is_dir():
            raise FlagError(f"{flag}: there is no folder {file.parent}")
    if plot_file is not None:
        bench_plot.check(plot_file)


def _raise_file_limit() -> None:
    """Each HTTP/1.1 request at once needs a socket."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@contextlib.contextmanager
def _progress(off: bool) -> Iterator[OnProgress | None]:
    """A bar on standard error, where that is a terminal."""
    if off or not sys.stderr.isatty():
        yield None
        return
    from tqdm import tqdm

    # The bar's own thread would take part in what is measured.
    tqdm.monitor_interval = 0
    with tqdm(unit="req", leave=False, dynamic_ncols=True) as bar:

        def show(measuring: bool, total: int, completed: int, failed: int, chunks: int) -> None:
            description = "measuring: " if measuring else "warm-up: "
            if bar.desc != description:
                # The rate shown is that of the phase.
                bar.reset(total or None)
                bar.set_description(description.removesuffix(": "), refresh=False)
            bar.set_postfix(failed=failed, chunks=chunks, refresh=False)
            bar.n = completed + failed
            bar.refresh()

        yield show


if __name__ == "__main__":
    sys.exit(main())
