"""Qwen2 and Qwen2.5 (arXiv 2407.10671): biases on q, k and v alone."""

from llmrt.models.variant import Variant

QWEN2 = Variant()
