"""The messages that llmrt's processes exchange; twin of ``rust/llmrt-wire``.

Every message is one ZMQ frame: a msgpack array whose first element is the message kind and whose
other elements are the fields in declaration order. Columns of numbers are little-endian ``bin``;
:func:`u32`, :func:`u64` and :func:`f32` pack them, :func:`u32s`, :func:`u64s` and :func:`f32s` read them.
The golden files under ``tests/golden`` hold both twins together.
"""

from __future__ import annotations

import itertools
import sys
from array import array
from collections.abc import Iterable, Sequence
from typing import Annotated

import msgspec

VERSION = 2
"""Version of the protocol described here; peers with another one are refused."""

STOP, LENGTH, ABORT, ERROR = range(4)
"""Finish reasons by their number on the wire."""


class WireError(ValueError):
    """Bytes that are not a message: malformed, truncated or of an unknown kind."""


U8 = Annotated[int, msgspec.Meta(ge=0, le=0xFF)]
U16 = Annotated[int, msgspec.Meta(ge=0, le=0xFFFF)]
U32 = Annotated[int, msgspec.Meta(ge=0, le=0xFFFF_FFFF)]
U64 = Annotated[int, msgspec.Meta(ge=0)]
I32 = Annotated[int, msgspec.Meta(ge=-0x8000_0000, le=0x7FFF_FFFF)]
Reason = Annotated[int, msgspec.Meta(ge=STOP, le=ERROR)]


