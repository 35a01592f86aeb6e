"""Llama (arXiv 2302.13971, 2407.21783), SmolLM2 and Mistral without sliding window (arXiv 2310.06825)."""

from llmrt.models.variant import Variant

LLAMA = Variant(output_bias=True)
MISTRAL = Variant()
