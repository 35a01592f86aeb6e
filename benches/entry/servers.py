"""The two servers that are compared, each with a mock engine, and the cost of their processes."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from support.server import Server

TOKENS = "338,253,1277,282,260,28,284,1449,347,339"
"""What both mock engines say, again and again."""

MAX_NUM_SEQS = 4096


def cpu_ns(pid: int) -> int:
    """CPU time of a process, ended threads included: what ``/proc/PID/stat`` counts in ticks, in nanoseconds.

    The clock's number is made as in ``clock_getcpuclockid(3)``.
    """
    return time.clock_gettime_ns((~pid << 3) | 2)


def memory_mb(pid: int) -> tuple[float, float]:
    """Resident and proportional set size of a process, MB (1e6 bytes)."""
    sizes = dict.fromkeys(("Rss", "Pss"), 0.0)
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, size = line.split(":")
        if name in sizes:
            sizes[name] = int(size.split()[0]) * 1024 / 1e6
    return sizes["Rss"], sizes["Pss"]


class Measured:
    """A server by its address, its model's name and the processes that count as its entry."""

    name: str
    scheme = "http"
    host = "127.0.0.1"
    port: int
    model: str
    pids: list[int]

    def cpu_ns(self) -> int:
        """CPU time of all processes but the engine."""
        return sum(cpu_ns(pid) for pid in self.pids)

    def memory_mb(self) -> tuple[float, float]:
        """Resident and proportional set size of all processes but the engine, MB."""
        sizes = [memory_mb(pid) for pid in self.pids]
        return sum(rss for rss, _ in sizes), sum(pss for _, pss in sizes)

    def stop(self) -> None:
        """Ends every process."""
        raise NotImplementedError


class Llmrt(Measured):
    """``llmrt-serve`` with its mock engine: supervisor with the embedded entry, and detokenizer."""

    name = "llmrt"

    def __init__(self, step_ms: float, model: str, *flags: str, context: ssl.SSLContext | None = None) -> None:
        self.model = "mock"
        self._server = Server(
            *("--model", model, "--served-model-name", self.model, "--engine", "mock"),
            *("--mock-step-ms", str(step_ms), "--mock-pattern", "tokens", "--mock-tokens", TOKENS),
            *("--max-num-seqs", str(MAX_NUM_SEQS), "--stat-interval", "0", *flags),
            context=context,
        )
        self.scheme = "http" if context is None else "https"
        self.port = self._server.port
        children = self._server.children()
        engine = [pid for pid in children if b"llmrt.engine" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        self.pids = [self._server.process.pid, *(pid for pid in children if pid not in engine)]

    def stop(self) -> None:
        self._server.stop()


class Peer(Measured):
    """``vllm-rs`` with a mock engine.

    ``scripts`` holds ``mock_vllm.py``, ``directory`` the binary ``vllm-rs``, a ``venv`` and the model as a folder.
    """

    name = "vllm-rs"

    def __init__(self, step_ms: float, scripts: Path, directory: Path) -> None:
        self.model = str(directory / "smollm2")
        self.port = free_port()
        self._folder = tempfile.TemporaryDirectory()
        pid_file = Path(self._folder.name) / "pid"
        self._mock = subprocess.Popen(
            [directory / "venv/bin/python", scripts / "mock_vllm.py", self.model, str(self.port), str(step_ms)],
            env={**os.environ, "VLLM_RS": str(directory / "vllm-rs"), "PIDFILE": str(pid_file)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            self._wait_ready()
            self.pids = [int(pid_file.read_text())]
        except BaseException:
            self._mock.kill()
            raise

    def _wait_ready(self) -> None:
        end = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(f"http://{self.host}:{self.port}/v1/models", timeout=5).read()
                return
            except (urllib.error.URLError, OSError):
                if time.monotonic() > end or self._mock.poll() is not None:
                    raise
                time.sleep(0.1)

    def stop(self) -> None:
        self._mock.kill()
        self._mock.wait()
        for pid in self.pids:
            os.kill(pid, 15)
        self._folder.cleanup()


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
