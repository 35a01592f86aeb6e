"""Starts that fail: one line says why, the exit code is 2, and nothing is left of them."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.test_model_config import LLAMA

SERVE = "from llmrt.cli import serve; sys.exit(serve.main())"
LOG_LINE = re.compile(r"\d{4}-\d\d-\d\dT[0-9:.]+Z +(?P<level>[A-Z]+) (?P<text>.*)")
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
    said = [line for line in done.stderr.splitlines() if not LOG_LINE.match(line)]
    assert len(said) == 1 and re.fullmatch(rf"llmrt-serve: .*{reason}.*", said[0]), done.stderr
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


@pytest.mark.parametrize("action", [[], ["--check"]])
def test_a_malformed_model_folder(runtime: Path, tmp_path: Path, action: list[str]) -> None:
    (tmp_path / "model.safetensors").touch()
    for name, value in {"config": LLAMA, "tokenizer": {}, "generation_config": {"eos_token_id": "x"}}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(value))
    is_clean(start(runtime, str(tmp_path), *action), runtime, "eos_token_id must be a whole number, not 'x'")


def test_the_last_error_says_why_the_model_did_not_load(runtime: Path) -> None:
    # So little that whole bytes would be none, which means another thing: as much as fits.
    done = start(runtime, "--kv-cache-memory", "1e-12")
    reason = "the KV cache of 1 bytes is too small; raise the KV cache size"
    assert done.returncode == 1, done.stderr
    lines = [LOG_LINE.match(line) for line in done.stderr.splitlines()]
    errors = [line["text"] for line in lines if line and line["level"] == "ERROR"]
    assert all(lines) and len(errors) == 2, done.stderr
    assert errors[0].startswith(f"scheduler: {reason}")
    assert errors[1].startswith(f"supervisor: the scheduler ended with exit code 1: {reason}")
    assert errors[1].endswith("; the server ends") and "ready after" not in done.stderr
    assert not left_of(runtime)
