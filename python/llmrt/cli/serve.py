"""``llmrt-serve``: serves one model over HTTP."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from llmrt import config
from llmrt.cli import configured
from llmrt.model_config import ModelError

USAGE_ERROR = 2


def parser(program: str) -> argparse.ArgumentParser:
    """The flags of the server."""
    description = "Serve a large language model with an OpenAI-compatible API over HTTP/1.1 and HTTP/2."
    return configured.parser(program, description, config.server_options())


def main(arguments: Sequence[str] | None = None, program: str = "llmrt-serve") -> int:
    """Runs the server until a signal ends it; returns the exit code."""
    known = config.server_options()
    namespace, resolved = configured.resolve(parser(program), arguments, known)
    if namespace.dump_config:
        print(config.to_yaml(resolved.config, known=known), end="")
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
    from llmrt.supervisor import front, launch, nodes

    front.check(resolved.config)
    nodes.check(resolved.config.nodes)
    source = model_source.resolve(resolved.config.model.model)
    longest = launch.max_model_len(resolved.config, source)
    if resolved.config.mock.engine == "mock":
        launch.mock_config(resolved.config, source, topology.build(Path("/")))
    print(f"# {source.name}: {source.config.architecture}, {source.format}, at most {longest} tokens per request")
    print(f"# {source.path}")
    print(config.to_yaml(resolved.config, resolved.sources, config.server_options()), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
