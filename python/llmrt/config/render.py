"""The YAML form of a configuration, which ``--config`` reads back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from llmrt.config.option import Option
from llmrt.config.tree import Config, options

_WIDE = 1 << 30

HIDDEN = "{hidden}"
"""Stands for a secret; neither a text nor a list in YAML, so that nobody's key becomes this when it is read back."""


def to_yaml(config: Config, sources: Mapping[str, str] | None = None, known: Iterable[Option] | None = None) -> str:
    """All options, or those ``known``, by group, as a file for ``--config``.

    With ``sources`` it is a form to look at: each line says in a comment where its value came from, and secrets are
    :data:`HIDDEN`.
    """
    lines: list[str] = []
    group = ""
    for option in options() if known is None else known:
        if option.group != group:
            group = option.group
            lines.append(f"{group}:")
        value = config.get(option)
        shown = HIDDEN if option.secret and value not in (None, ()) and sources is not None else _scalar(value)
        line = f"  {option.name}: {shown}"
        lines.append(line if sources is None else f"{line:<44} # {_one_line(sources[option.name])}")
    return "\n".join(lines) + "\n"


def _scalar(value: Any) -> str:
    # Quotes keep text text: unquoted, a name such as 1e3 or null would come back as something else.
    style = '"' if isinstance(value, (str, tuple)) else None
    text = yaml.safe_dump(value, default_style=style, default_flow_style=True, allow_unicode=True, width=_WIDE)
    return text.removesuffix("\n").removesuffix("\n...")


def _one_line(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)
