"""Main of the gateway process; started by the supervisor with its configuration on a descriptor.

The configuration is one JSON object: what ``rust/llmrt-tunnel/src/gateway/config.rs`` describes, and ``parent``, the
process id of the supervisor.
"""

from __future__ import annotations

import sys

from llmrt._core import run_gateway
from llmrt.process import native


def main(arguments: list[str] | None = None) -> int:
    """Serves until the supervisor's ``shutdown`` call or signal; returns the exit code."""
    return native.run("gateway", run_gateway, arguments)


if __name__ == "__main__":
    sys.exit(main())
