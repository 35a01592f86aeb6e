"""Weights from a Hugging Face folder: one safetensors file or an index with shards."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from llmrt.model_config import ModelError

INDEX = "model.safetensors.index.json"


class SafetensorsReader:
    """Maps the shards of ``folder``; raises :class:`ModelError` when one is missing or broken."""

    def __init__(self, folder: Path) -> None:
        self._files = {}
        self._file_of: dict[str, str] = {}
        for file in _shards(folder):
            try:
                opened = safe_open(folder / file, framework="pt", device="cpu")
            except (OSError, SafetensorError) as error:
                raise ModelError(f"{folder / file} cannot be read as safetensors: {error}") from error
            self._files[file] = opened
            for name in opened.keys():  # noqa: SIM118 (not a dictionary)
                if name in self._file_of:
                    raise ModelError(f"tensor {name} stands both in {self._file_of[name]} and in {file} of {folder}")
                self._file_of[name] = file

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every tensor in all shards."""
        return {name: tuple(self._files[f].get_slice(name).get_shape()) for name, f in self._file_of.items()}

    def read(self, name: str) -> torch.Tensor:
        """The tensor ``name`` as float32."""
        tensor: torch.Tensor = self._files[self._file_of[name]].get_tensor(name)
        if not tensor.is_floating_point():
            raise ModelError(f"tensor {name} holds {tensor.dtype}, not floating-point numbers")
        return tensor.float()


def _shards(folder: Path) -> list[str]:
    index = folder / INDEX
    if not index.is_file():
        return sorted(file.name for file in folder.glob("*.safetensors"))
    try:
        shards = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ModelError(f"{index} is not a safetensors index: {error!r}") from error
    for shard in shards:
        if not isinstance(shard, str) or Path(shard).name != shard:
            raise ModelError(f"{index} names {shard!r}, which is no file of that folder")
        if not (folder / shard).is_file():
            raise ModelError(f"{folder} lacks {shard}, which its index names; fetch the model again")
    return shards
