"""What the documentation has to name."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

from llmrt.cli import entry, serve

ROOT = Path(__file__).parents[2]


def spellings(parser: argparse.ArgumentParser) -> list[list[str]]:
    """The flags of a parser, each by all its names but those that every program has."""
    # argparse has no public way to list what was added to a parser.
    found = (list(action.option_strings) for action in parser._actions)
    return [names for names in found if names and not {"--help", "--version"} & set(names)]


@pytest.mark.parametrize("parser", [serve.parser("llmrt-serve"), entry.parser("llmrt entry")], ids=lambda p: p.prog)
def test_every_flag_is_named(parser: argparse.ArgumentParser) -> None:
    text = " ".join(file.read_text() for file in (ROOT / "docs").glob("*.md"))
    named = set(re.findall(r"--[a-z0-9][a-z0-9-]*", text))
    assert [names for names in spellings(parser) if not named & set(names)] == []
