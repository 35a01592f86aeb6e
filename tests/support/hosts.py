"""Two hosts on this machine: network namespaces with a cable between them, that can be cut and healed."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class Hosts:
    """``core`` and ``node`` are the namespaces' names, ``address`` that of the core on the cable."""

    core: str
    node: str
    address: str

    def at(self, host: str, *command: str) -> list[str]:
        """The command, to be run on a host; it keeps its process id."""
        return ["ip", "netns", "exec", host, *command]

    def cut(self) -> None:
        """Pulls the cable: neither host is told that its connections are gone."""
        # The addresses stay: what is sent is lost, as behind a switch.
        _ip("-n", self.core, "link", "set", "cable0", "down")

    def heal(self) -> None:
        """Plugs it in again."""
        _ip("-n", self.core, "link", "set", "cable0", "up")


@contextlib.contextmanager
def two_hosts() -> Iterator[Hosts]:
    """Skips the test where namespaces are not permitted."""
    hosts = Hosts(f"llmrt-core-{os.getpid()}", f"llmrt-node-{os.getpid()}", "10.213.7.1")
    if shutil.which("ip") is None:
        pytest.skip("iproute2 is not installed")
    with contextlib.ExitStack() as undo:
        for name in (hosts.core, hosts.node):
            made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
            if made.returncode != 0:
                pytest.skip(f"network namespaces are not permitted here: {made.stderr.strip()}")
            undo.callback(subprocess.run, ["ip", "netns", "del", name], capture_output=True)
        far = ("peer", "name", "cable0", "netns", hosts.node)
        _ip("link", "add", "cable0", "netns", hosts.core, "type", "veth", *far)
        for name, address in ((hosts.core, hosts.address), (hosts.node, "10.213.7.2")):
            _ip("-n", name, "address", "add", f"{address}/24", "dev", "cable0")
            _ip("-n", name, "link", "set", "cable0", "up")
            _ip("-n", name, "link", "set", "lo", "up")
        yield hosts


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
