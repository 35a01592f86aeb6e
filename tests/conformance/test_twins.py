"""Both twins read the same bytes, or both refuse them."""

from __future__ import annotations

import random
import runpy
import subprocess
from pathlib import Path

import msgspec

from llmrt import wire
from tests.conformance.peers import example

_cases = runpy.run_path(str(Path(__file__).parents[1] / "golden" / "cases.py"))


def _rust_verdicts(frames: list[bytes]) -> list[str]:
    """What the Rust twin says of each frame: ``ok`` or its error."""
    packed = b"".join(len(raw).to_bytes(4, "little") + raw for raw in frames)
    done = subprocess.run([example("verdict")], input=packed, capture_output=True, check=True)
    return done.stdout.decode().splitlines()


def _python_verdict(raw: bytes) -> str:
    try:
        wire.decode(raw)
    except wire.WireError as error:
        return str(error)
    return "ok"


def _damaged(raw: bytes, chance: random.Random) -> bytes:
    """One byte changed, removed, doubled or inserted."""
    at = chance.randrange(len(raw))
    byte = bytes([chance.choice([0, 1, 0x7F, 0x80, 0x90, 0xA0, 0xC0, 0xC4, 0xCA, 0xCB, 0xFF, chance.randrange(256)])])
    return raw[:at] + chance.choice([byte, b"", raw[at : at + 1] * 2, byte + raw[at : at + 1]]) + raw[at + 1 :]


def _reshaped(raw: bytes, chance: random.Random) -> bytes:
    """One element somewhere in the message replaced, removed or added."""
    tree = msgspec.msgpack.decode(raw)
    node = tree
    while True:
        inner = [item for item in node if isinstance(item, list)]
        if not inner or chance.random() < 0.3:
            break
        node = chance.choice(inner)
    at = chance.randrange(len(node) + 1)
    node[at : at + chance.randrange(2)] = [
        chance.choice([None, True, 0, -1, 300, 2**32, 2**63, 1.0, float("nan"), "", "x", b"", b"\0" * 8, [], {}])
    ]
    return msgspec.msgpack.encode(tree)


def test_verdicts_agree_on_damaged_messages() -> None:
    chance = random.Random(20)
    originals = [raw for raw in map(wire.encode, _cases["VALID"].values()) if len(raw) < 2000]
    frames = [*originals, *_cases["INVALID"].values()]
    for raw in originals:
        frames += [_damaged(raw, chance) for _ in range(200)]
        frames += [_reshaped(raw, chance) for _ in range(200)]
    rust = _rust_verdicts(frames)
    assert len(rust) == len(frames)
    accepted = 0
    for raw, verdict in zip(frames, rust, strict=True):
        ours = _python_verdict(raw)
        assert (verdict == "ok") == (ours == "ok"), f"{raw.hex()}: rust {verdict!r}, python {ours!r}"
        accepted += verdict == "ok"
    assert len(originals) < accepted < len(frames) - len(_cases["INVALID"])
