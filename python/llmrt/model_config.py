"""The shape of a model, read from ``config.json`` or GGUF metadata alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

_SCALING = {
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}
"""Kinds of rope scaling and the numbers that each needs."""

ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3")
"""Model families that llmrt runs."""


class ModelError(Exception):
    """A model that cannot be served; the message says why and what to do."""


@dataclass(frozen=True)
class ModelConfig:
    """Sizes and constants of a decoder-only transformer.

    ``rope_scaling`` is the ``rope_type`` dictionary of Hugging Face configurations, or ``None`` for plain RoPE.
    """

    architecture: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: dict[str, Any] | None
    tie_word_embeddings: bool
    max_position_embeddings: int
    attention_bias: bool
    qk_norm: bool


def from_hugging_face(config: Mapping[str, Any]) -> ModelConfig:
    """Reads the dictionary of a ``config.json``. Raises :class:`ModelError` on what llmrt cannot run."""
    architecture = config.get("model_type", "")
    _check_architecture(architecture)
    if config.get("use_sliding_window") or (architecture == "mistral" and config.get("sliding_window")):
        raise ModelError("sliding-window attention is not supported; use a model that attends to its whole context")
    if config.get("hidden_act", "silu") != "silu":
        raise ModelError(f"activation {config['hidden_act']!r} is not supported; models with 'silu' are")
    if config.get("quantization_config"):
        raise ModelError("quantised safetensors are not supported; use the unquantised model or a GGUF file")
    if config.get("mlp_bias"):
        raise ModelError("mlp_bias is not supported")
    with malformed("config.json is incomplete or malformed"):
        heads = whole(config["num_attention_heads"], "num_attention_heads")
        hidden = whole(config["hidden_size"], "hidden_size")
        theta, scaling = _rope(config)
        read = ModelConfig(
            architecture=architecture,
            hidden_size=hidden,
            intermediate_size=whole(config["intermediate_size"], "intermediate_size"),
            num_layers=whole(config["num_hidden_layers"], "num_hidden_layers"),
            num_heads=heads,
            num_kv_heads=whole(config.get("num_key_value_heads") or heads, "num_key_value_heads"),
            head_dim=whole(config.get("head_dim") or hidden // heads, "head_dim"),
            vocab_size=whole(config["vocab_size"], "vocab_size"),
            rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
            rope_theta=theta,
            rope_scaling=scaling,
            tie_word_embeddings=_switch(config, "tie_word_embeddings", False),
            max_position_embeddings=whole(config["max_position_embeddings"], "max_position_embeddings"),
            attention_bias=_switch(config, "attention_bias", architecture == "qwen2"),
            qk_norm=architecture == "qwen3",
        )
    return _checked(read)


def from_gguf(get: Callable[[str], Any], tensor_names: frozenset[str]) -> ModelConfig:
    """Reads GGUF metadata through ``get(key)``, which gives ``None`` for an absent key.

    Raises :class:`ModelError` on what llmrt cannot run.
    """
    architecture = get("general.architecture") or ""
    _check_architecture(architecture)

    def need(key: str) -> Any:
        value = get(f"{architecture}.{key}")
        if value is None:
            raise ModelError(f"the GGUF file lacks {architecture}.{key}")
        return value

    with malformed("the metadata of the GGUF file is malformed"):
        heads = int(need("attention.head_count"))
        hidden = int(need("embedding_length"))
        head_dim = int(get(f"{architecture}.attention.key_length") or hidden // heads)
        rotated = int(get(f"{architecture}.rope.dimension_count") or head_dim)
        if rotated != head_dim:
            raise ModelError(f"RoPE over {rotated} of {head_dim} dimensions of a head is not supported")
        vocab = get(f"{architecture}.vocab_size")
        if vocab is None:
            vocab = len(get("tokenizer.ggml.tokens") or ())
        read = ModelConfig(
            architecture=architecture,
            hidden_size=hidden,
            intermediate_size=int(need("feed_forward_length")),
            num_layers=int(need("block_count")),
            num_heads=heads,
            num_kv_heads=int(get(f"{architecture}.attention.head_count_kv") or heads),
            head_dim=head_dim,
            vocab_size=int(vocab),
            rms_norm_eps=float(need("attention.layer_norm_rms_epsilon")),
            rope_theta=float(get(f"{architecture}.rope.freq_base") or 10000.0),
            rope_scaling=_gguf_rope_scaling(get, architecture),
            tie_word_embeddings="output.weight" not in tensor_names,
            max_position_embeddings=int(need("context_length")),
            attention_bias="blk.0.attn_q.bias" in tensor_names,
            qk_norm="blk.0.attn_q_norm.weight" in tensor_names,
        )
    return _checked(read)


@contextmanager
def malformed(what: str) -> Iterator[None]:
    """Turns what reading values of a wrong type or size raises into a :class:`ModelError` that begins with ``what``."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ModelError(f"{what}: {error!r}") from error


