"""A server that is started in a folder full of somebody else's files runs none of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from llmrt.process import start
from support.server import Server

SCRIPTS = Path(sys.executable).parent
PACKAGES = ("huggingface_hub", "llmrt", "msgspec", "numpy", "safetensors", "torch", "tqdm", "yaml", "zmq")
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith("LLMRT_")}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a module for every name that a server may import; each one that runs is noted in ``ran``."""
    folder = tmp_path / "model"
    folder.mkdir()
    note = f"open({str(tmp_path / 'ran')!r}, 'a').write(__name__ + ' ')\nraise SystemExit(__name__)\n"
    for name in (*sys.stdlib_module_names, *PACKAGES):
        (folder / f"{name}.py").write_text(note)
    return folder


def ran(folder: Path) -> str:
    note = folder.parent / "ran"
    return note.read_text() if note.exists() else ""


def test_the_files_would_run_behind_m(folder: Path) -> None:
    subprocess.run([sys.executable, "-m", "llmrt.cli.main"], cwd=folder, env=CLEAN, capture_output=True)
    assert ran(folder)


def test_a_server_with_all_kinds_of_processes(folder: Path) -> None:
    flags = ["--engine", "mock", "--entry-workers", "2", "--core-listen", "tcp://127.0.0.1:0"]
    environment = {**CLEAN, "LLMRT_CORE_SECRET": "0123456789abcdef" * 2}
    server = Server(*flags, env=environment, command=[str(SCRIPTS / "llmrt-serve")], cwd=folder)
    try:
        with server.client() as client:
            answer = client.post("/v1/completions", json={"prompt": "Hi", "max_tokens": 2})
        assert answer.status_code == 200
        commands = [Path(f"/proc/{pid}/cmdline").read_text().split("\0") for pid in server.children()]
        modules = {word for command in commands for word in command if word.startswith("llmrt.")}
        assert {"llmrt.entry.process", "llmrt.gateway.process", "llmrt.engine.mock"} <= modules
    finally:
        server.stop()
    assert not ran(folder)


def test_the_server_of_a_conversation(folder: Path) -> None:
    # A name that no running server has.
    environment = {**CLEAN, "LLMRT_ENGINE": "mock", "LLMRT_SERVED_MODEL_NAME": "mine"}
    done = subprocess.run(
        [str(SCRIPTS / "llmrt"), "chat", "--max-tokens", "2"],
        input="Hi",
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert not ran(folder)


def test_what_the_user_adds_to_the_path_stays(tmp_path: Path) -> None:
    (tmp_path / "added.py").write_text("import sys\nprint(*sys.argv[1:], __name__)\n")
    for more in ({}, {"PYTHONSAFEPATH": "1"}):
        environment = {**CLEAN, "PYTHONPATH": str(tmp_path), **more}
        done = subprocess.run(start.command("added", "7"), env=environment, capture_output=True, text=True)
        assert done.stdout == "7 __main__\n", done.stderr
