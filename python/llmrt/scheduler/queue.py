"""The requests that wait, in the order of the policy."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator

from llmrt.scheduler.policy import Key, Policy
from llmrt.scheduler.request import Request

REORDERED = 256
"""Longest queue whose changing keys are looked up again; a longer one keeps the keys of arrival."""


def _descending(request: Request) -> Key:
    first, second = request.key
    return (-first, -second)


class WaitingQueue:
    """A sorted list whose head is its last element, so that taking the head moves nothing."""

    def __init__(self, policy: Policy, matched: Callable[[Request], int]) -> None:
        """``matched`` says how many pages of a request's prefix are cached; only changing keys ask for it."""
        self._policy = policy
        self._matched = matched
        self._items: list[Request] = []
        self._version = 0

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Request]:
        """From the head on."""
        return reversed(self._items)

    def push(self, request: Request) -> None:
        """Takes a request in, at its place."""
        self._set_key(request)
        insort(self._items, request, key=_descending)

    def head(self, version: int) -> Request:
        """The first request. ``version`` is that of the prefix cache: a new one may change the order."""
        if not self._policy.static and version != self._version and len(self._items) <= REORDERED:
            self._version = version
            for request in self._items:
                self._set_key(request)
            self._items.sort(key=_descending)
        return self._items[-1]

    def pop(self) -> Request:
        """Takes the first request out."""
        return self._items.pop()

    def remove(self, request: Request) -> None:
        """Takes a request out, wherever it stands."""
        self._items.remove(request)

    def _set_key(self, request: Request) -> None:
        if not self._policy.static:
            request.matched = self._matched(request)
        request.key = self._policy.key(request)
