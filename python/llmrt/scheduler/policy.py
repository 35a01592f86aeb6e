"""The order in which requests run: one total order, by which they are admitted and victims are picked.

A policy is a pure function from a request to its key; lower keys run first, and no two keys are equal because the
rank of arrival is part of each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from llmrt.scheduler.request import Request

Key = tuple[int, int]


def fcfs(request: Request) -> Key:
    """First come, first served."""
    return (0, request.arrival)


def priority(request: Request) -> Key:
    """Lower ``priority`` first, then by arrival."""
    return (request.priority, request.arrival)


def lpm(request: Request) -> Key:
    """Longest prefix match (as in SGLang): most cached pages first, so that a prefix is used before it is evicted."""
    return (-request.matched, request.arrival)


@dataclass(frozen=True)
class Policy:
    """A key and what may be built on it.

    ``static`` keys never change. Only they let a waiting request displace a running one that comes after it: under a
    key that changes, two requests could displace each other for ever.
    """

    name: str
    key: Callable[[Request], Key]
    static: bool = True


POLICIES = {
    policy.name: policy
    for policy in (Policy("fcfs", fcfs), Policy("priority", priority), Policy("lpm", lpm, static=False))
}


def by_name(name: str) -> Policy:
    """Raises ``ValueError`` with the known names."""
    try:
        return POLICIES[name]
    except KeyError:
        raise ValueError(f"unknown schedule policy {name!r}; choose one of {', '.join(POLICIES)}") from None
