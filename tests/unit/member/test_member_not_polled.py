"""Leaving because the application does not poll, and coming back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.member.base.actions import SendFindCoordinator
from fencepost.member.consumer.actions import SendHeartbeat

MakeRig = Callable[..., Any]
FOO = "foo-id"


def test_a_member_that_is_not_polled_leaves_and_comes_back_with_the_next_poll(rig: MakeRig) -> None:
    r = rig(max_poll_interval_ms=20_000)
    r.stable({FOO: (0,)})
    r.poll_end()
    moved = len(r.moves)
    for _ in range(3):
        r.advance(5_000)
        r.answer()
    r.advance(4_999)
    assert r.state == "STABLE"
    r.advance(1)
    assert r.steps(moved) == [
        "poll timed out -> PREPARE_LEAVING",
        "poll timed out -> LEAVING",
        "leave built -> STALE",
    ]
    assert r.heartbeat().member_epoch == -1
    assert r.fetchable() == {}
    assert r.callback().kind == "lost"
    r.advance(600_000)
    r.answer(-1)
    assert r.open == []
    assert r.state == "STALE"
    r.poll_begin()
    assert r.state == "JOINING"


def test_a_stale_member_rejoins_only_after_on_lost(rig: MakeRig) -> None:
    r = rig(max_poll_interval_ms=1_000)
    r.stable({FOO: (0,)})
    r.poll_end()
    r.advance(1_000)
    r.answer(-1)
    r.poll_begin()
    assert r.state == "STALE"
    assert r.callback().kind == "lost"
    assert r.state == "JOINING"
    assert r.heartbeat().member_epoch == 0


def test_a_static_member_that_is_not_polled_keeps_its_place(rig: MakeRig) -> None:
    r = rig(max_poll_interval_ms=1_000, group_instance_id="host-1")
    r.stable({})
    r.poll_end()
    r.advance(1_000)
    assert r.heartbeat().member_epoch == -2


def test_the_poll_timer_does_not_run_inside_a_poll(rig: MakeRig) -> None:
    r = rig(max_poll_interval_ms=1_000)
    r.stable({})
    for _ in range(10):
        r.advance(5_000)
        r.answer()
    assert r.state == "STABLE"


def test_a_poll_that_raised_starts_the_poll_timer(rig: MakeRig) -> None:
    r = rig(max_poll_interval_ms=1_000)
    r.stable({})
    r.take(r.member.poll_failed(r.now))
    r.advance(1_000)
    assert r.state == "STALE"


def test_a_stale_member_that_unsubscribes_stays_out(rig: MakeRig) -> None:
    r = rig(max_poll_interval_ms=1_000)
    r.stable({})
    r.poll_end()
    r.advance(1_000)
    r.answer(-1)
    r.unsubscribe()
    assert r.leaves_finished() == 1
    r.poll_begin()
    assert r.state == "STALE"
    r.subscribe("foo")
    assert r.state == "JOINING"


def test_a_member_fenced_while_it_is_not_polled_does_not_join(rig: MakeRig) -> None:
    r = rig(max_poll_interval_ms=6_000)
    r.stable({FOO: (0,)})
    r.poll_end()
    r.advance(5_000)
    r.answer(error=ErrorCode.UNKNOWN_MEMBER_ID)
    r.advance(5_000)
    r.callback()
    assert r.state == "STALE"
    assert r.pending(SendHeartbeat) == []
    assert r.pending(SendFindCoordinator) == []
