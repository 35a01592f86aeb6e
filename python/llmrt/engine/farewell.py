"""The last message of a scheduler process that failed: the supervisor's own words for it are only an exit code."""

from __future__ import annotations

import time

import zmq

from llmrt import link

FAILED_ROLE = "failed scheduler"
"""Who says it: ``scheduler`` would mean one that is ready."""

_PATIENCE = 2.0


def say(control: str, reason: str) -> None:
    """Tells the supervisor at the endpoint ``control`` why this process ends.

    Returns when the message is on its way, or after two seconds without a supervisor.
    """
    # A context of its own, whose end waits for what is still to be sent.
    with zmq.Context() as context:
        outbox = link.Outbox(control, link.Identity(FAILED_ROLE), context=context)
        poller = zmq.Poller()
        outbox.register(poller)
        end = time.monotonic() + _PATIENCE
        while not outbox.ready and (left := end - time.monotonic()) > 0:
            link.poll(poller, [outbox], left)
            outbox.receive()
        outbox.close(reason)
