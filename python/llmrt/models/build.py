"""Builds a decoder from a checkpoint."""

from __future__ import annotations

import math
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import torch

from llmrt.attention.base import AttentionBackend
from llmrt.layers import linear_choice, rope
from llmrt.layers.embedding import Embedding
from llmrt.layers.linear import Kernels, Linear
from llmrt.layers.linear_kernels import KERNELS
from llmrt.layers.mlp import GatedMLP
from llmrt.layers.norm import RMSNorm
from llmrt.model_config import ModelConfig
from llmrt.models.decoder import Attention, Block, Decoder
from llmrt.models.variant import Variant
from llmrt.weights import names
from llmrt.weights.loader import Weights


def choose_kernels(config: ModelConfig, dtype: str) -> Kernels:
    """Times linear kernels on the shapes of one layer of ``config``. Raises ``ValueError`` on an unknown dtype."""
    hidden, ff, query = config.hidden_size, config.intermediate_size, config.num_heads * config.head_dim
    qkv = query + 2 * config.num_kv_heads * config.head_dim
    shapes = [(qkv, hidden), (hidden, query), (2 * ff, hidden), (hidden, ff)]
    return linear_choice.kernels(shapes, dtype)


def weight_bytes(shapes: Mapping[str, tuple[int, ...]], kernels: Kernels) -> int:
    """About how much memory the tensors of ``shapes`` take once they are packed for ``kernels``.

    Every kernel in use has a copy of each linear; the embedding, which serves as the head where they are tied, stands
    in float32 besides.
    """
    per_weight = sum(KERNELS[name].bytes_per_weight for name in {*kernels.exact.names, *kernels.fast.names})
    total = per_weight * sum(math.prod(shape) for shape in shapes.values())
    return total + 4 * math.prod(shapes[names.EMBEDDING])


def build(
    config: ModelConfig,
    variant: Variant,
    weights: Weights,
    kernels: Kernels,
    backend: AttentionBackend,
    max_positions: int,
) -> Decoder:
    """Takes every tensor from ``weights`` and packs it for ``kernels``; a float32 copy lives on only where they use it.

    Packing runs on one thread a tensor, so as many layers as there are threads are built side by side.
    """
    embedding = weights.take(names.EMBEDDING)
    layers = [_Layer(config, variant, weights, kernels, i) for i in range(config.num_layers)]
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        blocks = list(pool.map(lambda layer: layer.build(backend), layers))
    norm = RMSNorm(weights.take(names.FINAL_NORM), config.rms_norm_eps)
    head = embedding if config.tie_word_embeddings else weights.take(names.HEAD)
    frequencies = rope.frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
    factors = weights.take_optional(names.ROPE_FACTORS)
    if factors is not None:
        frequencies = frequencies / factors
    return Decoder(
        Embedding(embedding), rope.Rope(frequencies, max_positions), blocks, norm, Linear(head, None, kernels)
    )


class _Layer:
    """Takes the tensors of layer ``index``."""

    def __init__(self, config: ModelConfig, variant: Variant, weights: Weights, kernels: Kernels, index: int) -> None:
        self._config = config
        self._variant = variant
        self._weights = weights
        self._kernels = kernels
        self._index = index

    @torch.inference_mode()
    def build(self, backend: AttentionBackend) -> Block:
        config = self._config
        attention = Attention(
            self._qkv(),
            self._linear(["self_attn.o_proj"], config.attention_bias and self._variant.output_bias),
            self._qk_norms() if config.qk_norm else None,
            (config.num_heads, config.num_kv_heads, config.head_dim),
            backend,
            self._index,
        )
        mlp = GatedMLP(self._linear(["mlp.gate_proj", "mlp.up_proj"]), self._linear(["mlp.down_proj"]))
        return Block(self._norm("input_layernorm"), attention, self._norm("post_attention_layernorm"), mlp)

    def _take(self, part: str, kind: str = "weight") -> torch.Tensor:
        return self._weights.take(names.layer(self._index, part, kind))

    def _qkv(self) -> Linear:
        def stacked(kind: str) -> torch.Tensor:
            q, k = (rope.interleave(self._take(f"self_attn.{p}_proj", kind), self._config.head_dim) for p in "qk")
            return torch.cat((q, k, self._take("self_attn.v_proj", kind)))

        return Linear(stacked("weight"), stacked("bias") if self._config.attention_bias else None, self._kernels)

    def _linear(self, parts: list[str], bias: bool = False) -> Linear:
        weight = torch.cat([self._take(part) for part in parts]) if len(parts) > 1 else self._take(parts[0])
        return Linear(weight, self._take(parts[0], "bias") if bias else None, self._kernels)

    def _norm(self, part: str) -> RMSNorm:
        return RMSNorm(self._take(part), self._config.rms_norm_eps)

    def _qk_norms(self) -> tuple[RMSNorm, RMSNorm]:
        q, k = (rope.interleave(self._take(f"self_attn.{p}_norm"), self._config.head_dim) for p in "qk")
        return RMSNorm(q, self._config.rms_norm_eps), RMSNorm(k, self._config.rms_norm_eps)
