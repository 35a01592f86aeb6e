"""``llmrt-serve``: serves one model over HTTP."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from llmrt import __version__, config
from llmrt.model_config import ModelError

USAGE_ERROR = 2


def parser(program: str) -> argparse.ArgumentParser:
    """The flags of the server."""
    flags = argparse.ArgumentParser(
        prog=program, description="Serve a large language model with an OpenAI-compatible API over HTTP/1.1 and HTTP/2."
    )
    flags.add_argument("positional_model", nargs="?", metavar="MODEL", help="same as --model")
    flags.add_argument("--version", action="version", version=f"llmrt {__version__}")
    config.add_flags(flags)
    return flags


def main(arguments: Sequence[str] | None = None, program: str = "llmrt-serve") -> int:
    """Runs the server until a signal ends it; returns the exit code."""
    flags = parser(program)
    namespace = flags.parse_args(arguments)
    if namespace.positional_model is not None:
        if namespace.model is not None:
            flags.error("give the model once: as MODEL or with --model")
        namespace.model = namespace.positional_model
    try:
        options = config.from_namespace(namespace)
    except config.ConfigError as error:
        flags.error(str(error))

    from llmrt.supervisor.supervisor import StartError, Supervisor

    try:
        return Supervisor(options).run()
    except (ModelError, StartError) as error:
        print(f"{program}: {error}", file=sys.stderr)
        return USAGE_ERROR


if __name__ == "__main__":
    sys.exit(main())
