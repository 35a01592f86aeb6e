"""Every family against ``transformers`` in fp32, on tiny random models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from llmrt import model_config
from llmrt.layers import rope
from llmrt.model_config import ModelError
from llmrt.model_source import ModelSource
from llmrt.models.registry import variant
from llmrt.runner.model_runner import ModelRunner
from llmrt.runner.options import RunnerOptions

transformers = pytest.importorskip("transformers")

SIZES: dict[str, Any] = dict(
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=131,
    max_position_embeddings=512,
)
LLAMA3 = dict(
    rope_type="llama3",
    rope_theta=50000.0,
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=64,
)
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama_tied": ("Llama", dict(tie_word_embeddings=True)),
    "llama_untied": (
        "Llama",
        dict(tie_word_embeddings=False, rope_parameters={"rope_type": "default", "rope_theta": 1e5}),
    ),
    "llama_bias": ("Llama", dict(attention_bias=True)),
    "llama3_rope": ("Llama", dict(rope_parameters=LLAMA3)),
    "linear_rope": ("Llama", dict(rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4})),
    "mistral": ("Mistral", dict(head_dim=32, sliding_window=None)),
    "qwen2": ("Qwen2", dict(tie_word_embeddings=True)),
    "qwen3": ("Qwen3", dict(head_dim=32)),
    "many_heads": ("Llama", dict(num_attention_heads=8, num_key_value_heads=8)),
}


def make(name: str, folder: Path) -> tuple[Any, ModelSource]:
    """A random model, saved as safetensors, and where llmrt finds it."""
    family, overrides = MODELS[name]
    torch.manual_seed(7)
    config = getattr(transformers, f"{family}Config")(**(SIZES | overrides))
    model = getattr(transformers, f"{family}ForCausalLM")(config).float().eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith("bias") or "norm" in parameter_name:
                parameter.add_(torch.randn_like(parameter) * 0.3)
            else:
                parameter.mul_(4)
    model.save_pretrained(folder)
    read = model_config.from_hugging_face(transformers.AutoConfig.from_pretrained(folder).to_dict())
    return model, ModelSource(name, folder, "safetensors", read, folder, None, None, None, (0,))


@pytest.mark.parametrize("name", MODELS)
def test_logits_equal_transformers(name: str, tmp_path: Path) -> None:
    model, source = make(name, tmp_path)
    tokens = torch.randint(0, SIZES["vocab_size"], (200,), generator=torch.Generator().manual_seed(3)).tolist()
    with torch.inference_mode():
        expected = model(torch.tensor([tokens])).logits[0]
    runner = ModelRunner.load(source, RunnerOptions(num_slots=2, num_pages=20, dtype="float32", progress=False))
    found = runner.logits(tokens, list(range(1, 14)))
    assert expected.std() > 0.1, "a model that says nothing proves nothing"
    assert torch.allclose(found, expected, atol=2e-4 * float(expected.abs().max())), (found - expected).abs().max()


@pytest.mark.parametrize("dtype", ["auto", "float16", "bfloat16"])
def test_narrow_types_stay_close(dtype: str, tmp_path: Path) -> None:
    model, source = make("llama_tied", tmp_path)
    tokens = list(range(1, 60))
    with torch.inference_mode():
        expected = model(torch.tensor([tokens])).logits[0]
    runner = ModelRunner.load(source, RunnerOptions(num_slots=2, num_pages=20, dtype=dtype, progress=False))
    error = (runner.logits(tokens, [1, 2, 3, 4]) - expected).abs().max() / expected.abs().max()
    assert error < {"auto": 1e-4, "float16": 1e-2, "bfloat16": 1e-1}[dtype]


def test_impossible_options_say_what_to_change(tmp_path: Path) -> None:
    _, source = make("llama_tied", tmp_path)
    for options, message in (
        (RunnerOptions(dtype="int3", num_pages=9), "dtype 'int3' is not known"),
        (RunnerOptions(max_model_len=1000, num_pages=9), "max_model_len 1000 is more than the 512"),
        (RunnerOptions(kv_cache_bytes=100), "raise the KV cache size"),
    ):
        with pytest.raises(ModelError, match=message):
            ModelRunner.load(source, options)
    with pytest.raises(ModelError, match="mamba"):
        variant("mamba")


def test_interleaving_turns_half_rotation_into_complex_multiplication() -> None:
    head_dim, heads, rows = 16, 3, 7
    x = torch.randn(rows, heads * head_dim, generator=torch.Generator().manual_seed(1))
    frequencies = rope.frequencies(head_dim, 100.0, None)
    angles = torch.outer(torch.arange(rows).float(), frequencies)
    cos, sin = (part.repeat(1, 2).unsqueeze(1) for part in (angles.cos(), angles.sin()))
    halves = x.view(rows, heads, head_dim)
    turned = torch.cat((-halves[..., head_dim // 2 :], halves[..., : head_dim // 2]), -1)
    expected = rope.interleave((halves * cos + turned * sin).reshape(rows, -1).T, head_dim).T
    pairs = rope.interleave(x.T, head_dim).T.reshape(rows, heads, head_dim)
    found = rope.rotate(pairs.contiguous(), rope.Rope(frequencies, rows).rotations(torch.arange(rows)))
    assert torch.allclose(found.reshape(rows, -1), expected, atol=1e-5)
