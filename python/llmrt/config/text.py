"""Option values as text and as YAML give them."""

from __future__ import annotations

from typing import Any

from llmrt.config.option import Option

_SWITCH = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


def parse(option: Option, text: str) -> Any:
    """Reads a value from a flag or a variable; many are separated by commas.

    Raises ``ValueError`` with what is wrong, to follow a name.
    """
    if option.many:
        return _checked(option, tuple(text.split(",")))
    if option.kind is bool:
        value: Any = _SWITCH.get(text.strip().lower())
        if value is None:
            raise ValueError(f"must be true or false, not {text!r}")
    else:
        try:
            value = option.kind(text)
        except ValueError:
            raise ValueError(f"must be {_KINDS[option.kind]}, not {text!r}") from None
    return _checked(option, value)


def convert(option: Option, value: Any) -> Any:
    """Reads a value from YAML. Raises ``ValueError`` with what is wrong, to follow a name."""
    if value is None and option.optional:
        return None
    if option.many:
        return _many(option, value)
    if isinstance(value, str) and option.kind is not str:
        # YAML 1.1 reads 1e3 as text; quoted numbers are common too.
        return parse(option, value)
    if option.kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if type(value) is not option.kind:
        quote = "; put it in quotes" if option.kind is str and not isinstance(value, (dict, list)) else ""
        shown = type(value).__name__ if option.secret else repr(value)
        raise ValueError(f"must be {_KINDS[option.kind]}, not {shown}{quote}")
    return _checked(option, value)


def _many(option: Option, value: Any) -> Any:
    """A list of texts, or one text as a variable has it."""
    if isinstance(value, str):
        return parse(option, value)
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise ValueError("must be text or a list of texts; put each in quotes")
    return _checked(option, tuple(value))


def _checked(option: Option, value: Any) -> Any:
    if (problem := option.problem(value)) is not None:
        raise ValueError(problem)
    return value