class _Part(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """Base of messages and of the structures inside them."""


class Sampling(_Part):
    """How tokens are chosen; validated by the entry. ``top_k`` 0 and ``repetition_penalty`` 1 are off.

    ``max_tokens`` 0 generates nothing; it is for requests that want ``prompt_logprobs`` alone.
    ``allowed_token_ids`` (u32): nothing but these may be generated. ``bad_words``: sequences of tokens (u32, none
    empty) that are never generated: the last token of each is banned where those before it end what there is so far,
    prompt included. ``logprobs``: report the log probability of every generated token, and of so many of the likeliest
    at its place; ``prompt_logprobs``: the same for every prompt token but the first.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: U32 = 0
    min_p: float = 0.0
    seed: U64 | None = None
    max_tokens: U32 = 16
    min_tokens: U32 = 0
    ignore_eos: bool = False
    stop_token_ids: list[U32] = []
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: list[tuple[U32, float]] = []
    allowed_token_ids: bytes | None = None
    bad_words: list[bytes] = []
    logprobs: U32 | None = None
    prompt_logprobs: U32 | None = None

    def __post_init__(self) -> None:
        _whole("allowed_token_ids", self.allowed_token_ids or b"", 4)
        for word in self.bad_words:
            _whole("bad_words", word, 4)


class Output(_Part):
    """What the detokenizer does with a request's tokens.

    ``token_ids``: report the ids of generated tokens; requests with log probabilities get them anyway.
    """

    stop: list[str] = []
    include_stop: bool = False
    skip_special_tokens: bool = True
    min_tokens: U32 = 0
    token_ids: bool = False


class Request(_Part):
    """One generation: ``prompt`` is a u32 column of at least one token id.

    ``deadline_ms``: milliseconds after its arrival at the scheduler when the request ends with status 408.
    """

    id: U64
    prompt: bytes
    sampling: Sampling
    output: Output
    priority: I32 = 0
    cache_salt: str = ""
    deadline_ms: U32 | None = None

    def __post_init__(self) -> None:
        _whole("prompt", self.prompt, 4)


class Opened(_Part):
    """A request as the detokenizer must know it; ``prompt_tail`` is a u32 column of at most 16 ids."""

    id: U64
    prompt_tail: bytes
    output: Output

    def __post_init__(self) -> None:
        _whole("prompt_tail", self.prompt_tail, 4)


class First(_Part):
    """What is known of a request with its first token; times in microseconds."""

    row: U32
    cached_tokens: U32
    queue_us: U64
    prefill_us: U64


class Outcome(_Part):
    """How a request ended. ``status`` is the HTTP status that fits an error, else 0."""

    reason: Reason
    stop_token: U32 | None = None
    stop_string: str | None = None
    status: U16 = 0
    message: str = ""


class Finished(_Part):
    """The request of this row has ended; it appears in no later frame."""

    row: U32
    outcome: Outcome


class Logprobs(_Part):
    """Log probabilities of the tokens of some rows of a frame, end to end.

    They are natural logarithms of the softmax of the model's own logits, before anything that :class:`Sampling` does
    to them. ``rows`` (u32): rows of the frame, ascending; each has values for every one of its tokens, as the frame's
    ``counts`` has it. ``top`` (u32): for each of these rows, how many of the likeliest tokens are given at the place of
    each of its tokens. ``chosen`` (f32): one value a token; ``top_ids`` (u32) and ``top_logprobs`` (f32): the likeliest
    at its place, best first, of equal ones the lowest id.
    """

    rows: bytes
    top: bytes
    chosen: bytes
    top_ids: bytes
    top_logprobs: bytes

    def check(self, counts: Sequence[int]) -> None:
        """Raises :class:`WireError` when the columns do not fit the frame's ``counts`` or each other."""
        rows, top = u32s(self.rows), u32s(self.top)
        if len(top) != len(rows):
            raise WireError(f"a column of {len(top)} values for {len(rows)} rows")
        _check_rows(rows, len(counts))
        _check_values(self.chosen, sum(counts[row] for row in rows))
        tops = sum(counts[row] * k for row, k in zip(rows, top, strict=True))
        _check_values(self.top_ids, tops)
        _check_values(self.top_logprobs, tops)


class PromptLogprobs(_Part):
    """Log probabilities of a prompt, once for each request that asked: in the row with its first token or its end.

    ``chosen`` (f32) has every prompt token but the first, which has none; ``top_ids`` (u32) and ``top_logprobs`` (f32)
    hold ``top`` values for each of them. As in :class:`Logprobs`.
    """

    row: U32
    top: U32
    chosen: bytes
    top_ids: bytes
    top_logprobs: bytes

    def check(self, rows: int) -> None:
        """Raises :class:`WireError` when the columns do not fit each other, or the frame has no such row."""
        _check_rows([self.row], rows)
        tokens = len(self.chosen) // 4
        _check_values(self.chosen, tokens)
        _check_values(self.top_ids, tokens * self.top)
        _check_values(self.top_logprobs, tokens * self.top)


class TokenIds(_Part):
    """Token ids of some rows of a :class:`TextFrame`: ``rows`` (u32, ascending), and their ``ids`` (u32) end to end."""

    rows: bytes
    ids: bytes

    def check(self, counts: Sequence[int]) -> None:
        """Raises :class:`WireError` when the columns do not fit the frame's ``counts``."""
        rows = u32s(self.rows)
        _check_rows(rows, len(counts))
        _check_values(self.ids, sum(counts[row] for row in rows))


class Hello(_Part, tag=0):
    """First message of a connecting peer."""

    version: U16
    role: str
    index: U32
    incarnation: U64


class Ready(_Part, tag=1):
    """Answer to :class:`Hello`; ``info`` is a JSON object or empty."""

    version: U16
    incarnation: U64
    credit: U32
    info: str


class Dead(_Part, tag=2):
    """Death notice: nothing comes from this peer any more."""

    incarnation: U64
    reason: str


class Heartbeat(_Part, tag=3):
    """Sign of life, sent by both ends of a link; the receiver echoes it."""

    incarnation: U64
    sequence: U64


class Credit(_Part, tag=4):
    """``count`` more requests may be submitted on this link."""

    count: U32


class Submit(_Part, tag=10):
    """New requests. Costs one credit each."""

    requests: list[Request]


class Abort(_Part, tag=11):
    """Requests whose client has left. Needs no credit."""

    ids: list[U64]


class Ended(_Part, tag=12):
    """Detokenizer to scheduler: a stop string ended these requests."""

    ids: list[U64]


class Call(_Part, tag=20):
    """A control call; ``arguments`` is JSON."""

    call: U64
    method: str
    arguments: str


class Reply(_Part, tag=21):
    """Answer to a :class:`Call`; ``value`` is JSON, an error message when not ``ok``."""

    call: U64
    ok: bool
    value: str


class TokenFrame(_Part, tag=30):
    """Scheduler to detokenizer: what one step produced.

    ``ids`` (u64) has one row for each request that got tokens or ended, ``counts`` (u32) the number of
    its tokens, ``tokens`` (u32) all rows' tokens end to end. ``logprobs`` is absent unless a row's request asked.
    """

    step: U64
    opened: list[Opened]
    ids: bytes
    counts: bytes
    tokens: bytes
    first: list[First]
    finished: list[Finished]
    logprobs: Logprobs | None = None
    prompt_logprobs: list[PromptLogprobs] = []

    def check(self) -> None:
        """Raises :class:`WireError` when the columns do not fit together; :func:`decode` has checked already."""
        rows = _rows(self)
        tokens = len(u32s(self.tokens))
        if tokens != sum(u32s(self.counts)):
            raise WireError(f"{tokens} tokens where the counts add up to {sum(u32s(self.counts))}")
        _check_marks(rows, self.first, self.finished)
        _check_logprobs(self)


class TextFrame(_Part, tag=31):
    """Detokenizer to one entry worker: the text of one step.

    ``ends`` (u32) holds the end of each row's text in the UTF-8 bytes of ``text``. ``tokens`` holds the tokens that
    rows stand for, of requests that asked for ids or log probabilities; absent unless one did. Concatenated over a
    request's rows they are all tokens that its usage counts, whether they show in the text or not. The rows of
    ``logprobs`` are among those of ``tokens``.
    """

    step: U64
    ids: bytes
    counts: bytes
    ends: bytes
    text: str
    first: list[First]
    finished: list[Finished]
    tokens: TokenIds | None = None
    logprobs: Logprobs | None = None
    prompt_logprobs: list[PromptLogprobs] = []

    def check(self) -> None:
        """Raises :class:`WireError` when the columns do not fit together; :func:`decode` has checked already."""
        rows = _rows(self)
        ends = u32s(self.ends)
        if len(ends) != rows:
            raise WireError(f"{len(ends)} ends for {rows} rows")
        text = self.text.encode()
        start = 0
        for end in ends:
            if not start <= end <= len(text) or _is_inside_character(text, end):
                raise WireError(f"end {end} is behind {start}, outside the text or inside a character")
            start = end
        if start != len(text):
            raise WireError(f"{len(text) - start} bytes of text belong to no row")
        _check_marks(rows, self.first, self.finished)
        _check_logprobs(self)
        self._check_tokens()

    def _check_tokens(self) -> None:
        with_ids: set[int] = set()
        if self.tokens is not None:
            self.tokens.check(u32s(self.counts))
            with_ids = set(u32s(self.tokens.rows))
        if self.logprobs is not None and not with_ids.issuperset(u32s(self.logprobs.rows)):
            raise WireError("a row has log probabilities, but no token ids")


Message = Hello | Ready | Dead | Heartbeat | Credit | Submit | Abort | Ended | Call | Reply | TokenFrame | TextFrame

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """The bytes of one ZMQ frame."""
    return _encoder.encode(message)


def decode(raw: bytes | memoryview) -> Message:
    """Reads one ZMQ frame. Raises :class:`WireError` on anything that is not a message.

    A message has exactly one encoding; other spellings of it (a shorter array, a wider integer) are refused, so
    that both twins always read the same bytes in the same way.
    """
    try:
        message = _decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise WireError(str(error)) from error
    if isinstance(message, (TokenFrame, TextFrame)):
        message.check()
    if _encoder.encode(message) != raw:
        raise WireError(f"{type(message).__name__} is not in its canonical form")
    return message


def greeting_version(raw: bytes | memoryview) -> int | None:
    """Version that a ``Hello`` or ``Ready`` speaks, even if this process cannot read the rest of it."""
    try:
        fields = msgspec.msgpack.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, TypeError):
        return None
    if not isinstance(fields, list) or len(fields) < 2 or fields[0] not in (0, 1):
        return None
    version = fields[1]
    return version if isinstance(version, int) and 0 <= version <= 0xFFFF else None


