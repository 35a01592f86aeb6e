"""Starts a server, watches it, and stops it so that nothing is left behind."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import time
from typing import TYPE_CHECKING

import zmq

from llmrt import __version__, link, logs, model_source, topology, wire
from llmrt.config import Config
from llmrt.process.signals import Signals
from llmrt.supervisor import children, facts, launch
from llmrt.supervisor.children import Child
from llmrt.supervisor.listener import listen, url_of

if TYPE_CHECKING:
    from llmrt._core import Entry

FAILURE = 1
GOODBYE = 1.0
"""Seconds in which the entry tells its clients that the server ends."""

_log = logging.getLogger(__name__)


class Supervisor:
    """One server: a core, a detokenizer and an entry worker embedded in this process."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.children: list[Child] = []
        self._began = time.monotonic()
        self._core_is_up = False

    def run(self) -> int:
        """Serves until a signal or a fault ends it; returns the exit code.

        Raises ``ModelError`` and :class:`StartError` for what the user can mend.
        """
        logs.setup("supervisor", self.config.log.log_level, self.config.log.log_format)
        source = model_source.resolve(self.config.model.model)
        topology.sweep()
        signals = Signals()
        try:
            with (
                listen(self.config.entry.host, self.config.entry.port) as listener,
                topology.RuntimeDirectory() as directory,
            ):
                table = topology.build(directory.path)
                control = link.Inbox(table.control)
                try:
                    self.children = launch.children(self.config, source, table)
                    url = url_of(listener)
                    entry = launch.entry(self.config, source, table, listener)
                    # The entry holds it now: connections that come while it drains are refused, not queued.
                    listener.close()
                    self._publish(directory, source.name, url, table)
                    _log.info("%s: listening on %s, loading the model", source.name, url)
                    return self._watch(signals, control, entry)
                finally:
                    children.stop(self.children)
                    control.close("the server ends")
        finally:
            signals.close()

    def _publish(self, directory: topology.RuntimeDirectory, model: str, url: str, table: topology.Topology) -> None:
        name = self.config.model.served_model_name or model
        facts.publish(directory.path, facts.Facts(__version__, url, name, self._processes(), table))

    def _processes(self) -> dict[str, int]:
        parts = {child.name.removeprefix("the "): child.process.pid for child in self.children}
        return {"supervisor": os.getpid(), **parts}

    def _watch(self, signals: Signals, control: link.Inbox, entry: Entry) -> int:
        poller = zmq.Poller()
        control.register(poller)
        poller.register(signals.fileno(), zmq.POLLIN)
        while True:
            link.poll(poller, [control], self._until_start_deadline())
            for event in control.receive():
                self._notice(event)
                if isinstance(event, link.Received) and isinstance(event.message, wire.Call):
                    self._answer(control, event.peer, event.message)
            if {signal.SIGINT, signal.SIGTERM} & set(signals.take()):
                return self._drain(signals, entry)
            fault = self._fault()
            if fault is not None:
                return self._give_up(entry, fault)

    def _notice(self, event: link.InboxEvent) -> None:
        if isinstance(event, link.Joined):
            _log.debug("%s %d has joined", event.hello.role, event.hello.index)
            if event.hello.role == "scheduler":
                self._core_is_up = True
                _log.info("ready after %.1f s", time.monotonic() - self._began)
        elif isinstance(event, link.Left):
            _log.debug("a process has left: %s", event.reason)

    def _answer(self, control: link.Inbox, peer: int, call: wire.Call) -> None:
        """Answers a call of somebody who looks in: ``stats`` with the processes and the seconds since the start."""
        if call.method == "stats":
            stats = {"processes": self._processes(), "uptime": time.monotonic() - self._began}
            reply = wire.Reply(call.call, True, json.dumps(stats))
        else:
            reply = wire.Reply(call.call, False, f"the supervisor has no method {call.method!r}; it has stats")
        with contextlib.suppress(link.NotReady, link.Full):
            control.send(peer, reply)

    def _until_start_deadline(self) -> float | None:
        if self._core_is_up:
            return None
        return max(0.0, self._began + self.config.process.start_timeout - time.monotonic())

    def _fault(self) -> str | None:
        for child in self.children:
            if (fault := child.ended()) is not None:
                return fault
        if self._until_start_deadline() == 0.0:
            return f"the model did not load in {self.config.process.start_timeout:g} s (--start-timeout)"
        return None

    def _give_up(self, entry: Entry, fault: str) -> int:
        """Open requests are told, then the server ends: a server without its core answers nothing."""
        _log.error("%s; the server ends", fault)
        entry.core_down(fault)
        entry.shutdown(GOODBYE)
        entry.wait(2 * GOODBYE)
        return FAILURE

    def _drain(self, signals: Signals, entry: Entry) -> int:
        """Lets running requests end; a second signal ends the wait at once."""
        patience = self.config.entry.shutdown_timeout
        _log.info("draining for up to %g s; signal again to stop now", patience)
        entry.shutdown(patience)
        while not entry.wait(0.05):
            if {signal.SIGINT, signal.SIGTERM} & set(signals.take()):
                _log.warning("stopping now")
                entry.shutdown(0.0)
                entry.wait(GOODBYE)
                break
            if (fault := self._fault()) is not None:
                entry.core_down(fault)
        return 0
