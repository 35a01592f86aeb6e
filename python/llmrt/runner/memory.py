"""How many KV pages fit."""

from __future__ import annotations

from pathlib import Path

from llmrt import cgroups
from llmrt.attention.base import KVCache
from llmrt.model_config import ModelConfig, ModelError
from llmrt.runner.options import RunnerOptions
from llmrt.scheduler.plan import PAGE_SIZE

FREE_PART = 0.4
"""Part of the memory that the weights leave which KV pages take where nothing is said ..."""

MOST_BYTES = 4 << 30
"""... and the most that they take then."""

_MEMINFO = Path("/proc/meminfo")
_UNKNOWN = 4 << 30


def num_pages(config: ModelConfig, options: RunnerOptions, max_model_len: int, weight_bytes: int) -> int:
    """KV pages to allocate, page 0 included; ``weight_bytes`` will be taken besides.

    Raises :class:`ModelError` when not even one usable page fits.
    """
    if options.num_pages is not None:
        pages = options.num_pages
        missing = "num_pages must be 2 at least, because page 0 is never used"
    else:
        page = KVCache.page_bytes(config.num_layers, config.num_kv_heads, PAGE_SIZE, config.head_dim)
        if options.kv_cache_bytes is not None:
            pages = options.kv_cache_bytes // page
            missing = (
                f"the KV cache of {options.kv_cache_bytes} bytes is too small; raise the KV cache size to hold "
                f"two pages of {page} bytes at least"
            )
        else:
            available = available_bytes()
            budget = min(int((available - weight_bytes) * FREE_PART), MOST_BYTES)
            # More than every slot at full length would never be used.
            pages = min(budget // page, options.num_slots * -(-max_model_len // PAGE_SIZE) + 1)
            missing = (
                f"{available >> 20} MiB of memory are free and the weights need about {weight_bytes >> 20} MiB, which "
                "leaves none for KV pages; free memory, raise the limit of the container, or set the KV cache size"
            )
    if pages < 2:
        raise ModelError(missing)
    return pages


def available_bytes() -> int:
    """Memory that can be taken without swapping: the system's, or the control groups' when that is less."""
    available = _UNKNOWN
    try:
        for line in _MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                available = int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    left = cgroups.memory_left()
    return max(available if left is None else min(available, left), 0)
