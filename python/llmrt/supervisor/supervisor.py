"""Starts a server, watches it, and stops it so that nothing is left behind."""

from __future__ import annotations

import functools
import logging
import signal

from llmrt import __version__, logs, model_source, topology
from llmrt.config import Config
from llmrt.process.signals import Signals, interrupted_at_once
from llmrt.supervisor import facts, front, nodes
from llmrt.supervisor.errors import StartError, preparing
from llmrt.supervisor.listener import listening, url_of
from llmrt.supervisor.parts import GOODBYE, Parts

FAILURE = 1
LOOK_EVERY = 0.05
"""Seconds between two looks at whether the entry has ended; it cannot be polled for."""

_log = logging.getLogger(__name__)


class Supervisor:
    """One server: a core, a detokenizer and an entry worker embedded in this process."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def run(self) -> int:
        """Serves until a signal or a fault ends it; returns the exit code.

        Raises ``ModelError`` and :class:`StartError` for what the user can mend.
        """
        logs.setup("supervisor", self.config.log.log_level, self.config.log.log_format)
        front.check(self.config)
        nodes.check(self.config.nodes)
        with interrupted_at_once():
            source = model_source.resolve(self.config.model.model)
        secure = self.config.tls.ssl_certfile is not None
        with preparing():
            topology.sweep()
            # Without files to read again, a terminal that closes ends its server as it ends any program.
            signals = Signals(signal.SIGHUP) if front.has_files(self.config) else Signals()
        try:
            parts = Parts(self.config, source)
            parts.listen_to(signals.fileno())
            told = functools.partial(_asked_to_end, signals, parts)
            with listening(self.config.entry) as listener, parts.started(listener, told) as up:
                if not up:
                    _log.info("told to end before it was up")
                    return 0
                url = url_of(listener, secure)
                # The entry holds it now: connections that come while it drains are refused, not queued.
                listener.close()
                self._publish(parts, url)
                _log.info("%s: listening on %s, loading the model", source.name, url)
                return self._watch(signals, parts, url)
        finally:
            signals.close_at_the_end()

    def _publish(self, parts: Parts, url: str) -> None:
        name = self.config.model.served_model_name or parts.source.name
        join = parts.gateway.address if parts.gateway is not None else None
        found = facts.Facts(__version__, url, name, parts.processes(), parts.table, join)
        with preparing():
            facts.publish(parts.directory.path, found)

    def _publish_again(self, parts: Parts, url: str) -> None:
        """After a restart. The server goes on where that fails: only those who look in read it."""
        try:
            self._publish(parts, url)
        except StartError as error:
            _log.warning("the new process ids cannot be told: %s", error)

    def _watch(self, signals: Signals, parts: Parts, url: str) -> int:
        known = parts.processes()
        while True:
            parts.wait()
            if _asked_to_end(signals, parts):
                return self._drain(signals, parts)
            if (fault := parts.tend()) is not None:
                return self._give_up(parts, fault)
            if known != (known := parts.processes()):
                self._publish_again(parts, url)

    def _give_up(self, parts: Parts, fault: str) -> int:
        """Open requests are told, then the server ends: a server without its core answers nothing."""
        _log.error("%s; the server ends", fault)
        parts.give_up(fault)
        parts.entry.shutdown(GOODBYE)
        parts.entry.wait(2 * GOODBYE)
        return FAILURE

    def _drain(self, signals: Signals, parts: Parts) -> int:
        """Lets running requests end; a second signal ends the wait at once, and so does a fault."""
        patience = self.config.entry.shutdown_timeout
        _log.info("draining for up to %g s; signal again to stop now", patience)
        parts.stop_restarts()
        parts.entry.shutdown(patience)
        while True:
            fault = parts.tend()
            over = parts.entry.wait(0.0)
            # Where all processes are told to end at once, those that did are missed by open requests only.
            if over:
                fault = parts.crash()
            if fault is not None:
                return self._give_up(parts, fault)
            if over:
                return 0
            parts.wait(LOOK_EVERY)
            if _asked_to_end(signals, parts):
                _log.warning("stopping now")
                return 0


def _asked_to_end(signals: Signals, parts: Parts) -> bool:
    """Whether a signal asks for the end; SIGHUP has the entry read its files again."""
    taken = set(signals.take())
    if signal.SIGHUP in taken:
        parts.entry.reload()
    return bool({signal.SIGINT, signal.SIGTERM} & taken)
