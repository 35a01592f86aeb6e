"""``llmrt entry``: an entry node, a front door whose core is on another host."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from llmrt import config
from llmrt.cli import configured


def parser(program: str) -> argparse.ArgumentParser:
    """The flags of a node."""
    description = (
        "Answer clients for a core on another host that was started with --core-listen. The model is needed for its "
        "tokenizer and chat template; what the core decides, such as the length of requests, is asked of it."
    )
    return configured.parser(program, description, config.node_options())


def main(arguments: Sequence[str] | None = None, program: str = "llmrt entry") -> int:
    """Runs the node until a signal ends it; returns the exit code."""
    return configured.run(parser(program), arguments, config.node_options(), _check, _start)


def _start(options: config.Config) -> int:
    from llmrt.supervisor.node import Node

    return Node(options).run()


def _check(resolved: config.Resolved) -> None:
    """Tells what a node would serve if it could start; the core is not asked."""
    from llmrt import model_source
    from llmrt.supervisor import front, node

    node.check(resolved.config)
    front.check(resolved.config)
    source = model_source.resolve(resolved.config.model.model)
    print(f"# {source.name}: tokenizer and template of {source.path}")


if __name__ == "__main__":
    sys.exit(main())
