"""The prefix cache: computed pages by the tokens that lead up to their end.

A tree whose node is one full page, so that no node is ever split. A node is found by the hash chain of its tokens
(as in vLLM's automatic prefix caching): keyed BLAKE2b over the parent's hash and the page's tokens, starting from
the model and the request's salt. The key is random per process, so nobody can craft two prefixes of one hash.
"""

from __future__ import annotations

import heapq
import secrets
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from llmrt.cache.pages import NULL_PAGE, PAGE_SIZE, CacheError, PagePool

_HASH_BYTES = 16


class Node:
    """A cached page. ``busy`` when a request holds its page or that of a descendant: it cannot be evicted then.

    ``exact``: it was computed with the exact kernels alone (``llmrt.layers.linear``).
    """

    __slots__ = ("busy", "busy_children", "children", "exact", "hash", "page", "parent", "used")

    def __init__(self, parent: Node | None, hash: bytes, page: int, exact: bool = True) -> None:
        self.parent = parent
        self.hash = hash
        self.page = page
        self.exact = exact
        self.children = 0
        self.busy_children = 0
        self.busy = False
        self.used = 0


@dataclass
class PrefixStats:
    """Counters since start, in tokens: looked up, and found."""

    queries: int = 0
    hits: int = 0


class PrefixCache:
    """Shares the pages of computed prefixes and evicts those that nobody uses, least recently used first."""

    def __init__(self, pool: PagePool, model: str = "", enabled: bool = True) -> None:
        self.pool = pool
        self.enabled = enabled
        self.stats = PrefixStats()
        self.version = 0
        """Grows whenever a page is published or evicted: what :meth:`match` says may have changed."""
        self._model = model.encode()
        self._key = secrets.token_bytes(32)
        self._root = Node(None, b"", NULL_PAGE)
        self._nodes: dict[bytes, Node] = {}
        self._of_page: dict[int, Node] = {}
        self._evictable = 0
        self._clock = 0
        self._leaves: list[tuple[int, int]] = []

    # Hashes

    def chain(self, hashes: list[bytes], tokens: array[int], salt: str) -> None:
        """Extends ``hashes``, the chain of ``tokens``, to every full page of them."""
        if not self.enabled:
            return
        if hashes:
            parent = hashes[-1]
        else:
            start = len(self._model).to_bytes(4, "little") + self._model + salt.encode()
            parent = blake2b(start, digest_size=_HASH_BYTES, key=self._key).digest()
        for start_token in range(len(hashes) * PAGE_SIZE, len(tokens) - PAGE_SIZE + 1, PAGE_SIZE):
            page = tokens[start_token : start_token + PAGE_SIZE].tobytes()
            parent = blake2b(parent + page, digest_size=_HASH_BYTES, key=self._key).digest()
            hashes.append(parent)

    # Sharing

    @property
    def available(self) -> int:
        """Pages that :meth:`allocate` can give: free ones and those that can be evicted."""
        return self.pool.free + self._evictable

    def match(self, hashes: Sequence[bytes], tokens: int, exact: bool = False) -> list[Node]:
        """The longest cached prefix, at most so long that one of ``tokens`` tokens is left to compute.

        With ``exact``, of exact pages alone.
        """
        nodes: list[Node] = []
        for hash in hashes[: (tokens - 1) // PAGE_SIZE]:
            node = self._nodes.get(hash)
            if node is None or (exact and not node.exact):
                break
            nodes.append(node)
        return nodes

    def resting(self, nodes: Sequence[Node]) -> int:
        """How many of ``nodes`` count as available now but no longer once they are held."""
        return sum(not node.busy for node in nodes)

    def hold(self, nodes: Sequence[Node]) -> list[int]:
        """Gives one more request the pages of ``nodes``."""
        for node in nodes:
            self.pool.share(node.page)
            self._set_busy(node)
        return [node.page for node in nodes]

    def allocate(self, count: int, after: int = NULL_PAGE) -> list[int]:
        """Takes ``count`` pages, evicting as many as needed.

        Raises :class:`CacheError` when fewer are :attr:`available`.
        """
        for _ in range(count - self.pool.free):
            self._evict()
        return self.pool.take(count, after)

    def publish(
        self, hashes: Sequence[bytes], pages: Sequence[int], start: int, end: int, parent: Node | None, exact: int
    ) -> Node | None:
        """Makes the computed pages ``start .. end`` of a request findable; ``parent`` is what this returned before.

        The first ``exact`` of its pages were computed exactly.

        ``pages[i]``, held by the request, has the tokens of ``hashes[i]``. Where another request published the same
        tokens first, its page stays the one to share, and it may be evicted while this request goes on: then the
        whole chain is published again.
        """
        if parent is None or self._nodes.get(parent.hash) is not parent:
            start, parent = 0, self._root
        for index in range(start, end):
            node = self._nodes.get(hashes[index])
            parent = node or self._insert(parent, hashes[index], pages[index], index < exact)
        return parent if parent is not self._root else None

    def release(self, pages: Sequence[int]) -> None:
        """A request gives its pages back: published ones stay cached, the others become free."""
        self._clock += 1
        for page in pages:
            if not self.pool.release(page):
                continue
            node = self._of_page.get(page)
            if node is None:
                self.pool.free_page(page)
            else:
                self.pool.keep()
                self._set_idle(node)

    def flush(self) -> int:
        """Evicts every page that nobody uses; returns how many."""
        count = self._evictable
        for _ in range(count):
            self._evict()
        return count

    # The tree

    def _insert(self, parent: Node, hash: bytes, page: int, exact: bool) -> Node:
        node = Node(parent, hash, page, exact)
        parent.children += 1
        self._nodes[hash] = self._of_page[page] = node
        self._evictable += 1
        self._set_busy(node)
        self.version += 1
        return node

    def _set_busy(self, node: Node) -> None:
        while not node.busy and node is not self._root:
            node.busy = True
            self._evictable -= 1
            assert node.parent is not None
            node = node.parent
            node.busy_children += 1

    def _set_idle(self, node: Node) -> None:
        refs = self.pool.refs
        while node.busy and not node.busy_children and not refs[node.page]:
            node.busy = False
            node.used = self._clock
            self._evictable += 1
            if not node.children:
                self._offer(node)
            assert node.parent is not None
            node = node.parent
            node.busy_children -= 1

    def _offer(self, leaf: Node) -> None:
        if len(self._leaves) > 2 * len(self._nodes) + 64:
            self._leaves = [
                (node.used, node.page) for node in self._nodes.values() if not node.busy and not node.children
            ]
            heapq.heapify(self._leaves)
        heapq.heappush(self._leaves, (leaf.used, leaf.page))

    def _evict(self) -> None:
        """Drops the least recently used leaf. Entries of the heap that no longer say the truth are skipped."""
        while self._leaves:
            used, page = heapq.heappop(self._leaves)
            node = self._of_page.get(page)
            if node is None or node.busy or node.children or node.used != used:
                continue
            del self._nodes[node.hash], self._of_page[page]
            self._evictable -= 1
            self.version += 1
            self.pool.discard(page)
            parent = node.parent
            assert parent is not None
            parent.children -= 1
            if not parent.children and not parent.busy and parent is not self._root:
                self._offer(parent)
            return
        raise CacheError("no page can be evicted")

    def __len__(self) -> int:
        return len(self._nodes)

    def verify(self) -> None:
        """Checks pool and tree against each other. Raises :class:`CacheError`."""
        refs = self.pool.refs
        self.pool.verify(page for page in self._of_page if not refs[page])
        children: dict[bytes, list[Node]] = {}
        for node in self._nodes.values():
            assert node.parent is not None
            children.setdefault(node.parent.hash, []).append(node)
        evictable = 0
        for node in self._nodes.values():
            below = children.get(node.hash, [])
            busy_below = sum(child.busy for child in below)
            parent = node.parent
            attached = parent is self._root or (parent is not None and self._nodes.get(parent.hash) is parent)
            counts = (node.children, node.busy_children) == (len(below), busy_below)
            if not attached or not counts or node.busy != bool(refs[node.page] or busy_below):
                raise CacheError(f"the node of page {node.page} disagrees with its neighbours")
            evictable += not node.busy
        if evictable != self._evictable:
            raise CacheError(f"{evictable} pages can be evicted, the counter says {self._evictable}")
