"""Kills and stops the processes of a server at random times."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections import Counter

from llmrt.supervisor import facts
from support.server import Server

SPARED = "supervisor"
"""It is only stopped for moments: its end is the server's."""


def processes(server: Server) -> dict[str, int]:
    """Process ids by name, as the supervisor last told them."""
    return next(each for each in facts.running() if each.pid == server.process.pid).processes


class Monkey:
    """``done`` counts what it did, by deed and process."""

    def __init__(self, server: Server, dice: random.Random, deadline: float) -> None:
        self.server = server
        self.dice = dice
        self.deadline = deadline
        self.done: Counter[str] = Counter()

    @property
    def killed_entries(self) -> int:
        """Entry workers that died by it, those among them that were stopped for too long."""
        return sum(count for deed, count in self.done.items() if "entry" in deed and not deed.startswith("pause"))

    async def rage(self, seconds: float) -> None:
        """Does harm for so long; nothing is left stopped that the server would not end by itself."""
        end = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < end:
            await self._strike()
            await asyncio.sleep(self.dice.uniform(0.1, 3.0))

    async def _strike(self) -> None:
        now = processes(self.server)
        # Kinds first: many entry workers are not hit more often than one detokenizer.
        kind = self.dice.choice(sorted({name.partition("[")[0] for name in now}))
        name = self.dice.choice(sorted(name for name in now if name.partition("[")[0] == kind))
        pid = now[name]
        deed = self.dice.choice(["pause"] if name == SPARED else ["kill", "stop", "pause"])
        self.done[f"{deed} {name}"] += 1
        with contextlib.suppress(ProcessLookupError):
            if deed == "kill":
                os.kill(pid, signal.SIGKILL)
            else:
                os.kill(pid, signal.SIGSTOP)
            if deed == "pause":
                await asyncio.sleep(self.dice.uniform(0.0, 0.3 * self.deadline))
                os.kill(pid, signal.SIGCONT)
