"""Values from flags, environment and file, made one checked configuration that knows where each came from."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from llmrt.config.option import ConfigError, Option
from llmrt.config.text import convert, parse
from llmrt.config.tree import Config, groups, options

PREFIX = "LLMRT_"
FILE_VARIABLE = "LLMRT_CONFIG"
DEFAULT = "default"
_MAX_FILE = 1 << 20


@dataclass(frozen=True)
class Resolved:
    """A checked configuration. ``sources`` says for each option where its value came from."""

    config: Config
    sources: Mapping[str, str]
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class _Given:
    value: Any
    source: str


def resolve(
    flags: Mapping[str, Any],
    environment: Mapping[str, str],
    file: str | None = None,
    known: Sequence[Option] | None = None,
) -> Resolved:
    """Merges the sources: a flag wins over a variable, a variable over the file, the file over the default.

    ``flags`` holds the values of the flags that were given by option name, ``file`` is the path of a YAML file; without
    it ``LLMRT_CONFIG`` may name one. All options are taken, or those ``known``. Raises :class:`ConfigError` naming the
    source of what is wrong. Unknown variables are no error, since other programs may own them: ``warnings`` tells of
    them.
    """
    known = options() if known is None else known
    by_key = {key: option for option in known for key in option.keys}
    path = file if file is not None else environment.get(FILE_VARIABLE) or None
    given = {} if path is None else _from_file(path, by_key)
    variables, warnings = _from_environment(environment, by_key)
    given.update(variables)
    for option in known:
        if option.name in flags:
            value = tuple(flags[option.name]) if option.many else flags[option.name]
            given[option.name] = _Given(value, f"flag {option.flag}")
    values: dict[str, dict[str, Any]] = {}
    for option in known:
        if option.name in given:
            values.setdefault(option.group, {})[option.name] = given[option.name].value
    parts = {name: dataclasses.replace(defaults, **values.get(name, {})) for name, defaults in groups().items()}
    config = Config(**parts)
    config.check()
    sources = {each.name: given[each.name].source if each.name in given else DEFAULT for each in known}
    return Resolved(config, sources, tuple(warnings))


def _from_environment(
    environment: Mapping[str, str], by_key: Mapping[str, Option]
) -> tuple[dict[str, _Given], list[str]]:
    given: dict[str, _Given] = {}
    warnings = []
    for variable in sorted(name for name in environment if name.startswith(PREFIX) and name != FILE_VARIABLE):
        option = by_key.get(variable.removeprefix(PREFIX).lower())
        if option is None or not variable.isupper():
            names = [PREFIX + key.upper() for key in by_key]
            warnings.append(f"variable {variable} is unknown and ignored{_nearest(variable, names)}")
            continue
        if environment[variable] == "":
            continue
        if option.name in given:
            raise ConfigError(f"{given[option.name].source} and {variable} are the same option; set one of them")
        try:
            given[option.name] = _Given(parse(option, environment[variable]), f"variable {variable}")
        except ValueError as error:
            raise ConfigError(f"variable {variable} {error}") from error
    return given, warnings


def _from_file(path: str, by_key: Mapping[str, Option]) -> dict[str, _Given]:
    given: dict[str, _Given] = {}
    for key, value, line in _pairs(path):
        group, _, name = key.rpartition(".")
        where = f"{path}:{line}: {key}"
        option = by_key.get(name.replace("-", "_"))
        if option is None and key in groups():
            raise ConfigError(f"{where} is a group and must hold keys")
        if option is None or group not in ("", option.group):
            raise ConfigError(f"{where} is unknown{_nearest(key, _known(group, by_key))}")
        if option.name in given:
            raise ConfigError(f"{where} is set already by {given[option.name].source}; keep one of them")
        try:
            given[option.name] = _Given(convert(option, value), f"{path}:{line} {key}")
        except ValueError as error:
            raise ConfigError(f"{where} {error}") from error
    return given


def _pairs(path: str) -> Iterable[tuple[str, Any, int]]:
    """Key, value and line of every option in a file; keys inside a group are ``group.key``."""
    try:
        with Path(path).expanduser().open("rb") as file:
            raw = file.read(_MAX_FILE + 1)
    except OSError as error:
        raise ConfigError(f"--config {path}: {error.strerror}") from error
    if len(raw) > _MAX_FILE:
        raise ConfigError(f"--config {path}: more than {_MAX_FILE} bytes are no configuration")
    try:
        # The nodes know lines and repeated keys, which the values have lost.
        node = yaml.compose(raw, Loader=yaml.SafeLoader)
        values = yaml.safe_load(raw)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ConfigError(f"--config {path} is not YAML: {' '.join(str(error).split())}") from error
    if node is None or values is None:
        return
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError(f"--config {path} must hold keys with values, not {type(values).__name__}")
    for key, child, line in _entries(node, path):
        value = values[key]
        if key not in groups() or (value is not None and not isinstance(child, yaml.MappingNode)):
            yield key, value, line
        elif isinstance(child, yaml.MappingNode):
            for name, _, at in _entries(child, path):
                yield f"{key}.{name}", value[name], at


def _entries(node: yaml.MappingNode, path: str) -> Iterable[tuple[str, yaml.Node, int]]:
    seen: set[str] = set()
    for key, child in node.value:
        line = key.start_mark.line + 1
        if key.tag != "tag:yaml.org,2002:str":
            raise ConfigError(f"{path}:{line}: a key must be the name of an option, not {key.value!r}")
        if key.value in seen:
            raise ConfigError(f"{path}:{line}: {key.value} is set twice; keep one of them")
        seen.add(key.value)
        yield key.value, child, line


def _known(group: str, by_key: Mapping[str, Option]) -> list[str]:
    if group in groups():
        return [f"{group}.{key}" for key, option in by_key.items() if option.group == group]
    return [*by_key, *groups()]


def _nearest(name: str, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(name.replace("-", "_"), list(names), n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else ""
