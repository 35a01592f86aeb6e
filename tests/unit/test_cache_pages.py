"""The pool of pages: counts, neighbours, misuse."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmrt.cache.pages import CacheError, PagePool, pages_for


def neighbours(pages: list[int]) -> bool:
    return pages == list(range(pages[0], pages[0] + len(pages)))


def test_pages_for() -> None:
    assert [pages_for(tokens) for tokens in (0, 1, 15, 16, 17, 32)] == [0, 1, 1, 1, 2, 2]


def test_the_null_page_is_never_given() -> None:
    pool = PagePool(9)
    assert sorted(pool.take(8)) == list(range(1, 9))
    assert (pool.free, pool.held, pool.total) == (0, 8, 8)
    with pytest.raises(CacheError, match="1 pages wanted, 0 free"):
        pool.take(1)


@pytest.mark.parametrize("num_pages", [0, 1])
def test_a_pool_of_nothing_is_refused(num_pages: int) -> None:
    with pytest.raises(ValueError, match="holds nothing"):
        PagePool(num_pages)


def test_requests_grow_side_by_side_without_mixing() -> None:
    pool = PagePool(1025)
    requests = [pool.take(4) for _ in range(16)]
    for _ in range(20):
        for pages in requests:
            pages += pool.take(1, after=pages[-1])
    assert all(neighbours(pages) for pages in requests)


def test_freed_neighbours_become_one_run_again() -> None:
    pool = PagePool(65)
    pages = [page for _ in range(8) for page in pool.take(8)]
    for page in sorted(pages, key=lambda page: page * 37 % 64):
        assert pool.release(page)
        pool.free_page(page)
    assert neighbours(pool.take(64))


def test_a_page_is_released_by_its_last_holder() -> None:
    pool = PagePool(3)
    (page,) = pool.take(1)
    pool.share(page)
    assert not pool.release(page)
    assert pool.release(page)
    pool.keep()
    assert (pool.free, pool.cached, pool.held) == (1, 1, 0)
    pool.share(page)
    assert (pool.free, pool.cached, pool.held) == (1, 0, 1)
    assert pool.release(page)
    pool.free_page(page)
    with pytest.raises(CacheError, match="nobody holds it"):
        pool.release(page)


def test_verify_notices_a_lost_page() -> None:
    pool = PagePool(5)
    (page,) = pool.take(1)
    pool.verify([])
    pool.release(page)
    with pytest.raises(CacheError, match=rf"lost \[{page}\]"):
        pool.verify([])


@settings(deadline=None)
@given(st.integers(2, 40), st.lists(st.tuples(st.integers(1, 9), st.integers(0, 50), st.booleans()), max_size=60))
def test_random_takes_and_frees_balance(num_pages: int, orders: list[tuple[int, int, bool]]) -> None:
    pool = PagePool(num_pages)
    held: list[int] = []
    for count, pick, give in orders:
        if give and count <= pool.free:
            after = held[pick % len(held)] if held else 0
            taken = pool.take(count, after)
            assert len(set(taken)) == count and not set(taken) & set(held) and 0 not in taken
            held += taken
        elif held:
            page = held.pop(pick % len(held))
            assert pool.release(page)
            pool.free_page(page)
        pool.verify([])
        assert pool.held == len(held)
