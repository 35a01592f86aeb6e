"""The messages behind the golden files; run this file to write them anew after a change of the wire.

``rust/llmrt-wire/tests/golden.rs`` states the same values in Rust. Files under ``invalid`` are bytes that both twins
refuse; ``manifest.json`` lists all files, so that neither suite can miss one.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import msgspec

from llmrt import wire

HERE = Path(__file__).parent
U32, U64 = 2**32 - 1, 2**64 - 1

_rich_sampling = wire.Sampling(
    temperature=0.7,
    top_p=0.95,
    top_k=40,
    min_p=0.05,
    seed=U64,
    max_tokens=128,
    min_tokens=2,
    ignore_eos=True,
    stop_token_ids=[2, 49151],
    presence_penalty=-2.0,
    frequency_penalty=0.5,
    repetition_penalty=1.1,
    logit_bias=[(0, -100.0), (U32, 100.0)],
    allowed_token_ids=wire.u32([0, 2, 49151]),
    bad_words=[wire.u32([7]), wire.u32([7, 8, 9])],
    logprobs=20,
    prompt_logprobs=0,
)
_rich_output = wire.Output(
    stop=["\n\n", "停止", "🛑"], include_stop=True, skip_special_tokens=False, min_tokens=2, token_ids=True
)
_rich_request = wire.Request(
    id=0xABC << 52 | 7 << 44 | 2**44 - 1,
    prompt=wire.u32([0, 1, 49151, U32]),
    sampling=_rich_sampling,
    output=_rich_output,
    priority=-(2**31),
    cache_salt="größe",
    deadline_ms=250,
)
_plain_request = wire.Request(id=1, prompt=wire.u32([5]), sampling=wire.Sampling(), output=wire.Output(), priority=200)
_opened = wire.Opened(id=7, prompt_tail=wire.u32(range(16)), output=_rich_output)
_first = wire.First(row=1, cached_tokens=1024, queue_us=70_000, prefill_us=2**40)
_stopped = wire.Finished(row=0, outcome=wire.Outcome(reason=wire.STOP, stop_token=2))
_failed = wire.Finished(
    row=2, outcome=wire.Outcome(reason=wire.ERROR, status=500, message="the page pool is too small")
)
_logprobs = wire.Logprobs(
    rows=wire.u32([0, 1]),
    top=wire.u32([0, 2]),
    chosen=wire.f32([-0.5, -1.5, -2.5, -math.inf]),
    top_ids=wire.u32([1, 2, 3, 4, 5, U32]),
    top_logprobs=wire.f32([-0.25, -0.5, -0.75, -1.0, -1.25, -1.5]),
)
_prompt_logprobs = [
    wire.PromptLogprobs(1, 1, wire.f32([-3.5, -0.125]), wire.u32([9, 10]), wire.f32([-3.5, -0.0625])),
    wire.PromptLogprobs(2, 5, b"", b"", b""),
]

VALID: dict[str, wire.Message] = {
    "hello": wire.Hello(1, "entry", 3, 0x0123456789ABCDEF),
    "hello_extremes": wire.Hello(65535, "räum", U32, U64),
    "ready": wire.Ready(1, 42, 256, '{"max_model_len":8192}'),
    "ready_empty": wire.Ready(0, 0, 0, ""),
    "dead": wire.Dead(9, "out of memory"),
    "heartbeat": wire.Heartbeat(U64, 128),
    "credit": wire.Credit(65536),
    "submit": wire.Submit([_rich_request, _plain_request]),
    "submit_empty": wire.Submit([]),
    "submit_long_prompt": wire.Submit([msgspec.structs.replace(_plain_request, prompt=wire.u32(range(300)))]),
    "abort": wire.Abort([0, 127, 128, 255, 256, 65535, 65536, U32, U32 + 1, U64]),
    "ended": wire.Ended(list(range(20))),
    "call": wire.Call(1, "health", '{"deep":true}'),
    "reply": wire.Reply(1, False, '"no such method: ☃"'),
    "token_frame": wire.TokenFrame(
        step=U64,
        opened=[_opened],
        ids=wire.u64([7, 8, U64]),
        counts=wire.u32([1, 3, 0]),
        tokens=wire.u32([2, 10, 11, U32]),
        first=[_first],
        finished=[_stopped, _failed],
    ),
    "token_frame_logprobs": wire.TokenFrame(
        step=1,
        opened=[],
        ids=wire.u64([7, 8, 9]),
        counts=wire.u32([1, 3, 0]),
        tokens=wire.u32([2, 10, 11, U32]),
        first=[],
        finished=[],
        logprobs=_logprobs,
        prompt_logprobs=_prompt_logprobs,
    ),
    "token_frame_empty": wire.TokenFrame(0, [], b"", b"", b"", [], []),
    "text_frame": wire.TextFrame(
        step=12,
        ids=wire.u64([7, 8, 9]),
        counts=wire.u32([2, 1, 0]),
        ends=wire.u32([9, 13, 13]),
        text="日本語👍",
        first=[_first],
        finished=[
            wire.Finished(0, wire.Outcome(reason=wire.STOP, stop_string="停止")),
            wire.Finished(2, wire.Outcome(reason=wire.LENGTH)),
        ],
    ),
    "text_frame_logprobs": wire.TextFrame(
        step=1,
        ids=wire.u64([7, 8, 9]),
        counts=wire.u32([1, 3, 2]),
        ends=wire.u32([1, 3, 4]),
        text="abcd",
        first=[],
        finished=[],
        tokens=wire.TokenIds(wire.u32([0, 1, 2]), wire.u32([2, 10, 11, U32, 5, 6])),
        logprobs=_logprobs,
        prompt_logprobs=_prompt_logprobs,
    ),
    "text_frame_empty": wire.TextFrame(0, b"", b"", b"", "", [], []),
    "text_frame_long": wire.TextFrame(
        1,
        wire.u64([1]),
        wire.u32([U32]),
        wire.u32([70_000]),
        "x" * 70_000,
        [],
        [wire.Finished(0, wire.Outcome(reason=wire.ABORT))],
    ),
}


def _text(ids: int, counts: list[int], ends: list[int], text: str, row: int | None = None) -> list[object]:
    finished = [] if row is None else [[row, [1, None, None, 0, ""]]]
    return [31, 1, wire.u64(range(ids)), wire.u32(counts), wire.u32(ends), text, [], finished, None, None, []]


def _tokens(ids: int, counts: list[int], tokens: list[int], row: int | None = None) -> list[object]:
    first = [] if row is None else [[row, 0, 0, 0]]
    return [30, 1, [], wire.u64(range(ids)), wire.u32(counts), wire.u32(tokens), first, [], None, []]


def _logprobs_of(rows: list[int], top: list[int], chosen: int, tops: int, top_logprobs: int | None = None) -> bytes:
    """A frame of two rows with one and two tokens, and log probabilities of so many values."""
    tops_logprobs = wire.f32([-1.0] * (tops if top_logprobs is None else top_logprobs))
    logprobs = [wire.u32(rows), wire.u32(top), wire.f32([-1.0] * chosen), wire.u32([1] * tops), tops_logprobs]
    return _pack([*_tokens(2, [1, 2], [1, 2, 3])[:-2], logprobs, []])


def _prompt_logprobs_of(row: int, top: int, chosen: bytes, tops: int) -> bytes:
    prompt = [row, top, chosen, wire.u32([1] * tops), wire.f32([-1.0] * tops)]
    return _pack([*_tokens(1, [1], [1])[:-1], [prompt]])


def _ids_of(rows: list[int], ids: list[int], logprobs: bool = False) -> bytes:
    """A text frame of two rows that stand for one and two tokens, with token ids."""
    values = [wire.u32([1]), wire.u32([0]), wire.f32([-1.0, -2.0]), b"", b""] if logprobs else None
    return _pack([*_text(2, [1, 2], [1, 2], "xy")[:-3], [wire.u32(rows), wire.u32(ids)], values, []])


def _pack(value: object) -> bytes:
    return msgspec.msgpack.encode(value)


def _submit(prompt: bytes) -> bytes:
    kind, ((request_id, _, *rest),) = msgspec.msgpack.decode(wire.encode(wire.Submit([_plain_request])))
    return _pack([kind, [[request_id, prompt, *rest]]])


_ONE = _pack(1.0)

INVALID: dict[str, bytes] = {
    "empty": b"",
    "not_an_array": _pack({"kind": 4, "count": 1}),
    "empty_array": _pack([]),
    "kind_is_a_string": _pack(["credit", 1]),
    "unknown_kind": _pack([99, 1]),
    "kind_out_of_range": _pack([260, 1]),
    "negative_kind": _pack([-1, 1]),
    "field_missing": _pack([3, 1]),
    "field_extra": _pack([4, 1, 2]),
    "trailing_byte": _pack([4, 1]) + b"\0",
    "trailing_message": _pack([4, 1]) * 2,
    "negative_number": _pack([4, -1]),
    "number_out_of_range": _pack([4, 2**32]),
    "number_is_a_float": _pack([4, 1.0]),
    "number_is_a_bool": _pack([4, True]),
    "number_is_nil": _pack([4, None]),
    "number_too_wide": b"\x92\x04\xcd\x00\x01",
    "array_too_wide": b"\xdc\x00\x02\x04\x01",
    "string_is_bytes": _pack([2, 1, b"x"]),
    "string_too_wide": b"\x93\x02\x01\xd9\x01x",
    "string_not_utf8": b"\x93\x02\x01\xa1\xff",
    "string_of_surrogates": b"\x93\x02\x01\xa3\xed\xa0\x80",
    "bool_is_a_number": _pack([21, 1, 1, ""]),
    "column_is_a_string": _pack([30, 0, [], "", b"", b"", [], [], None, []]),
    "column_is_an_array": _pack([30, 0, [], [], b"", b"", [], [], None, []]),
    "column_not_whole": _pack([30, 0, [], b"", b"", b"\0\0\0", [], [], None, []]),
    "column_too_wide": _pack([30, 0, [], b"", b"", b"", [], [], None, []]).replace(b"\xc4\0", b"\xc5\0\0", 1),
    "ids_not_whole": _pack([31, 0, b"\0\0\0\0", b"", b"", "", [], [], None, None, []]),
    "prompt_not_whole": _submit(b"\0\0"),
    "nested_map": _pack(
        [30, 0, [], b"", b"", b"", [{"row": 0, "cached_tokens": 0, "queue_us": 0, "prefill_us": 0}], [], None, []]
    ),
    "nested_field_missing": _pack([10, [[1, b"", [], [], 0, "", None]]]),
    "nested_field_extra": _pack([30, 0, [], wire.u64([1]), wire.u32([0]), b"", [[0, 0, 0, 0, 0]], [], None, []]),
    "float_is_narrow": _submit(b"").replace(_ONE, b"\xca\x3f\x80\0\0", 1),
    "float_is_an_int": _submit(b"").replace(_ONE, b"\x01", 1),
    "unknown_finish_reason": _pack(
        [30, 0, [], wire.u64([1]), wire.u32([0]), b"", [], [[0, [4, None, None, 0, ""]]], None, []]
    ),
    "extension": b"\x92\x04\xd4\x01\x01",
    "huge_array": b"\xdd\xff\xff\xff\xff\x0b",
    "huge_array_inside": b"\x92\x0b\xdd\xff\xff\xff\xff",
    "huge_column": b"\x9a\x1e\0\x90\xc6\xff\xff\xff\xff",
    "deep": b"\x91" * 5000,
    "token_counts_short": _pack(_tokens(2, [1], [1])),
    "token_counts_do_not_add_up": _pack(_tokens(2, [1, 2], [1, 2])),
    "token_row_outside": _pack(_tokens(1, [1], [1], row=1)),
    "text_counts_short": _pack(_text(2, [1], [1, 1], "x")),
    "text_ends_short": _pack(_text(2, [1, 1], [1], "x")),
    "text_ends_backwards": _pack(_text(2, [1, 1], [2, 1], "xy")),
    "text_end_outside": _pack(_text(1, [1], [3], "xy")),
    "text_end_inside_character": _pack(_text(2, [1, 1], [1, 2], "é")),
    "text_without_row": _pack(_text(1, [1], [1], "xy")),
    "text_row_outside": _pack(_text(1, [1], [1], "x", row=1)),
    "bad_word_not_whole": wire.encode(wire.Submit([_rich_request])).replace(_pack(wire.u32([7])), _pack(b"\0\0\0"), 1),
    "logprobs_row_outside": _logprobs_of([2], [0], 1, 0),
    "logprobs_rows_backwards": _logprobs_of([1, 0], [0, 0], 3, 0),
    "logprobs_row_twice": _logprobs_of([0, 0], [0, 0], 2, 0),
    "logprobs_top_short": _logprobs_of([0, 1], [1], 3, 1),
    "logprobs_chosen_short": _logprobs_of([1], [0], 1, 0),
    "logprobs_top_ids_short": _logprobs_of([0, 1], [1, 2], 3, 4),
    "logprobs_top_logprobs_short": _logprobs_of([0, 1], [1, 2], 3, 5, 4),
    "logprobs_top_huge": _logprobs_of([0, 1], [U32, U32], 3, 1),
    "prompt_logprobs_row_outside": _prompt_logprobs_of(1, 0, b"", 0),
    "prompt_logprobs_top_short": _prompt_logprobs_of(0, 2, wire.f32([-1.0, -2.0]), 3),
    "prompt_logprobs_not_whole": _prompt_logprobs_of(0, 0, b"\0\0\0", 0),
    "text_ids_row_outside": _ids_of([2], []),
    "text_ids_rows_backwards": _ids_of([1, 0], [1, 2, 3]),
    "text_ids_short": _ids_of([0, 1], [1, 2]),
    "text_logprobs_without_ids": _ids_of([0], [1], logprobs=True),
}


def main() -> None:
    """Writes all files and the manifest."""
    (HERE / "invalid").mkdir(exist_ok=True)
    for name, message in VALID.items():
        (HERE / f"{name}.bin").write_bytes(wire.encode(message))
    for name, raw in INVALID.items():
        (HERE / "invalid" / f"{name}.bin").write_bytes(raw)
    manifest = {
        "valid": {name: type(message).__name__ for name, message in VALID.items()},
        "invalid": list(INVALID),
    }
    (HERE / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")


if __name__ == "__main__":
    main()
