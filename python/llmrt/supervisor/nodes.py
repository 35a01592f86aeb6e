"""What a core and its entry nodes on other hosts agree on: address, secret, tokenizer, and what the core decides."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from pathlib import Path
from typing import Any

from llmrt.config import Config, ConfigError, NodeOptions
from llmrt.model_source import ModelSource
from llmrt.supervisor.errors import StartError

LEAST_SECRET = 16
"""Bytes that a secret must have at least."""
_MOST_SECRET = 1 << 16

_ADDRESS = re.compile(r"tcp://(\[[^\]]+\]|[^:\[\]/]+):(\d+)")

HOW_TO = (
    "make one with: openssl rand -hex 32 > FILE, and give the core and its nodes --core-secret-file FILE or "
    "LLMRT_CORE_SECRET"
)

DECIDED_BY_THE_CORE = (
    ("model", "served_model_name"),
    ("model", "max_model_len"),
    ("entry", "max_num_queued_reqs"),
    ("scheduler", "max_num_seqs"),
    ("scheduler", "schedule_policy"),
    ("process", "detokenizers"),
    ("process", "step_deadline"),
)
"""Options of the core, by group and name, that its nodes take over."""


def address(text: str, flag: str) -> tuple[str, int]:
    """Host and port of ``tcp://HOST:PORT``. Raises :class:`StartError` for anything else."""
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match[2]) > 65535:
        raise StartError(f"{flag} {text!r} must have the form tcp://HOST:PORT, with an IPv6 address in brackets")
    return match[1].strip("[]"), int(match[2])


def secret(options: NodeOptions) -> str:
    """The secret that a core and its nodes share. Raises :class:`StartError` when there is none that could be used."""
    if options.core_secret is not None and options.core_secret_file is not None:
        raise StartError("give LLMRT_CORE_SECRET (--core-secret) or --core-secret-file, not both")
    found = options.core_secret
    if options.core_secret_file is not None:
        found = _from_file(options.core_secret_file)
    if found is None:
        needs = "--core-listen" if options.core is None else "--core"
        raise StartError(f"{needs} needs a shared secret: {HOW_TO}")
    if len(found.encode()) < LEAST_SECRET:
        raise StartError(f"the shared secret has less than {LEAST_SECRET} bytes: {HOW_TO}")
    return found


def _from_file(name: str) -> str:
    try:
        with Path(name).expanduser().open("rb") as file:
            raw = file.read(_MOST_SECRET + 1)
    except OSError as error:
        raise StartError(f"--core-secret-file {name}: {error.strerror}; {HOW_TO}") from error
    try:
        text = raw.decode().strip()
    except UnicodeDecodeError:
        text = ""
    if not text or len(raw) > _MOST_SECRET:
        raise StartError(f"--core-secret-file {name} holds no text that could be a secret; {HOW_TO}")
    return text


def check(options: NodeOptions) -> None:
    """Raises :class:`StartError` for options of a core that cannot work."""
    if options.core_listen is not None:
        address(options.core_listen, "--core-listen")
        secret(options)
    elif options.core_secret is not None or options.core_secret_file is not None:
        raise StartError("a shared secret needs --core-listen, where entry nodes join")


def fingerprint(source: ModelSource) -> str:
    """The same for equal tokenizers, of which core and nodes must have one: ids mean the same on both sides."""
    digest = hashlib.sha256()
    if source.tokenizer.suffix == ".gguf":
        from llmrt._core import GgufFile

        file = GgufFile(str(source.tokenizer))
        keys = file.keys()
        for key in keys:
            if key.startswith("tokenizer.") and key != "tokenizer.chat_template":
                digest.update(json.dumps([key, file.get(key)]).encode())
    else:
        digest.update(source.tokenizer.read_bytes())
    return digest.hexdigest()


def told(config: Config, source: ModelSource, max_model_len: int) -> dict[str, dict[str, Any]]:
    """What a node is told of the core: options that it takes over, by group and name."""
    own: dict[str, dict[str, Any]] = {}
    for group, name in DECIDED_BY_THE_CORE:
        own.setdefault(group, {})[name] = getattr(getattr(config, group), name)
    own["model"] = {"served_model_name": config.model.served_model_name or source.name, "max_model_len": max_model_len}
    return own


def taken_over(config: Config, core: dict[str, dict[str, Any]]) -> Config:
    """The configuration of a node that has joined: its own, but for what the core has told.

    Raises :class:`StartError` when the core has told something else.
    """
    try:
        parts: dict[str, Any] = {}
        for group, name in DECIDED_BY_THE_CORE:
            part = parts.get(group, getattr(config, group))
            parts[group] = dataclasses.replace(part, **{name: core[group][name]})
        merged = dataclasses.replace(config, **parts)
        merged.check()
    except (KeyError, TypeError, ConfigError) as error:
        raise StartError(f"the core describes itself in another way than this version: {error}") from error
    return merged
