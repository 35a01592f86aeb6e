"""What makes up one server, started and stopped together: processes, entry worker, the link between them."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import zmq

from llmrt import link, topology, wire
from llmrt.config import Config
from llmrt.model_source import ModelSource
from llmrt.supervisor import children, core, launch
from llmrt.supervisor.children import Child
from llmrt.supervisor.core import Member, Restarts
from llmrt.supervisor.ending import EntryEnd
from llmrt.supervisor.errors import preparing
from llmrt.supervisor.gateway import Gateway
from llmrt.supervisor.last_words import LastWords
from llmrt.supervisor.workers import EntryWorkers

if TYPE_CHECKING:
    from llmrt._core import Client, Entry

_log = logging.getLogger(__name__)

GOODBYE = 1.0
"""Seconds in which the entry tells its clients that the server ends."""

LAST_WORDS = 0.5
"""Seconds that the reason of a process may be behind its end."""


class Parts:
    """A core as processes, one entry worker inside this process or several in their own, and the control link to them.

    All of it belongs to the thread that calls :meth:`started`: the kernel ends the processes with that thread.
    """

    entry: Entry | EntryWorkers
    table: topology.Topology
    directory: topology.RuntimeDirectory

    def __init__(self, config: Config, source: ModelSource) -> None:
        self.config = config
        self.source = source
        self.core: list[Member] = []
        self.began = time.monotonic()
        self._was_up = False
        options = config.process
        self._restarts: Restarts | None = None
        if options.restart_core:
            self._restarts = Restarts(options.max_core_restarts, options.core_restart_window)
        self._poller = zmq.Poller()
        self._lives: dict[Child, int] = {}
        self._control: link.Inbox
        self._last_words = LastWords()
        self.workers: EntryWorkers | None = None
        self.gateway: Gateway | None = None
        self._entry_end: EntryEnd | None = None

    @property
    def children(self) -> list[Child]:
        """The processes as they are now."""
        return [member.child for member in self.core]

    @contextlib.contextmanager
    def started(
        self, listener: socket.socket | None, told_to_end: Callable[[], bool] = lambda: False
    ) -> Iterator[bool]:
        """Starts everything, and stops it at the end. Without ``listener`` only this process can make requests.

        Says whether clients are let in: not where ``told_to_end`` said meanwhile that nobody needs that any more. It is
        asked whenever something happens, which :meth:`listen_to` extends to signals. Raises
        :class:`~llmrt.supervisor.errors.StartError` for what the user can mend.
        """
        with contextlib.ExitStack() as ending:
            with preparing():
                self._start(ending, listener)
                while not (told := told_to_end()) and not self._is_up():
                    self.wait()
            yield not told

    def _start(self, ending: contextlib.ExitStack, listener: socket.socket | None) -> None:
        self.directory = ending.enter_context(topology.RuntimeDirectory())
        workers = self.config.entry.entry_workers if listener is not None else 1
        places = self.config.nodes.max_entry_nodes if self.config.nodes.core_listen is not None else 0
        self.table = topology.build(self.directory.path, workers, self.config.process.detokenizers, nodes=places)
        self._control = link.Inbox(self.table.control, options=launch.link_options(self.config))
        ending.callback(self._control.close, "the server ends")
        self._control.register(self._poller)
        self.core = [Member(child) for child in launch.children(self.config, self.source, self.table)]
        ending.callback(lambda: children.stop(self.children))
        ending.callback(self._unwatch)
        for child in self.children:
            self._watch(child)
        if places:
            self.gateway = Gateway(self.config, self.source, self.table, self._watch, self._unwatch)
            ending.callback(self.gateway.close)
        if listener is None or workers == 1:
            self.entry = launch.entry(self.config, self.source, self.table, listener)
        else:
            self.entry = self.workers = self._entry_workers(listener)
            ending.callback(self.workers.close)
        ending.callback(self._end_entry)
        if not isinstance(self.entry, EntryWorkers):
            self._entry_end = EntryEnd(self.entry)
            self._poller.register(self._entry_end.fileno(), zmq.POLLIN)
            ending.callback(self._unwatch_entry)

    def _is_up(self) -> bool:
        """Whether clients and nodes are let in. A core that has ended is dealt with as one that ends later."""
        workers = self.workers is None or self.workers.up()
        return ((self.gateway is None or self.gateway.up()) and workers) or any(each.ended() for each in self.children)

    def _entry_workers(self, listener: socket.socket) -> EntryWorkers:
        control = self._control
        return EntryWorkers(self.config, self.source, self.table, listener, control, self._watch, self._unwatch)

    def client(self) -> Client:
        """A way to make requests from this process, whose entry worker is inside it."""
        if isinstance(self.entry, EntryWorkers):
            raise RuntimeError("the entry workers are other processes")
        return self.entry.client()

    def processes(self) -> dict[str, int]:
        """Process ids of the parts; one entry worker alone lives in the supervisor's."""
        parts = {child.name.removeprefix("the "): child.process.pid for child in self.children}
        workers = self.workers.processes() if self.workers is not None else {}
        gateway = {"gateway": self.gateway.child.process.pid} if self.gateway is not None else {}
        return {"supervisor": os.getpid(), **parts, **workers, **gateway}

    def listen_to(self, descriptor: int) -> None:
        """Has :meth:`wait` wake when ``descriptor`` is readable."""
        self._poller.register(descriptor, zmq.POLLIN)

    def wait(self, timeout: float | None = None) -> None:
        """Sleeps until something happens, at most ``timeout`` seconds, then takes what the control link has."""
        tended = (member for member in self.core if self._restarts is not None or member.due is None)
        deadlines = [member.until_deadline(self.config.process.start_timeout) for member in tended]
        deadlines += [each.until_deadline() for each in (self.workers, self.gateway) if each is not None]
        limits = [limit for limit in (timeout, *deadlines) if limit is not None]
        link.poll(self._poller, [self._control], min(limits, default=None))
        for event in self._control.receive():
            self._notice(event)
            if isinstance(event, link.Received) and isinstance(event.message, wire.Call):
                self._answer(event.peer, event.message)

    def tend(self) -> str | None:
        """Looks after the core: what has died is started again after a while, what hangs is killed.

        Returns what keeps the server from going on, ``None`` while nothing does.
        """
        if self._entry_end is not None and self._entry_end.has_come():
            return "the entry worker has ended by itself"
        for member in self.core:
            fault = self._fault(member) or self._revived(member)
            if fault is not None and not self._rested(member, fault):
                return fault
        if self.gateway is not None:
            self.gateway.tend()
        return self.workers.tend() if self.workers is not None else None

    def stop_restarts(self) -> None:
        """From now on what has died stays dead, and :meth:`tend` tells of it; but an entry worker may end."""
        self._restarts = None
        self._unwatch_entry()
        if self.gateway is not None:
            self.gateway.stop_restarts()

    def crash(self) -> str | None:
        """How a process failed; one that has ended by itself and well did not, nor one that waits for its restart."""
        running = (member.child for member in self.core if member.due is None)
        crashed = next((child.ended() for child in running if child.process.poll()), None)
        return self.workers.crash() if crashed is None and self.workers is not None else crashed

    def give_up(self, fault: str) -> None:
        """Tells open requests that nobody will answer them any more."""
        for member in self.core:
            if member.child.role == "scheduler":
                self.entry.core_down(fault, member.incarnation)

    def _fault(self, member: Member) -> str | None:
        if member.due is not None:
            return None
        child, process = member.child, self.config.process
        if (fault := child.ended()) is not None:
            self._unwatch(child)
            return self._explained(child, fault)
        if not member.hung(process.start_timeout):
            return None
        self._unwatch(child)
        child.kill()
        if member.lingers:
            words = self._last_words.of(child.role)
            return f"{child.name} left its control link and did not end in {core.LEAVE:g} s: {words}"
        if member.joined:
            return f"{child.name} gave no sign of life for {process.step_deadline:g} s (--step-deadline)"
        what = "the model did not load" if child.role == "scheduler" else f"{child.name} did not start"
        return f"{what} in {process.start_timeout:g} s (--start-timeout)"

    def _revived(self, member: Member) -> str | None:
        """Starts a dead process again if that is due; returns why that failed."""
        try:
            if self._restarts is not None and member.revive():
                self._last_words.forget(member.child.role)
                _log.info("%s starts again", member.child.name)
                self._watch(member.child)
        except OSError as error:
            return f"{member.child.name} cannot be started again: {error.strerror}"
        return None

    def _rested(self, member: Member, fault: str) -> bool:
        """Plans the restart of a dead process, and tells the entry; false when there is to be none."""
        if self._restarts is None or not self._was_up:
            return False
        pause = self._restarts.pause(time.monotonic())
        if pause is None:
            limit, window = self._restarts.limit, self._restarts.window
            _log.error("there were %d restarts in %g s (--max-core-restarts)", limit, window)
            return False
        scheduler = member.incarnation if member.child.role == "scheduler" else None
        back_in = member.rest(pause)
        _log.error("%s; it starts again in %.1f s", fault, pause)
        self.entry.core_down(fault, scheduler, back_in)
        return True

    def _explained(self, child: Child, fault: str) -> str:
        """Adds what a process that ended by itself said of it, which may still be on its way."""
        if child.process.returncode <= 0:
            return fault
        end = time.monotonic() + LAST_WORDS
        while (words := self._last_words.of(child.role)) is None and (left := end - time.monotonic()) > 0:
            self.wait(left)
        return fault if words is None else f"{fault}: {words}"

    def _notice(self, event: link.InboxEvent) -> None:
        self._last_words.notice(event)
        for part in (self.workers, self.gateway):
            if part is not None:
                part.notice(event)
        for member in self.core:
            if member.notice(event) and member.child.role == "scheduler":
                self._was_up = True
                _log.info("ready after %.1f s", member.took)
        if isinstance(event, link.Joined):
            _log.debug("%s %d has joined", event.hello.role, event.hello.index)
        elif isinstance(event, link.Left):
            _log.debug("a process has left: %s", event.reason)

    def _answer(self, peer: int, call: wire.Call) -> None:
        """Answers ``stats``: the processes and the seconds since the start; and ``metrics``: what all workers count."""
        if call.method == "metrics" and self.workers is not None:
            return self.workers.metrics(peer, call)
        if call.method == "stats":
            stats = {"processes": self.processes(), "uptime": time.monotonic() - self.began}
            reply = wire.Reply(call.call, True, json.dumps(stats))
        else:
            reply = wire.Reply(call.call, False, f"the supervisor has no method {call.method!r}; it has stats")
        with contextlib.suppress(link.NotReady, link.Full):
            self._control.send(peer, reply)

    def _watch(self, child: Child) -> None:
        """Wakes :meth:`wait` when the process ends. Where that cannot be had, it shows with the next heartbeat."""
        if not hasattr(os, "pidfd_open"):
            return
        try:
            self._lives[child] = os.pidfd_open(child.process.pid)
        except OSError as error:
            # It runs all the same: one more would be one too many.
            _log.warning("the end of %s will be noticed late: %s", child.name, error.strerror)
        else:
            self._poller.register(self._lives[child], zmq.POLLIN)

    def _unwatch(self, *ended: Child) -> None:
        for child in ended or list(self._lives):
            if (descriptor := self._lives.pop(child, None)) is not None:
                self._poller.unregister(descriptor)
                os.close(descriptor)

    def _unwatch_entry(self) -> None:
        if self._entry_end is not None:
            self._poller.unregister(self._entry_end.fileno())
            self._entry_end.close()
            self._entry_end = None

    def _end_entry(self) -> None:
        """Ends the entry workers where nobody has; requests that are still open are told."""
        self.entry.shutdown(0.0)
        self.entry.wait(GOODBYE)
