"""The cell of the matrix that the integration tests run in: how a server is started, and how its clients speak to it.

``LLMRT_TEST_CELL`` names it, as in ``E3-h2c``: the number of entry workers, and the protocol of every client that a
test does not give one itself (``h1``, or ``h2c``: HTTP/2 with prior knowledge). Without it tests run in ``E1-h1``.
``make test-matrix`` runs the whole suite in every cell.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any

import httpx2

VARIABLE = "LLMRT_TEST_CELL"
PROTOCOLS = ("h1", "h2c")
_NAME = re.compile(r"E([1-9]\d?)-(\w+)")


@dataclass(frozen=True)
class Cell:
    """One cell."""

    workers: int = 1
    protocol: str = "h1"

    @classmethod
    def parse(cls, name: str) -> Cell:
        """Reads a name such as ``E3-h2c``. Raises ``ValueError``."""
        match = _NAME.fullmatch(name)
        if match is None or match[2] not in PROTOCOLS:
            raise ValueError(f"{VARIABLE} must be like E3-h2c, with one of {', '.join(PROTOCOLS)}; not {name!r}")
        return cls(int(match[1]), match[2])

    @property
    def flags(self) -> list[str]:
        """What every server is started with, before the flags of its test."""
        return [] if self.workers == 1 else ["--entry-workers", str(self.workers)]

    @property
    def entry_processes(self) -> list[str]:
        """Names of the processes that a server has for its entry workers."""
        return [] if self.workers == 1 else [f"entry[{worker}]" for worker in range(self.workers)]

    def install(self) -> None:
        """Makes the protocol that of all clients in this process that are not told another one."""
        if self.protocol == "h2c":
            for client in (httpx2.Client, httpx2.AsyncClient):
                _default(client, http1=False, http2=True)


def _default(client: type, **values: Any) -> None:
    plain = client.__init__  # type: ignore[misc]

    def init(self: Any, *args: Any, **given: Any) -> None:
        asked = values if not values.keys() & given.keys() else {}
        plain(self, *args, **{**asked, **given})

    client.__init__ = init  # type: ignore[misc]


CELL = Cell.parse(os.environ.get(VARIABLE, "E1-h1"))
