"""One tree of frozen dataclasses; command line, environment and file are derived from it.

:mod:`~llmrt.config.tree` holds the options, :mod:`~llmrt.config.flags` the command line,
:mod:`~llmrt.config.sources` how values from several places become one checked :class:`Config`, and
:mod:`~llmrt.config.render` its YAML form.
"""

from llmrt.config.flags import add_flags
from llmrt.config.render import to_yaml
from llmrt.config.sources import Resolved, resolve
from llmrt.config.tree import (
    GIB,
    Config,
    ConfigError,
    EntryOptions,
    HttpOptions,
    LogOptions,
    MockOptions,
    ModelOptions,
    Option,
    ProcessOptions,
    SchedulerOptions,
    TlsOptions,
    options,
)

__all__ = [
    "GIB",
    "Config",
    "ConfigError",
    "EntryOptions",
    "HttpOptions",
    "LogOptions",
    "MockOptions",
    "ModelOptions",
    "Option",
    "ProcessOptions",
    "Resolved",
    "SchedulerOptions",
    "TlsOptions",
    "add_flags",
    "options",
    "resolve",
    "to_yaml",
]
