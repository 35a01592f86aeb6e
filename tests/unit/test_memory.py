"""What control groups leave a process, read from trees like the kernel's, and how many KV pages follow from it."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path

import pytest

from llmrt import cgroups, cpus
from llmrt.cli import machine
from llmrt.layers.linear import KernelChoice, Kernels
from llmrt.model_config import ModelError
from llmrt.models import build as building
from llmrt.runner import memory
from llmrt.runner.options import RunnerOptions
from llmrt.weights import names
from tests.unit.test_weights import CONFIG

MIB, GIB = 1 << 20, 1 << 30
UNLIMITED_V1 = 9223372036854771712


class Host:
    """A fake ``/sys/fs/cgroup`` and the process's entry in it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = folder / "cgroup"
        self._self = folder / "self"
        self.root.mkdir()
        monkeypatch.setattr(cgroups, "ROOT", self.root)
        monkeypatch.setattr(cgroups, "SELF", self._self)

    def entry(self, *lines: str) -> None:
        self._self.write_text("".join(line + "\n" for line in lines))

    def write(self, group: str, **files: object) -> None:
        folder = self.root / group
        folder.mkdir(parents=True, exist_ok=True)
        for name, value in files.items():
            (folder / name.replace("__", ".")).write_text(f"{value}\n")


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(tmp_path, monkeypatch)


def stat(inactive: int, active: int, prefix: str = "") -> str:
    return f"anon 77\nfile {active + inactive}\n{prefix}inactive_file {inactive}\n{prefix}active_file {active}\nslab 5"


def test_without_groups_nothing_is_limited(host: Host) -> None:
    assert (cgroups.memory_left(), cgroups.cpu_quota()) == (None, None)
    host.entry("0::/user.slice")
    assert (cgroups.memory_left(), cgroups.cpu_quota()) == (None, None)
    host.write("user.slice", memory__max="max", memory__current=5, cpu__max="max 100000")
    assert (cgroups.memory_left(), cgroups.cpu_quota()) == (None, None)