def whole(value: Any, name: str) -> int:
    """A number without a fraction. Raises what :func:`malformed` takes for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or int(value) != value:
        raise ValueError(f"{name} must be a whole number, not {value!r}")
    return int(value)


def _switch(config: Mapping[str, Any], name: str, default: bool) -> bool:
    value = config.get(name)
    if value is not None and not isinstance(value, bool):
        raise TypeError(f"{name} must be true or false, not {value!r}")
    return default if value is None else value


_MOST = (1 << 31) - 1
"""The largest size: sizes and token ids are 32-bit numbers everywhere else."""

_POSITIVE = (
    "hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads", "head_dim", "vocab_size",
    "rope_theta", "max_position_embeddings",
)  # fmt: skip


def _checked(config: ModelConfig) -> ModelConfig:
    """Refuses sizes that no model can have, which would fail far from here."""
    for name in _POSITIVE:
        value = getattr(config, name)
        if not 0 < value < math.inf:
            raise ModelError(f"the model's {name} is {value}; it must be positive")
        if isinstance(value, int) and value > _MOST:
            raise ModelError(f"the model's {name} is {value:.3g}; no model is that large")
    if not 0 <= config.rms_norm_eps < 1:
        raise ModelError(f"the model's rms_norm_eps is {config.rms_norm_eps}; it must be from 0 to 1")
    if config.num_heads % config.num_kv_heads:
        raise ModelError(f"{config.num_heads} attention heads cannot share {config.num_kv_heads} KV heads evenly")
    if config.head_dim % 2:
        raise ModelError(f"RoPE turns pairs, so head_dim must be even, not {config.head_dim}")
    return config


def _check_architecture(architecture: str) -> None:
    if architecture not in ARCHITECTURES:
        raise ModelError(f"model type {architecture!r} is not supported; llmrt runs {', '.join(ARCHITECTURES)}")


def _rope(config: Mapping[str, Any]) -> tuple[float, dict[str, Any] | None]:
    """Newer files write ``rope_parameters``, older ones ``rope_theta`` and ``rope_scaling``."""
    parameters = config.get("rope_parameters")
    scaling = dict(parameters if parameters else config.get("rope_scaling") or {})
    theta = float(scaling.pop("rope_theta", None) or config.get("rope_theta") or 10000.0)
    part = float(scaling.pop("partial_rotary_factor", None) or config.get("partial_rotary_factor") or 1.0)
    if part != 1.0:
        raise ModelError(f"partial_rotary_factor {part} is not supported; models that rotate whole heads are")
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return theta, None
    if kind not in _SCALING:
        raise ModelError(f"rope scaling {kind!r} is not supported; 'linear' and 'llama3' are")
    numbers = {name: _positive(scaling[name], name) for name in _SCALING[kind]}
    if kind == "llama3" and numbers["low_freq_factor"] >= numbers["high_freq_factor"]:
        raise ModelError("low_freq_factor of llama3 rope scaling must be below high_freq_factor")
    return theta, {"rope_type": kind, **numbers}


def _positive(value: Any, name: str) -> float:
    number = float(value)
    if not 0 < number < math.inf:
        raise ModelError(f"{name} of rope scaling must be positive, not {number}")
    return number


def _gguf_rope_scaling(get: Callable[[str], Any], architecture: str) -> dict[str, Any] | None:
    kind = get(f"{architecture}.rope.scaling.type")
    if kind in (None, "none"):
        return None
    if kind != "linear":
        raise ModelError(f"rope scaling {kind!r} of the GGUF file is not supported; 'linear' is")
    factor = get(f"{architecture}.rope.scaling.factor")
    return {"rope_type": "linear", "factor": 1.0 if factor is None else _positive(factor, "factor")}
