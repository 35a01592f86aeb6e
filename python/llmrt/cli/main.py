"""``llmrt``: the umbrella command."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from llmrt import __version__
from llmrt.cli import serve

USAGE = f"""llmrt {__version__}: a serving runtime for large language models

usage: llmrt COMMAND ...

commands:
  serve [MODEL] [flags]   serve a model over HTTP (the same as llmrt-serve)

'llmrt COMMAND --help' lists the flags of a command."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Dispatches to a command; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help"):
        print(USAGE)
        return 0 if words else 2
    if words[0] in ("-V", "--version"):
        print(f"llmrt {__version__}")
        return 0
    if words[0] == "serve":
        return serve.main(words[1:], program="llmrt serve")
    print(f"llmrt: unknown command {words[0]!r}\n\n{USAGE}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
