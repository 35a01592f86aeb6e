"""The server behind an LLM: its parts, on a thread that starts, watches and stops them."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from typing import TYPE_CHECKING

from llmrt import model_source, topology
from llmrt.config import Config
from llmrt.llm.answer import RequestError, lost
from llmrt.supervisor.errors import StartError, preparing
from llmrt.supervisor.parts import Parts

if TYPE_CHECKING:
    from llmrt._core import Client

_RETRY = 0.02
_GOODBYE = 3.0


class Engine:
    """Runs from construction to :meth:`close`. Methods may be called from many threads.

    No signal handler is touched. The thread is a daemon, and the kernel ends the processes with it: they are gone
    however this process ends.
    """

    def __init__(self, config: Config) -> None:
        """Loads the model; takes as long. Raises ``ModelError`` or :class:`StartError` when it cannot be served."""
        self.concurrency = 2 * config.scheduler.max_num_seqs
        """Requests worth having open at once: twice those that run, so that none has to be waited for."""
        self._owner = os.getpid()
        self._parts = Parts(config, model_source.resolve(config.model.model))
        self._end, self._ender = socket.socketpair()
        self._changed = threading.Condition()
        self._listens = False
        self._over: BaseException | str | None = None
        with preparing():
            topology.sweep()
        self._thread = threading.Thread(target=self._run, name="llmrt-llm", daemon=True)
        self._thread.start()
        try:
            self._wait_until_ready()
        except BaseException:
            self.close()
            raise

    @property
    def model(self) -> str:
        """Name of the model."""
        return self._parts.config.model.served_model_name or self._parts.source.name

    def client(self) -> Client:
        """A way to make requests. Raises :class:`RequestError` (503) when the engine has ended."""
        if os.getpid() != self._owner:
            raise RuntimeError("an LLM does not survive fork(): make it in the process that uses it")
        if self._over is not None:
            raise self.lost()
        return self._parts.client()

    def lost(self) -> RequestError:
        """The error of a request that the engine did not answer."""
        return lost(f"The engine has ended: {self._over or 'it is being closed'}.")

    def close(self) -> None:
        """Ends everything and waits for it; open requests fail. Does nothing the second time, or in a forked child."""
        if os.getpid() != self._owner:
            return
        with contextlib.suppress(OSError):
            self._ender.shutdown(socket.SHUT_RDWR)
        self._thread.join()

    def _wait_until_ready(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._listens or self._over is not None)
        while self._over is None and not self._is_ready():
            time.sleep(_RETRY)
        if isinstance(self._over, BaseException):
            raise self._over
        if self._over is not None:
            raise StartError(self._over)

    def _is_ready(self) -> bool:
        from llmrt.llm.calls import wait_for_news

        client = self._parts.client()
        response = client.request("GET", "/ready", b"")
        while not response.ended:
            wait_for_news(client)
            response.take()
        return response.status == 200

    def _run(self) -> None:
        over: BaseException | str = "it was closed"
        try:
            with self._parts.started(None):
                self._say(listens=True)
                fault = self._watch()
                self._over = over = fault or over
                if fault is not None:
                    self._parts.give_up(fault)
                self._parts.entry.shutdown(0.0)
                self._parts.entry.wait(_GOODBYE)
        except BaseException as error:
            over = error
        finally:
            self._end.close()
            self._say(over=over)

    def _watch(self) -> str | None:
        """Waits for the end; returns what went wrong, ``None`` when the end was asked for."""
        self._parts.listen_to(self._end.fileno())
        while True:
            self._parts.wait()
            if self._is_closed():
                return None
            if (fault := self._parts.tend()) is not None:
                return fault

    def _is_closed(self) -> bool:
        try:
            return self._end.recv(1, socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False

    def _say(self, listens: bool = False, over: BaseException | str | None = None) -> None:
        with self._changed:
            self._listens = self._listens or listens
            self._over = over if over is not None else self._over
            self._changed.notify_all()
