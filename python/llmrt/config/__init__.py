"""One tree of frozen dataclasses; command line, environment and file are derived from it.

:mod:`~llmrt.config.tree` holds the options, :mod:`~llmrt.config.option` what one is,
:mod:`~llmrt.config.flags` the command line, :mod:`~llmrt.config.sources` how values from several places become one
checked :class:`Config`, and :mod:`~llmrt.config.render` its YAML form.
"""

from llmrt.config.flags import add_flags
from llmrt.config.option import ConfigError, Option, fits_a_header
from llmrt.config.render import to_yaml
from llmrt.config.sources import Resolved, resolve
from llmrt.config.tree import (
    GIB,
    Config,
    EntryOptions,
    HttpOptions,
    LogOptions,
    MockOptions,
    ModelOptions,
    NodeOptions,
    ProcessOptions,
    SchedulerOptions,
    TlsOptions,
    node_options,
    options,
    server_options,
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
    "NodeOptions",
    "Option",
    "ProcessOptions",
    "Resolved",
    "SchedulerOptions",
    "TlsOptions",
    "add_flags",
    "fits_a_header",
    "node_options",
    "options",
    "resolve",
    "server_options",
    "to_yaml",
]
