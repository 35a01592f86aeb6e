"""Virtual environments of real clients: one for each requirements file, made once and kept in the user's cache.

Clients pin what llmrt or another client needs in another version, so none is installed beside llmrt. A program of
``programs/`` runs inside such an environment, talks to a server and prints what it saw as JSON.
"""

from __future__ import annotations

import ast
import fcntl
import hashlib
import importlib.util
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import uv

HERE = Path(__file__).parent
INSTALL_TIMEOUT = 280.0
# What pip is told about the package index, and what uv calls the same.
UV_NAMES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "cert": "SSL_CERT_FILE",
    "trusted-host": "UV_INSECURE_HOST",
}
# Clients find everything they need here: no hub, no telemetry, no proxy on the way to the loopback interface.
CLIENT_VARIABLES = {
    "DO_NOT_TRACK": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_OFFLINE": "1",
    "NO_PROXY": "127.0.0.1",
    "OPENAI_API_KEY": "none",
}


class Environment:
    """The environment of ``requirements/<name>.txt``; ``beside`` names packages it takes from the tests' own."""

    def __init__(self, name: str, beside: tuple[str, ...] = ()) -> None:
        self.requirements = HERE / "requirements" / f"{name}.txt"
        self.shared = sorted({str(_site_packages(package)) for package in beside})
        base = [sys.version, sys.base_prefix, *self.shared, self.requirements.read_text()]
        key = hashlib.sha256("\n".join(base).encode()).hexdigest()[:16]
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "llmrt" / "clients"
        cache.mkdir(parents=True, exist_ok=True)
        self.path = cache / f"{name}-{key}"
        self.python = self.path / "bin" / "python"
        with (cache / f"{name}-{key}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (self.path / "complete").exists():
                self._install()
                (self.path / "complete").touch()

    def _install(self) -> None:
        self._uv("venv", "--clear", "--python", sys.executable, str(self.path))
        self._uv("pip", "install", "--no-deps", "--python", str(self.python), "-r", str(self.requirements))
        [own] = self.path.glob("lib/python*/site-packages")
        (own / "shared.pth").write_text("".join(f"{path}\n" for path in self.shared))

    def _uv(self, *command: str) -> None:
        done = subprocess.run(
            [uv.find_uv_bin(), *command, "--quiet"],
            env=_index_variables() | os.environ,
            capture_output=True,
            text=True,
            timeout=INSTALL_TIMEOUT,
        )
        if done.returncode:
            raise AssertionError(
                f"tests/clients needs the packages of {self.requirements.name} from a package index, configured as for"
                f" pip; uv {command[0]} failed:\n{done.stderr}"
            )

    def python_output(self, *arguments: str, timeout: float = 120, cwd: Path | None = None, **variables: str) -> str:
        """Standard output of this environment's Python; fails with standard error when the exit code is not 0."""
        own = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        done = subprocess.run(
            [str(self.python), "-I", *arguments],
            env=own | CLIENT_VARIABLES | variables,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        assert done.returncode == 0, f"{shlex.join(arguments)} ended with {done.returncode}:\n{done.stderr}"
        return done.stdout

    def program(self, name: str, *arguments: str, timeout: float = 120) -> Any:
        """What ``programs/<name>.py`` prints as JSON."""
        return json.loads(self.python_output(str(HERE / "programs" / f"{name}.py"), *arguments, timeout=timeout))


def _site_packages(package: str) -> Path:
    """The folder that an installed package lies in, which is not imported for that."""
    spec = importlib.util.find_spec(package)
    assert spec is not None and spec.origin is not None, f"{package} is not installed"
    return Path(spec.origin).parents[1]


def _index_variables() -> dict[str, str]:
    """pip's index configuration (files and variables) as variables of uv, which reads neither."""
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True)
    found = {}
    for line in listed.stdout.splitlines():
        key, _, value = line.partition("=")
        if name := UV_NAMES.get(key.rpartition(".")[2]):
            found[name] = ("," if name == "UV_FIND_LINKS" else " ").join(ast.literal_eval(value).split())
    return found
