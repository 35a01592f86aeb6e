"""Main of an entry worker in a process of its own; started by the supervisor with its configuration on a descriptor.

The configuration is one JSON object: what ``rust/llmrt-entry/src/config.rs`` describes, with ``supervisor``, and
``parent``, the process id of the supervisor.
"""

from __future__ import annotations

import json
import signal
import sys

from llmrt._core import run_entry
from llmrt.process.child import die_with_parent, read_configuration


def main(arguments: list[str] | None = None) -> int:
    """Serves until the supervisor's ``shutdown`` call or SIGTERM, then drains; returns the exit code."""
    try:
        config = json.loads(read_configuration(sys.argv[1:] if arguments is None else arguments))
        parent = config.pop("parent", None)
    except (ValueError, AttributeError) as error:
        sys.exit(f"entry configuration: {error}")
    die_with_parent(parent)
    # An interrupt at the terminal is the supervisor's to handle.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        run_entry(json.dumps(config))
    except (OSError, RuntimeError, ValueError) as error:
        sys.exit(f"entry: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
