"""Names and shapes of the tensors a model needs, in Hugging Face spelling."""

from __future__ import annotations

from llmrt.model_config import ModelConfig

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
HEAD = "lm_head.weight"

ROPE_FACTORS = "rope_factors.weight"
"""Optional: divisors of the RoPE frequencies, ``[head_dim / 2]``, which GGUF files store as a tensor."""


def layer(index: int, part: str, kind: str = "weight") -> str:
    """Name of a tensor in decoder layer ``index``, such as ``part`` ``self_attn.q_proj``."""
    return f"model.layers.{index}.{part}.{kind}"


def needed(config: ModelConfig, output_bias: bool) -> dict[str, tuple[int, ...]]:
    """Every tensor that the model reads; ``output_bias``: the attention's output projection has one."""
    shapes: dict[str, tuple[int, ...]] = {
        EMBEDDING: (config.vocab_size, config.hidden_size),
        FINAL_NORM: (config.hidden_size,),
    }
    if not config.tie_word_embeddings:
        shapes[HEAD] = (config.vocab_size, config.hidden_size)
    for index in range(config.num_layers):
        shapes |= {layer(index, *key): shape for key, shape in _in_layer(config, output_bias).items()}
    return shapes


def optional(config: ModelConfig) -> dict[str, tuple[int, ...] | None]:
    """Tensors that checkpoints may carry besides; ``None`` as the shape of those that are never read."""
    shapes: dict[str, tuple[int, ...] | None] = {ROPE_FACTORS: (config.head_dim // 2,)}
    if config.tie_word_embeddings:
        shapes[HEAD] = None
    return shapes | {f"model.layers.{i}.self_attn.rotary_emb.inv_freq": None for i in range(config.num_layers)}


def _in_layer(config: ModelConfig, output_bias: bool) -> dict[tuple[str, str], tuple[int, ...]]:
    hidden, ff = config.hidden_size, config.intermediate_size
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes: dict[tuple[str, str], tuple[int, ...]] = {
        ("input_layernorm", "weight"): (hidden,),
        ("self_attn.q_proj", "weight"): (query, hidden),
        ("self_attn.k_proj", "weight"): (key, hidden),
        ("self_attn.v_proj", "weight"): (key, hidden),
        ("self_attn.o_proj", "weight"): (hidden, query),
        ("post_attention_layernorm", "weight"): (hidden,),
        ("mlp.gate_proj", "weight"): (ff, hidden),
        ("mlp.up_proj", "weight"): (ff, hidden),
        ("mlp.down_proj", "weight"): (hidden, ff),
    }
    if config.attention_bias:
        shapes |= {(f"self_attn.{p}_proj", "bias"): (size,) for p, size in (("q", query), ("k", key), ("v", key))}
        if output_bias:
            shapes["self_attn.o_proj", "bias"] = (hidden,)
    if config.qk_norm:
        shapes |= {(f"self_attn.{p}_norm", "weight"): (config.head_dim,) for p in "qk"}
    return shapes
