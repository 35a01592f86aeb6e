"""Who listens where: one table of endpoints, built once by the supervisor and handed down as JSON.

By default every endpoint is an ``ipc`` socket in one private directory (:class:`RuntimeDirectory`); endpoints on
``tcp`` are made only for an address that the user names, never for a wildcard.
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import os
import re
import shutil
import socket
import stat
import tempfile
import weakref
from pathlib import Path
from typing import Annotated

import msgspec

MAX_PATH = 100
"""Bytes that a socket's path must stay under: the kernel's own limit is 108 on Linux and 104 on BSD."""

_NAME = re.compile(r"llmrt-(\d+)-[0-9a-f]{8}")
_LOCK = "lock"

Endpoint = Annotated[str, msgspec.Meta(pattern=r"^(ipc|tcp|file)://.+$")]


class TopologyError(ValueError):
    """A topology that cannot be built or read."""


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of the table's parts."""


class EntryEndpoints(_Table, frozen=True):
    """One entry worker: ``results`` takes TextFrames from the detokenizers."""

    results: Endpoint


class SchedulerEndpoints(_Table, frozen=True):
    """The scheduler: ``requests`` takes requests and aborts from entries, ended ids from detokenizers."""

    requests: Endpoint


class DetokenizerEndpoints(_Table, frozen=True):
    """One detokenizer: ``tokens`` takes TokenFrames from the scheduler."""

    tokens: Endpoint


class GatewayEndpoints(_Table, frozen=True):
    """The gateway for entry nodes: ``status`` is for whoever looks in. It also binds the results of all nodes."""

    status: Endpoint


class RankEndpoints(_Table, frozen=True):
    """Tensor-parallel ranks: ``plan`` carries step plans, ``rendezvous`` is where their group forms."""

    plan: Endpoint
    rendezvous: Endpoint


class Topology(_Table, frozen=True):
    """All endpoints. ``control`` is the supervisor's: liveness of the processes it started, and calls to them.

    So is ``ledger``, where there are several entry workers: it counts what the requests of all of them hold and use.
    The last ``nodes`` of ``entry`` are places for nodes on other hosts, which the gateway keeps.
    """

    control: Endpoint
    scheduler: SchedulerEndpoints
    entry: tuple[EntryEndpoints, ...]
    detokenizer: tuple[DetokenizerEndpoints, ...]
    ranks: RankEndpoints
    ledger: Endpoint | None = None
    nodes: int = 0
    gateway: GatewayEndpoints | None = None

    @property
    def workers(self) -> int:
        """Entry workers on this host; those of nodes are numbered from here on."""
        return len(self.entry) - self.nodes

    def table(self) -> dict[str, str]:
        """Every endpoint by its name, such as ``entry[0].results``."""
        rows = {"control": self.control, "scheduler.requests": self.scheduler.requests}
        if self.ledger is not None:
            rows["ledger"] = self.ledger
        rows.update({f"entry[{i}].results": entry.results for i, entry in enumerate(self.entry)})
        rows.update({f"detokenizer[{i}].tokens": part.tokens for i, part in enumerate(self.detokenizer)})
        if self.gateway is not None:
            rows["gateway.status"] = self.gateway.status
        rows.update({"ranks.plan": self.ranks.plan, "ranks.rendezvous": self.ranks.rendezvous})
        return rows

    def to_json(self) -> bytes:
        """The table as a JSON object."""
        return msgspec.json.encode(self)

    @classmethod
    def from_json(cls, raw: bytes | str) -> Topology:
        """Reads :meth:`to_json`. Raises :class:`TopologyError` on anything else."""
        try:
            return msgspec.json.decode(raw, type=cls)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise TopologyError(f"not a topology: {error}") from error


