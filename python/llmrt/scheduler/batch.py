"""The requests that run: their slots, their pages, and what the next plan tells the ranks of both.

A request gets the pages of all its tokens when it is admitted, one more whenever it outgrows them. When no page can be
had, the last of the running requests in the policy's order gives up its own and waits to be computed again (preemption
by recompute). Nothing waits while holding pages. This makes strict progress: every preemption pays for a page boundary
that another request crosses for good, and a request enters again only when the pages for all its tokens, and one more
for each request that runs, can be had.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable

from llmrt import wire
from llmrt.cache.pages import NULL_PAGE, PAGE_SIZE, CacheError, pages_for
from llmrt.cache.prefix import Node, PrefixCache
from llmrt.scheduler.plan import PageGrant, SlotStart
from llmrt.scheduler.request import NO_SLOT, Request


class Batch:
    """Owns slots and pages. :attr:`running` is in the policy's order."""

    def __init__(
        self, cache: PrefixCache, slots: int, *, displaces: bool, preempted: Callable[[Request], None]
    ) -> None:
        """``displaces``: whether a request may take the place of running ones that come after it in the order.

        ``preempted`` takes a request back that gave up its place.
        """
        self.cache = cache
        self.running: list[Request] = []
        self._slots = slots
        self._free_slots = list(reversed(range(slots)))
        self._displaces = displaces
        self._preempted = preempted
        self._freed: list[int] = []
        self._starts: list[SlotStart] = []
        self._grants: list[PageGrant] = []

    def changes(self) -> tuple[list[int], list[SlotStart], list[PageGrant]]:
        """Slots freed, slots started and pages granted since the last call."""
        changes = self._freed, self._starts, self._grants
        self._freed, self._starts, self._grants = [], [], []
        return changes

    def forget_changes(self) -> None:
        """Nobody knows which part of the changes was carried out; nothing runs, so every slot is freed again."""
        self._freed, self._starts, self._grants = list(range(self._slots)), [], []

    @property
    def may_admit(self) -> bool:
        """Whether a slot is free, or can be got by displacing a request."""
        return bool(self._free_slots) or self._displaces

    def match(self, request: Request) -> list[Node]:
        """The cached pages that ``request`` begins with."""
        # A cached prefix has no logits to look at.
        if request.prompt_logprobs.missing:
            return []
        self.cache.chain(request.hashes, request.tokens, request.salt)
        return self.cache.match(request.hashes, request.length, request.exact)

    def make_room(self, request: Request) -> bool:
        """Whether ``request`` can be started, after displacing running requests that come after it if that helps."""
        if self._fits(request, 0, 0):
            return True
        if not self._displaces or not self.running or self.running[-1].key < request.key:
            return False
        victims = self._victims(request)
        for victim in victims:
            self._preempt(victim)
        # What a victim shared with ``request`` was counted as gained, so look again.
        return bool(victims) and self._fits(request, 0, 0)

    def start(self, request: Request) -> None:
        """Gives ``request`` a slot and pages, for which :meth:`make_room` has found room."""
        nodes = self.match(request)
        cached = self.cache.hold(nodes)
        fresh = self.cache.allocate(pages_for(request.length) - len(cached), cached[-1] if cached else NULL_PAGE)
        request.slot = self._free_slots.pop()
        request.computed = len(cached) * PAGE_SIZE
        request.published = len(cached)
        request.node = nodes[-1] if nodes else None
        tokens = wire.u32(request.tokens)
        self._starts.append(SlotStart(request.slot, request.prompt_tokens, tokens, request.settings()))
        self._grant(request, cached + fresh)
        insort(self.running, request, key=lambda r: r.key)

    def grow(self) -> None:
        """Gives a page to each running request that has outgrown its own, taking from the back of the order."""
        for request in [r for r in self.running if r.room < r.length < r.stop_at]:
            while request.slot != NO_SLOT and not self.cache.available:
                self._preempt(self.running[-1])
            if request.slot != NO_SLOT:
                self._grant(request, self.cache.allocate(1, request.pages[-1]))

    def publish(self, request: Request, computed: int) -> None:
        """Makes the pages of the first ``computed`` tokens findable by later requests."""
        end = computed // PAGE_SIZE
        if end <= request.published:
            return
        if self.cache.enabled:
            self.cache.chain(request.hashes, request.tokens, request.salt)
            exact = end if request.exact else request.prompt_tokens // PAGE_SIZE
            request.node = self.cache.publish(
                request.hashes, request.pages, request.published, end, request.node, exact
            )
        request.published = end

    def leave(self, request: Request) -> None:
        """Takes slot and pages of a running request back."""
        self.running.remove(request)
        self.cache.release(request.pages)
        self._freed.append(request.slot)
        self._free_slots.append(request.slot)
        request.slot = NO_SLOT
        request.pages = []
        request.room = request.computed = request.published = request.watch = 0
        request.node = None

    def verify(self) -> None:
        """Checks slots and pages against each other. Raises :class:`~llmrt.cache.pages.CacheError`."""
        self.cache.verify()
        held = [page for request in self.running for page in request.pages]
        if sum(self.cache.pool.refs) != len(held):
            raise CacheError(f"the pool counts {sum(self.cache.pool.refs)} holders, requests hold {len(held)} pages")
        slots = sorted([request.slot for request in self.running] + self._free_slots)
        if slots != list(range(self._slots)):
            raise CacheError(f"slots in use and free are {slots}")
        keys = [request.key for request in self.running]
        if keys != sorted(keys):
            raise CacheError("the running requests are out of order")

    def _grant(self, request: Request, pages: list[int]) -> None:
        request.pages += pages
        request.room = len(request.pages) * PAGE_SIZE
        self._grants.append(PageGrant(request.slot, wire.u32(pages)))

    def _preempt(self, request: Request) -> None:
        slot = request.slot
        self.leave(request)
        self._starts = [start for start in self._starts if start.slot != slot]
        self._grants = [grant for grant in self._grants if grant.slot != slot]
        request.admissions += 1
        self._preempted(request)

    def _victims(self, request: Request) -> list[Request]:
        """The fewest from the back of the order, all of them after ``request``, whose leaving lets it in."""
        refs = self.cache.pool.refs
        pages = 0
        victims: list[Request] = []
        for victim in reversed(self.running):
            if victim.key < request.key:
                break
            victims.append(victim)
            pages += sum(refs[page] == 1 for page in victim.pages)
            if self._fits(request, pages, len(victims)):
                return victims
        return []

    def _fits(self, request: Request, pages: int, slots: int) -> bool:
        """Whether ``request`` fits once ``pages`` pages and ``slots`` slots more were free."""
        if not self._free_slots and not slots:
            return False
        nodes = self.match(request)
        need = pages_for(request.length) - len(nodes) + self.cache.resting(nodes)
        headroom = len(self.running) - slots
        return need + headroom <= self.cache.available + pages
