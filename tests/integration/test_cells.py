"""What matters most, once more in other cells of the matrix; ``make test-matrix`` runs all in all of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.cell import CELL, VARIABLE, Cell

HERE = Path(__file__).parent
FILES = ("test_http.py", "test_openai_client.py")


@pytest.mark.skipif(VARIABLE in os.environ, reason="this is a cell already")
@pytest.mark.parametrize("name", ["E3-h2c", "E3-mtls"])
def test_the_surface_is_the_same(name: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *(str(HERE / f) for f in FILES)]
    done = subprocess.run(command, env={**os.environ, VARIABLE: name}, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-10_000:]


def test_names_of_cells() -> None:
    assert Cell.parse("E3-h2c") == Cell(3, "h2c")
    assert Cell.parse("E1-mtls").secure and not Cell.parse("E1-h2c").secure
    assert Cell(3).flags == ["--entry-workers", "3"] and Cell().flags == []
    for name in ("", "E0-h1", "E3", "3-h1", "E3-h3", "E3-h1 "):
        with pytest.raises(ValueError, match=VARIABLE):
            Cell.parse(name)
    assert isinstance(CELL, Cell)
