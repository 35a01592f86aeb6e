"""Main of an entry worker in a process of its own; started by the supervisor with its configuration on a descriptor.

The configuration is one JSON object: what ``rust/llmrt-entry/src/config.rs`` describes, with ``supervisor``, and
``parent``, the process id of the supervisor.
"""

from __future__ import annotations

import signal
import sys

from llmrt._core import run_entry
from llmrt.process import native


def main(arguments: list[str] | None = None) -> int:
    """Serves until the supervisor's ``shutdown`` call or SIGTERM, then drains; returns the exit code."""
    # Sent to one worker it renews that; sent to all processes it does no more than the supervisor's call does.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    return native.run("entry", run_entry, arguments)


if __name__ == "__main__":
    sys.exit(main())
