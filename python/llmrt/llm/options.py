"""Keyword arguments of an LLM, as the configuration of a server."""

from __future__ import annotations

import dataclasses
import difflib
from os import PathLike, fspath
from typing import Any

from llmrt import config
from llmrt.config import Config, ConfigError
from llmrt.config.text import convert

# Where nobody listens, these say nothing.
_OF_THE_SOCKET = frozenset(
    {
        "host", "port", "uds", "uds_mode", "api_key", "api_key_file", "admin_api_key", "max_connections",
        "max_connection_age", "shutdown_timeout", "entry_workers",
    }
)  # fmt: skip
_GROUPS_OF_THE_SOCKET = frozenset({"http", "tls", "nodes"})
_DEFAULTS = {"log_level": "warn", "stat_interval": 0.0, "stall_timeout": 86400.0}


def configuration(model: str | PathLike[str] | None, given: dict[str, Any]) -> Config:
    """Checks ``given``, options by the names of :mod:`llmrt.config`. Neither variables nor a file are looked at.

    Raises :class:`~llmrt.config.ConfigError`, a ``ValueError``, that names the option.
    """
    known = {
        option.name: option
        for option in config.options()
        if option.name not in _OF_THE_SOCKET and option.group not in _GROUPS_OF_THE_SOCKET
    }
    values = {**_DEFAULTS, **given}
    if model is not None:
        values["model"] = fspath(model)
    checked: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        option = known.get(name)
        if option is None:
            near = difflib.get_close_matches(name, known, n=1)
            raise ConfigError(f"an LLM has no option {name}" + (f"; did you mean {near[0]}?" if near else ""))
        try:
            checked.setdefault(option.group, {})[name] = convert(option, value)
        except ValueError as error:
            raise ConfigError(f"{name} {error}") from error
    groups = config.tree.groups()
    return Config(**{group: dataclasses.replace(groups[group], **fields) for group, fields in checked.items()})
