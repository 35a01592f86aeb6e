"""The main of a process whose loop runs in Rust: a shell that configures and starts it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from llmrt.process.child import die_with_parent, read_configuration

Prepare = Callable[[dict[str, Any]], None]
"""Changes a configuration in place."""


def run(name: str, loop: Callable[[str], None], arguments: list[str] | None, prepare: Prepare | None = None) -> int:
    """Runs ``loop`` with the JSON object that the supervisor gave; returns the exit code.

    The object's ``parent`` is the supervisor's process id; ``prepare`` may change the rest of it before ``loop`` reads
    it. Exits with a message that begins with ``name`` when the object or what it names cannot be used.
    """
    try:
        config = json.loads(read_configuration(sys.argv[1:] if arguments is None else arguments))
        parent = config.pop("parent", None)
    except (ValueError, AttributeError, TypeError) as error:
        sys.exit(f"{name} configuration: {error}")
    die_with_parent(parent)
    try:
        if prepare is not None:
            prepare(config)
        loop(json.dumps(config))
    except (OSError, RuntimeError, ValueError) as error:
        sys.exit(f"{name}: {error}")
    return 0
