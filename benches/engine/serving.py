"""The default model through the whole server: tokens per second by streams, TTFT of a long prompt, memory, start.

    python benches/engine/serving.py [--runs 3] [--flags "--num-threads 2"]

Prints medians of the runs. Every prompt is random token ids, so that nothing comes from the prefix cache.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shlex
import statistics
import sys
import time
from pathlib import Path

import httpx2

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from support.server import Server

PROMPT, ANSWER, LONG_PROMPT = 128, 128, 1000
VOCABULARY = range(1000, 40000)


def prompt(length: int) -> list[int]:
    return random.choices(VOCABULARY, k=length)


async def stream(client: httpx2.AsyncClient, length: int, tokens: int) -> float:
    """Runs one streamed completion to its end; returns the time to its first text, seconds."""
    body = {"prompt": prompt(length), "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True}
    began, first = time.perf_counter(), None
    async with client.stream("POST", "/v1/completions", json=body) as response:
        assert response.status_code == 200, await response.aread()
        async for line in response.aiter_lines():
            if first is None and line.startswith("data: "):
                first = time.perf_counter() - began
    assert first is not None
    return first


async def throughput(url: str, streams: int) -> float:
    """Answer tokens per second of ``streams`` concurrent requests."""
    async with httpx2.AsyncClient(base_url=url, timeout=600) as client:
        began = time.perf_counter()
        await asyncio.gather(*(stream(client, PROMPT, ANSWER) for _ in range(streams)))
        return streams * ANSWER / (time.perf_counter() - began)


async def first_token(url: str) -> float:
    async with httpx2.AsyncClient(base_url=url, timeout=600) as client:
        return await stream(client, LONG_PROMPT, 1)


def memory(pid: int) -> tuple[str, float]:
    """Command and resident memory (MB, private and shared) of a process."""
    words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    module = next((word for word in words if word.startswith("llmrt.")), words[0])
    return module, int(lines["VmRSS"].split()[0]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--streams", type=int, nargs="*", default=[1, 8, 32])
    parser.add_argument("--flags", default="")
    options = parser.parse_args()
    began = time.perf_counter()
    server = Server(*shlex.split(options.flags))
    try:
        asyncio.run(stream_once(server.url))
        print(f"start to first answer: {time.perf_counter() - began:.2f} s")
        for streams in options.streams:
            runs = [asyncio.run(throughput(server.url, streams)) for _ in range(options.runs)]
            print(f"{streams:3d} streams of {PROMPT} in, {ANSWER} out: {statistics.median(runs):.1f} tok/s", runs)
        runs = [asyncio.run(first_token(server.url)) for _ in range(options.runs)]
        print(f"TTFT of {LONG_PROMPT} tokens: {statistics.median(runs):.2f} s")
        for pid in [server.process.pid, *server.children()]:
            name, size = memory(pid)
            print(f"resident {name}: {size:.0f} MB")
    finally:
        server.stop()


async def stream_once(url: str) -> None:
    async with httpx2.AsyncClient(base_url=url, timeout=600) as client:
        await stream(client, 8, 2)


if __name__ == "__main__":
    main()
