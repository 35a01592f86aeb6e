"""The wire: golden files, hostile bytes, columns. The Rust twin reads the same files."""

from __future__ import annotations

import json
import math
import runpy
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from llmrt import wire

GOLDEN = Path(__file__).parents[1] / "golden"
_cases = runpy.run_path(str(GOLDEN / "cases.py"))
VALID: dict[str, wire.Message] = _cases["VALID"]
INVALID: dict[str, bytes] = _cases["INVALID"]


@pytest.mark.parametrize("name", VALID)
def test_valid_file_is_read_and_written_alike(name: str) -> None:
    raw = (GOLDEN / f"{name}.bin").read_bytes()
    assert wire.decode(raw) == VALID[name]
    assert wire.encode(VALID[name]) == raw


@pytest.mark.parametrize("name", INVALID)
def test_invalid_file_is_refused(name: str) -> None:
    raw = (GOLDEN / "invalid" / f"{name}.bin").read_bytes()
    assert raw == INVALID[name]
    with pytest.raises(wire.WireError):
        wire.decode(raw)


def test_manifest_lists_every_file() -> None:
    manifest = json.loads((GOLDEN / "manifest.json").read_text())
    assert manifest["valid"] == {name: type(message).__name__ for name, message in VALID.items()}
    assert sorted(manifest["valid"]) == sorted(path.stem for path in GOLDEN.glob("*.bin"))
    assert sorted(manifest["invalid"]) == sorted(path.stem for path in (GOLDEN / "invalid").glob("*.bin"))


def test_every_kind_has_a_golden_file() -> None:
    assert {type(message) for message in VALID.values()} == set(get_args(wire.Message))


@pytest.mark.parametrize("name", VALID)
def test_every_truncation_is_refused(name: str) -> None:
    raw = wire.encode(VALID[name])
    step = max(1, len(raw) // 500)
    for end in (*range(0, len(raw), step), len(raw) - 1):
        with pytest.raises(wire.WireError):
            wire.decode(raw[:end])


def test_memoryviews_are_read() -> None:
    raw = wire.encode(wire.Credit(5))
    assert wire.decode(memoryview(raw)) == wire.Credit(5)


def check(raw: bytes) -> None:
    """Foreign bytes are refused cleanly, or are exactly what their message would be written as."""
    wire.greeting_version(raw)
    try:
        message = wire.decode(raw)
    except wire.WireError:
        return
    assert wire.encode(message) == raw


@given(st.binary(max_size=200))
@example(b"\x91" * 100_000)
@example(b"\x81" * 100_000)
@example(b"\x81\x90\x00")
def test_random_bytes_raise_nothing_else(raw: bytes) -> None:
    check(raw)


@given(st.sampled_from(sorted(VALID)), st.data())
def test_damaged_messages_are_refused_or_other_messages(name: str, data: st.DataObject) -> None:
    raw = bytearray(wire.encode(VALID[name]))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(raw)))
        raw[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
    check(bytes(raw))


_scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary()
_values = st.recursive(_scalars, lambda inner: st.lists(inner, max_size=5), max_leaves=20)


@given(st.sampled_from([0, 1, 2, 3, 4, 10, 11, 12, 20, 21, 30, 31]), st.lists(_values, max_size=8))
def test_random_fields_raise_nothing_else(kind: int, fields: list[Any]) -> None:
    check(msgspec.msgpack.encode([kind, *fields]))


@given(st.lists(st.integers(0, 2**32 - 1)), st.lists(st.integers(0, 2**64 - 1)))
def test_columns_survive(narrow: list[int], wide: list[int]) -> None:
    assert wire.u32s(wire.u32(narrow)).tolist() == narrow
    assert wire.u64s(wire.u64(wide)).tolist() == wide
    assert wire.u32(narrow) == b"".join(value.to_bytes(4, "little") for value in narrow)


def test_float_columns_are_little_endian_singles() -> None:
    assert wire.f32([1.0, math.inf]) == bytes.fromhex("0000803f0000807f")


@pytest.mark.parametrize("read", [wire.u32s, wire.u64s])
def test_columns_must_be_whole(read: Any) -> None:
    with pytest.raises(wire.WireError, match="not whole"):
        read(b"\0\0\0\0\0")


def test_greeting_of_another_version_is_recognised() -> None:
    """Whatever a later version appends, its number is read and can be named in the refusal."""
    later = msgspec.msgpack.encode([0, 7, "entry", 0, 1, {"new": True}])
    with pytest.raises(wire.WireError):
        wire.decode(later)
    assert wire.greeting_version(later) == 7
    assert wire.greeting_version(wire.encode(wire.Ready(3, 1, 0, ""))) == 3
    assert wire.greeting_version(wire.encode(wire.Credit(3))) is None


def test_request_ids_are_cut_as_the_entry_packs_them() -> None:
    request_id = 0xABC << 52 | 7 << 44 | 12345
    assert (wire.worker_of(request_id), wire.shard_of(request_id)) == (0xABC, 7)
