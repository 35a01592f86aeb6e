"""The decoder that all families share: pre-norm blocks of grouped-query attention and a gated MLP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from llmrt.attention.base import AttentionBackend
from llmrt.layers.embedding import Embedding
from llmrt.layers.linear import Linear, Segment
from llmrt.layers.mlp import GatedMLP
from llmrt.layers.norm import RMSNorm
from llmrt.layers.rope import Rope, rotate


@dataclass(frozen=True)
class Step:
    """What all layers of a step share: the ``rotations`` of the rows' positions, the attention backend's ``plan``
    and the ``rows`` by role."""

    rotations: torch.Tensor
    plan: Any
    rows: tuple[Segment, ...]


class Attention:
    """Grouped-query attention (arXiv 2305.13245) of one layer, the KV cache left to ``backend``."""

    def __init__(
        self,
        qkv: Linear,
        output: Linear,
        norms: tuple[RMSNorm, RMSNorm] | None,
        heads: tuple[int, int, int],
        backend: AttentionBackend,
        layer: int,
    ) -> None:
        """``qkv`` computes q, k and v side by side; ``norms`` are those of q and k, where the family has them;
        ``heads`` is (query heads, KV heads, head_dim)."""
        self._qkv = qkv
        self._output = output
        self._norms = norms
        self._heads = heads
        self._backend = backend
        self._layer = layer

    def __call__(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        """``x`` ``[rows, hidden]``, normalised."""
        query_heads, kv_heads, head_dim = self._heads
        heads = self._qkv(x, step.rows).view(x.shape[0], query_heads + 2 * kv_heads, head_dim)
        rotated_heads = query_heads + kv_heads
        if self._norms is None:
            rotated = rotate(heads[:, :rotated_heads], step.rotations)
            q, k = rotated[:, :query_heads], rotated[:, query_heads:]
        else:
            q = rotate(self._norms[0](heads[:, :query_heads]), step.rotations)
            k = rotate(self._norms[1](heads[:, query_heads:rotated_heads]), step.rotations)
        attended = self._backend.forward(self._layer, q, k, heads[:, rotated_heads:], step.plan)
        return self._output(attended, step.rows)


class Block:
    """One decoder layer."""

    def __init__(self, attention_norm: RMSNorm, attention: Attention, mlp_norm: RMSNorm, mlp: GatedMLP) -> None:
        self._attention_norm = attention_norm
        self._attention = attention
        self._mlp_norm = mlp_norm
        self._mlp = mlp

    def __call__(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        """Adds the layer to the residual stream ``x`` ``[rows, hidden]`` in place."""
        x += self._attention(self._attention_norm(x), step)
        x += self._mlp(self._mlp_norm(x), step.rows)
        return x


class Decoder:
    """Token ids to hidden states, and hidden states to logits."""

    def __init__(self, embedding: Embedding, rope: Rope, blocks: list[Block], norm: RMSNorm, head: Linear) -> None:
        self._embedding = embedding
        self._rope = rope
        self._blocks = blocks
        self._norm = norm
        self._head = head

    def hidden(self, ids: torch.Tensor, positions: torch.Tensor, plan: Any, rows: tuple[Segment, ...]) -> torch.Tensor:
        """Hidden states before the last norm, float32 ``[rows, hidden]``.

        ``ids`` stand at ``positions`` (both int64 ``[rows]``). ``plan`` says which sequence each row belongs to and
        may cover fewer rows: those beyond are padding, whose hidden states mean nothing. ``rows`` tells all roles.
        """
        x = self._embedding(ids)
        step = Step(self._rope.rotations(positions), plan, rows)
        for block in self._blocks:
            x = block(x, step)
        return x

    def logits(self, hidden: torch.Tensor, rows: tuple[Segment, ...]) -> torch.Tensor:
        """Float32 ``[rows, vocab_size]``."""
        return self._head(self._norm(hidden), rows)
