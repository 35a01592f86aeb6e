"""Weights from a GGUF file, dequantised by ``llmrt._core`` and given their Hugging Face names and row order."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from llmrt._core import GgufFile
from llmrt.model_config import ModelConfig, ModelError
from llmrt.weights.names import ROPE_FACTORS

_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
    "rope_freqs.weight": ROPE_FACTORS,
}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


class GgufReader:
    """Reads the GGUF file ``path`` of a model shaped as ``config``. Raises :class:`ModelError` on a broken file."""

    def __init__(self, path: Path, config: ModelConfig) -> None:
        try:
            self._file = GgufFile(str(path))
        except (OSError, ValueError) as error:
            raise ModelError(f"{path}: {error}") from error
        self._path = path
        self._config = config
        self._stored = {_name(stored): (stored, tuple(shape)) for stored, shape, _ in self._file.tensors()}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Hugging Face name (the stored one where there is none) and shape of every tensor."""
        return {name: shape for name, (_, shape) in self._stored.items()}

    def read(self, name: str) -> torch.Tensor:
        """The tensor ``name``, dequantised to float32."""
        stored, shape = self._stored[name]
        try:
            raw = self._file.read(stored, "f32")
        except (OSError, ValueError) as error:
            raise ModelError(f"{self._path}: tensor {stored}: {error}") from error
        tensor = torch.frombuffer(raw, dtype=torch.float32).view(shape)
        if self._config.architecture in ("llama", "mistral"):
            if ".q_proj." in name:
                return _halves(tensor, self._config.num_heads)
            if ".k_proj." in name:
                return _halves(tensor, self._config.num_kv_heads)
        return tensor


def _name(stored: str) -> str:
    match = _LAYER.fullmatch(stored)
    if match and match[2] in _IN_LAYER:
        return f"model.layers.{match[1]}.{_IN_LAYER[match[2]]}.{match[3]}"
    return _TOP.get(stored, stored)


def _halves(tensor: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Undoes the row order that GGUF gives q and k of Llama models.

    There, rows ``2i`` and ``2i + 1`` of a head form a RoPE pair; in Hugging Face files rows ``i`` and
    ``i + head_dim / 2`` do. ``tensor`` is ``[num_heads * head_dim, ...]``.
    """
    pairs = tensor.view(num_heads, tensor.shape[0] // num_heads // 2, 2, *tensor.shape[1:])
    return pairs.transpose(1, 2).reshape(tensor.shape)
