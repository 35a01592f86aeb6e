"""``llmrt entry``: an entry node, a front door whose core is on another host."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from llmrt import config
from llmrt.cli import configured
from llmrt.model_config import ModelError

USAGE_ERROR = 2


def parser(program: str) -> argparse.ArgumentParser:
    """The flags of a node."""
    description = (
        "Answer clients for a core on another host that was started with --core-listen. The model is needed for its "
        "tokenizer and chat template; what the core decides, such as the length of requests, is asked of it."
    )
    return configured.parser(program, description, config.node_options())


def main(arguments: Sequence[str] | None = None, program: str = "llmrt entry") -> int:
    """Runs the node until a signal ends it; returns the exit code."""
    known = config.node_options()
    namespace, resolved = configured.resolve(parser(program), arguments, known)
    if namespace.dump_config:
        print(config.to_yaml(resolved.config, known=known), end="")
        return 0

    from llmrt.supervisor.errors import StartError
    from llmrt.supervisor.node import Node

    try:
        return _check(resolved) if namespace.check else Node(resolved.config).run()
    except (ModelError, StartError) as error:
        print(f"{program}: {error}", file=sys.stderr)
        return USAGE_ERROR


def _check(resolved: config.Resolved) -> int:
    """Prints the configuration when a node could start with it; the core is not asked."""
    from llmrt import model_source
    from llmrt.supervisor import front, node

    node.check(resolved.config)
    front.check(resolved.config)
    source = model_source.resolve(resolved.config.model.model)
    print(f"# {source.name}: tokenizer and template of {source.path}")
    print(config.to_yaml(resolved.config, resolved.sources, config.node_options()), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
