"""Log lines of the Python processes, in the same two forms as the entry's: text or JSON, on stderr."""

from __future__ import annotations

import json
import logging
import sys
from datetime import datetime, timezone

_LEVELS = {"trace": logging.DEBUG, "debug": logging.DEBUG, "info": logging.INFO, "warn": logging.WARNING}


def setup(process: str, level: str = "info", form: str = "text") -> None:
    """Sends the ``llmrt`` logger to stderr. ``process`` names the writer on every line."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter(process) if form == "json" else _TextFormatter(process))
    logger = logging.getLogger("llmrt")
    logger.handlers[:] = [handler]
    logger.setLevel(_LEVELS.get(level, logging.ERROR))
    logger.propagate = False


def _timestamp(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, timezone.utc)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _level(record: logging.LogRecord) -> str:
    return "WARN" if record.levelno == logging.WARNING else record.levelname


class _TextFormatter(logging.Formatter):
    def __init__(self, process: str) -> None:
        super().__init__()
        self.process = process

    def format(self, record: logging.LogRecord) -> str:
        line = f"{_timestamp(record)} {_level(record):>5} {self.process}: {record.getMessage()}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class _JsonFormatter(logging.Formatter):
    def __init__(self, process: str) -> None:
        super().__init__()
        self.process = process

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "timestamp": _timestamp(record),
            "level": _level(record),
            "target": self.process,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)
