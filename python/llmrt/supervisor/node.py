"""An entry node: one entry worker, embedded in the process that the user started, whose core is on another host."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import signal
import socket
import time
from typing import TYPE_CHECKING

from llmrt import logs, model_source
from llmrt.config import Config
from llmrt.model_source import ModelSource
from llmrt.process.signals import Signals, interrupted_at_once
from llmrt.supervisor import front, launch, nodes
from llmrt.supervisor.ending import EntryEnd
from llmrt.supervisor.errors import StartError, preparing
from llmrt.supervisor.listener import listening, url_of

if TYPE_CHECKING:
    from llmrt._core import CoreSession, Entry

FAILURE = 1
PAUSE = 0.5
"""Seconds between two attempts to reach a core."""

_log = logging.getLogger(__name__)


def check(config: Config) -> None:
    """Raises :class:`StartError` for options that cannot work on a node."""
    if config.nodes.core is None:
        raise StartError("--core is needed: the address that the core's --core-listen says, tcp://HOST:PORT")
    nodes.address(config.nodes.core, "--core")
    nodes.secret(config.nodes)
    if config.entry.entry_workers != 1:
        raise StartError("--entry-workers: a node is one entry worker; start more nodes instead")


class Node:
    """A front door whose scheduler and detokenizers are reached through a gateway."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def run(self) -> int:
        """Serves until a signal ends it, or the core will not have it any more; returns the exit code.

        Raises ``ModelError`` and :class:`StartError` for what the user can mend.
        """
        logs.setup("node", self.config.log.log_level, self.config.log.log_format)
        check(self.config)
        with interrupted_at_once():
            source = model_source.resolve(self.config.model.model)
        with preparing():
            signals = Signals(signal.SIGHUP) if front.has_files(self.config) else Signals()
        try:
            session = self._join(source, signals)
            return 0 if session is None else self._serve(source, session, signals)
        finally:
            signals.close_at_the_end()

    def _join(self, source: ModelSource, signals: Signals) -> CoreSession | None:
        """Tries until the core lets this node in; ``None`` when a signal ends the wait."""
        from llmrt._core import join_core

        host, port = nodes.address(self.config.nodes.core or "", "--core")
        target = {
            "address": f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
            "secret": nodes.secret(self.config.nodes),
            "fingerprint": nodes.fingerprint(source),
        }
        patience = self.config.process.start_timeout
        end = time.monotonic() + patience
        waits = False
        while True:
            try:
                return join_core(json.dumps(target))
            except ConnectionError as error:
                if time.monotonic() + PAUSE > end:
                    raise StartError(f"{error}; given up after {patience:g} s (--start-timeout)") from error
                if not waits:
                    _log.warning("%s; trying again for up to %g s", error, patience)
                waits = True
            except (OSError, RuntimeError, ValueError) as error:
                raise StartError(str(error)) from error
            if select.select([signals.fileno()], [], [], PAUSE)[0] and _asked_to_end(signals):
                return None

    def _serve(self, source: ModelSource, session: CoreSession, signals: Signals) -> int:
        config = nodes.taken_over(self.config, json.loads(session.core))
        front.check(config)
        secure = config.tls.ssl_certfile is not None
        with preparing(), listening(config.entry) as listener:
            entry = _start(config, source, session, listener)
            url = url_of(listener, secure)
            # The entry holds it now: connections that come while it drains are refused, not queued.
            listener.close()
            _log.info("%s: listening on %s, for the core at %s", config.model.served_model_name, url, config.nodes.core)
            return _watch(config, entry, signals)


def _start(config: Config, source: ModelSource, session: CoreSession, listener: socket.socket) -> Entry:
    from llmrt._core import Entry

    descriptor = os.dup(listener.fileno())
    try:
        entry = Entry(json.dumps(launch.front_door(config, source, descriptor, session.slot)), session)
        entry.start()
    except (ValueError, RuntimeError, OSError) as error:
        launch.close_if_open(descriptor, listener)
        raise StartError(str(error)) from error
    return entry


def _watch(config: Config, entry: Entry, signals: Signals) -> int:
    """Waits for signals and for the entry's own end."""
    asked = 0
    with contextlib.closing(EntryEnd(entry)) as end:
        while True:
            ready = select.select([signals.fileno(), end.fileno()], [], [])[0]
            if end.fileno() in ready:
                return 0 if asked else FAILURE
            taken = set(signals.take())
            if signal.SIGHUP in taken:
                entry.reload()
            if not taken & {signal.SIGINT, signal.SIGTERM}:
                continue
            asked += 1
            patience = config.entry.shutdown_timeout if asked == 1 else 0.0
            _log.info("draining for up to %g s; signal again to stop now", patience)
            entry.shutdown(patience)


def _asked_to_end(signals: Signals) -> bool:
    return bool({signal.SIGINT, signal.SIGTERM} & set(signals.take()))
