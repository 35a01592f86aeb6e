"""``llmrt-serve``: serves one model over HTTP."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from llmrt import __version__, config
from llmrt.model_config import ModelError

USAGE_ERROR = 2

EPILOGUE = """every option is also a variable (--max-num-seqs: LLMRT_MAX_NUM_SEQS) and a key of the file that --config
names (max_num_seqs, alone or below its group). A flag wins over a variable, a variable over the file."""


def parser(program: str) -> argparse.ArgumentParser:
    """The flags of the server."""
    flags = argparse.ArgumentParser(
        prog=program,
        usage="%(prog)s [MODEL] [flags]",
        description="Serve a large language model with an OpenAI-compatible API over HTTP/1.1 and HTTP/2.",
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
    config.add_flags(flags)
    return flags


def main(arguments: Sequence[str] | None = None, program: str = "llmrt-serve") -> int:
    """Runs the server until a signal ends it; returns the exit code."""
    flags = parser(program)
    namespace = flags.parse_args(arguments)
    given = vars(namespace)
    if namespace.positional_model is not None:
        if "model" in given:
            flags.error("give the model once: as MODEL or with --model")
        given["model"] = namespace.positional_model
    try:
        resolved = config.resolve(given, os.environ, namespace.config)
    except config.ConfigError as error:
        flags.error(str(error))
    for warning in resolved.warnings:
        print(f"{program}: warning: {warning}", file=sys.stderr)
    if namespace.dump_config:
        print(config.to_yaml(resolved.config), end="")
        return 0

    from llmrt.supervisor.errors import StartError
    from llmrt.supervisor.supervisor import Supervisor

    try:
        return _check(resolved) if namespace.check else Supervisor(resolved.config).run()
    except (ModelError, StartError) as error:
        print(f"{program}: {error}", file=sys.stderr)
        return USAGE_ERROR


def _check(resolved: config.Resolved) -> int:
    """Prints the configuration when a server could start with it; raises what a start would raise."""
    from llmrt import model_source, topology
    from llmrt.supervisor import front, launch

    front.check(resolved.config)
    source = model_source.resolve(resolved.config.model.model)
    longest = launch.max_model_len(resolved.config, source)
    if resolved.config.mock.engine == "mock":
        launch.mock_config(resolved.config, source, topology.build(Path("/")))
    print(f"# {source.name}: {source.config.architecture}, {source.format}, at most {longest} tokens per request")
    print(f"# {source.path}")
    print(config.to_yaml(resolved.config, resolved.sources), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
