"""Checks a checkpoint against what the model needs, then hands out its tensors one by one."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import MappingProxyType

import torch
from tqdm import tqdm

from llmrt.model_config import ModelError
from llmrt.model_source import ModelSource
from llmrt.weights.gguf_reader import GgufReader
from llmrt.weights.reader import TensorReader
from llmrt.weights.safetensors_reader import SafetensorsReader

_SHOWN = 8

Shapes = Mapping[str, tuple[int, ...]]
OptionalShapes = Mapping[str, "tuple[int, ...] | None"]
_NONE: OptionalShapes = MappingProxyType({})


class WeightsError(ModelError):
    """A checkpoint whose tensors are not those of the model; the message names them."""


class Weights:
    """The tensors of a checkpoint, known to be complete and well shaped. A context manager (for the progress bar).

    ``needed`` maps names to shapes; so does ``optional`` for tensors that may be there besides, with ``None`` where the
    shape does not matter. Raises :class:`WeightsError` at once when one is missing, unexpected or has another shape.
    """

    def __init__(
        self,
        reader: TensorReader,
        needed: Shapes,
        optional: OptionalShapes = _NONE,
        progress: bool = False,
    ) -> None:
        self._reader = reader
        self._found = reader.shapes()
        _check(self._found, needed, optional)
        self._bar = tqdm(total=len(needed), desc="Loading weights", unit="tensor", leave=False, disable=not progress)

    def take(self, name: str) -> torch.Tensor:
        """The tensor ``name`` as float32."""
        tensor = self._reader.read(name)
        self._bar.update()
        return tensor

    def take_optional(self, name: str) -> torch.Tensor | None:
        """The tensor ``name`` as float32, or ``None`` when the checkpoint lacks it."""
        return self._reader.read(name) if name in self._found else None

    def __enter__(self) -> Weights:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()


def open_weights(
    source: ModelSource, needed: Shapes, optional: OptionalShapes = _NONE, progress: bool = True
) -> Weights:
    """Opens the checkpoint of ``source``. A bar is shown on a terminal's stderr unless ``progress`` is off."""
    reader: TensorReader
    reader = GgufReader(source.path, source.config) if source.format == "gguf" else SafetensorsReader(source.path)
    return Weights(reader, needed, optional, progress and sys.stderr.isatty())


def _check(found: Shapes, needed: Shapes, optional: OptionalShapes) -> None:
    missing = sorted(needed.keys() - found.keys())
    unexpected = sorted(found.keys() - needed.keys() - optional.keys())
    wanted = ((n, shape) for n, shape in {**optional, **needed}.items() if n in found and shape is not None)
    shaped = [f"{n} is {found[n]}, not {shape}" for n, shape in wanted if found[n] != shape]
    kinds = (("missing", missing), ("unexpected", unexpected), ("of another shape", shaped))
    parts = [f"{kind}: {_some(names)}" for kind, names in kinds if names]
    if parts:
        raise WeightsError("the checkpoint does not fit its configuration; tensors " + "; ".join(parts))


def _some(names: list[str]) -> str:
    rest = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")
