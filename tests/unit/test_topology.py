"""The table of endpoints and the private directory of its sockets."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmrt import topology
from llmrt.process.descriptor import descriptor_of, read_from_fd
from llmrt.topology import RuntimeDirectory, Topology, TopologyError


@pytest.fixture
def base() -> Iterator[Path]:
    """A short place for runtime directories: pytest's own paths are too deep for sockets."""
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as path:
        yield Path(path)


def test_table_names_every_endpoint(base: Path) -> None:
    table = topology.build(base, entries=2, detokenizers=1).table()
    assert list(table) == [
        "control",
        "scheduler.requests",
        "ledger",
        "entry[0].results",
        "entry[1].results",
        "detokenizer[0].tokens",
        "ranks.plan",
        "ranks.rendezvous",
    ]
    assert len(set(table.values())) == len(table)
    assert table["entry[1].results"] == f"ipc://{base}/entry.1.results"


def test_one_entry_worker_alone_needs_no_ledger(base: Path) -> None:
    assert topology.build(base).ledger is None
    assert "ledger" not in topology.build(base).table()


def test_places_for_nodes_are_entries_behind_the_workers(base: Path) -> None:
    built = topology.build(base, entries=2, nodes=3)
    assert (built.workers, len(built.entry)) == (2, 5)
    assert built.table()["gateway.status"] == f"ipc://{base}/gateway.status"
    assert Topology.from_json(built.to_json()) == built


def test_json_round_trip(base: Path) -> None:
    built = topology.build(base, entries=3, detokenizers=2)
    assert Topology.from_json(built.to_json()) == built


@pytest.mark.parametrize("raw", [b"", b"{}", b"[]", b"\xff", b'{"control": 1}', b"null"])
def test_other_json_is_an_error(raw: bytes) -> None:
    with pytest.raises(TopologyError, match="not a topology"):
        Topology.from_json(raw)


def test_unknown_fields_and_schemes_are_errors(base: Path) -> None:
    raw = topology.build(base).to_json()
    with pytest.raises(TopologyError):
        Topology.from_json(raw.replace(b'"control"', b'"extra":1,"control"', 1))
    with pytest.raises(TopologyError):
        Topology.from_json(raw.replace(b"ipc://", b"inproc://", 1))


def test_directory_is_private_and_removed(base: Path) -> None:
    with RuntimeDirectory(base) as directory:
        assert stat.S_IMODE(directory.path.stat().st_mode) == 0o700
        assert f"-{os.getpid()}-" in directory.path.name
        (directory.path / "socket").touch()
    assert not directory.path.exists()


def test_directory_is_removed_at_exit(base: Path) -> None:
    code = (
        "import sys, pathlib; from llmrt.topology import RuntimeDirectory;"
        "d = RuntimeDirectory(pathlib.Path(sys.argv[1])); print(d.path)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(base)], capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()).parent == base
    assert list(base.iterdir()) == []


def test_forked_child_leaves_the_directory(base: Path) -> None:
    with RuntimeDirectory(base) as directory:
        pid = os.fork()
        if pid == 0:
            directory.close()
            os._exit(0)
        os.waitpid(pid, 0)
        assert directory.path.is_dir()


def test_too_deep_a_directory_is_an_error(base: Path) -> None:
    deep = base / ("d" * 90)
    deep.mkdir()
    with pytest.raises(TopologyError, match="XDG_RUNTIME_DIR"):
        RuntimeDirectory(deep)
    with pytest.raises(TopologyError, match="too deep"):
        topology.build(deep)


def _killed_owner(base: Path) -> Path:
    """A directory whose owner was killed."""
    code = (
        "import sys, time, pathlib; from llmrt.topology import RuntimeDirectory;"
        "d = RuntimeDirectory(pathlib.Path(sys.argv[1])); print(d.path, flush=True); sys.stdin.read()"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", code, str(base)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout and owner.stdin
    path = Path(owner.stdout.readline().strip())
    assert topology.sweep(base) == [], "the owner still lives"
    owner.kill()
    owner.wait()
    owner.stdin.close()
    owner.stdout.close()
    return path


def test_sweep_takes_what_dead_processes_left(base: Path) -> None:
    stale = _killed_owner(base)
    (base / "llmrt-1-notours").mkdir()
    (base / "llmrt-link").symlink_to(base)
    with RuntimeDirectory(base) as own:
        assert topology.sweep(base) == [stale]
        assert own.path.is_dir()
    assert {path.name for path in base.iterdir()} == {"llmrt-1-notours", "llmrt-link"}


def test_sweep_spares_a_locked_directory(base: Path) -> None:
    """The owner may live in another process namespace, where its number means nothing to us."""
    with RuntimeDirectory(base) as directory:
        renamed = base / "llmrt-4194304999-00000000"
        directory.path.rename(renamed)
        assert topology.sweep(base) == []
        renamed.rename(directory.path)


def test_tcp_uses_the_named_host_only(base: Path) -> None:
    table = topology.build(base, entries=2, host="127.0.0.1").table()
    ports = [endpoint for endpoint in table.values() if endpoint.startswith("tcp://127.0.0.1:")]
    assert len(set(ports)) == 7


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "[::]", "*", ""])
def test_wildcards_are_refused(base: Path, host: str) -> None:
    with pytest.raises(TopologyError, match="wildcard"):
        topology.build(base, host=host)


def test_foreign_address_is_an_error(base: Path) -> None:
    with pytest.raises(TopologyError, match=r"192\.0\.2\.1"):
        topology.build(base, host="192.0.2.1")


def test_counts_are_checked(base: Path) -> None:
    with pytest.raises(TopologyError):
        topology.build(base, entries=0)


def test_child_reads_the_table_from_a_descriptor(base: Path) -> None:
    built = topology.build(base, entries=4000)
    descriptor = descriptor_of(built.to_json())
    code = (
        "import sys; from llmrt import topology as t; from llmrt.process.descriptor import read_from_fd;"
        "print(len(t.Topology.from_json(read_from_fd(int(sys.argv[1]))).entry))"
    )
    command = [sys.executable, "-c", code, str(descriptor)]
    done = subprocess.run(command, pass_fds=[descriptor], capture_output=True, text=True, check=True)
    os.close(descriptor)
    assert done.stdout.strip() == "4000"


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs files in memory")
def test_what_a_child_is_told_is_on_no_disk() -> None:
    descriptor = descriptor_of(b"a key")
    assert os.readlink(f"/proc/self/fd/{descriptor}").startswith("/memfd:")
    assert read_from_fd(descriptor) == b"a key"


def test_read_from_fd_takes_pipes_and_says_what_is_wrong() -> None:
    read, write = os.pipe()
    os.write(write, b"{}")
    os.close(write)
    assert read_from_fd(read) == b"{}"
    with pytest.raises(ValueError, match=str(read)):
        read_from_fd(read)