class RuntimeDirectory:
    """A private directory (mode 0700) for this process's sockets; removed by :meth:`close` or at exit.

    It lies under ``$XDG_RUNTIME_DIR`` or else the directory for temporary files, and its name carries the process id.
    While its maker lives it holds a lock inside, so that :func:`sweep` never takes a directory in use.
    """

    def __init__(self, base: Path | None = None) -> None:
        self.path = _make_directory(base)
        try:
            self._lock = os.open(self.path / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
        except OSError:
            self.path.rmdir()
            raise
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._finalizer = weakref.finalize(self, _remove, self.path, self._lock, os.getpid())

    def close(self) -> None:
        """Removes the directory with all that is in it."""
        self._finalizer()

    def __enter__(self) -> RuntimeDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def build(
    directory: Path, entries: int = 1, detokenizers: int = 1, host: str | None = None, nodes: int = 0
) -> Topology:
    """Builds the table for a number of entry workers and detokenizers, and of places for entry nodes.

    Without ``host`` all endpoints are sockets in ``directory``. With it they are free ports of that address, which
    must be one of this machine's own. Raises :class:`TopologyError` when a path is too long or the host is a wildcard.
    """
    if entries < 1 or detokenizers < 1:
        raise TopologyError("a topology needs at least one entry worker and one detokenizer")
    names = ["control", "scheduler.requests", "ranks.plan", *(["ledger"] if entries > 1 else [])]
    names += [f"entry.{i}.results" for i in range(entries + nodes)]
    names += [f"detokenizer.{i}.tokens" for i in range(detokenizers)]
    names += ["gateway.status"] if nodes else []
    at = _tcp_endpoints(host, names) if host is not None else _ipc_endpoints(directory, names)
    return Topology(
        control=at["control"],
        scheduler=SchedulerEndpoints(at["scheduler.requests"]),
        entry=tuple(EntryEndpoints(at[f"entry.{i}.results"]) for i in range(entries + nodes)),
        detokenizer=tuple(DetokenizerEndpoints(at[f"detokenizer.{i}.tokens"]) for i in range(detokenizers)),
        ranks=RankEndpoints(at["ranks.plan"], f"file://{directory / 'ranks.rendezvous'}"),
        ledger=at.get("ledger"),
        nodes=nodes,
        gateway=GatewayEndpoints(at["gateway.status"]) if nodes else None,
    )


def sweep(base: Path | None = None) -> list[Path]:
    """Removes the directories that dead processes of this user left behind; returns their paths."""
    swept = []
    for place in [base] if base is not None else _bases():
        for path in place.glob("llmrt-*"):
            match = _NAME.fullmatch(path.name)
            if match and _is_own_directory(path) and not _is_alive(int(match[1])) and _is_unlocked(path):
                shutil.rmtree(path, ignore_errors=True)
                swept.append(path)
    return swept


def live_directories(base: Path | None = None) -> list[Path]:
    """The directories of this user's processes that still run. Only looks: takes no lock, removes nothing."""
    places = [place.resolve() for place in ([base] if base is not None else _bases())]
    paths = [path for place in dict.fromkeys(places) for path in place.glob("llmrt-*")]
    return [
        path
        for path in paths
        if (match := _NAME.fullmatch(path.name)) and _is_own_directory(path) and _is_alive(int(match[1]))
    ]


def _bases() -> list[Path]:
    """Where a runtime directory may lie, best first."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    places = [Path(runtime)] if runtime else []
    places += [Path(tempfile.gettempdir()), Path("/tmp")]
    return [place for place in dict.fromkeys(places) if place.is_dir() and os.access(place, os.W_OK)]


def _make_directory(base: Path | None) -> Path:
    name = f"llmrt-{os.getpid()}-{os.urandom(4).hex()}"
    # The longest name that a socket in it can have.
    room = len("/detokenizer.4095.tokens")
    for place in [base] if base is not None else _bases():
        path = place.resolve() / name
        if len(os.fsencode(path)) + room < MAX_PATH:
            path.mkdir(mode=0o700)
            return path
    raise TopologyError(
        f"no directory for sockets: set XDG_RUNTIME_DIR to a writable one whose path is under "
        f"{MAX_PATH - room - len(name) - 1} bytes"
    )


def _remove(path: Path, lock: int, owner: int) -> None:
    # A forked child inherits the finalizer, but the directory is not the child's.
    if os.getpid() == owner:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def _is_own_directory(path: Path) -> bool:
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _is_unlocked(path: Path) -> bool:
    """Whether nobody holds the lock: process ids alone would mislead where containers share the directory."""
    try:
        lock = os.open(path / _LOCK, os.O_RDWR)
    except OSError:
        return True
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True


def _ipc_endpoints(directory: Path, names: list[str]) -> dict[str, str]:
    longest = max(len(os.fsencode(directory / name)) for name in names)
    if longest >= MAX_PATH:
        raise TopologyError(f"{directory} is too deep for sockets: {longest} bytes, {MAX_PATH - 1} are possible")
    return {name: f"ipc://{directory / name}" for name in names}


def _tcp_endpoints(host: str, names: list[str]) -> dict[str, str]:
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(host.strip("[]")).is_unspecified:
            host = "*"
    if host in ("", "*"):
        raise TopologyError("the links never listen on a wildcard: name one address of this machine")
    bare = host.strip("[]")
    family = socket.AF_INET6 if ":" in bare else socket.AF_INET
    shown = f"[{bare}]" if family == socket.AF_INET6 else bare
    endpoints = {}
    with contextlib.ExitStack() as taken:
        # All are held until the last is known, so that no port is given twice.
        for name in names:
            probe = taken.enter_context(socket.socket(family))
            try:
                probe.bind((bare, 0))
            except OSError as error:
                raise TopologyError(f"cannot listen on {host}: {error.strerror}") from error
            endpoints[name] = f"tcp://{shown}:{probe.getsockname()[1]}"
    return endpoints
