"""Entry workers in processes of their own: they share the listening socket, and one that dies is replaced."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import subprocess
import time
from collections.abc import Callable

from llmrt import link, wire
from llmrt.config import Config
from llmrt.model_source import ModelSource
from llmrt.supervisor import children, launch
from llmrt.supervisor.children import Child
from llmrt.supervisor.core import LONGEST_PAUSE, Member, Restarts
from llmrt.supervisor.errors import StartError
from llmrt.supervisor.scrape import Scrapes
from llmrt.topology import Topology

RESTARTS, WINDOW = 20, 60.0
"""Workers that may be replaced within so many seconds; at one more the server ends, unless another worker is up."""

_log = logging.getLogger(__name__)


class EntryWorkers:
    """All entry workers of a server, as one that is embedded would be dealt with.

    A descriptor of the listening socket is kept for successors. The socket is one queue of connections for all: a
    worker that hangs takes none of them, and one that dies leaves none behind. What their requests hold and use is
    counted here, where it outlives each of them.
    """

    def __init__(
        self,
        config: Config,
        source: ModelSource,
        table: Topology,
        listener: socket.socket,
        control: link.Inbox,
        watch: Callable[[Child], None],
        unwatch: Callable[[Child], None],
    ) -> None:
        """Starts the processes; ``watch`` has the loop wake when one of them ends, until ``unwatch``."""
        self._config = config
        self._control = control
        self._watch, self._unwatch = watch, unwatch
        self._listener = listener.dup()
        self._restarts = Restarts(RESTARTS, WINDOW)
        self._scrapes = Scrapes(control)
        self._peers: dict[int, int] = {}
        self._ending = False
        self.members: list[Member] = []
        self._ledger = launch.ledger(config, table)
        try:
            for worker in range(table.workers):
                child = launch.entry_process(config, source, table, self._listener, worker)
                self.members.append(Member(child))
                watch(child)
        except BaseException:
            self.close()
            raise

    def processes(self) -> dict[str, int]:
        """Process ids by the names of the workers."""
        return {member.child.name: member.child.process.pid for member in self.members}

    def up(self) -> bool:
        """Whether all workers have joined. Raises :class:`StartError` when one of them never will."""
        for member in self.members:
            if (fault := member.fault(self._config.process.start_timeout)) is not None:
                raise StartError(f"{fault}; its lines above say why")
        return all(member.joined for member in self.members)

    def until_deadline(self) -> float | None:
        """Seconds until something is to be done, ``None`` when only an event can say."""
        # Once the server ends nothing is started any more, and one that is dead needs nothing.
        tended = (each for each in self.members if not self._ending or (each.due is None and not each.child.ended()))
        waits = [member.until_deadline(self._config.process.start_timeout) for member in tended]
        return min((wait for wait in (*waits, self._scrapes.until_deadline()) if wait is not None), default=None)

    def notice(self, event: link.InboxEvent) -> None:
        """Takes an event of the control link."""
        for worker, member in enumerate(self.members):
            if member.notice(event):
                _log.debug("%s has joined after %.1f s", member.child.name, member.took)
            if isinstance(event, link.Joined) and (event.hello.role, event.hello.index) == ("entry", worker):
                self._peers[worker] = event.peer
        if isinstance(event, link.Left):
            self._peers = {worker: peer for worker, peer in self._peers.items() if peer != event.peer}
        elif isinstance(event, link.Received) and isinstance(event.message, wire.Reply):
            self._scrapes.answered(event.message, self._peers)

    def metrics(self, peer: int, call: wire.Call) -> None:
        """Answers ``call`` with what all workers count, when they have told."""
        self._scrapes.ask(peer, call, self._peers)

    def tend(self) -> str | None:
        """Replaces workers that have ended, and kills those that hang; only the latter once the server ends.

        Returns what keeps the server from going on, ``None`` while nothing does.
        """
        self._scrapes.go_on(self._peers)
        for worker, member in enumerate(self.members):
            if (fault := self._fault(worker, member)) is None or self._ending:
                continue
            if (pause := self._restarts.pause(time.monotonic())) is None:
                if not self._one_is_up():
                    return f"{fault}; {RESTARTS} workers were replaced in {WINDOW:g} s"
                pause = LONGEST_PAUSE
            _log.error("%s; another one takes its place in %.1f s", fault, pause)
            member.rest(pause)
        return None

    def _fault(self, worker: int, member: Member) -> str | None:
        """How a worker failed, or its replacement; starts that if it is due."""
        if (fault := member.fault(self._config.process.start_timeout)) is not None:
            self._unwatch(member.child)
            if not self._ending:
                self._peers.pop(worker, None)
                self._scrapes.ended(worker)
            return fault
        try:
            if not self._ending and member.revive():
                self._watch(member.child)
        except OSError as error:
            # A system that has no room now may have it later.
            return f"{member.child.name} cannot be replaced yet: {error.strerror}"
        return None

    def crash(self) -> str | None:
        """How a worker failed while the server drained; one that has ended by itself and well did not.

        Nor did one that was still to join: it had no requests, and may have been told to end before it could obey.
        """
        running = (member.child for member in self.members if member.due is None and member.joined)
        return next((child.ended() for child in running if child.process.poll()), None)

    # As the embedded worker does

    def core_down(self, reason: str, scheduler: int | None = None, back_in: float | None = None) -> None:
        """A process of the core has died; see ``llmrt._core.Entry.core_down``."""
        self._tell("core_down", {"reason": reason, "scheduler": scheduler, "back_in": back_in})

    def shutdown(self, timeout: float) -> None:
        """Has every worker take no new requests and give open ones ``timeout`` seconds. Returns at once."""
        self._ending = True
        self._listener.close()
        self._tell("shutdown", {"timeout": timeout})
        for worker, member in enumerate(self.members):
            # It has no link yet, and no request either.
            if worker not in self._peers and member.child.ended() is None:
                member.child.process.terminate()

    def reload(self) -> None:
        """Has every worker read its certificates and keys again. One that just starts has read them anyway."""
        # First the ledger: a key that a worker knows then has its limits there.
        if self._ledger is not None:
            self._ledger.reload()
        self._tell("reload", {})

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until all workers have ended; false when ``timeout`` seconds passed before."""
        end = None if timeout is None else time.monotonic() + timeout
        for member in self.members:
            try:
                member.child.process.wait(None if end is None else max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                return False
        return True

    def close(self) -> None:
        """Ends the processes that are left."""
        self._listener.close()
        children.stop([member.child for member in self.members])
        if self._ledger is not None:
            self._ledger.close()

    def _tell(self, method: str, arguments: dict[str, object]) -> None:
        for peer in self._peers.values():
            # Who cannot be told notices the rest at its links.
            with contextlib.suppress(link.NotReady, link.Full):
                self._control.send(peer, wire.Call(0, method, json.dumps(arguments)))

    def _one_is_up(self) -> bool:
        return any(each.joined and each.due is None and each.child.ended() is None for each in self.members)
