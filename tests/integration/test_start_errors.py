"""Starts that fail: one line says why, the exit code is 2, and nothing is left of them."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

SERVE = "from llmrt.cli import serve; sys.exit(serve.main())"
START = 60.0
"""Seconds that a start may take to fail."""


def start(
    runtime: Path, *flags: str, first: str = "", file_size: int | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a server that is to fail, after the statements in ``first``.

    ``runtime`` holds its sockets, and marks its processes; ``file_size`` is the most bytes that any of its files can
    have.
    """

    def limit() -> None:
        if file_size is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_size, file_size))

    clean = {name: value for name, value in os.environ.items() if not name.startswith("LLMRT_")}
    return subprocess.run(
        [sys.executable, "-B", "-c", f"import sys; {first}{SERVE}", "--port", "0", *flags],
        capture_output=True,
        text=True,
        env={**clean, "XDG_RUNTIME_DIR": str(runtime)},
        preexec_fn=limit,
        timeout=START,
    )


def left_of(runtime: Path) -> list[str]:
    """What a server in ``runtime`` has left: its directories, and its processes while they live."""
    found = [path.name for path in runtime.glob("llmrt-*")]
    mark = f"XDG_RUNTIME_DIR={runtime}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (process / "environ").read_bytes().split(b"\0"):
                found.append((process / "cmdline").read_text())
        except OSError:
            continue
    return found


@pytest.fixture
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Sockets need a short path.
    return tmp_path_factory.mktemp("run")


def is_clean(done: subprocess.CompletedProcess[str], runtime: Path, reason: str) -> None:
    assert done.returncode == 2, done.stderr
    assert re.fullmatch(rf"llmrt-serve: .*{reason}.*\n", done.stderr), done.stderr
    assert not left_of(runtime)


# The first limit has no room for the temporary file that Python tries, the second none for what a child is told.
@pytest.mark.parametrize(("file_size", "reason"), [(0, "No usable temporary directory"), (64, "make room for")])
def test_a_full_directory_for_temporary_files(runtime: Path, file_size: int, reason: str) -> None:
    is_clean(start(runtime, "--engine", "mock", file_size=file_size), runtime, reason)


def test_facts_that_cannot_be_written_end_the_parts_that_run(runtime: Path) -> None:
    first = "from llmrt.supervisor import facts; facts.FILE = 'none/server.json'; "
    is_clean(
        start(runtime, "--engine", "mock", first=first), runtime, r"No such file or directory: .*none/server\.json"
    )


def test_a_runtime_directory_that_is_too_deep(tmp_path: Path) -> None:
    deep = tmp_path / ("deep" * 25)
    deep.mkdir()
    first = f"import tempfile; tempfile.tempdir = {str(deep)!r}; from llmrt import topology; topology.MAX_PATH = 20; "
    is_clean(start(deep, "--engine", "mock", first=first), deep, "set XDG_RUNTIME_DIR to a writable one")


@pytest.mark.parametrize("host", ["a" * 70, "no host", "256.1.1.1"])
def test_hosts_that_are_none(runtime: Path, host: str) -> None:
    is_clean(start(runtime, "--engine", "mock", "--host", host), runtime, f"--host {host}: ")


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--kv-cache-memory", "0.00001"], "the KV cache of 10738 bytes is too small; raise the KV cache size"),
        (["--kv-cache-memory", "1e-12"], "the KV cache of 1 bytes is too small; raise the KV cache size"),
    ],
)
def test_the_last_line_says_why_the_model_did_not_load(runtime: Path, flags: list[str], reason: str) -> None:
    done = start(runtime, *flags)
    assert done.returncode == 1, done.stderr
    last = done.stderr.splitlines()[-1]
    assert re.match(r"\d{4}-\d\d-\d\dT[0-9:.]+Z ERROR supervisor: the scheduler ended with exit code 1: ", last)
    assert reason in last and last.endswith("; the server ends")
    assert "ready after" not in done.stderr and "Traceback" not in done.stderr
    assert not left_of(runtime)
