"""Main of the mock engine's process: the loop itself is ``llmrt._core.run_mock_engine``; this starts and configures it.

The configuration is one JSON object: what ``rust/llmrt-mock/src/config.rs`` describes, with ``parent``, the process id
of the supervisor, and ``tokenizer`` (``{"kind": "gguf" | "json", "path": ...}``), by which a pattern of the kind
``text`` becomes one of the kind ``tokens``.
"""

from __future__ import annotations

import json
import signal
import sys
from typing import Any

from llmrt._core import Tokenizer, run_mock_engine
from llmrt.process.child import die_with_parent, read_configuration


def main(arguments: list[str] | None = None) -> int:
    """Serves until SIGTERM; returns the exit code."""
    try:
        config = json.loads(read_configuration(sys.argv[1:] if arguments is None else arguments))
        parent, tokenizer = config.pop("parent", None), config.pop("tokenizer", None)
        pattern = config["pattern"]
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        sys.exit(f"mock engine configuration: {error}")
    die_with_parent(parent)
    # An interrupt at the terminal is the supervisor's to handle: tokens are still to come while it drains.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        if pattern.get("kind") == "text":
            config["pattern"] = {"kind": "tokens", "tokens": _encode(tokenizer, pattern["text"])}
        run_mock_engine(json.dumps(config))
    except (OSError, ValueError) as error:
        sys.exit(f"mock engine: {error}")
    return 0


def _encode(tokenizer: dict[str, Any], text: str) -> list[int]:
    load = Tokenizer.from_gguf if tokenizer["kind"] == "gguf" else Tokenizer.from_file
    return load(tokenizer["path"]).encode(text)


if __name__ == "__main__":
    sys.exit(main())
