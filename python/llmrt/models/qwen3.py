"""Qwen3 (arXiv 2505.09388): the heads of q and k are normalised before the rotation."""

from llmrt.models.variant import Variant

QWEN3 = Variant(output_bias=True)
