"""How many processors this process may use: affinity and cgroup quota, whichever is smaller."""

from __future__ import annotations

import math
import os

from llmrt import cgroups


def available() -> int:
    """Whole processors that may be kept busy, at least 1."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cgroups.cpu_quota()
    return max(1, allowed if quota is None else min(allowed, math.ceil(quota)))
