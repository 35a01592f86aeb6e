"""Kills and stops the processes of a server at random times, and renews its entry workers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections import Counter

from chaos.state import processes
from support.server import Server

SPARED = "supervisor"
"""It is only stopped for moments: its end is the server's."""


class Monkey:
    """``done`` counts what it did, by deed and kind of process."""

    def __init__(self, server: Server, dice: random.Random, deadline: float) -> None:
        self.server = server
        self.dice = dice
        self.deadline = deadline
        self.done: Counter[tuple[str, str]] = Counter()
        self.deaths: list[tuple[float, str]] = []
        """When it struck processes for good, by their names."""
        self._kinds = sorted({_kind(name) for name in processes(server)})
        self._next: list[tuple[str, str]] = []

    @property
    def deeds(self) -> set[tuple[str, str]]:
        """All that it can do."""
        every = {(deed, kind) for deed in ("kill", "stop", "pause") for kind in self._kinds if kind != SPARED}
        return every | {("pause", SPARED)} | ({("drain", "entry")} if "entry" in self._kinds else set())

    def killed(self, name: str, at: float, within: float) -> bool:
        """Whether it struck a process for good at most so many seconds before ``at``."""
        return any(struck == name and when <= at <= when + within for when, struck in self.deaths)

    async def rage(self, seconds: float) -> None:
        """Does harm for so long; nothing is left stopped that the server would not end by itself."""
        end = asyncio.get_running_loop().time() + seconds
        while (now := asyncio.get_running_loop().time()) < end:
            await asyncio.sleep(min(self.dice.uniform(0.1, 2.5), end - now))
            await self._strike()

    async def _strike(self) -> None:
        # All deeds before any again, so that a short rage does every one.
        if not self._next:
            self._next = self.dice.sample(sorted(self.deeds), len(self.deeds))
        deed, kind = self._next.pop()
        self.done[deed, kind] += 1
        now = processes(self.server)
        name = self.dice.choice(sorted(name for name in now if _kind(name) == kind))
        pid = now[name]
        if deed in ("kill", "stop"):
            self.deaths.append((time.monotonic(), name))
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, {"kill": signal.SIGKILL, "drain": signal.SIGTERM}.get(deed, signal.SIGSTOP))
            if deed == "pause":
                await asyncio.sleep(self.dice.uniform(0.0, 0.3 * self.deadline))
                os.kill(pid, signal.SIGCONT)


def _kind(name: str) -> str:
    return name.partition("[")[0]
