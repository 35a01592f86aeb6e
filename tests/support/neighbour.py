"""A client that minds its own business while others misbehave."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from support.server import Server

PATIENCE = 5.0
"""Seconds that an answer may take; a server that is held up takes for ever."""


class Neighbour:
    """Asks a server for small answers while the block runs. At its end all were there, in time, and memory is where it
    was but for ``growth`` MiB."""

    def __init__(self, server: Server, growth: float = 48.0) -> None:
        self.server = server
        self.growth = growth
        self.answers = 0
        self.slowest = 0.0
        self.failure: Exception | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask)

    def __enter__(self) -> Neighbour:
        with self.server.client() as client:
            assert client.get("/health").status_code == 200
        self.before = resident(self.server)
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._over.set()
        self._thread.join()
        if kind is not None:
            return
        if self.failure is not None:
            raise AssertionError(f"a neighbour was not served: {self.failure!r}") from self.failure
        assert self.answers > 0 and self.slowest < PATIENCE, f"{self.answers} answers, the slowest {self.slowest:.1f} s"
        grown = resident(self.server) - self.before
        assert grown < self.growth, f"memory grew by {grown:.0f} MiB"
        # New connections are welcome, too.
        assert self.server.get("/health").status_code == 200

    def _ask(self) -> None:
        body = {"prompt": "x", "max_tokens": 2}
        try:
            with self.server.client() as client:
                while True:
                    began = time.monotonic()
                    response = client.post("/v1/completions", json=body)
                    assert response.status_code in (200, 429), response.text
                    self.slowest = max(self.slowest, time.monotonic() - began)
                    self.answers += 1
                    if self._over.wait(0.02):
                        return
        except Exception as error:
            self.failure = error


def resident(server: Server) -> float:
    """Memory of the process that the entry lives in, MiB."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024
