"""Families by the name that configurations give them."""

from __future__ import annotations

from llmrt.model_config import ModelError
from llmrt.models.llama import LLAMA, MISTRAL
from llmrt.models.qwen2 import QWEN2
from llmrt.models.qwen3 import QWEN3
from llmrt.models.variant import Variant

VARIANTS: dict[str, Variant] = {"llama": LLAMA, "mistral": MISTRAL, "qwen2": QWEN2, "qwen3": QWEN3}


def variant(architecture: str) -> Variant:
    """The family ``architecture``. Raises :class:`ModelError` when llmrt has no such family."""
    if architecture not in VARIANTS:
        raise ModelError(f"model type {architecture!r} is not supported; llmrt runs {', '.join(VARIANTS)}")
    return VARIANTS[architecture]
