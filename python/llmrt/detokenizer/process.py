"""Main of a detokenizer process; started by the supervisor with its configuration on a descriptor.

The configuration is one JSON object: ``index`` (number of this detokenizer), ``topology`` (see
:mod:`llmrt.topology`), ``tokenizer`` (``{"kind": "gguf" | "json", "path": ...}``), optionally ``log``
(``{"format": "text" | "json", "level": ...}``), ``link`` (``{"heartbeat_s": ..., "silence_s": ...}``) and
``parent``, the process id of the supervisor.
"""

from __future__ import annotations

import sys

from llmrt._core import run_detokenizer
from llmrt.process import native


def main(arguments: list[str] | None = None) -> int:
    """Serves until the supervisor's ``shutdown`` call or signal; returns the exit code."""
    return native.run("detokenizer", run_detokenizer, arguments)


if __name__ == "__main__":
    sys.exit(main())
