"""A server of one's own: started quietly for a command, stopped with it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from llmrt.cli import serve
from llmrt.cli.chat_client import ChatError, Client
from llmrt.config import Config, EntryOptions, HttpOptions, NodeOptions, TlsOptions
from llmrt.process import start
from llmrt.process.child import die_with_parent
from llmrt.supervisor import facts

_PAUSE = 0.05
_STOP = 10.0
"""Seconds between SIGTERM and SIGKILL."""


@contextmanager
def own_server(model: str | None, patience: float) -> Iterator[Client]:
    """Starts a server on a free port of the loopback interface, waits until it is ready, and stops it at the end.

    Raises :class:`ChatError` with the end of its log when it does not start within ``patience`` seconds.
    """
    flags = [] if model is None else ["--model", model]
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen(
            start.command("llmrt.cli.own_server", str(os.getpid()), *flags),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            # The terminal's interrupt is for the answer, not for the server.
            start_new_session=True,
        )
        try:
            yield _ready(server, log.fileno(), time.monotonic() + patience)
        finally:
            _stop(server)


def _ready(server: subprocess.Popen[bytes], log: int, end: float) -> Client:
    client: Client | None = None
    while time.monotonic() < end:
        if server.poll() is not None:
            raise ChatError(f"the server did not start:\n{_tail(log)}")
        if client is None:
            client = next((Client(found.url) for found in facts.running() if found.pid == server.pid), None)
        else:
            try:
                client.wait_ready(0)
                return client
            except ChatError:
                pass  # Still loading, or ended: the next round sees which.
        time.sleep(_PAUSE)
    raise ChatError(f"the server was not ready in time:\n{_tail(log)}")


def _stop(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    try:
        server.wait(_STOP)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def _tail(log: int) -> str:
    size = os.fstat(log).st_size
    text = os.pread(log, 4096, max(0, size - 4096)).decode(errors="replace")
    return "\n".join(text.strip().splitlines()[-8:])


def main(arguments: Sequence[str]) -> int:
    """``llmrt-serve`` for one client, that ends with the process whose id is the first argument."""
    die_with_parent(int(arguments[0]))
    return serve.main(arguments[1:], change=_for_one_client)


def _for_one_client(options: Config) -> Config:
    """The model as the user has set it up, behind a front door that the client can use whatever that is set up for."""
    entry = EntryOptions(host="127.0.0.1", port=0, shutdown_timeout=1.0)
    return replace(options, entry=entry, http=HttpOptions(), tls=TlsOptions(), nodes=NodeOptions())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
