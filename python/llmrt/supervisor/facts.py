"""What a running server says of itself to others of the same user: a file in its private directory."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from llmrt import topology
from llmrt.topology import Topology

FILE = "server.json"
_MAX_BYTES = 16 << 20


class Facts(msgspec.Struct, frozen=True):
    """One server. ``processes`` holds the ids of its processes; one entry worker alone lives in the supervisor's.

    ``nodes`` is where entry nodes join, ``None`` where they cannot.
    """

    version: str
    url: str
    model: str
    processes: dict[str, int]
    topology: Topology
    nodes: str | None = None

    @property
    def pid(self) -> int:
        """The supervisor's process id."""
        return self.processes["supervisor"]


def publish(directory: Path, facts: Facts) -> None:
    """Writes the file, readable by this user alone; whoever sees it sees all of it."""
    draft = directory / f".{FILE}"
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(msgspec.json.encode(facts))
    draft.rename(directory / FILE)


def running(base: Path | None = None) -> list[Facts]:
    """The servers of this user that run on this machine, oldest first; those just starting or ending may be missing."""
    found = []
    for directory in topology.live_directories(base):
        try:
            path = directory / FILE
            with path.open("rb") as file:
                facts = msgspec.json.decode(file.read(_MAX_BYTES), type=Facts)
                found.append((os.fstat(file.fileno()).st_mtime, facts))
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            continue
    return [facts for _, facts in sorted(found, key=lambda pair: pair[0]) if "supervisor" in facts.processes]
