"""What configurations are refused, and that every refusal says why."""

from __future__ import annotations

from typing import Any

import pytest

from llmrt import model_config
from llmrt.model_config import ModelConfig, ModelError

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 50,
    "max_position_embeddings": 128,
    "rope_theta": 5e5,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
GGUF: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 96,
    "llama.block_count": 2,
    "llama.context_length": 128,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.dimension_count": 16,
    "llama.vocab_size": 50,
}


def hugging_face(**changes: Any) -> ModelConfig:
    return model_config.from_hugging_face({**LLAMA, **changes})


def gguf(**changes: Any) -> ModelConfig:
    values = GGUF | {key.replace("__", "."): value for key, value in changes.items()}
    return model_config.from_gguf(values.get, frozenset())


def test_both_forms_of_one_model_are_read_alike() -> None:
    read = hugging_face(rms_norm_eps=1e-5, tie_word_embeddings=True)
    assert read == gguf(llama__rope__freq_base=5e5)
    assert (read.head_dim, read.num_kv_heads, read.rope_theta, read.rope_scaling) == (16, 2, 5e5, None)


REFUSED: dict[str, dict[str, Any]] = {
    "model type 'gpt_neox' is not supported": {"model_type": "gpt_neox"},
    "sliding-window attention": {"use_sliding_window": True},
    "sliding-window.*whole context": {"model_type": "mistral", "sliding_window": 4096},
    "rope scaling 'yarn' is not supported": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
    "rope scaling 'dynamic' is not": {"rope_scaling": {"type": "dynamic", "factor": 4.0}},
    "mlp_bias is not supported": {"mlp_bias": True},
    "quantised safetensors are not supported": {"quantization_config": {"quant_method": "gptq"}},
    "activation 'gelu' is not supported": {"hidden_act": "gelu"},
    "partial_rotary_factor 0.5 is not": {"partial_rotary_factor": 0.5},
    "partial_rotary_factor 0.25 is not": {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25}},
    "KeyError.*'factor'": {"rope_scaling": {"type": "linear"}},
    "factor of rope scaling must be positive": {"rope_scaling": {"type": "linear", "factor": 0}},
    "KeyError.*high_freq_factor": {"rope_scaling": {k: v for k, v in LLAMA3.items() if k != "high_freq_factor"}},
    "original_max_position_embeddings of rope": {"rope_scaling": LLAMA3 | {"original_max_position_embeddings": -1}},
    "must be below high_freq_factor": {"rope_scaling": LLAMA3 | {"low_freq_factor": 4.0}},
    "malformed: ZeroDivisionError": {"num_attention_heads": 0},
    "hidden_size must be a whole number": {"hidden_size": [64]},
    "num_hidden_layers must be a whole number": {"num_hidden_layers": 2.5},
    "vocab_size must be a whole number": {"vocab_size": "many"},
    "intermediate_size must be a whole number": {"intermediate_size": True},
    "tie_word_embeddings must be true or false": {"tie_word_embeddings": "false"},
    "rms_norm_eps is -1.0": {"rms_norm_eps": -1},
    "no model is that large": {"vocab_size": 1 << 70},
    "malformed: OverflowError": {"vocab_size": float("inf")},
    "malformed: KeyError": {"rope_scaling": {"rope_type": "llama3"}},
    "num_layers is 0": {"num_hidden_layers": 0},
    "vocab_size is -3": {"vocab_size": -3},
    "rope_theta is -1.0": {"rope_theta": -1.0},
    "4 attention heads cannot share 3 KV heads": {"num_key_value_heads": 3},
    "head_dim must be even, not 15": {"head_dim": 15},
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_run_is_refused(message: str) -> None:
    with pytest.raises(ModelError, match=message):
        hugging_face(**REFUSED[message])


REFUSED_GGUF: dict[str, dict[str, Any]] = {
    "model type 'mamba' is not supported": {"general__architecture": "mamba"},
    "RoPE over 8 of 16 dimensions": {"llama__rope__dimension_count": 8},
    "lacks llama.block_count": {"llama__block_count": None},
    "rope scaling 'yarn' of the GGUF file": {"llama__rope__scaling__type": "yarn"},
    "factor of rope scaling must be positive": {
        "llama__rope__scaling__type": "linear",
        "llama__rope__scaling__factor": 0.0,
    },
    "malformed: ZeroDivisionError": {"llama__attention__head_count": 0},
    "malformed: TypeError": {"llama__attention__head_count_kv": [2, 1]},
    "malformed: ValueError": {"llama__context_length": "long"},
    "vocab_size is 0": {"llama__vocab_size": None},
    "intermediate_size is -1": {"llama__feed_forward_length": -1},
}


@pytest.mark.parametrize("message", REFUSED_GGUF)
def test_what_cannot_be_run_is_refused_in_gguf_files(message: str) -> None:
    with pytest.raises(ModelError, match=message):
        gguf(**REFUSED_GGUF[message])


def test_whole_heads_and_complete_scaling_pass() -> None:
    scaled = hugging_face(partial_rotary_factor=1.0, rope_scaling=LLAMA3 | {"note": "ignored"})
    assert scaled.rope_scaling == LLAMA3
    linear = hugging_face(rope_parameters={"rope_type": "linear", "factor": 4, "rope_theta": 2e4})
    assert linear.rope_scaling == {"rope_type": "linear", "factor": 4.0} and linear.rope_theta == 2e4
    assert gguf(llama__rope__dimension_count=None) == gguf()
