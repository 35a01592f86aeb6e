"""When a process of the core is started again, and when it counts as hung."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrt import link, wire
from llmrt.supervisor import core
from llmrt.supervisor.core import FIRST_PAUSE, LEAVE, LONGEST_PAUSE, Member, Restarts


def test_pauses_double_and_too_many_restarts_are_refused() -> None:
    restarts = Restarts(limit=3, window=100.0)
    assert [restarts.pause(now) for now in (0.0, 1.0, 2.0, 3.0)] == [
        FIRST_PAUSE,
        2 * FIRST_PAUSE,
        4 * FIRST_PAUSE,
        None,
    ]
    # The first two no longer count.
    assert restarts.pause(101.5) == 2 * FIRST_PAUSE


@given(st.integers(1, 50), st.lists(st.floats(0, 20), max_size=60))
def test_no_window_ever_holds_more_than_the_limit(limit: int, gaps: list[float]) -> None:
    restarts, window = Restarts(limit, 60.0), 60.0
    now, taken = 0.0, []
    for gap in gaps:
        now += gap
        pause = restarts.pause(now)
        if pause is not None:
            assert FIRST_PAUSE <= pause <= LONGEST_PAUSE
            taken.append(now)
        assert sum(now - window < each for each in taken) <= limit


class FakeChild:
    name, role, index = "the scheduler", "scheduler", 0
    over: str | None = None

    def ended(self) -> str | None:
        return self.over

    def again(self) -> FakeChild:
        return FakeChild()


def joined(peer: int, incarnation: int, role: str = "scheduler") -> link.InboxEvent:
    return link.Joined(peer, wire.Hello(wire.VERSION, role, 0, incarnation))


@pytest.fixture
def member() -> Any:
    child: Any = FakeChild()
    return Member(child)


def test_only_silence_makes_a_process_hung(member: Member) -> None:
    assert not member.hung(60.0)
    assert not member.notice(joined(1, 7, "detokenizer"))
    assert member.notice(joined(2, 8)) and member.incarnation == 8
    assert not member.hung(0.0)
    # It speaks again over another connection, as after a stop of the supervisor.
    member.notice(link.Left(2, "replaced by a successor"))
    assert not member.notice(joined(3, 8)) and not member.hung(0.0)
    member.notice(link.Left(2, "late", silent=True))
    assert not member.hung(0.0)
    member.notice(link.Left(3, "no sign of life", silent=True))
    assert member.hung(60.0)


def test_one_that_leaves_has_to_end_or_to_come_back(member: Member, monkeypatch: pytest.MonkeyPatch) -> None:
    member.notice(joined(1, 7))
    assert member.until_deadline(60.0) is None
    member.notice(link.Left(1, "the engine failed"))
    wait = member.until_deadline(60.0)
    assert member.lingers and wait is not None and LEAVE - 5 < wait <= LEAVE and not member.hung(60.0)
    member.notice(joined(2, 7))
    assert not member.lingers and member.until_deadline(60.0) is None
    member.notice(link.Left(2, "the engine failed"))
    monkeypatch.setattr(core, "LEAVE", 0.0)
    assert member.hung(60.0)
    # Nothing is left to be done about one that has ended: a server that drains goes on without it.
    monkeypatch.setattr(FakeChild, "over", "the scheduler ended")
    assert member.until_deadline(60.0) is None


def test_one_that_does_not_join_in_time_is_hung(member: Member) -> None:
    assert member.until_deadline(60.0) is not None and not member.hung(60.0)
    assert member.hung(0.0)


def test_a_dead_one_rests_and_is_revived(member: Member) -> None:
    member.notice(joined(1, 7))
    took = member.took
    assert member.rest(0.05) == 0.05 + took
    first = member.child
    assert not member.revive() and not member.hung(0.0)
    time.sleep(member.until_deadline(60.0) or 0.0)
    assert member.revive() and member.child is not first
    assert not member.joined and member.incarnation is None and not member.revive()
