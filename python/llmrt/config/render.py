"""The YAML form of a configuration, which ``--config`` reads back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from llmrt.config.tree import Config, options

_WIDE = 1 << 30


def to_yaml(config: Config, sources: Mapping[str, str] | None = None) -> str:
    """All options by group; with ``sources`` each line says in a comment where its value came from."""
    lines: list[str] = []
    group = ""
    for option in options():
        if option.group != group:
            group = option.group
            lines.append(f"{group}:")
        line = f"  {option.name}: {_scalar(config.get(option))}"
        lines.append(line if sources is None else f"{line:<44} # {_one_line(sources[option.name])}")
    return "\n".join(lines) + "\n"


def _scalar(value: Any) -> str:
    # Quotes keep text text: unquoted, a name such as 1e3 or null would come back as something else.
    style = '"' if isinstance(value, str) else None
    text = yaml.safe_dump(value, default_style=style, allow_unicode=True, width=_WIDE)
    return text.removesuffix("\n").removesuffix("\n...")


def _one_line(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)