def _whole(name: str, column: bytes, width: int) -> None:
    if len(column) % width:
        raise WireError(f"column {name} of {len(column)} bytes is not whole")


def _rows(frame: TokenFrame | TextFrame) -> int:
    rows, counts = len(u64s(frame.ids)), len(u32s(frame.counts))
    if rows != counts:
        raise WireError(f"{counts} counts for {rows} rows")
    return rows


def _is_inside_character(text: bytes, at: int) -> bool:
    """Whether ``at`` points to a continuation byte of UTF-8."""
    return at < len(text) and text[at] & 0xC0 == 0x80


def _check_marks(rows: int, first: list[First], finished: list[Finished]) -> None:
    for row in (*(mark.row for mark in first), *(mark.row for mark in finished)):
        if row >= rows:
            raise WireError(f"row {row} of {rows}")


def _check_logprobs(frame: TokenFrame | TextFrame) -> None:
    if frame.logprobs is not None:
        frame.logprobs.check(u32s(frame.counts))
    for prompt in frame.prompt_logprobs:
        prompt.check(len(frame.counts) // 4)


def _check_rows(chosen: Sequence[int], rows: int) -> None:
    """Rows exist and ascend."""
    for before, row in itertools.pairwise(chosen):
        if row <= before:
            raise WireError(f"row {row} does not stand behind row {before}")
    if chosen and chosen[-1] >= rows:
        raise WireError(f"row {chosen[-1]} of {rows}")


def _check_values(column: bytes, wanted: int) -> None:
    if len(column) != 4 * wanted:
        raise WireError(f"{len(column)} bytes where {wanted} values belong")


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


def f32s(raw: bytes) -> array:
    """Reads an f32 column. Raises :class:`WireError` when it is not whole."""
    return _unpack("f", raw)


def worker_of(request_id: int) -> int:
    """Entry worker (12 bit) that made the id."""
    return request_id >> 52


def shard_of(request_id: int) -> int:
    """I/O shard (8 bit) of that worker."""
    return request_id >> 44 & 0xFF
