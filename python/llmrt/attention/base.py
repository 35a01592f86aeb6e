"""What an attention backend must offer, and the KV memory it works on."""

from __future__ import annotations

import contextlib
import math
import mmap
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Sequences:
    """The sequences of one step; sequence ``i`` brings ``count[i]`` rows, whose positions start at ``begin[i]``.

    Those with one row come first; the rows of all sequences lie end to end in their order. Neighbours of similar
    length are best.
    ``pages`` ``[sequences, most pages]`` holds the page table of each, filled up with page 0.
    """

    begin: Ints
    count: Ints
    pages: Ints


class KVCache:
    """KV memory: for each layer ``k`` and ``v``, float32 ``[num_kv_heads, num_pages * page_size, head_dim]``.

    Heads are outermost, so that a run of neighbouring pages is one dense matrix for each head.
    """

    def __init__(self, num_layers: int, num_kv_heads: int, num_pages: int, page_size: int, head_dim: int) -> None:
        shape = (num_kv_heads, num_pages * page_size, head_dim)
        self.page_size = page_size
        self.num_pages = num_pages
        self.k = [_zeros(shape) for _ in range(num_layers)]
        self.v = [_zeros(shape) for _ in range(num_layers)]

    @staticmethod
    def page_bytes(num_layers: int, num_kv_heads: int, page_size: int, head_dim: int) -> int:
        """Bytes that one page takes in all layers together."""
        return 2 * 4 * num_layers * num_kv_heads * page_size * head_dim


def _zeros(shape: tuple[int, ...]) -> torch.Tensor:
    """Float32 zeros that take memory, small page by small page, only where they are written.

    A pool of gigabytes then costs nothing at start. Huge pages would undo that: a sequence touches a little of every
    layer and head, and each touch would clear two megabytes.
    """
    memory = mmap.mmap(-1, 4 * math.prod(shape))
    with contextlib.suppress(AttributeError, OSError):
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.float32).view(shape)


class AttentionBackend(Protocol):
    """Causal grouped-query attention of new rows to all that their sequences hold."""

    def plan(self, sequences: Sequences) -> Any:
        """What can be computed once for all layers of a step."""

    def forward(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, plan: Any) -> torch.Tensor:
        """Stores ``k`` and ``v`` of the new rows, then attends.

        ``q`` is ``[rows, num_heads, head_dim]``, ``k`` and ``v`` are ``[rows, num_kv_heads, head_dim]``; rows beyond
        those of ``plan`` are padding, which is neither stored nor attended. Gives ``[rows, num_heads * head_dim]``.
        """

    def clear(self, rows: Ints, plan: Any) -> None:
        """Sets what all layers stored for these rows of ``plan`` to zeros.

        Attention may read places behind the end of a sequence and weigh them with 0, which hides any number but a
        NaN or an infinity. So none may stay behind when a page goes to somebody else.
        """
