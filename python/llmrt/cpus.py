"""How many processors this process may use: affinity and cgroup quota, whichever is smaller."""

from __future__ import annotations

import math
import os
from pathlib import Path

_CGROUP_V2 = Path("/sys/fs/cgroup/cpu.max")
_CGROUP_V1 = Path("/sys/fs/cgroup/cpu")


def available() -> int:
    """Whole processors that may be kept busy, at least 1."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota()
    return max(1, allowed if quota is None else min(allowed, math.ceil(quota)))


def _quota() -> float | None:
    try:
        if _CGROUP_V2.is_file():
            limit, period = _CGROUP_V2.read_text().split()
            return None if limit == "max" else int(limit) / int(period)
        limit_us = int((_CGROUP_V1 / "cpu.cfs_quota_us").read_text())
        period_us = int((_CGROUP_V1 / "cpu.cfs_period_us").read_text())
        return None if limit_us <= 0 else limit_us / period_us
    except (OSError, ValueError):
        return None
