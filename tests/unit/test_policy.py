"""Policies: one total order, by pure functions."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmrt import wire
from llmrt.scheduler import policy
from llmrt.scheduler.policy import POLICIES
from llmrt.scheduler.queue import REORDERED, WaitingQueue
from llmrt.scheduler.request import Limits, Request, accept

LIMITS = Limits(max_model_len=100, vocab_size=50, max_num_seqs=4, max_num_batched_tokens=64)


def request(arrival: int, priority: int = 0, matched: int = 0) -> Request:
    made = accept(
        wire.Request(arrival, wire.u32([1]), wire.Sampling(), wire.Output(), priority), LIMITS, frozenset(), arrival, 0
    )
    made.matched = matched
    return made


def order(name: str, requests: list[Request]) -> list[int]:
    return [r.arrival for r in sorted(requests, key=policy.by_name(name).key)]


def test_orders() -> None:
    requests = [request(1, 5, 0), request(2, 0, 2), request(3, 0, 9), request(4, -1, 2)]
    assert order("fcfs", requests) == [1, 2, 3, 4]
    assert order("priority", requests) == [4, 2, 3, 1]
    assert order("lpm", requests) == [3, 2, 4, 1]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 3)), max_size=20))
def test_no_two_requests_are_equal(parts: list[tuple[int, int]]) -> None:
    requests = [request(i, *part) for i, part in enumerate(parts)]
    for each in POLICIES.values():
        assert len({each.key(r) for r in requests}) == len(requests)


def test_unknown_policies_are_named() -> None:
    with pytest.raises(ValueError, match=r"unknown schedule policy 'x'; choose one of fcfs, priority, lpm"):
        policy.by_name("x")


@pytest.mark.parametrize("name", sorted(POLICIES))
@settings(deadline=None)
@given(data=st.data())
def test_the_queue_is_in_order(name: str, data: st.DataObject) -> None:
    pages: dict[int, int] = {}
    queue = WaitingQueue(policy.by_name(name), lambda r: pages.get(r.id, 0))
    alive: list[Request] = []
    for version in range(data.draw(st.integers(1, 25))):
        action = data.draw(st.sampled_from(["push", "push", "pop", "remove", "look"]))
        if action == "push":
            alive.append(request(version, data.draw(st.integers(-1, 1))))
            pages[version] = data.draw(st.integers(0, 3))
            queue.push(alive[-1])
        elif alive and action == "remove":
            queue.remove(alive.pop(data.draw(st.integers(0, len(alive) - 1))))
        elif alive:
            if name == "lpm":
                pages[alive[0].id] = data.draw(st.integers(0, 3))
            head = queue.head(version + 1)
            assert head is min(alive, key=policy.by_name(name).key)
            if action == "pop":
                assert queue.pop() is head
                alive.remove(head)
        assert len(queue) == len(alive)
    assert {r.id for r in queue} == {r.id for r in alive}


def test_a_long_queue_is_not_looked_up_again() -> None:
    looks: list[int] = []
    queue = WaitingQueue(policy.by_name("lpm"), lambda r: looks.append(r.id) or 0)
    for arrival in range(REORDERED + 1):
        queue.push(request(arrival))
    looks.clear()
    queue.head(1)
    assert not looks
    queue.remove(next(iter(queue)))
    queue.head(2)
    assert len(looks) == REORDERED
