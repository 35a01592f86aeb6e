"""The command line of the tree."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any

from llmrt.config.option import Option
from llmrt.config.text import parse
from llmrt.config.tree import options


def add_flags(parser: argparse.ArgumentParser, known: Iterable[Option] | None = None) -> None:
    """Adds every option of the tree, or those ``known``, to ``parser``, group by group.

    Flags that are not given leave no attribute.
    """
    sections: dict[str, argparse._ArgumentGroup] = {}
    for option in options() if known is None else known:
        if option.group not in sections:
            sections[option.group] = parser.add_argument_group(option.title)
        sections[option.group].add_argument(*option.spellings, dest=option.name, **_argument(option))


def _argument(option: Option) -> dict[str, Any]:
    common = {"default": argparse.SUPPRESS, "help": _help(option)}
    if option.kind is bool:
        return {**common, "action": argparse.BooleanOptionalAction}

    def convert(text: str) -> Any:
        try:
            return parse(option, text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    repeated = {"action": "extend"} if option.many else {}
    return {**common, **repeated, "type": convert, "metavar": option.metavar}


def _help(option: Option) -> str:
    # Percent signs are argparse's own.
    text = option.help.replace("%", "%%")
    if option.default in (None, ()) or "default" in text or "(0:" in text:
        return text
    shown = option.default
    if option.kind is bool:
        shown = "on" if shown else "off"
    return text + f" (default: {shown})".replace("%", "%%")
