"""``llmrt-serve``: serves one model over HTTP."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from llmrt import config
from llmrt.cli import configured


def parser(program: str) -> argparse.ArgumentParser:
    """The flags of the server."""
    description = "Serve a large language model with an OpenAI-compatible API over HTTP/1.1 and HTTP/2."
    return configured.parser(program, description, config.server_options())


def main(
    arguments: Sequence[str] | None = None,
    program: str = "llmrt-serve",
    change: Callable[[config.Config], config.Config] = lambda options: options,
) -> int:
    """Runs the server until a signal ends it; returns the exit code.

    What the command line, variables and file say may be changed, by ``change``, before it starts.
    """

    def start(options: config.Config) -> int:
        from llmrt.supervisor.supervisor import Supervisor

        return Supervisor(change(options)).run()

    return configured.run(parser(program), arguments, config.server_options(), _check, start)


def _check(resolved: config.Resolved) -> None:
    """Tells what a server would serve; raises what its start would raise."""
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


if __name__ == "__main__":
    sys.exit(main())
