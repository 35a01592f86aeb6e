"""The command line of what is configured by the tree: its flags, and the configuration that comes of them."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from llmrt import __version__, config
from llmrt.config import Config, Option, Resolved
from llmrt.model_config import ModelError
from llmrt.process.signals import INTERRUPTED

USAGE_ERROR = 2

EPILOGUE = """every option is also a variable (--max-connections: LLMRT_MAX_CONNECTIONS) and a key of the file that
--config names (max_connections, alone or below its group). A flag wins over a variable, a variable over the file."""


def parser(program: str, description: str, known: Sequence[Option]) -> argparse.ArgumentParser:
    """A parser of the options ``known`` and of what is done with them."""
    flags = argparse.ArgumentParser(
        prog=program,
        usage="%(prog)s [MODEL] [flags]",
        description=description,
        epilog=EPILOGUE,
        allow_abbrev=False,
    )
    flags.add_argument("positional_model", nargs="?", metavar="MODEL", help="same as --model")
    flags.add_argument("--version", action="version", version=f"llmrt {__version__}")
    flags.add_argument("--config", metavar="FILE", help="YAML file with options (variable: LLMRT_CONFIG)")
    action = flags.add_mutually_exclusive_group()
    action.add_argument(
        "--check",
        action="store_true",
        help="validate, print every option with where it was set, secrets hidden, and end",
    )
    action.add_argument(
        "--dump-config", action="store_true", help="print the options as a file for --config, secrets included, and end"
    )
    config.add_flags(flags, known)
    return flags


def resolve(
    flags: argparse.ArgumentParser, arguments: Sequence[str] | None, known: Sequence[Option]
) -> tuple[argparse.Namespace, Resolved]:
    """Reads the command line, variables and file. Ends with a message when they cannot be understood."""
    namespace = flags.parse_args(arguments)
    given = vars(namespace)
    if namespace.positional_model is not None:
        if "model" in given:
            flags.error("give the model once: as MODEL or with --model")
        given["model"] = namespace.positional_model
    try:
        resolved = config.resolve(given, os.environ, namespace.config, known)
    except config.ConfigError as error:
        flags.error(str(error))
    for warning in resolved.warnings:
        print(f"{flags.prog}: warning: {warning}", file=sys.stderr)
    return namespace, resolved


def run(
    flags: argparse.ArgumentParser,
    arguments: Sequence[str] | None,
    known: Sequence[Option],
    check: Callable[[Resolved], None],
    start: Callable[[Config], int],
) -> int:
    """Does what the command line asks for; returns the exit code.

    ``check`` raises what a start would raise, and prints what it has found; the configuration is printed behind that.
    """
    namespace, resolved = resolve(flags, arguments, known)
    if namespace.dump_config:
        print(config.to_yaml(resolved.config, known=known), end="")
        return 0

    from llmrt.supervisor.errors import StartError

    try:
        if not namespace.check:
            return start(resolved.config)
        check(resolved)
    except (ModelError, StartError) as error:
        print(f"{flags.prog}: {error}", file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt:
        return INTERRUPTED
    print(config.to_yaml(resolved.config, resolved.sources, known), end="")
    return 0