def test_cached_files_count_as_free(host: Host) -> None:
    host.entry("0::/box")
    host.write("box", memory__max=2 * GIB, memory__current=2 * GIB, memory__stat=stat(GIB, GIB // 2))
    assert cgroups.memory_left() == GIB + GIB // 2


@pytest.mark.parametrize("tightest", ["", "pod", "pod/box"])
def test_the_tightest_group_on_the_way_up_counts(host: Host, tightest: str) -> None:
    host.entry("0::/pod/box")
    for group in ("pod/box", "pod", "sibling"):
        host.write(group, memory__max="max", memory__current=3 * MIB, cpu__max="max 100000")
    host.write("sibling", memory__max=MIB, cpu__max="1000 100000")
    host.write(tightest, memory__max=64 * MIB, memory__current=4 * MIB, cpu__max="150000 100000")
    if tightest != "pod":
        host.write("pod", memory__max=GIB, cpu__max="800000 100000")
    assert (cgroups.memory_left(), cgroups.cpu_quota()) == (60 * MIB, 1.5)


@pytest.mark.parametrize("mount", ["cpu", "cpu,cpuacct"])
def test_version_1(host: Host, mount: str) -> None:
    host.entry("4:memory:/docker/box", "1:cpu,cpuacct:/docker/box", "0::/")
    host.write(f"{mount}/docker/box", cpu__cfs_quota_us=-1, cpu__cfs_period_us=100000)
    host.write(f"{mount}/docker", cpu__cfs_quota_us=250000, cpu__cfs_period_us=100000)
    host.write(
        "memory/docker/box",
        memory__limit_in_bytes=GIB,
        memory__usage_in_bytes=GIB,
        memory__stat=stat(0, 0) + "\n" + stat(96 * MIB, 32 * MIB, "total_"),
    )
    host.write("memory", memory__limit_in_bytes=UNLIMITED_V1, memory__usage_in_bytes=5 * GIB)
    assert (cgroups.memory_left(), cgroups.cpu_quota()) == (128 * MIB, 2.5)


@pytest.mark.parametrize("path", ["/kubepods/pod1/only-the-host-sees-this", "/../../box"])
def test_paths_that_are_not_visible_lead_to_the_root(host: Host, path: str) -> None:
    host.entry(f"0::{path}", f"4:memory:{path}")
    host.write("", memory__max=9 * MIB, memory__current=MIB)
    assert cgroups.memory_left() == 8 * MIB
    host.write("memory", memory__limit_in_bytes=5 * MIB, memory__usage_in_bytes=MIB)
    assert cgroups.memory_left() == 4 * MIB


def test_malformed_files_limit_nothing(host: Host) -> None:
    host.entry("0::/box", "nonsense", "")
    host.write("box", memory__max="lots", memory__current=1, cpu__max="7")
    assert (cgroups.memory_left(), cgroups.cpu_quota()) == (None, None)
    host.write("box", memory__max=MIB, memory__stat="inactive_file many\n", cpu__max="5 0")
    assert (cgroups.memory_left(), cgroups.cpu_quota()) == (MIB - 1, None)


def test_processors_are_rounded_up_to_whole_ones(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    host.entry("0::/box")
    for quota, expected in (("150000 100000", 2), ("1000 100000", 1), ("max 100000", 8), ("9900000 100000", 8)):
        host.write("box", cpu__max=quota)
        assert cpus.available() == expected


# KV pages

SHAPE = replace(CONFIG, num_layers=32, num_kv_heads=8, head_dim=128)
PAGE = 2 * 4 * 32 * 8 * 16 * 128
MANY = RunnerOptions(num_slots=64)


def pages(weights: int, options: RunnerOptions = MANY, length: int = 1 << 20) -> int:
    return memory.num_pages(SHAPE, options, length, weights)


def test_the_doctor_counts_in_the_same_groups(host: Host) -> None:
    everything = machine.facts()
    assert everything["memory"] > everything["available_memory"] > 64 * MIB
    host.entry("0::/pod/box")
    host.write("pod", memory__max=64 * MIB, memory__current=48 * MIB)
    host.write("pod/box", memory__max="max", memory__current=0)
    found = machine.facts()
    assert (found["memory"], found["available_memory"]) == (64 * MIB, 16 * MIB)
    host.write("pod", memory__current=65 * MIB)
    assert machine.facts()["available_memory"] == 0


@pytest.fixture
def box(host: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Host:
    """A group on a machine with 64 GiB."""
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(f"MemTotal: 1 kB\nMemAvailable: {64 * MIB} kB\n")
    monkeypatch.setattr(memory, "_MEMINFO", meminfo)
    host.entry("0::/box")
    return host


def test_pages_share_what_the_weights_leave(box: Host) -> None:
    box.write("box", memory__max=8 * GIB, memory__current=8 * GIB, memory__stat=stat(4 * GIB, 3 * GIB))
    assert memory.available_bytes() == 7 * GIB
    assert pages(2 * GIB) == int(5 * GIB * memory.FREE_PART) // PAGE


def test_pages_are_capped(box: Host) -> None:
    assert memory.available_bytes() == 64 * GIB
    assert pages(GIB) == 4 * GIB // PAGE
    assert pages(GIB, RunnerOptions(num_slots=3), length=40) == 3 * 3 + 1


@pytest.mark.parametrize("weights", [GIB, 3 * GIB])
def test_no_room_says_what_is_missing(box: Host, weights: int) -> None:
    box.write("box", memory__max=GIB, memory__current=0)
    with pytest.raises(ModelError, match=f"1024 MiB of memory are free and the weights need about {weights // MIB}"):
        pages(weights)


def test_what_is_asked_for_is_taken_whatever_is_free(box: Host) -> None:
    box.write("box", memory__max=MIB, memory__current=MIB)
    assert pages(GIB, RunnerOptions(kv_cache_bytes=10 * PAGE)) == 10
    assert pages(GIB, RunnerOptions(num_pages=7)) == 7
    with pytest.raises(ModelError, match="num_pages must be 2"):
        pages(GIB, RunnerOptions(num_pages=1))
    with pytest.raises(ModelError, match="raise the KV cache size"):
        pages(GIB, RunnerOptions(kv_cache_bytes=PAGE))


def test_every_kernel_in_use_has_a_copy_of_the_weights() -> None:
    shapes = names.needed(CONFIG, output_bias=True)
    count = sum(math.prod(shape) for shape in shapes.values())
    embedding = 4 * CONFIG.vocab_size * CONFIG.hidden_size
    half, single = KernelChoice(("fp16",), (1 << 62,)), KernelChoice(("mkldnn",), (1 << 62,))
    assert building.weight_bytes(shapes, Kernels(half, half)) == 2 * count + embedding
    assert building.weight_bytes(shapes, Kernels(single, half)) == 6 * count + embedding
