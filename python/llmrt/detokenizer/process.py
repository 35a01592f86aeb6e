"""Main of a detokenizer process; started by the supervisor with its configuration on a descriptor.

The configuration is one JSON object: ``index`` (number of this detokenizer), ``topology`` (see
:mod:`llmrt.topology`), ``tokenizer`` (``{"kind": "gguf" | "json", "path": ...}``), optionally ``log``
(``{"format": "text" | "json", "level": ...}``), ``link`` (``{"heartbeat_s": ..., "silence_s": ...}``) and
``parent``, the process id of the supervisor.
"""

from __future__ import annotations

import json
import signal
import sys

from llmrt._core import run_detokenizer
from llmrt.process.child import die_with_parent, read_configuration


def main(arguments: list[str] | None = None) -> int:
    """Serves until SIGTERM or the supervisor's ``shutdown`` call; returns the exit code."""
    try:
        config = json.loads(read_configuration(sys.argv[1:] if arguments is None else arguments))
        parent = config.pop("parent", None)
    except (ValueError, AttributeError) as error:
        sys.exit(f"detokenizer configuration: {error}")
    die_with_parent(parent)
    # An interrupt at the terminal is the supervisor's to handle: text is still to come while it drains.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        run_detokenizer(json.dumps(config))
    except (OSError, RuntimeError, ValueError) as error:
        sys.exit(f"detokenizer: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
