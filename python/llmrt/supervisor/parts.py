"""What makes up one server, started and stopped together: processes, entry worker, the link between them."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import zmq

from llmrt import link, topology, wire
from llmrt.config import Config
from llmrt.model_source import ModelSource
from llmrt.supervisor import children, launch
from llmrt.supervisor.children import Child
from llmrt.supervisor.errors import preparing
from llmrt.supervisor.last_words import LastWords

if TYPE_CHECKING:
    from llmrt._core import Entry

_log = logging.getLogger(__name__)

GOODBYE = 1.0
"""Seconds in which the entry tells its clients that the server ends."""

LAST_WORDS = 0.5
"""Seconds that the reason of a process may be behind its end."""


class Parts:
    """A core and a detokenizer as processes, an entry worker inside this one, and the control link to them.

    All of it belongs to the thread that calls :meth:`started`: the kernel ends the processes with that thread.
    """

    entry: Entry
    table: topology.Topology
    directory: topology.RuntimeDirectory

    def __init__(self, config: Config, source: ModelSource) -> None:
        self.config = config
        self.source = source
        self.children: list[Child] = []
        self.core_is_up = False
        self.began = time.monotonic()
        self._control: link.Inbox
        self._last_words = LastWords()

    @contextlib.contextmanager
    def started(self, listener: socket.socket | None) -> Iterator[None]:
        """Starts everything, and stops it at the end. Without ``listener`` only this process can make requests.

        Raises :class:`~llmrt.supervisor.errors.StartError` for what the user can mend.
        """
        with contextlib.ExitStack() as ending:
            with preparing():
                self._start(ending, listener)
            yield

    def _start(self, ending: contextlib.ExitStack, listener: socket.socket | None) -> None:
        self.directory = ending.enter_context(topology.RuntimeDirectory())
        self.table = topology.build(self.directory.path)
        self._control = link.Inbox(self.table.control, options=launch.link_options(self.config))
        ending.callback(self._control.close, "the server ends")
        self.children = launch.children(self.config, self.source, self.table)
        ending.callback(children.stop, self.children)
        self.entry = launch.entry(self.config, self.source, self.table, listener)
        ending.callback(self._end_entry)

    def processes(self) -> dict[str, int]:
        """Process ids of the parts; the entry worker lives in the supervisor's."""
        parts = {child.name.removeprefix("the "): child.process.pid for child in self.children}
        return {"supervisor": os.getpid(), **parts}

    def register(self, poller: zmq.Poller) -> None:
        """Has ``poller`` wake for the control link; then call :meth:`wait` with it."""
        self._control.register(poller)

    def wait(self, poller: zmq.Poller, timeout: float | None = None) -> None:
        """Sleeps until something happens, at most ``timeout`` seconds, then takes what the control link has."""
        limits = [limit for limit in (timeout, self._until_start_deadline()) if limit is not None]
        link.poll(poller, [self._control], min(limits, default=None))
        for event in self._control.receive():
            self._notice(event)
            if isinstance(event, link.Received) and isinstance(event.message, wire.Call):
                self._answer(event.peer, event.message)

    def fault(self) -> str | None:
        """What keeps the server from going on, ``None`` while nothing does."""
        for child in self.children:
            if (fault := child.ended()) is not None:
                return self._explained(child, fault)
        if self._until_start_deadline() == 0.0:
            return f"the model did not load in {self.config.process.start_timeout:g} s (--start-timeout)"
        return None

    def crash(self) -> str | None:
        """How a process failed; one that has ended by itself and well did not."""
        return next((child.ended() for child in self.children if child.process.poll()), None)

    def _explained(self, child: Child, fault: str) -> str:
        """Adds what a process that ended by itself said of it, which may still be on its way."""
        if child.process.returncode <= 0:
            return fault
        role = "scheduler" if child is self.children[0] else "detokenizer"
        end = time.monotonic() + LAST_WORDS
        poller = zmq.Poller()
        self.register(poller)
        while (words := self._last_words.of(role)) is None and (left := end - time.monotonic()) > 0:
            self.wait(poller, left)
        return fault if words is None else f"{fault}: {words}"

    def _notice(self, event: link.InboxEvent) -> None:
        self._last_words.notice(event)
        if isinstance(event, link.Joined):
            _log.debug("%s %d has joined", event.hello.role, event.hello.index)
            # One that was silent for too long joins again.
            if event.hello.role == "scheduler" and not self.core_is_up:
                self.core_is_up = True
                _log.info("ready after %.1f s", time.monotonic() - self.began)
        elif isinstance(event, link.Left):
            _log.debug("a process has left: %s", event.reason)

    def _answer(self, peer: int, call: wire.Call) -> None:
        """Answers a call of somebody who looks in: ``stats`` with the processes and the seconds since the start."""
        if call.method == "stats":
            stats = {"processes": self.processes(), "uptime": time.monotonic() - self.began}
            reply = wire.Reply(call.call, True, json.dumps(stats))
        else:
            reply = wire.Reply(call.call, False, f"the supervisor has no method {call.method!r}; it has stats")
        with contextlib.suppress(link.NotReady, link.Full):
            self._control.send(peer, reply)

    def _end_entry(self) -> None:
        """Ends the entry worker where nobody has; requests that are still open are told."""
        self.entry.shutdown(0.0)
        self.entry.wait(GOODBYE)

    def _until_start_deadline(self) -> float | None:
        if self.core_is_up:
            return None
        return max(0.0, self.began + self.config.process.start_timeout - time.monotonic())
