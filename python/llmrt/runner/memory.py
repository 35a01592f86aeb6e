"""How many KV pages fit."""

from __future__ import annotations

from pathlib import Path

from llmrt.attention.base import KVCache
from llmrt.model_config import ModelConfig, ModelError
from llmrt.runner.options import RunnerOptions
from llmrt.scheduler.plan import PAGE_SIZE

FREE_PART = 0.4
"""Part of the available memory that KV pages take where nothing is said ..."""

MOST_BYTES = 4 << 30
"""... and the most that they take then."""

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")
_UNKNOWN = 4 << 30


def num_pages(config: ModelConfig, options: RunnerOptions, max_model_len: int) -> int:
    """KV pages to allocate, page 0 included. Raises :class:`ModelError` when not even one usable page fits."""
    if options.num_pages is not None:
        pages = options.num_pages
    else:
        page = KVCache.page_bytes(config.num_layers, config.num_kv_heads, PAGE_SIZE, config.head_dim)
        budget = options.kv_cache_bytes
        if budget is None:
            # More than every slot at full length would never be used.
            most = options.num_slots * -(-max_model_len // PAGE_SIZE) + 1
            pages = min(int(min(available_bytes() * FREE_PART, MOST_BYTES)) // page, most)
        else:
            pages = budget // page
    if pages < 2:
        raise ModelError("the memory for KV pages holds none; raise the KV cache size or num_pages (2 at least)")
    return pages


def available_bytes() -> int:
    """Memory that can be taken without swapping: the system's, or the control group's when that is less."""
    available = _UNKNOWN
    try:
        for line in _MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                available = int(line.split()[1]) * 1024
        limit = (_CGROUP / "memory.max").read_text().strip()
        if limit != "max":
            available = min(available, int(limit) - int((_CGROUP / "memory.current").read_text()))
    except (OSError, ValueError, IndexError):
        return available
    return max(available, 0)
