"""Models written as GGUF files, named and permuted as converters do it, say what their safetensors twins say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from llmrt.model_config import ModelConfig
from llmrt.model_source import ModelSource, resolve
from llmrt.runner.model_runner import ModelRunner
from llmrt.runner.options import RunnerOptions
from llmrt.weights import WeightsError
from tests.unit.test_models import LLAMA3, SIZES, make

gguf = pytest.importorskip("gguf")

OPTIONS = RunnerOptions(num_slots=2, num_pages=20, dtype="float32", progress=False)
Floats = npt.NDArray[np.float32]


def pairs_side_by_side(rows: Floats, heads: int) -> Floats:
    """The order that GGUF gives the rows of q and k of Llama models."""
    halves = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows.shape))


def llama3_factors(head_dim: int, theta: float) -> Floats:
    """``rope_freqs.weight``: what each frequency is divided by, from the wave lengths as the Llama 3 code has it."""
    context = LLAMA3["original_max_position_embeddings"]
    low_wave, high_wave = (context / LLAMA3[f"{name}_freq_factor"] for name in ("low", "high"))
    factors = []
    for i in range(0, head_dim, 2):
        wave = 2 * np.pi * theta ** (i / head_dim)
        if wave < high_wave:
            factors.append(1.0)
        elif wave > low_wave:
            factors.append(LLAMA3["factor"])
        else:
            share = (context / wave - LLAMA3["low_freq_factor"]) / (
                LLAMA3["high_freq_factor"] - LLAMA3["low_freq_factor"]
            )
            factors.append(1 / ((1 - share) / LLAMA3["factor"] + share))
    return np.array(factors, np.float32)


def write(path: Path, config: ModelConfig, tensors: dict[str, torch.Tensor], rope_freqs: Floats | None = None) -> None:
    """A GGUF file of the tensors of a Hugging Face checkpoint."""
    writer = gguf.GGUFWriter(path, config.architecture)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_layers)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_theta)
    if config.architecture == "llama":
        writer.add_rope_dimension_count(config.head_dim)
    writer.add_token_list([f"t{i}" for i in range(config.vocab_size)])
    writer.add_eos_token_id(3)
    arch = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == config.architecture)
    stored = gguf.get_tensor_name_map(arch, config.num_layers)
    for name, tensor in tensors.items():
        rows = tensor.numpy()
        if config.architecture == "llama":
            if ".q_proj." in name:
                rows = pairs_side_by_side(rows, config.num_heads)
            if ".k_proj." in name:
                rows = pairs_side_by_side(rows, config.num_kv_heads)
        writer.add_tensor(stored.get_name(name, try_suffixes=(".weight", ".bias")), rows)
    if rope_freqs is not None:
        writer.add_tensor("rope_freqs.weight", rope_freqs)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def twins(name: str, folder: Path) -> tuple[ModelSource, dict[str, torch.Tensor]]:
    model, source = make(name, folder)
    tensors = {key: value for key, value in model.state_dict().items() if "rotary" not in key}
    if source.config.tie_word_embeddings:
        tensors.pop("lm_head.weight", None)
    return source, tensors


def logits(source: ModelSource) -> torch.Tensor:
    tokens = torch.randint(0, SIZES["vocab_size"], (200,), generator=torch.Generator().manual_seed(3)).tolist()
    return ModelRunner.load(source, OPTIONS).logits(tokens, list(range(1, 14)))


@pytest.mark.parametrize("name", ["llama_tied", "llama_untied", "llama_bias", "qwen2", "qwen3", "llama3_rope"])
def test_a_gguf_file_says_what_its_twin_says(name: str, tmp_path: Path) -> None:
    source, tensors = twins(name, tmp_path)
    config = source.config
    factors = llama3_factors(config.head_dim, config.rope_theta) if name == "llama3_rope" else None
    assert factors is None or any(1 < factor < LLAMA3["factor"] for factor in factors), "all three kinds of waves"
    path = tmp_path / "tiny.gguf"
    write(path, config, tensors, factors)
    found = resolve(str(path))
    # The factors of Llama 3 stand in the tensor, not in the metadata.
    assert replace(found.config, rms_norm_eps=0) == replace(config, rms_norm_eps=0, rope_scaling=None)
    assert found.config.rms_norm_eps == pytest.approx(config.rms_norm_eps)
    assert (found.format, found.eos_token_ids, found.eos_token) == ("gguf", (3,), "t3")
    expected = logits(source)
    assert torch.allclose(logits(found), expected, atol=1e-5 * float(expected.abs().max()))


def test_forgotten_rope_factors_would_show(tmp_path: Path) -> None:
    source, tensors = twins("llama3_rope", tmp_path)
    path = tmp_path / "tiny.gguf"
    write(path, source.config, tensors)
    expected = logits(source)
    assert not torch.allclose(logits(resolve(str(path))), expected, atol=1e-2 * float(expected.abs().max()))
    write(path, source.config, tensors, np.ones(3, np.float32))
    with pytest.raises(WeightsError, match=r"rope_factors\.weight is \(3,\), not \(8,\)"):
        logits(resolve(str(path)))
