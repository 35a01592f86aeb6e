"""The gateway, by which entry nodes on other hosts join: a process that is replaced when it dies."""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from collections.abc import Callable
from typing import Any

from llmrt import link
from llmrt.config import Config
from llmrt.model_source import ModelSource
from llmrt.supervisor import children, launch, nodes
from llmrt.supervisor.children import Child
from llmrt.supervisor.core import LONGEST_PAUSE, Member, Restarts
from llmrt.supervisor.errors import StartError
from llmrt.supervisor.listener import listen
from llmrt.topology import Topology

RESTARTS, WINDOW = 20, 60.0
"""Gateways that may be replaced within so many seconds; at one more, the next has to wait."""

_log = logging.getLogger(__name__)


class Gateway:
    """The process, its listening socket, which its successors inherit, and where that listens."""

    def __init__(
        self,
        config: Config,
        source: ModelSource,
        table: Topology,
        watch: Callable[[Child], None],
        unwatch: Callable[[Child], None],
    ) -> None:
        """Starts it; ``watch`` has the loop wake when it ends, until ``unwatch``.

        Raises :class:`StartError` when its address cannot be had.
        """
        self._start_timeout = config.process.start_timeout
        self._watch, self._unwatch = watch, unwatch
        self._restarts: Restarts | None = Restarts(RESTARTS, WINDOW)
        host, port = nodes.address(config.nodes.core_listen or "", "--core-listen")
        self._listener = listen(host, port, "--core-listen")
        try:
            self.address = _shown(self._listener)
            told = json.dumps(_told(config, source, table, self._listener)).encode()
            inherited = [self._listener.fileno()]
            child = Child("the gateway", "gateway", "llmrt.gateway.process", told, inherited=inherited)
        except BaseException:
            self._listener.close()
            raise
        self._member = Member(child)
        watch(child)

    @property
    def child(self) -> Child:
        """The process as it is now."""
        return self._member.child

    def up(self) -> bool:
        """Whether it has joined. Raises :class:`StartError` when it never will."""
        if (fault := self._member.fault(self._start_timeout)) is not None:
            raise StartError(f"{fault}; its lines above say why")
        return self._member.joined

    def until_deadline(self) -> float | None:
        """Seconds until something is to be done, ``None`` when only an event can say."""
        return None if self._restarts is None else self._member.until_deadline(self._start_timeout)

    def notice(self, event: link.InboxEvent) -> None:
        """Takes an event of the control link."""
        if self._member.notice(event):
            _log.info("entry nodes can join at %s", self.address)

    def tend(self) -> None:
        """Replaces it where it has ended or hangs, unless the server ends."""
        if (fault := self._fault()) is None:
            return
        if self._restarts is None:
            _log.warning("%s; entry nodes have lost the core, which ends", fault)
            self._member.rest(0.0)
            return
        _log.error("%s; entry nodes have lost the core until another one takes its place", fault)
        # The server's own clients need none.
        pause = self._restarts.pause(time.monotonic())
        self._member.rest(LONGEST_PAUSE if pause is None else pause)

    def _fault(self) -> str | None:
        """How it failed, or its replacement; starts that if it is due."""
        if (fault := self._member.fault(self._start_timeout)) is not None:
            self._unwatch(self.child)
            return fault
        try:
            if self._restarts is not None and self._member.revive():
                self._watch(self.child)
        except OSError as error:
            # A system that has no room now may have it later.
            return f"the gateway cannot be replaced yet: {error.strerror}"
        return None

    def stop_restarts(self) -> None:
        """From now on it stays dead when it dies: the server ends."""
        self._restarts = None

    def close(self) -> None:
        """Ends the process; nodes notice."""
        self._listener.close()
        children.stop([self.child])


def _shown(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"tcp://[{host}]:{port}" if listener.family == socket.AF_INET6 else f"tcp://{host}:{port}"


def _told(config: Config, source: ModelSource, table: Topology, listener: socket.socket) -> dict[str, Any]:
    """What the process is told."""
    assert table.gateway is not None
    slots = range(table.workers, len(table.entry))
    return {
        "parent": os.getpid(),
        "listen_fd": listener.fileno(),
        "control": table.control,
        "status": table.gateway.status,
        "requests": table.scheduler.requests,
        "slots": [{"worker": slot, "results": table.entry[slot].results} for slot in slots],
        "secret": nodes.secret(config.nodes),
        "fingerprint": nodes.fingerprint(source),
        "core": nodes.told(config, source, launch.max_model_len(config, source)),
        "log": launch.log(config),
        "link": launch.link_times(config),
    }
