"""The pool of KV pages: which are free, and how many requests hold each of the others."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

PAGE_SIZE = 16
"""Tokens per page."""

NULL_PAGE = 0
"""Never granted: kernels may read it for rows that are padding."""


class CacheError(AssertionError):
    """The books of the cache do not balance. A bug, never the fault of a request."""


def pages_for(tokens: int) -> int:
    """Pages that hold ``tokens`` tokens."""
    return -(-tokens // PAGE_SIZE)


class FreeRuns:
    """Free pages as maximal runs of neighbours.

    Attention on a CPU reads a request's pages without a gather when they are neighbours. So a request is placed in
    the longest run and in the middle of it when the run borders on somebody's pages, which leaves both room to grow.
    """

    def __init__(self, first: int, count: int) -> None:
        self._length: dict[int, int] = {}
        self._start_at_end: dict[int, int] = {}
        self._longest: list[tuple[int, int]] = []
        self._first = first
        self.count = 0
        if count:
            self._add(first, count)

    def _add(self, start: int, length: int) -> None:
        self._length[start] = length
        self._start_at_end[start + length] = start
        self.count += length
        if len(self._longest) > 2 * len(self._length) + 64:
            self._longest = [(-size, at) for at, size in self._length.items()]
            heapq.heapify(self._longest)
        else:
            heapq.heappush(self._longest, (-length, start))

    def _remove(self, start: int) -> int:
        length = self._length.pop(start)
        del self._start_at_end[start + length]
        self.count -= length
        return length

    def put(self, page: int) -> None:
        """Makes a page free and joins it with its neighbours."""
        start, length = page, 1
        before = self._start_at_end.get(page)
        if before is not None:
            length += self._remove(before)
            start = before
        if page + 1 in self._length:
            length += self._remove(page + 1)
        self._add(start, length)

    def take(self, count: int, after: int) -> list[int]:
        """Takes ``count`` pages, at best those that follow page ``after``. The caller knows that there are enough."""
        taken: list[int] = []
        if after + 1 in self._length:
            taken = self._cut(after + 1, after + 1, count)
        while len(taken) < count:
            start, length = self._peek_longest()
            rest = count - len(taken)
            offset = (length - rest) // 2 if start > self._first and length > rest else 0
            taken += self._cut(start, start + offset, rest)
        return taken

    def _peek_longest(self) -> tuple[int, int]:
        while True:
            negative, start = self._longest[0]
            if self._length.get(start) == -negative:
                return start, -negative
            heapq.heappop(self._longest)

    def _cut(self, run: int, start: int, count: int) -> list[int]:
        """Takes up to ``count`` pages from ``start`` on out of the run that begins at ``run``."""
        end = run + self._remove(run)
        stop = min(start + count, end)
        if run < start:
            self._add(run, start - run)
        if stop < end:
            self._add(stop, end - stop)
        return list(range(start, stop))

    def pages(self) -> set[int]:
        """Every free page (for checks)."""
        return {page for start, length in self._length.items() for page in range(start, start + length)}


class PagePool:
    """Pages ``1 .. num_pages - 1``. A page is free, held (by as many requests as ``refs`` says) or cached.

    The pool does not know what a cached page holds: the prefix cache takes a released page into its care with
    :meth:`keep` and gives it back with :meth:`discard`.
    """

    def __init__(self, num_pages: int) -> None:
        """``num_pages`` counts the null page. Raises ``ValueError`` when no page is left to use."""
        if num_pages < 2:
            raise ValueError(f"a pool of {num_pages} pages holds nothing; page {NULL_PAGE} is never used")
        self.total = num_pages - 1
        self.refs = [0] * num_pages
        self.cached = 0
        self._free = FreeRuns(NULL_PAGE + 1, self.total)

    @property
    def free(self) -> int:
        """Pages that hold nothing."""
        return self._free.count

    @property
    def held(self) -> int:
        """Pages that at least one request holds."""
        return self.total - self._free.count - self.cached

    def take(self, count: int, after: int = NULL_PAGE) -> list[int]:
        """Takes ``count`` free pages for one holder, at best those that follow ``after``.

        Raises :class:`CacheError` when fewer are free.
        """
        if count > self._free.count:
            raise CacheError(f"{count} pages wanted, {self._free.count} free")
        pages = self._free.take(count, after)
        for page in pages:
            self.refs[page] = 1
        return pages

    def share(self, page: int) -> None:
        """One more request holds ``page``, which is held or cached."""
        if not self.refs[page]:
            self.cached -= 1
        self.refs[page] += 1

    def release(self, page: int) -> bool:
        """One request fewer holds ``page``.

        True when it was the last: :meth:`keep` or :meth:`free_page` must follow. Raises :class:`CacheError` when
        nobody holds it.
        """
        if not self.refs[page]:
            raise CacheError(f"page {page} was released but nobody holds it")
        self.refs[page] -= 1
        return not self.refs[page]

    def keep(self) -> None:
        """A page that its last holder released stays, as cached."""
        self.cached += 1

    def free_page(self, page: int) -> None:
        """A page that its last holder released becomes free."""
        self._free.put(page)

    def discard(self, page: int) -> None:
        """A cached page becomes free."""
        self.cached -= 1
        self._free.put(page)

    def verify(self, cached: Iterable[int]) -> None:
        """Checks that ``free + cached + held == total``, page by page. Raises :class:`CacheError`."""
        free = self._free.pages()
        resting = set(cached)
        holding = {page for page, refs in enumerate(self.refs) if refs}
        every = set(range(1, self.total + 1))
        if free | resting | holding != every or len(free) + len(resting) + len(holding) != self.total:
            raise CacheError(
                f"{len(free)} free + {len(resting)} cached + {len(holding)} held pages are not {self.total}; "
                f"lost {sorted(every - free - resting - holding)[:8]}"
            )
        if (len(free), len(resting)) != (self.free, self.cached):
            raise CacheError(f"counters say {self.free} free, {self.cached} cached; {len(free)}, {len(resting)} are")
