"""What can be chosen about a runner."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RunnerOptions:
    """Options of :class:`llmrt.runner.executor.InlineExecutor`.

    ``num_slots``: requests that run at once. ``max_model_len``: longest sequence in tokens (``None``: the model's).
    ``num_pages``: KV pages, page 0 included; without it ``kv_cache_bytes`` gives them, and without that a part of the
    memory that is free. ``threads``: 0 takes the processors that the process may use. ``dtype``: ``auto`` (fastest
    kernels that keep fp32 results), ``float32``, ``float16`` (weights) or ``bfloat16`` (weights and activations).
    ``progress``: show a bar while weights load, on a terminal.
    """

    num_slots: int = 64
    max_model_len: int | None = None
    num_pages: int | None = None
    kv_cache_bytes: int | None = None
    threads: int = 0
    dtype: str = "auto"
    progress: bool = True
