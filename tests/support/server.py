"""A real llmrt-serve process, started for tests and stopped without leaving anything behind."""

from __future__ import annotations

import os
import re
import signal
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2

from support.cell import CELL

START_TIMEOUT = 90.0
_ADDRESS = re.compile(r"listening on (?:https?://([0-9.]+):(\d+)|unix:(\S+)),")


def wait_for(condition: Callable[[], Any], what: str, timeout: float = 30.0) -> Any:
    """Returns the first true value of ``condition``; fails with ``what`` after ``timeout`` seconds."""
    end = time.monotonic() + timeout
    while not (value := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"timed out waiting for {what}")
        time.sleep(0.01)
    return value


class Server:
    """``llmrt-serve`` on a free port of the loopback interface, or on a Unix socket where ``flags`` name one.

    It speaks the protocol of the cell, but for one that is to be ``clear`` or asked with a ``context`` of its own.
    """

    def __init__(
        self,
        *flags: str,
        env: dict[str, str] | None = None,
        command: list[str] | None = None,
        headers: dict[str, str] | None = None,
        context: ssl.SSLContext | None = None,
        clear: bool = False,
        cwd: Path | None = None,
    ) -> None:
        self.headers = headers or {}
        self._protocols = {"http2": False} if "--no-http2" in flags else {}
        cells_own = CELL.secure and context is None and not clear
        self.context = CELL.context() if cells_own else context
        self.log_path = Path(tempfile.mkstemp(prefix="llmrt-test-", suffix=".log")[1])
        command = command or [sys.executable, "-m", "llmrt.cli.serve"]
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, "--port", "0", *CELL.flags, *(CELL.tls_flags if cells_own else []), *flags],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
                cwd=cwd,
            )
        try:
            host, port, self.path = wait_for(self._address, "the listening line", START_TIMEOUT)
            self.host, self.port = host or "localhost", int(port or 0)
            scheme = "http" if self.context is None else "https"
            self.url = f"{scheme}://{self.host}:{self.port}" if self.path is None else f"{scheme}://localhost"
            wait_for(self._ready, "/ready", START_TIMEOUT)
        except BaseException:
            self.stop()
            raise

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def _alive(self) -> None:
        if self.process.poll() is not None:
            raise AssertionError(f"llmrt-serve ended with {self.process.returncode}:\n{self.log}")

    def _address(self) -> tuple[str | None, ...] | None:
        self._alive()
        match = _ADDRESS.search(self.log)
        return match.groups() if match else None

    def client(self, **options: Any) -> httpx2.Client:
        """A client of this server, however it listens; ``options`` as for ``httpx2.Client``."""
        verify: Any = True if self.context is None else self.context
        transport = None if self.path is None else httpx2.HTTPTransport(uds=self.path)
        given = {"base_url": self.url, "headers": self.headers, "verify": verify, "transport": transport}
        return httpx2.Client(**{"timeout": 60.0, **given, **self._protocols, **options})

    def get(self, path: str) -> httpx2.Response:
        """One GET on a connection of its own."""
        with self.client() as client:
            return client.get(path)

    def _ready(self) -> bool:
        self._alive()
        return self.get("/ready").status_code == 200

    def children(self) -> list[int]:
        """Process ids of the server's direct children."""
        pid = self.process.pid
        found = []
        for task in Path(f"/proc/{pid}/task").glob("*/children"):
            found += [int(child) for child in task.read_text().split()]
        return found

    def metrics(self) -> dict[str, float]:
        """Samples of ``/metrics`` by name, summed over labels."""
        sums: dict[str, float] = {}
        for line in self.get("/metrics").text.splitlines():
            if line and not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                name = name.split("{", 1)[0]
                sums[name] = sums.get(name, 0.0) + float(value)
        return sums

    def wait_idle(self) -> dict[str, float]:
        """Waits until no request runs or waits; returns the metrics."""

        def idle() -> dict[str, float] | None:
            now = self.metrics()
            busy = now["llmrt_num_requests_running"] + now["llmrt_num_requests_waiting"]
            return now if busy == 0 else None

        return wait_for(idle, "the server to be idle")

    def stop(self, sig: int = signal.SIGTERM, timeout: float = 30.0) -> int:
        """Stops the server and returns its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(sig)
            try:
                self.process.wait(timeout)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise AssertionError(f"llmrt-serve did not stop in {timeout} s:\n{self.log}") from None
        return self.process.returncode
