"""What one option is: a field of the tree whose metadata says all about it."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any


class ConfigError(ValueError):
    """A configuration that cannot work; the message names the option, where it was set and what to change."""


def option(
    default: Any,
    help: str,
    *flags: str,
    choices: Sequence[str] | None = None,
    between: tuple[float, float] | None = None,
    metavar: str | None = None,
    secret: bool = False,
    header: bool = False,
) -> Any:
    """A field of the tree. ``flags`` are further spellings beside the one made from the field's name.

    ``choices`` is the closed set of its values, ``between`` the least and the greatest number, ``metavar`` what
    stands for a value in usage texts. A ``secret`` is shown to nobody; what is sent in a ``header`` has to fit there.
    """
    metadata = {
        "help": help, "flags": flags, "choices": choices, "between": between, "metavar": metavar, "secret": secret,
        "header": header,
    }  # fmt: skip
    return field(default=default, metadata=metadata, repr=not secret)


@dataclass(frozen=True)
class Option:
    """A field of the tree with all that is known of it.

    ``kind`` is ``bool``, ``int``, ``float`` or ``str``: that of each of its values where it takes ``many``.
    """

    group: str
    title: str
    name: str
    kind: type
    many: bool
    optional: bool
    default: Any
    help: str
    spellings: tuple[str, ...]
    choices: tuple[str, ...] | None
    between: tuple[float, float] | None
    metavar: str
    secret: bool
    header: bool

    @property
    def flag(self) -> str:
        """Its first spelling on the command line."""
        return self.spellings[0]

    @property
    def keys(self) -> tuple[str, ...]:
        """Its spellings as file keys; variables are these in capitals, behind ``LLMRT_``."""
        return tuple(spelling.removeprefix("--").replace("-", "_") for spelling in self.spellings)

    def problem(self, value: Any) -> str | None:
        """What is wrong with a value of the right type, to follow the option's name; ``None`` when nothing is."""
        if value is None:
            return None
        if self.header and not all(map(fits_a_header, value if self.many else (value,))):
            return "must be one or more visible ASCII characters, without spaces at the ends"
        if self.choices is not None and value not in self.choices:
            return f"must be one of {', '.join(self.choices)}, not {value!r}"
        if self.between is not None and not self.between[0] <= value <= self.between[1]:
            return f"must be between {self.between[0]:g} and {self.between[1]:g}, not {value}"
        return None


def of_group(group: str, defaults: Any) -> Iterator[Option]:
    """The options of one group of the tree, a dataclass with its default values."""
    kind = type(defaults)
    hints = typing.get_type_hints(kind)
    for item in dataclasses.fields(kind):
        hint, meta = hints[item.name], item.metadata
        many = typing.get_origin(hint) is tuple
        arms = [arm for arm in typing.get_args(hint) if arm not in (types.NoneType, Ellipsis)]
        value = arms[0] if arms else hint
        yield Option(
            group=group,
            title=(kind.__doc__ or "").strip(),
            name=item.name,
            kind=value,
            many=many,
            optional=bool(arms) and not many,
            default=item.default,
            help=meta["help"],
            spellings=("--" + item.name.replace("_", "-"), *meta["flags"]),
            choices=None if meta["choices"] is None else tuple(meta["choices"]),
            between=meta["between"],
            metavar=_metavar(item, value),
            secret=meta["secret"],
            header=meta["header"],
        )


def fits_a_header(text: str) -> bool:
    """Whether clients can send the text in a header as it is: field values (RFC 9110, 5.5) are trimmed."""
    return text != "" and text.isascii() and text.isprintable() and text == text.strip()


def _metavar(item: dataclasses.Field[Any], kind: type) -> str:
    if item.metadata["choices"] is not None:
        return "{" + ",".join(item.metadata["choices"]) + "}"
    return item.metadata["metavar"] or {int: "N", float: "X"}.get(kind, "TEXT")
