"""Design section 5: dependencies point one way, and what must start without torch does."""

from __future__ import annotations

import ast
import graphlib
import re
import subprocess
import sys

try:
    import tomllib
except ModuleNotFoundError:  # CPython 3.10
    import tomli as tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "python" / "llmrt"
TORCH_ROOMS = {"runner", "sampling", "attention", "kernels", "parallel", "layers", "models", "weights"}
# Room -> rooms of the package that it may import. Every room stands here.
ALLOWED: dict[str, set[str]] = {
    "_core": set(),
    "__init__": {"config", "llm", "model_config", "supervisor"},
    "wire": set(),
    "logs": set(),
    "cgroups": set(),
    "cpus": {"cgroups"},
    "topology": set(),
    "config": set(),
    "model_config": set(),
    "model_source": {"model_config", "_core"},
    "link": {"wire"},
    "process": set(),
    "cache": set(),
    "scheduler": {"wire", "cache"},
    "attention": set(),
    "layers": set(),
    "sampling": {"wire"},
    "weights": {"_core", "model_config", "model_source"},
    "models": {"attention", "layers", "model_config", "weights"},
    "runner": {
        "attention",
        "cgroups",
        "cpus",
        "layers",
        "model_config",
        "model_source",
        "models",
        "sampling",
        "scheduler",
        "weights",
        "wire",
    },
    "engine": {
        "_core",
        "link",
        "logs",
        "model_config",
        "model_source",
        "process",
        "runner",
        "scheduler",
        "topology",
        "wire",
    },
    "detokenizer": {"_core", "process"},
    "entry": {"_core", "process"},
    "gateway": {"_core", "process"},
    "supervisor": {
        "_core",
        "config",
        "cpus",
        "engine",
        "link",
        "logs",
        "model_config",
        "model_source",
        "process",
        "topology",
        "wire",
    },
    "llm": {"_core", "config", "model_config", "model_source", "supervisor", "topology"},
    "cli": {
        "_core",
        "cgroups",
        "config",
        "cpus",
        "link",
        "model_config",
        "model_source",
        "process",
        "supervisor",
        "topology",
        "wire",
    },
}
# What the package itself offers to its rooms.
OFFERED = {"__version__"}
CRATES: dict[str, set[str]] = {
    "wire": set(),
    "link": {"wire"},
    "log": set(),
    "gguf": set(),
    "text": {"gguf"},
    "chat": set(),
    "detokenizer": {"wire", "link", "log", "text"},
    "tunnel": {"wire", "link", "log"},
    "entry": {"wire", "link", "log", "text", "chat", "tunnel"},
    "mock": {"wire", "link", "log"},
    "bench": set(),
}


def modules() -> list[tuple[str, Path]]:
    """Room and file of every module of the package."""
    return [(file.relative_to(PACKAGE).parts[0].removesuffix(".py"), file) for file in PACKAGE.rglob("*.py")]


def imported(file: Path) -> set[str]:
    """Top-level names that a module imports, at any depth of its code; llmrt's own as ``llmrt.room``."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    rooms = {".".join(name.split(".")[:2]) for name in names if name.startswith("llmrt.")}
    return rooms | {name.split(".")[0] for name in names if not name.startswith("llmrt")}


def test_torch_stays_in_its_rooms() -> None:
    for room, file in modules():
        if room not in TORCH_ROOMS:
            assert not imported(file) & {"torch", "triton"}, file


def test_rooms_import_along_the_arrows() -> None:
    for room, file in modules():
        assert room in ALLOWED, f"{file}: say in ALLOWED what the room {room} may import"
        rooms = {name.removeprefix("llmrt.") for name in imported(file) if name.startswith("llmrt.")} - {room}
        foreign = rooms - ALLOWED[room] - OFFERED
        assert not foreign, f"{file} imports {sorted(foreign)}"
        if room in TORCH_ROOMS:
            assert not rooms & {"cli", "supervisor", "engine", "detokenizer", "link", "topology"}, file


@pytest.mark.parametrize("arrows", [ALLOWED, CRATES], ids=["rooms", "crates"])
def test_arrows_have_no_cycle(arrows: dict[str, set[str]]) -> None:
    assert set().union(*arrows.values()) <= arrows.keys()
    graphlib.TopologicalSorter(arrows).prepare()


def test_relative_imports_stay_in_their_room() -> None:
    for _, file in modules():
        depth = len(file.relative_to(PACKAGE).parts) - 1
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom):
                assert node.level <= depth, f"{file}:{node.lineno} reaches out of its room; name it from llmrt on"


def test_crates_depend_along_the_arrows() -> None:
    for crate, allowed in CRATES.items():
        manifest = tomllib.loads((ROOT / "rust" / f"llmrt-{crate}" / "Cargo.toml").read_text())
        used = {name.removeprefix("llmrt-") for name in manifest["dependencies"] if name.startswith("llmrt-")}
        assert used <= allowed, f"llmrt-{crate} depends on {sorted(used - allowed)}"


@pytest.mark.parametrize("room", sorted({room for room, _ in modules()} - TORCH_ROOMS))
def test_imports_with_torch_blocked(room: str) -> None:
    names = [
        ".".join(("llmrt", *file.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")
        for found, file in modules()
        if found == room and file.name != "__main__.py"
    ]
    block = "import sys\nfor name in ('torch', 'triton'): sys.modules[name] = None\n"
    code = block + "".join(f"import {name}\n" for name in names)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_nothing_dangerous_in_the_product() -> None:
    danger = re.compile(r"\b(pickle|dill|cloudpickle|marshal|shelve)\b|torch\.load\(|trust_remote_code|\b(eval|exec)\(")
    for _, file in modules():
        for number, line in enumerate(file.read_text().splitlines(), 1):
            # `model.eval()` style calls do not exist here either; the word alone is refused.
            assert not danger.search(line), f"{file}:{number}: {line.strip()}"
