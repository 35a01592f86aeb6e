"""Many clients, and processes that die and stop at random: every request ends once, and nothing is left behind.

``CHAOS_SECONDS`` (30) is how long processes die, ``CHAOS_STREAMS`` (200) how many requests are open at once,
``CHAOS_WORKERS`` (3) and ``CHAOS_DETOKENIZERS`` (2) how many entry workers and detokenizers there are. ``CHAOS_SEED``
repeats a run's draws, though not its timing.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import sys

import pytest

from chaos.answers import End
from chaos.clients import MOST_TOKENS, Manner
from chaos.crowd import PATIENCE, Crowd
from chaos.monkey import Monkey
from chaos.state import State
from llmrt.cli import probe
from support.server import Server, wait_for

SECONDS = float(os.environ.get("CHAOS_SECONDS", "30"))
STREAMS = int(os.environ.get("CHAOS_STREAMS", "200"))
WORKERS = int(os.environ.get("CHAOS_WORKERS", "3"))
DETOKENIZERS = int(os.environ.get("CHAOS_DETOKENIZERS", "2"))
SEED = int(os.environ.get("CHAOS_SEED", str(random.SystemRandom().randrange(1 << 32))))

STEP = max(0.05, STREAMS / 4000)
"""Seconds: a client in Python can read 4,000 tokens a second on a part of a processor."""
DEADLINE = 3.0
STALL = 2.0
WARM_UP = MOST_TOKENS * STEP + 3.0
LONGEST = SECONDS + WARM_UP + 4 * (PATIENCE + 2 * MOST_TOKENS * STEP)

# A long name makes long events, so that readers that stall can be noticed without many tokens.
FLAGS = (
    *("--engine", "mock", "--mock-step-ms", f"{1000 * STEP:g}", "--served-model-name", "m" * 1500),
    *(("--entry-workers", str(WORKERS)) if WORKERS > 1 else ()),
    *("--detokenizers", str(DETOKENIZERS)),
    *("--max-num-seqs", str(2 * STREAMS), "--max-num-queued-reqs", str(2 * STREAMS)),
    *("--step-deadline", str(DEADLINE), "--stall-timeout", str(STALL), "--sse-ping-interval", "1"),
    # A process that is stopped while it starts is found by this alone.
    *("--start-timeout", "20"),
    # Pauses between restarts stay short: here processes die all the time.
    *("--max-core-restarts", "100000", "--core-restart-window", "2"),
)

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")


@pytest.mark.timeout(LONGEST)
def test_every_request_ends_once_and_nothing_is_left() -> None:
    print(f"\nCHAOS_SEED={SEED} CHAOS_SECONDS={SECONDS:g} CHAOS_STREAMS={STREAMS} CHAOS_WORKERS={WORKERS}")
    dice = random.Random(SEED)
    server = Server(*FLAGS)
    crowd = Crowd(server, dice, STEP, STALL)
    try:
        asyncio.run(crowd.run(asyncio.sleep(WARM_UP), STREAMS))
        print(f"calm: {crowd.told()}")
        assert not crowd.count(End.FAILED) and not crowd.count(End.LOST)
        # Who stalls is cut, and nobody else; with nothing dying it cannot be anything else that ended the stream.
        assert crowd.count(End.CUT, of="h1") and crowd.count(End.CUT, of="h2")
        assert all(manner is Manner.STALLS for _, manner, end in crowd.ends if end is End.CUT)
        before = State(server)

        monkey = Monkey(server, dice, DEADLINE)
        asyncio.run(crowd.run(monkey.rage(SECONDS), STREAMS))
        after = State(server, before)
        print(f"did: { {' '.join(deed): count for deed, count in sorted(monkey.done.items())} }")
        print(f"ends: {crowd.told()}")
        print(f"memory, KiB: {before.memory} before, {after.memory} after")

        assert monkey.deeds <= set(monkey.done) or SECONDS < 30
        assert crowd.begun == sum(crowd.ends.values())
        # An entry worker takes its own answers along, and no others. A stopped one is found after the deadline, by a
        # supervisor that may be stopped itself; and clients hear of it late where the machine is busy.
        late = 2 * DEADLINE + 5
        assert not [each for each in crowd.lost if not monkey.killed(f"entry[{each[1]}]", each[0], late)]
        assert after.pages == 0
        assert after.processes == before.processes and after.children == before.children
        assert after.files == before.files
        assert after.descriptors == before.descriptors
        assert sum(after.memory.values()) <= 1.1 * sum(before.memory.values())
        # It alone has lived through all of it.
        assert after.memory["supervisor"] <= 1.1 * before.memory["supervisor"]

        children = server.children()
        # No server will be there to hang up on who stalls.
        crowd.stall_timeout = 0.0
        asyncio.run(crowd.run(killed(server), 20))
        for child in children:
            wait_for(lambda child=child: probe.process_state(child) == "is gone", f"child {child} to be gone")
        with socket.socket() as taken:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind((server.host, server.port))
    except BaseException:
        print(crowd.told())
        print(server.log[-20_000:])
        raise
    finally:
        server.stop(signal.SIGKILL)


async def killed(server: Server) -> None:
    """Lets requests begin, and kills the server under them."""
    await asyncio.sleep(2)
    server.process.kill()
