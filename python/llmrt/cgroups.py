"""What the control groups of this process leave it: processor time and memory, versions 1 and 2.

Every group from the process's own up to the root may set a limit, and the tightest one counts. In a container the
path of a group may name folders that only the host sees; the groups that are visible are looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

ROOT = Path("/sys/fs/cgroup")
SELF = Path("/proc/self/cgroup")

Read = Callable[[Path], "float | None"]
"""Reads one limit from the folder of a group; ``None`` where it sets none."""


def cpu_quota() -> float | None:
    """Processors' worth of time, or ``None`` where no group limits it."""
    return _least("cpu", _quota_v1, _quota_v2)


def memory_left() -> int | None:
    """Bytes that can still be taken, or ``None`` where no group limits them. Files that are merely cached count as
    free, because the kernel gives their memory up first; it may be below 0 while a limit shrinks."""
    left = _least("memory", _left_v1, _left_v2)
    return None if left is None else int(left)


def memory_limit() -> int | None:
    """Bytes that can be taken in all, or ``None`` where no group limits them."""
    limit = _least("memory", _limit_v1, _limit_v2)
    return None if limit is None else int(limit)


def _least(controller: str, read_v1: Read, read_v2: Read) -> float | None:
    found = [read(folder) for folder, read in _groups(controller, read_v1, read_v2)]
    return min((value for value in found if value is not None), default=None)


def _groups(controller: str, read_v1: Read, read_v2: Read) -> Iterator[tuple[Path, Read]]:
    """The visible groups of this process under ``controller``, innermost first, and how to read each."""
    try:
        lines = SELF.read_text().splitlines()
    except OSError:
        lines = ["0::/"]
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            mount, read = ROOT, read_v2
        elif controller in controllers.split(","):
            mount, read = _mount_v1(controller, controllers), read_v1
        else:
            continue
        # A path outside of the process's own namespace begins with "..": what it shows lies at the root.
        inside = PurePosixPath("/", *(part for part in PurePosixPath(path).parts if part != ".."))
        for group in (inside, *inside.parents):
            folder = mount / group.relative_to("/")
            if folder.is_dir():
                yield folder, read


def _mount_v1(controller: str, controllers: str) -> Path:
    return next((ROOT / name for name in (controller, controllers) if (ROOT / name).is_dir()), ROOT / controller)


def _quota_v1(folder: Path) -> float | None:
    quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
    return quota / period if quota and period and quota > 0 else None


def _quota_v2(folder: Path) -> float | None:
    try:
        quota, period = (folder / "cpu.max").read_text().split()
        return int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _left_v1(folder: Path) -> float | None:
    # Without a limit the number is the largest that the kernel can count to, which no other value exceeds.
    return _left(folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_")


def _left_v2(folder: Path) -> float | None:
    return _left(folder, "memory.max", "memory.current", "")


def _limit_v1(folder: Path) -> float | None:
    return _number(folder / "memory.limit_in_bytes")


def _limit_v2(folder: Path) -> float | None:
    return _number(folder / "memory.max")


def _left(folder: Path, limit_file: str, usage_file: str, prefix: str) -> float | None:
    limit, usage = _number(folder / limit_file), _number(folder / usage_file)
    if limit is None or usage is None:
        return None
    return limit - usage + _cached_files(folder / "memory.stat", prefix)


def _cached_files(stat: Path, prefix: str) -> int:
    wanted = {f"{prefix}inactive_file", f"{prefix}active_file"}
    try:
        pairs = [line.split() for line in stat.read_text().splitlines()]
        return sum(int(value) for name, value in pairs if name in wanted)
    except (OSError, ValueError):
        return 0


def _number(file: Path) -> int | None:
    """The number in ``file``; ``None`` without one, as where it says ``max``."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None
