"""The prefix cache: what is found, what is shared, what is evicted first."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from llmrt.cache.pages import PAGE_SIZE, CacheError, PagePool
from llmrt.cache.prefix import PrefixCache


def tokens(*pages: int) -> array[int]:
    """Whole pages, each filled with one number."""
    return array("I", [number for number in pages for _ in range(PAGE_SIZE)])


class User:
    """A request as the cache sees it: matches, computes the rest, publishes, releases."""

    def __init__(self, cache: PrefixCache, text: array[int], salt: str = "") -> None:
        self.cache = cache
        self.hashes: list[bytes] = []
        cache.chain(self.hashes, text, salt)
        nodes = cache.match(self.hashes, len(text))
        self.hits = len(nodes)
        self.pages = cache.hold(nodes)
        need = -(-len(text) // PAGE_SIZE) - len(nodes)
        self.pages += cache.allocate(need, self.pages[-1] if nodes else 0)
        self.node = nodes[-1] if nodes else None
        self.published = self.hits

    def publish(self, end: int | None = None) -> User:
        end = len(self.hashes) if end is None else end
        self.node = self.cache.publish(self.hashes, self.pages, self.published, end, self.node, end)
        self.published = max(self.published, end)
        return self

    def leave(self) -> None:
        self.cache.release(self.pages)
        self.pages = []


@pytest.fixture
def cache() -> PrefixCache:
    return PrefixCache(PagePool(9), "model")


def test_a_prefix_is_found_page_by_page(cache: PrefixCache) -> None:
    first = User(cache, tokens(1, 2, 3)).publish()
    assert first.hits == 0
    second = User(cache, tokens(1, 2, 4, 5))
    assert second.hits == 2 and second.pages[:2] == first.pages[:2] and second.pages[2] not in first.pages
    cache.verify()
    assert cache.pool.held == 5


def test_one_token_is_always_left_to_compute(cache: PrefixCache) -> None:
    User(cache, tokens(1, 2)).publish().leave()
    assert User(cache, tokens(1, 2)).hits == 1
    longer = tokens(1, 2)
    longer.append(9)
    assert User(cache, longer).hits == 2


def test_what_is_not_published_is_not_found(cache: PrefixCache) -> None:
    User(cache, tokens(1, 2, 3)).publish(1)
    assert User(cache, tokens(1, 2, 3)).hits == 1


def test_salt_and_model_separate() -> None:
    pool = PagePool(30)
    cache = PrefixCache(pool, "model")
    User(cache, tokens(1, 2, 3), "a").publish()
    assert [User(cache, tokens(1, 2, 3), salt).hits for salt in ("", "b", "a")] == [0, 0, 2]
    hashes: list[list[bytes]] = []
    for model, salt in (("m", "x"), ("mx", ""), ("", "mx")):
        cache._model = model.encode()
        hashes.append([])
        cache.chain(hashes[-1], tokens(1), salt)
    assert len({chain[0] for chain in hashes}) == 3


def test_the_same_page_after_another_prefix_is_another_page(cache: PrefixCache) -> None:
    User(cache, tokens(1, 2, 3)).publish()
    assert User(cache, tokens(9, 2, 3)).hits == 0


def test_hashes_cannot_be_foretold() -> None:
    first, second = (PrefixCache(PagePool(2)) for _ in range(2))
    chains: list[list[bytes]] = [[], []]
    first.chain(chains[0], tokens(1), "")
    second.chain(chains[1], tokens(1), "")
    assert chains[0] != chains[1]


def test_two_that_compute_the_same_keep_their_own_pages(cache: PrefixCache) -> None:
    first, second = User(cache, tokens(1, 2)), User(cache, tokens(1, 2, 3))
    first.publish()
    second.publish()
    assert not set(first.pages) & set(second.pages)
    cache.verify()
    third = User(cache, tokens(1, 2, 3, 4))
    assert third.pages[:3] == [*first.pages[:2], second.pages[2]]
    first.leave()
    third.leave()
    cache.verify()
    # The third page is in use, so the two before it must stay although nobody holds them.
    assert cache.pool.cached == 2 and cache.available == cache.pool.free
    second.leave()
    assert cache.available == cache.pool.total
    cache.verify()


def test_publishing_goes_on_after_the_shared_part_was_evicted(cache: PrefixCache) -> None:
    first, second = User(cache, tokens(1, 2)), User(cache, tokens(1, 2, 3))
    first.publish()
    second.publish(1)
    first.leave()
    cache.flush()
    second.publish()
    cache.verify()
    assert User(cache, tokens(1, 2, 3, 4)).pages[:3] == second.pages[:3]


def test_the_least_recently_used_leaf_goes_first() -> None:
    cache = PrefixCache(PagePool(8))
    for text in (tokens(1, 2), tokens(3, 4), tokens(5, 6)):
        User(cache, text).publish().leave()
    touch = tokens(1)
    touch.append(0)
    User(cache, touch).leave()
    hashes: list[bytes] = []
    cache.allocate(2)
    cache.chain(hashes, tokens(1, 2), "")
    assert len(cache.match(hashes, 99)) == 1, "the leaf of the oldest chain went, not its root"
    cache.allocate(2)
    for text, left in ((tokens(1, 2), 1), (tokens(3, 4), 0), (tokens(5, 6), 2)):
        hashes = []
        cache.chain(hashes, text, "")
        assert len(cache.match(hashes, 99)) == left
    cache.verify()


def test_a_leaf_that_was_used_again_is_young_again() -> None:
    cache = PrefixCache(PagePool(4))
    old, young = User(cache, tokens(1)).publish(), User(cache, tokens(2)).publish()
    old.leave()
    young.leave()
    cache.release(cache.hold(cache.match(old.hashes, 99)))
    cache.allocate(2)
    assert cache.match(old.hashes, 99) and not cache.match(young.hashes, 99)


def test_pages_in_use_are_never_evicted(cache: PrefixCache) -> None:
    user = User(cache, tokens(1, 2, 3)).publish()
    assert cache.available == 5 and cache.flush() == 0
    cache.allocate(5)
    with pytest.raises(CacheError):
        cache.allocate(1)
    assert user.pages == cache.hold(cache.match(user.hashes, 99))


def test_a_disabled_cache_finds_nothing() -> None:
    cache = PrefixCache(PagePool(9), enabled=False)
    User(cache, tokens(1, 2)).leave()
    assert User(cache, tokens(1, 2)).hits == 0 and cache.pool.cached == 0


class CacheMachine(RuleBasedStateMachine):
    """Many users of few pages with much in common; sharing is checked against the texts themselves."""

    @initialize(num_pages=st.integers(4, 20))
    def start(self, num_pages: int) -> None:
        self.cache = PrefixCache(PagePool(num_pages))
        self.users: list[tuple[User, array[int]]] = []
        self.content: dict[int, tuple[int, ...]] = {}

    @rule(text=st.lists(st.integers(1, 2), min_size=1, max_size=6), extra=st.integers(0, 3))
    def enter(self, text: list[int], extra: int) -> None:
        whole = tokens(*text)
        whole.extend([7] * extra)
        hashes: list[bytes] = []
        self.cache.chain(hashes, whole, "")
        nodes = self.cache.match(hashes, len(whole))
        need = -(-len(whole) // PAGE_SIZE) - len(nodes) + self.cache.resting(nodes)
        if need > self.cache.available:
            return
        user = User(self.cache, whole)
        for index, page in enumerate(user.pages):
            upto = tuple(whole[: (index + 1) * PAGE_SIZE])
            if index < user.hits:
                assert self.content[page] == upto
            self.content[page] = upto
        self.users.append((user, whole))

    @precondition(lambda self: self.users)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        user, _ = data.draw(st.sampled_from(self.users))
        if user.published < len(user.hashes):
            user.publish(data.draw(st.integers(user.published + 1, len(user.hashes))))

    @precondition(lambda self: self.users)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.users) - 1))
        self.users.pop(index)[0].leave()

    @rule()
    def flush(self) -> None:
        self.cache.flush()

    @invariant()
    def books_balance(self) -> None:
        if hasattr(self, "cache"):
            self.cache.verify()
            held = {page for user, _ in self.users for page in user.pages}
            assert self.cache.pool.held == len(held)

    def teardown(self) -> None:
        if hasattr(self, "cache"):
            for user, _ in self.users:
                user.leave()
            self.cache.flush()
            assert self.cache.pool.free == self.cache.pool.total and len(self.cache) == 0


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
