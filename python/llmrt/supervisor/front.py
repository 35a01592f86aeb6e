"""What an entry worker is told about HTTP and TLS."""

from __future__ import annotations

import ipaddress
import json
import os
import socket
from pathlib import Path
from typing import Any

from llmrt.config import Config, HttpOptions, TlsOptions
from llmrt.supervisor.errors import StartError


def check(config: Config) -> None:
    """Raises :class:`StartError` for options that contradict each other, certificates and keys that cannot be used."""
    from llmrt._core import check_keys, check_tls

    web(config.http, None)
    settings = tls(config.tls)
    if settings is not None:
        try:
            check_tls(json.dumps(settings))
        except ValueError as error:
            raise StartError(str(error)) from error
    told = keys(config)
    if told["api_key_file"] is not None:
        try:
            check_keys(told["api_key_file"], _has_priorities(config))
        except ValueError as error:
            raise StartError(f"--api-key-file {error}") from error


def keys(config: Config) -> dict[str, Any]:
    """Who may send requests, and whether in an order of their own."""
    return {
        "api_keys": list(config.entry.api_key),
        "admin_api_keys": list(config.entry.admin_api_key),
        "api_key_file": _path(config.entry.api_key_file),
        "priorities": _has_priorities(config),
    }


def has_files(config: Config) -> bool:
    """Whether the front door has files that can be read again."""
    return config.tls.ssl_certfile is not None or config.entry.api_key_file is not None


def _has_priorities(config: Config) -> bool:
    return config.scheduler.schedule_policy == "priority"


def http2(options: HttpOptions) -> dict[str, Any]:
    """HTTP/2 on the listening socket."""
    return {
        "enabled": options.http2,
        "stream_window": options.http2_initial_stream_window_size,
        "connection_window": options.http2_initial_connection_window_size,
        "keep_alive_interval_s": options.http2_keep_alive_interval,
        "keep_alive_timeout_s": options.http2_keep_alive_timeout,
    }


def web(options: HttpOptions, descriptor: int | None) -> dict[str, Any]:
    """Where requests may come from and go to; ``descriptor`` is that of the listening socket, if there is one.

    Raises :class:`StartError` for options that contradict each other.
    """
    root = options.root_path.rstrip("/")
    if root and (not root.startswith("/") or not root.isascii() or not root.isprintable() or " " in root):
        raise StartError(f"--root-path {options.root_path!r} must be a path that begins with /")
    origins = names(options.allowed_origins or "", "--allowed-origins")
    for origin in origins:
        if origin not in ("*", "null") and ("://" not in origin or origin.count("/") != 2):
            raise StartError(f"--allowed-origins {origin} is no origin; write it like https://chat.example:8443")
    if options.allow_credentials and "*" in origins:
        raise StartError("--allow-credentials needs --allowed-origins with names; * would let every page in")
    hosts = None
    if options.allowed_hosts is not None:
        hosts = names(options.allowed_hosts, "--allowed-hosts")
    elif descriptor is not None and _is_loopback(descriptor):
        hosts = []
    return {
        "root_path": root,
        "allowed_hosts": hosts,
        "cors": {
            "origins": origins,
            "methods": names(options.allowed_methods, "--allowed-methods"),
            "headers": names(options.allowed_headers, "--allowed-headers"),
            "credentials": options.allow_credentials,
        },
    }


def tls(options: TlsOptions) -> dict[str, Any] | None:
    """TLS on the listening socket; ``None`` is clear text.

    Raises :class:`StartError` for options that mean nothing without others.
    """
    given = {name: value for name, value in vars(options).items() if value is not None}
    if options.ssl_certfile is None:
        if given:
            raise StartError(f"{_flag(min(given))} needs --ssl-certfile")
        return None
    if options.ssl_client_verify is not None and options.ssl_client_ca is None:
        raise StartError("--ssl-client-verify needs --ssl-client-ca")
    if options.ssl_keyfile_password is not None and options.ssl_keyfile_password_file is not None:
        raise StartError("give --ssl-keyfile-password or --ssl-keyfile-password-file, not both")
    return {
        "certfile": _path(options.ssl_certfile),
        "keyfile": _path(options.ssl_keyfile),
        "key_password": options.ssl_keyfile_password,
        "key_password_file": _path(options.ssl_keyfile_password_file),
        "client_ca": _path(options.ssl_client_ca),
        "client_verify": options.ssl_client_verify or "required",
    }


def names(text: str, flag: str) -> list[str]:
    """Names separated by commas, or a JSON list of them as other servers take it. Raises :class:`StartError`."""
    found: Any = text.split(",")
    if text.lstrip().startswith("["):
        try:
            found = json.loads(text)
        except ValueError:
            found = None
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise StartError(f"{flag} {text!r} must be names, separated by commas")
    stripped = [name.strip() for name in found]
    bad = [name for name in stripped if not name.isascii() or not name.isprintable() or " " in name]
    if bad:
        raise StartError(f"{flag} {bad[0]!r} must be visible ASCII characters")
    return [name for name in stripped if name]


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _path(text: str | None) -> str | None:
    # The processes may run elsewhere.
    return None if text is None else str(Path(text).expanduser().absolute())


def _is_loopback(descriptor: int) -> bool:
    with socket.socket(fileno=os.dup(descriptor)) as listener:
        if listener.family not in (socket.AF_INET, socket.AF_INET6):
            return False
        return ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback
