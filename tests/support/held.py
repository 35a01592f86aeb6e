"""Processes of a server that are held up at their start: it stays one that is not ready."""

from __future__ import annotations

from pathlib import Path

_CUSTOMIZE = """
import signal, sys

if {modules!r} & set(sys.orig_argv):
    signal.pause()
"""


def held(folder: Path, *modules: str) -> dict[str, str]:
    """The environment of a server whose processes of ``modules`` do nothing but end; ``folder`` is an empty one."""
    # Python imports it in every process that finds it.
    (folder / "sitecustomize.py").write_text(_CUSTOMIZE.format(modules=set(modules)))
    return {"PYTHONPATH": str(folder)}
