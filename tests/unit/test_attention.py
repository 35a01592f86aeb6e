"""The SDPA backend against attention written out in float64 over each sequence's own history."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from llmrt.attention.base import KVCache, Sequences
from llmrt.attention.torch_sdpa import TorchSdpa

PAGE, KV_HEADS, GROUP, DIM, PAGES = 16, 2, 3, 32, 400


class History:
    """A sequence with random keys and values, some of them in the cache already."""

    def __init__(self, held: int, count: int, pages: list[int], generator: torch.Generator) -> None:
        self.held, self.count, self.pages = held, count, pages
        self.q = torch.randn(count, KV_HEADS * GROUP, DIM, generator=generator)
        self.k = torch.randn(held + count, KV_HEADS, DIM, generator=generator)
        self.v = torch.randn(held + count, KV_HEADS, DIM, generator=generator)

    def store(self, cache: KVCache) -> None:
        places = [self.pages[i // PAGE] * PAGE + i % PAGE for i in range(self.held)]
        cache.k[0][:, places] = self.k[: self.held].transpose(0, 1)
        cache.v[0][:, places] = self.v[: self.held].transpose(0, 1)

    def expected(self) -> torch.Tensor:
        rows = []
        for i in range(self.count):
            seen = self.held + i + 1
            keys = self.k[:seen].double().repeat_interleave(GROUP, 1)
            scores = torch.einsum("hd,thd->ht", self.q[i].double(), keys) / DIM**0.5
            rows.append(
                torch.einsum("ht,thd->hd", scores.softmax(1), self.v[:seen].double().repeat_interleave(GROUP, 1))
            )
        return torch.stack(rows).flatten(1)


def attend(histories: list[History]) -> torch.Tensor:
    """One step over a fresh cache that is full of other sequences' numbers; singles must come first."""
    cache = KVCache(1, KV_HEADS, PAGES, PAGE, DIM)
    for memory in (cache.k[0], cache.v[0]):
        memory.normal_(generator=torch.Generator().manual_seed(99))
    for history in histories:
        history.store(cache)
    width = max(len(history.pages) for history in histories)
    backend = TorchSdpa(cache)
    sequences = Sequences(
        np.array([h.held for h in histories]),
        np.array([h.count for h in histories]),
        np.array([h.pages + [0] * (width - len(h.pages)) for h in histories]),
    )
    new = [
        torch.cat([x[h.held :] for h, x in zip(histories, part, strict=True)])
        for part in ([h.k for h in histories], [h.v for h in histories])
    ]
    q = torch.cat([h.q for h in histories])
    padding = torch.ones(2, KV_HEADS * GROUP, DIM)
    padded = [torch.cat((x, padding[:, : x.shape[1]])) for x in (q, *new)]
    return backend.forward(0, padded[0], padded[1], padded[2], backend.plan(sequences))[: len(q)]


def histories(shapes: list[tuple[int, int]], contiguous: bool, seed: int = 0) -> list[History]:
    generator = torch.Generator().manual_seed(seed)
    pool = list(range(1, PAGES))
    if not contiguous:
        pool = [page + 1 for page in torch.randperm(PAGES - 1, generator=generator).tolist()]
    made = []
    for held, count in shapes:
        need = -(-(held + count) // PAGE)
        made.append(History(held, count, pool[:need], generator))
        pool = pool[need:]
    return made


SHAPES = {
    "one": [(0, 1)],
    "decodes": [(3, 1), (15, 1), (16, 1), (47, 1), (700, 1)],
    "many_decodes": [(17 * i % 97, 1) for i in range(40)],
    "whole_prompt": [(0, 37)],
    "chunk": [(20, 33)],
    "long_chunk": [(130, 600)],
    "mixed": [(5, 1), (90, 1), (0, 1), (0, 20), (64, 16), (31, 2)],
}


@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize("name", SHAPES)
def test_equals_attention_written_out(name: str, contiguous: bool) -> None:
    made = histories(SHAPES[name], contiguous)
    expected = torch.cat([history.expected() for history in made])
    assert torch.allclose(attend(made).double(), expected, atol=2e-6)


def test_a_single_row_is_the_same_alone_and_in_any_group() -> None:
    made = histories(SHAPES["many_decodes"], contiguous=False)
    together = attend(made)
    for i in (0, 7, 23, 39):
        # The library's choice of kernel depends on the shape, and with it the order in which it adds.
        torch.testing.assert_close(attend([made[i]])[0], together[i], rtol=0, atol=1e-6)


def test_a_single_row_is_the_same_wherever_its_pages_lie() -> None:
    shapes = [(210, 1)]
    in_one_run, scattered = histories(shapes, True)[0], histories(shapes, False)[0]
    scattered.q, scattered.k, scattered.v = in_one_run.q, in_one_run.k, in_one_run.v
    torch.testing.assert_close(attend([in_one_run]), attend([scattered]), rtol=0, atol=1e-6)


@pytest.mark.parametrize("number", [torch.nan, torch.inf])
@pytest.mark.parametrize("held", [0, 20])
@pytest.mark.parametrize("count", [1, 21])
def test_what_is_not_finite_shows_in_its_own_row_and_can_be_cleared(number: float, held: int, count: int) -> None:
    """The runner looks at results alone, and counts on both."""
    pages = np.array([[1, 2, 3]])
    cache = KVCache(2, KV_HEADS, 9, PAGE, DIM)
    backend = TorchSdpa(cache)
    generator = torch.Generator().manual_seed(4)
    q, k, v = (torch.randn(count, n, DIM, generator=generator) for n in (KV_HEADS * GROUP, KV_HEADS, KV_HEADS))
    plan = backend.plan(Sequences(np.array([held]), np.array([count]), pages))
    # A key that is infinite hides from the queries that point away from it, but a norm or rotation makes it NaN.
    for poisoned in (k, v) if number != number else (v,):
        clean = poisoned.clone()
        poisoned[-1, :, 3] = number
        for layer in range(2):
            out = backend.forward(layer, q, k, v, plan)
        assert not out[-1].view(-1, DIM)[:, 3].isfinite().any(), "every head of the row shows it"
        poisoned.copy_(clean)
    assert not all(memory.isfinite().all() for memory in (*cache.k, *cache.v))
    backend.clear(np.array([count - 1]), plan)
    assert all(memory.isfinite().all() for memory in (*cache.k, *cache.v))
    place = PAGE + held + count - 1
    assert not any(memory[:, place].any() for memory in (*cache.k, *cache.v))
    assert count == 1 or all(memory[:, place - 1].any() for memory in (*cache.k, *cache.v))
