"""Main of the mock engine's process: the loop itself is ``llmrt._core.run_mock_engine``; this starts and configures it.

The configuration is one JSON object: what ``rust/llmrt-mock/src/config.rs`` describes, with ``parent``, the process id
of the supervisor, and ``tokenizer`` (``{"kind": "gguf" | "json", "path": ...}``), by which a pattern of the kind
``text`` becomes one of the kind ``tokens``.
"""

from __future__ import annotations

import sys
from typing import Any

from llmrt._core import Tokenizer, run_mock_engine
from llmrt.process import native


def main(arguments: list[str] | None = None) -> int:
    """Serves until the supervisor's signal; returns the exit code."""
    return native.run("mock engine", run_mock_engine, arguments, _encode_pattern)


def _encode_pattern(config: dict[str, Any]) -> None:
    tokenizer, pattern = config.pop("tokenizer", None), config.get("pattern")
    if isinstance(pattern, dict) and pattern.get("kind") == "text":
        load = Tokenizer.from_gguf if tokenizer["kind"] == "gguf" else Tokenizer.from_file
        config["pattern"] = {"kind": "tokens", "tokens": load(tokenizer["path"]).encode(pattern["text"])}


if __name__ == "__main__":
    sys.exit(main())
