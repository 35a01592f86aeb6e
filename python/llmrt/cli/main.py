"""``llmrt``: the umbrella command."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from types import ModuleType

from llmrt import __version__

COMMANDS = {
    "serve": ("llmrt.cli.serve", "[MODEL] [flags]", "serve a model over HTTP (the same as llmrt-serve)"),
    "entry": ("llmrt.cli.entry", "--core URL [flags]", "answer clients for a core on another host"),
    "bench": ("llmrt.cli.bench", "serve [flags]", "measure any server that speaks the OpenAI API"),
    "chat": ("llmrt.cli.chat", "[MODEL] [flags]", "talk to a model in the terminal"),
    "doctor": ("llmrt.cli.doctor", "[flags]", "show what is missing, slow or broken"),
    "completion": ("llmrt.cli.completion", "SHELL", "print the completion of bash, zsh or fish"),
}
"""Module, arguments and summary of each command. A module has ``main(arguments, program)`` and ``parser(program)``."""


def usage() -> str:
    """What ``llmrt --help`` prints."""
    rows = [(f"{name} {arguments}", summary) for name, (_, arguments, summary) in COMMANDS.items()]
    width = max(len(left) for left, _ in rows) + 2
    lines = "\n".join(f"  {left:<{width}}{summary}" for left, summary in rows)
    return (
        f"llmrt {__version__}: a serving runtime for large language models\n\nusage: llmrt COMMAND ...\n\n"
        f"commands:\n{lines}\n\n'llmrt COMMAND --help' lists the flags of a command."
    )


def load(command: str) -> ModuleType:
    """The module of a command; imported when it is used, so that none waits for what another needs."""
    return importlib.import_module(COMMANDS[command][0])


def main(arguments: Sequence[str] | None = None) -> int:
    """Dispatches to a command; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help"):
        print(usage())
        return 0 if words else 2
    if words[0] in ("-V", "--version"):
        print(f"llmrt {__version__}")
        return 0
    if words[0] not in COMMANDS:
        print(f"llmrt: unknown command {words[0]!r}\n\n{usage()}", file=sys.stderr)
        return 2
    code: int = load(words[0]).main(words[1:], program=f"llmrt {words[0]}")
    return code


if __name__ == "__main__":
    sys.exit(main())
