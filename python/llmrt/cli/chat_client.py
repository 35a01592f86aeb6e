"""A small client of the chat API over HTTP/1.1: streaming, cancelled by closing its connection."""

from __future__ import annotations

import http.client
import json
import time
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from llmrt import __version__
from llmrt.config import fits_a_header

_T = TypeVar("_T")
_PAUSE = 0.1
_MAX_ERROR = 1 << 16


class ChatError(Exception):
    """A request that was not answered; the message is for the user."""


class NoServerError(ChatError):
    """Nobody answers at the URL."""


class Client:
    """Talks to one server, with its API ``key`` if it asks for one.

    ``timeout`` is how long, in seconds, it may be silent. Raises :class:`ChatError` for a URL or a key that cannot be.
    """

    def __init__(self, url: str, key: str | None = None, timeout: float = 600.0) -> None:
        at = urllib.parse.urlsplit(url)
        if at.scheme not in ("http", "https") or not at.hostname:
            raise ChatError(f"{url!r} is not the URL of a server, such as http://127.0.0.1:8000")
        try:
            self._port = at.port
        except ValueError as error:
            raise ChatError(f"{url!r}: {error}") from error
        if key is not None and not fits_a_header(key):
            raise ChatError("the API key must be visible ASCII characters, without spaces at the ends")
        self.url = url.rstrip("/").removesuffix("/v1")
        self._prefix = at.path.rstrip("/").removesuffix("/v1")
        self._secure = at.scheme == "https"
        self._host = at.hostname
        self._timeout = timeout
        self._headers = {"user-agent": f"llmrt/{__version__}", "content-type": "application/json"}
        if key is not None:
            self._headers["authorization"] = f"Bearer {key}"

    def models(self) -> list[dict[str, Any]]:
        """The models that the server has, each with its ``id``."""
        with self._exchange("GET", "/v1/models") as response:
            models = self._json(response).get("data")
        if not isinstance(models, list) or not all(isinstance(each, dict) and "id" in each for each in models):
            raise ChatError(f"{self.url} does not list its models as an OpenAI-compatible server does")
        return models

    def wait_ready(self, patience: float, waiting: Callable[[], None] = lambda: None) -> None:
        """Waits while the server loads its model, ``patience`` seconds at most; ``waiting`` is called once then."""
        end = time.monotonic() + patience
        told = False
        while True:
            with self._exchange("GET", "/ready") as response:
                # Other servers do not have this route, and are ready when they answer.
                if response.status != 503:
                    return
                reason = _reason(response)
            with self._exchange("GET", "/health") as response:
                if response.status != 200 or time.monotonic() > end:
                    raise ChatError(f"the server at {self.url} is not ready: {reason}")
            if not told:
                waiting()
                told = True
            time.sleep(_PAUSE)

    @contextmanager
    def chat(self, body: dict[str, Any]) -> Iterator[Iterator[dict[str, Any]]]:
        """The chunks of a streamed answer. Leaving early closes the connection, which has the server abort it."""
        with self._exchange("POST", "/v1/chat/completions", body) as response:
            if response.status != 200:
                raise ChatError(f"{_status(response.status)}: {_reason(response)}")
            yield self._chunks(response)

    def _chunks(self, response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
        while line := self._read(response.readline):
            field, _, data = line.partition(b":")
            if field != b"data":
                continue
            if data.strip() == b"[DONE]":
                return
            chunk = self._object(data)
            if error := chunk.get("error"):
                raise ChatError(f"the answer broke off: {error.get('message', error)}")
            yield chunk
        raise ChatError("the answer broke off: the server closed the connection")

    @contextmanager
    def _exchange(self, method: str, path: str, body: Any = None) -> Iterator[http.client.HTTPResponse]:
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=self._timeout)
        data = None if body is None else json.dumps(body).encode()
        try:
            try:
                connection.connect()
            except OSError as error:
                raise NoServerError(f"no server answers at {self.url}: {error.strerror or error}") from error
            self._read(lambda: connection.request(method, self._prefix + path, data, self._headers))
            yield self._read(connection.getresponse)
        finally:
            connection.close()

    def _read(self, action: Callable[[], _T]) -> _T:
        try:
            return action()
        except (OSError, http.client.HTTPException) as error:
            raise ChatError(f"the connection to {self.url} failed: {error or type(error).__name__}") from error

    def _json(self, response: http.client.HTTPResponse) -> dict[str, Any]:
        if response.status != 200:
            raise ChatError(f"{self.url}: {_status(response.status)}: {_reason(response)}")
        return self._object(self._read(response.read))

    def _object(self, raw: bytes) -> dict[str, Any]:
        try:
            value = json.loads(raw)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise ChatError(f"{self.url} does not answer as an OpenAI-compatible server does")
        return value


def _status(status: int) -> str:
    known = {
        401: "the server asks for a key; give it with --api-key, or as LLMRT_API_KEY",
        429: "the server has too much to do",
        503: "the server is not ready",
    }
    return known.get(status, f"refused ({status})")


def _reason(response: http.client.HTTPResponse) -> str:
    try:
        raw = response.read(_MAX_ERROR)
    except (OSError, http.client.HTTPException):
        raw = b""
    try:
        return str(json.loads(raw)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return raw.decode(errors="replace").strip()[:200] or response.reason
