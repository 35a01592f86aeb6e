"""What TLS costs the entry: CPU per streamed token and per short request, beside clear text in the same run.

    python benches/entry/tls_cost.py [--model MODEL] [--rounds 3]

CPU is that of every process but the engine; ``h2load`` (package ``nghttp2-client``) must be on the path.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
from pathlib import Path

import load
from servers import Llmrt

from llmrt import model_source
from support.certificates import Authority

CELLS = [
    ("h1-64 step 10 ms", 10.0, False, 64, 192, 128),
    ("h2-64 step 10 ms", 10.0, True, 64, 192, 128),
    ("h2-256 step 10 ms", 10.0, True, 256, 768, 128),
    ("h1-64 back to back", 0.0, False, 64, 256, 256),
    ("h2-64 back to back", 0.0, True, 64, 256, 256),
    ("short request h1", 0.0, False, 64, 2000, 1),
    ("short request h2", 0.0, True, 64, 2000, 1),
]
"""Name, milliseconds of a step, HTTP/2, streams at once, answers, tokens of each."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", help="as for llmrt-serve")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    model = str(model_source.resolve(options.model).path)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        authority = Authority(Path(folder))
        pair = authority.pair("server")
        servers: dict[tuple[bool, float], Llmrt] = {}
        for step in (10.0, 0.0):
            servers[False, step] = Llmrt(step, model)
            servers[True, step] = Llmrt(step, model, *pair.flags(), context=authority.context())
        for server in servers.values():
            stack.callback(server.stop)
            load.streams(server, False, 64, 64, 32)
        print(f"{'':22} {'clear':>9} {'TLS':>9} {'ratio':>7}  us per token")
        for name, step, http2, count, answers, tokens in CELLS:
            middle = {}
            for secure in (False, True):
                server = servers[secure, step]
                costs = []
                for _ in range(options.rounds):
                    begin = server.cpu_ns()
                    received = load.streams(server, http2, count, answers, tokens)
                    costs.append((server.cpu_ns() - begin) / received / 1e3)
                middle[secure] = statistics.median(costs)
            print(f"{name:22} {middle[False]:9.2f} {middle[True]:9.2f} {middle[True] / middle[False]:7.2f}", flush=True)


if __name__ == "__main__":
    main()
