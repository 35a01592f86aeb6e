"""The messages that llmrt's processes exchange; twin of ``rust/llmrt-wire``.

Every message is one ZMQ frame: a msgpack array whose first element is the message kind and whose
other elements are the fields in declaration order. Columns of numbers are little-endian ``bin``;
:func:`u32`, :func:`u64` and :func:`f32` pack them, :func:`u32s` and :func:`u64s` read them.
The golden files under ``tests/golden`` hold both twins together.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable
from typing import Union

import msgspec

VERSION = 1
"""Version of the protocol described here; peers with another one are refused."""

STOP, LENGTH, ABORT, ERROR = range(4)
"""Finish reasons by their number on the wire."""


class WireError(ValueError):
    """Bytes that are not a message: malformed, truncated or of an unknown kind."""


class _Part(msgspec.Struct, array_like=True):
    """Base of the structures inside messages."""


class Sampling(_Part):
    """How tokens are chosen; validated by the entry. ``top_k`` 0 and ``repetition_penalty`` 1 are off."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int = 16
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: list[int] = []
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: list[tuple[int, float]] = []


class Output(_Part):
    """What the detokenizer does with a request's tokens."""

    stop: list[str] = []
    include_stop: bool = False
    skip_special_tokens: bool = True
    min_tokens: int = 0


class Request(_Part):
    """One generation: ``prompt`` is a u32 column of at least one token id."""

    id: int
    prompt: bytes
    sampling: Sampling
    output: Output
    priority: int = 0
    cache_salt: str = ""


class Opened(_Part):
    """A request as the detokenizer must know it; ``prompt_tail`` is a u32 column of at most 16 ids."""

    id: int
    prompt_tail: bytes
    output: Output


class First(_Part):
    """What is known of a request with its first token; times in microseconds."""

    row: int
    cached_tokens: int
    queue_us: int
    prefill_us: int


class Outcome(_Part):
    """How a request ended. ``status`` is the HTTP status that fits an error, else 0."""

    reason: int
    stop_token: int | None = None
    stop_string: str | None = None
    status: int = 0
    message: str = ""


class Finished(_Part):
    """The request of this row has ended; it appears in no later frame."""

    row: int
    outcome: Outcome


class Hello(msgspec.Struct, array_like=True, tag=0):
    """First message of a connecting peer."""

    version: int
    role: str
    index: int
    incarnation: int


class Ready(msgspec.Struct, array_like=True, tag=1):
    """Answer to :class:`Hello`; ``info`` is a JSON object or empty."""

    version: int
    incarnation: int
    credit: int
    info: str


class Dead(msgspec.Struct, array_like=True, tag=2):
    """Death notice: nothing comes from this peer any more."""

    incarnation: int
    reason: str


class Heartbeat(msgspec.Struct, array_like=True, tag=3):
    """Sign of life, sent by both ends of a link; the receiver echoes it."""

    incarnation: int
    sequence: int


class Credit(msgspec.Struct, array_like=True, tag=4):
    """``count`` more requests may be submitted on this link."""

    count: int


class Submit(msgspec.Struct, array_like=True, tag=10):
    """New requests. Costs one credit each."""

    requests: list[Request]


class Abort(msgspec.Struct, array_like=True, tag=11):
    """Requests whose client has left. Needs no credit."""

    ids: list[int]


class Ended(msgspec.Struct, array_like=True, tag=12):
    """Detokenizer to scheduler: a stop string ended these requests."""

    ids: list[int]


class Call(msgspec.Struct, array_like=True, tag=20):
    """A control call; ``arguments`` is JSON."""

    call: int
    method: str
    arguments: str


class Reply(msgspec.Struct, array_like=True, tag=21):
    """Answer to a :class:`Call`; ``value`` is JSON, an error message when not ``ok``."""

    call: int
    ok: bool
    value: str


class TokenFrame(msgspec.Struct, array_like=True, tag=30):
    """Scheduler to detokenizer: what one step produced.

    ``ids`` (u64) has one row for each request that got tokens or ended, ``counts`` (u32) the number of
    its tokens, ``tokens`` (u32) all rows' tokens end to end.
    """

    step: int
    opened: list[Opened]
    ids: bytes
    counts: bytes
    tokens: bytes
    first: list[First]
    finished: list[Finished]


class TextFrame(msgspec.Struct, array_like=True, tag=31):
    """Detokenizer to one entry worker: the text of one step.

    ``ends`` (u32) holds the end of each row's text in the UTF-8 bytes of ``text``.
    """

    step: int
    ids: bytes
    counts: bytes
    ends: bytes
    text: str
    first: list[First]
    finished: list[Finished]


Message = Union[
    Hello, Ready, Dead, Heartbeat, Credit, Submit, Abort, Ended, Call, Reply, TokenFrame, TextFrame
]

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """The bytes of one ZMQ frame."""
    return _encoder.encode(message)


def decode(raw: bytes | memoryview) -> Message:
    """Reads one ZMQ frame. Raises :class:`WireError` on anything that is not a message."""
    try:
        return _decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise WireError(str(error)) from error


def _pack(code: str, values: Iterable[int | float]) -> bytes:
    column = array(code, values)
    if sys.byteorder == "big":
        column.byteswap()
    return column.tobytes()


def _unpack(code: str, raw: bytes) -> array:
    column = array(code)
    try:
        column.frombytes(raw)
    except ValueError as error:
        raise WireError(f"a column of {len(raw)} bytes is not whole: {error}") from error
    if sys.byteorder == "big":
        column.byteswap()
    return column


def u32(values: Iterable[int]) -> bytes:
    """Packs a u32 column."""
    return _pack("I", values)


def u64(values: Iterable[int]) -> bytes:
    """Packs a u64 column."""
    return _pack("Q", values)


def f32(values: Iterable[float]) -> bytes:
    """Packs an f32 column."""
    return _pack("f", values)


def u32s(raw: bytes) -> array:
    """Reads a u32 column. Raises :class:`WireError` when it is not whole."""
    return _unpack("I", raw)


def u64s(raw: bytes) -> array:
    """Reads a u64 column. Raises :class:`WireError` when it is not whole."""
    return _unpack("Q", raw)


def worker_of(request_id: int) -> int:
    """Entry worker (12 bit) that made the id."""
    return request_id >> 52


def shard_of(request_id: int) -> int:
    """I/O shard (8 bit) of that worker."""
    return request_id >> 44 & 0xFF
