"""Checkpoints: what is read, and what the errors say of those that do not fit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from llmrt.model_config import ModelConfig, ModelError
from llmrt.model_source import ModelSource, resolve
from llmrt.weights import WeightsError, gguf_reader, names, open_weights
from llmrt.weights.safetensors_reader import SafetensorsReader

CONFIG = ModelConfig(
    architecture="llama",
    hidden_size=8,
    intermediate_size=12,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=2,
    vocab_size=11,
    rms_norm_eps=1e-5,
    rope_theta=10000.0,
    rope_scaling=None,
    tie_word_embeddings=True,
    max_position_embeddings=32,
    attention_bias=False,
    qk_norm=False,
)
NEEDED = names.needed(CONFIG, output_bias=True)


def source(folder: Path) -> ModelSource:
    return ModelSource("tiny", folder, "safetensors", CONFIG, folder / "tokenizer.json", None, None, None, ())


def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=generator) for name, shape in NEEDED.items()}


def save_sharded(folder: Path, all_tensors: dict[str, torch.Tensor]) -> None:
    ordered = sorted(all_tensors)
    shards = {"a.safetensors": ordered[::2], "b.safetensors": ordered[1::2]}
    for file, members in shards.items():
        save_file({name: all_tensors[name] for name in members}, folder / file)
    weight_map = {name: file for file, members in shards.items() for name in members}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_shards_are_read_as_float32(tmp_path: Path, dtype: torch.dtype) -> None:
    saved = {name: tensor.to(dtype) for name, tensor in tensors().items()}
    save_sharded(tmp_path, saved)
    with open_weights(source(tmp_path), NEEDED, progress=False) as weights:
        for name, tensor in saved.items():
            read = weights.take(name)
            assert read.dtype == torch.float32 and torch.equal(read, tensor.float())


def test_missing_unexpected_and_misshapen_tensors_are_named(tmp_path: Path) -> None:
    saved = tensors()
    del saved["model.layers.1.mlp.up_proj.weight"]
    saved["model.layers.0.mlp.extra.weight"] = torch.zeros(1)
    saved["model.norm.weight"] = torch.zeros(9)
    save_file(saved, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError) as caught:
        open_weights(source(tmp_path), NEEDED)
    message = str(caught.value)
    assert "missing: model.layers.1.mlp.up_proj.weight" in message
    assert "unexpected: model.layers.0.mlp.extra.weight" in message
    assert "model.norm.weight is (9,), not (8,)" in message


def test_a_long_list_of_missing_tensors_is_cut(tmp_path: Path) -> None:
    save_file({"model.norm.weight": torch.zeros(8)}, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=rf"and {len(NEEDED) - 1 - 8} more"):
        open_weights(source(tmp_path), NEEDED)


def test_a_tied_head_and_old_buffers_are_ignored(tmp_path: Path) -> None:
    extra = {names.HEAD: torch.zeros(11, 8), "model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(1)}
    save_file(tensors() | extra, tmp_path / "model.safetensors")
    with open_weights(source(tmp_path), NEEDED, names.optional(CONFIG)) as weights:
        assert weights.take_optional(names.ROPE_FACTORS) is None
    untied = replace(CONFIG, tie_word_embeddings=False)
    assert names.HEAD in names.needed(untied, True) and names.HEAD not in names.optional(untied)


def test_rope_factors_of_another_shape_are_refused(tmp_path: Path) -> None:
    save_file(tensors() | {names.ROPE_FACTORS: torch.ones(3)}, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=r"rope_factors\.weight is \(3,\), not \(1,\)"):
        open_weights(source(tmp_path), NEEDED, names.optional(CONFIG))
    save_file(tensors() | {names.ROPE_FACTORS: torch.ones(1)}, tmp_path / "model.safetensors")
    with open_weights(source(tmp_path), NEEDED, names.optional(CONFIG)) as weights:
        assert weights.take_optional(names.ROPE_FACTORS) is not None


def test_broken_files_are_named(tmp_path: Path) -> None:
    save_sharded(tmp_path, tensors())
    (tmp_path / "b.safetensors").write_bytes(b"\xff" * 100)
    with pytest.raises(ModelError, match=r"b\.safetensors"):
        SafetensorsReader(tmp_path)
    (tmp_path / "b.safetensors").unlink()
    with pytest.raises(ModelError, match=r"lacks b\.safetensors"):
        SafetensorsReader(tmp_path)


def test_an_index_cannot_reach_outside_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    save_file(tensors(), tmp_path / "outside.safetensors")
    index = {"weight_map": {"model.norm.weight": "../outside.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match="no file of that folder"):
        SafetensorsReader(folder)


def test_integer_tensors_are_refused(tmp_path: Path) -> None:
    save_file({"x": torch.zeros(2, dtype=torch.int8)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match="x holds"):
        SafetensorsReader(tmp_path).read("x")


def test_gguf_row_order_is_undone() -> None:
    heads, dim, width = 3, 8, 5
    rows = torch.arange(heads * dim * width, dtype=torch.float32).view(heads * dim, width)
    stored = rows.view(heads, 2, dim // 2, width).transpose(1, 2).reshape(heads * dim, width)
    assert not torch.equal(stored, rows)
    assert torch.equal(gguf_reader._halves(stored, heads), rows)
    assert torch.equal(gguf_reader._halves(stored[:, 0], heads), rows[:, 0])


def test_the_default_model_has_every_tensor_under_its_name() -> None:
    model = resolve(None)
    needed = names.needed(model.config, output_bias=True)
    with open_weights(model, needed, names.optional(model.config), progress=False) as weights:
        norm = weights.take(names.FINAL_NORM)
    assert len(needed) == 272 and norm.shape == (576,) and norm.isfinite().all()
