"""The cell of the matrix that the integration tests run in: how a server is started, and how its clients speak to it.

``LLMRT_TEST_CELL`` names it, as in ``E3-h2c``: the number of entry workers, and the protocol of every client that a
test does not give one itself: ``h1``, ``h2c`` (HTTP/2 with prior knowledge), ``tls`` (HTTP/2 over TLS) or ``mtls`` (the
same with certificates of clients). Without it tests run in ``E1-h1``. ``make test-matrix`` runs the whole suite in
every cell.
"""

from __future__ import annotations

import atexit
import functools
import os
import re
import shutil
import socket
import ssl
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from support.certificates import Authority, Pair

VARIABLE = "LLMRT_TEST_CELL"
PROTOCOLS = ("h1", "h2c", "tls", "mtls")
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
    def secure(self) -> bool:
        """Whether servers speak TLS."""
        return self.protocol in ("tls", "mtls")

    @property
    def tls_flags(self) -> list[str]:
        """What a server that speaks the cell's protocol is started with besides."""
        if not self.secure:
            return []
        authority, pair, _ = _certificates()
        return [*pair.flags(), *(["--ssl-client-ca", str(authority.file)] if self.protocol == "mtls" else [])]

    def context(self, *alpn: str) -> ssl.SSLContext:
        """What a client of such a server needs; it offers ``alpn``."""
        authority, _, member = _certificates()
        return authority.context(*alpn, client=member if self.protocol == "mtls" else None)

    def connect(self, host: str, port: int, *alpn: str, timeout: float = 60.0) -> socket.socket:
        """A connection to a server of the cell."""
        raw = socket.create_connection((host, port), timeout)
        return self.context(*alpn).wrap_socket(raw, server_hostname=host) if self.secure else raw

    @property
    def curl(self) -> list[str]:
        """Flags with which curl trusts a server of the cell, and is trusted."""
        if not self.secure:
            return []
        authority, _, member = _certificates()
        own = ["--cert", str(member.certfile), "--key", str(member.keyfile)] if self.protocol == "mtls" else []
        return ["--cacert", str(authority.file), *own]

    @property
    def entry_processes(self) -> list[str]:
        """Names of the processes that a server has for its entry workers."""
        return [] if self.workers == 1 else [f"entry[{worker}]" for worker in range(self.workers)]

    def install(self) -> None:
        """Makes the protocol that of all clients in this process that are not told another one."""
        if self.protocol != "h1":
            for client in (httpx2.Client, httpx2.AsyncClient):
                _default(client, self.context if self.secure else None)


@functools.cache
def _certificates() -> tuple[Authority, Pair, Pair]:
    """An authority, a server's certificate and a client's, for as long as the tests run."""
    folder = tempfile.mkdtemp(prefix="llmrt-test-certificates-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    authority = Authority(Path(folder))
    return authority, authority.pair("server"), authority.pair("member", "member@example.org")


def _default(client: type, context: Callable[[], ssl.SSLContext] | None) -> None:
    """``context`` makes one for each client: they write the protocols that they offer into it."""
    plain = client.__init__  # type: ignore[misc]

    def init(self: Any, *args: Any, **given: Any) -> None:
        if not {"http1", "http2"} & given.keys():
            given |= {"http1": False, "http2": True}
        # The module's own functions say True for what is not said.
        if context is not None and given.get("verify", True) is True:
            given["verify"] = context()
        plain(self, *args, **given)

    client.__init__ = init  # type: ignore[misc]


CELL = Cell.parse(os.environ.get(VARIABLE, "E1-h1"))
