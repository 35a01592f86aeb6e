"""Attention by torch's ``scaled_dot_product_attention``: the CPU path, and the oracle for other backends.

Pages that lie side by side are read in place. Others are gathered into a small buffer that stays in the processor's
cache. Sequences with one new row share calls; the query heads of a KV head become rows of one matrix, because
``enable_gqa`` copies keys and values. Contexts are filled up to whole pages behind a mask, in every grouping, so that
a row's result does not depend on the sequences it is grouped with.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from llmrt.attention.base import Ints, KVCache, Sequences

GATHER_BYTES = 4 << 20
"""Size that the gathered keys (and values) of a group aim at: small enough for a last-level cache."""

QUERY_BLOCK = 256
"""Rows of a long chunk that share a mask: keys that lie after all of them are not computed."""


@dataclass(frozen=True)
class _Keys:
    """Keys and values of a group: a ``start`` in the cache where they lie in one piece, else an index of pages."""

    length: int
    start: int | None
    index: torch.Tensor | None


@dataclass(frozen=True)
class _Decode:
    """Rows ``first`` to ``last``, one per sequence; ``mask`` is float32 ``[sequences, 1, 1, length]``."""

    first: int
    last: int
    keys: _Keys
    mask: torch.Tensor


@dataclass(frozen=True)
class _Prefill:
    """Rows ``first`` to ``last`` of one sequence, attending to ``length`` positions; no ``mask``: plain causal."""

    first: int
    last: int
    keys: _Keys
    length: int
    mask: torch.Tensor | None


@dataclass(frozen=True)
class SdpaPlan:
    """``write`` (int64 ``[rows]``): where the new rows go in the cache."""

    write: torch.Tensor
    decodes: list[_Decode]
    prefills: list[_Prefill]


class TorchSdpa:
    """Implements :class:`llmrt.attention.base.AttentionBackend`."""

    def __init__(self, cache: KVCache) -> None:
        self._cache = cache
        self._kv_heads, _, self._head_dim = cache.k[0].shape

    def plan(self, sequences: Sequences) -> SdpaPlan:
        """See the protocol."""
        begin, count, pages = sequences.begin, sequences.count, sequences.pages
        singles = int((count == 1).sum())
        decodes = self._plan_decodes(begin[:singles], pages[:singles])
        prefills: list[_Prefill] = []
        first = singles
        for i in range(singles, len(count)):
            prefills += self._plan_prefill(first, int(begin[i]), int(count[i]), pages[i])
            first += int(count[i])
        return SdpaPlan(self._places(sequences), decodes, prefills)

    def forward(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, plan: SdpaPlan) -> torch.Tensor:
        """See the protocol."""
        keys, values = self._cache.k[layer], self._cache.v[layer]
        rows = plan.write.shape[0]
        keys.index_copy_(1, plan.write, k[:rows].transpose(0, 1))
        values.index_copy_(1, plan.write, v[:rows].transpose(0, 1))
        group = q.shape[1] // self._kv_heads
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        out[rows:] = 0
        for decode in plan.decodes:
            span = slice(decode.first, decode.last)
            shape = (decode.last - decode.first, self._kv_heads, group, self._head_dim)
            attended = scaled_dot_product_attention(
                q[span].reshape(shape),
                self._read(keys, decode.keys),
                self._read(values, decode.keys),
                attn_mask=decode.mask,
            )
            out[span].view(shape).copy_(attended)
        for prefill in plan.prefills:
            span = slice(prefill.first, prefill.last)
            # The KV heads stand in for the batch, so each group of query heads shares its keys without a copy.
            shape = (prefill.last - prefill.first, self._kv_heads, group, self._head_dim)
            attended = scaled_dot_product_attention(
                q[span].reshape(shape).permute(1, 2, 0, 3),
                self._shared(keys, prefill, group),
                self._shared(values, prefill, group),
                attn_mask=prefill.mask,
                is_causal=prefill.mask is None,
            )
            out[span].view(shape).copy_(attended.permute(2, 0, 1, 3))
        return out.flatten(1)

    def clear(self, rows: Ints, plan: SdpaPlan) -> None:
        """See the protocol."""
        places = plan.write[torch.from_numpy(rows)]
        for memory in (*self._cache.k, *self._cache.v):
            memory.index_fill_(1, places, 0)

    def _read(self, memory: torch.Tensor, keys: _Keys) -> torch.Tensor:
        """``[sequences, kv_heads, length, head_dim]``."""
        if keys.start is not None:
            return memory[:, keys.start : keys.start + keys.length].unsqueeze(0)
        assert keys.index is not None
        by_page = memory.view(-1, self._cache.page_size * self._head_dim)
        return by_page.index_select(0, keys.index).view(-1, self._kv_heads, keys.length, self._head_dim)

    def _shared(self, memory: torch.Tensor, prefill: _Prefill, group: int) -> torch.Tensor:
        """``[kv_heads, group, length, head_dim]``, the group sharing memory."""
        per_head = self._read(memory, prefill.keys)[0, :, : prefill.length]
        return per_head.unsqueeze(1).expand(-1, group, -1, -1)

    def _places(self, sequences: Sequences) -> torch.Tensor:
        """Where each new row goes: its page's first place and the offset in the page."""
        count = sequences.count
        ends = np.cumsum(count)
        within = np.arange(ends[-1]) - np.repeat(ends - count, count)
        position = np.repeat(sequences.begin, count) + within
        owner = np.repeat(np.arange(len(count)), count)
        page, offset = np.divmod(position, self._cache.page_size)
        return torch.from_numpy(sequences.pages[owner, page] * self._cache.page_size + offset)

    def _keys(self, pages: Ints) -> _Keys:
        """``pages`` ``[sequences, number of pages]``."""
        sequences, number = pages.shape
        length = number * self._cache.page_size
        if sequences == 1 and bool((np.diff(pages[0]) == 1).all()):
            return _Keys(length, int(pages[0, 0]) * self._cache.page_size, None)
        heads = np.arange(self._kv_heads)[None, :, None] * self._cache.num_pages
        return _Keys(length, None, torch.from_numpy((pages[:, None, :] + heads).reshape(-1)))

    def _plan_decodes(self, begin: Ints, pages: Ints) -> list[_Decode]:
        page_size = self._cache.page_size
        held = begin // page_size + 1
        page_bytes = 4 * self._kv_heads * page_size * self._head_dim
        decodes = []
        first = 0
        while first < len(begin):
            last, number = first + 1, int(held[first])
            while last < len(begin):
                longest = max(number, int(held[last]))
                if (last + 1 - first) * longest * page_bytes > GATHER_BYTES:
                    break
                last, number = last + 1, longest
            keys = self._keys(pages[first:last, :number])
            after = np.arange(keys.length)[None, :] > begin[first:last, None]
            mask = torch.zeros(last - first, 1, 1, keys.length)
            mask.masked_fill_(torch.from_numpy(after)[:, None, None, :], -torch.inf)
            decodes.append(_Decode(first, last, keys, mask))
            first = last
        return decodes

    def _plan_prefill(self, first: int, begin: int, count: int, pages: Ints) -> list[_Prefill]:
        end = begin + count
        keys = self._keys(pages[None, : (end - 1) // self._cache.page_size + 1])
        if begin == 0:
            return [_Prefill(first, first + count, keys, end, None)]
        blocks = []
        for offset in range(0, count, QUERY_BLOCK):
            size = min(QUERY_BLOCK, count - offset)
            length = begin + offset + size
            mask = torch.full((size, length), -torch.inf).triu_(begin + offset + 1)
            blocks.append(_Prefill(first + offset, first + offset + size, keys, length, mask))
        return blocks
