"""Every arrow of the member's table is taken by some history, but for those declared as never taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.member.consumer.states import ACTIVE, CONSUMER_MEMBER, NEVER_TAKEN

MakeRig = Callable[..., Any]
FOO = "foo-id"
MAX_POLL_MS = 20_000


def reach(r: Any, state: str) -> None:
    """Bring a member to an active state, its heartbeat in flight, the application in poll."""
    r.join("foo")
    if state != "JOINING":
        r.answer(2, {FOO: (0,)})
        r.advance(5_000)
    if state in ("ACKNOWLEDGING", "STABLE"):
        r.callback()
    if state == "STABLE":
        r.answer(2)
    assert r.state == state


def end(r: Any, event: str) -> None:
    """Make an active member leave its state by this event."""
    if event == "poll timed out":
        r.poll_end()
        r.now += MAX_POLL_MS
        r.take(r.member.deadline_reached(r.now))
    elif event in ("unsubscribe", "close"):
        r.take(getattr(r.member, event)(r.now))
    else:
        code = ErrorCode.UNKNOWN_MEMBER_ID if event == "fenced" else ErrorCode.INVALID_REQUEST
        r.answer(error=code)


def moves(r: Any) -> set[tuple[str, str, str]]:
    return {(str(move.source), str(move.event), str(move.target)) for move in r.moves}


EVENTS = ("fenced", "fatal error", "poll timed out", "unsubscribe", "close")


def leave_every_active_state(make: MakeRig) -> set[tuple[str, str, str]]:
    taken = set()
    for state in ACTIVE:
        for event in EVENTS:
            r = make(max_poll_interval_ms=MAX_POLL_MS)
            reach(r, state)
            end(r, event)
            taken |= moves(r)
    return taken


def leave_fenced_and_stale(make: MakeRig) -> set[tuple[str, str, str]]:
    taken = set()
    for event in ("unsubscribe", "close", None):
        r = make()
        r.stable({FOO: (0,)})
        r.advance(5_000)
        end(r, "fenced")
        if event is not None:
            end(r, event)
        r.callback()
        taken |= moves(r)
    r = make(max_poll_interval_ms=MAX_POLL_MS)
    r.stable({})
    end(r, "poll timed out")
    r.poll_begin()
    return taken | moves(r)


def leave_prepare_leaving(make: MakeRig) -> set[tuple[str, str, str]]:
    taken = set()
    for event in ("fenced", "fatal error", "released", "never joined"):
        r = make()
        if event == "never joined":
            end(r, "close")
        else:
            r.stable({FOO: (0,)})
            r.advance(5_000)
            end(r, "unsubscribe")
            if event != "released":
                end(r, event)
            r.callback()
        taken |= moves(r)
    return taken


def reconcile(make: MakeRig) -> set[tuple[str, str, str]]:
    taken = set()
    for assignments in ([{FOO: (0,)}, {FOO: (0, 1)}], [{}, {FOO: (0,)}]):
        r = make()
        r.stable({FOO: (0,)})
        r.poll_end()
        for assignment in assignments:
            r.advance(5_000)
            r.answer(2, assignment)
        taken |= moves(r)
    for second in ({FOO: (1,)}, {FOO: (0, 1)}):
        r = make()
        r.join("foo")
        r.answer(2, {FOO: (0,)})
        r.advance(5_000)
        if second == {FOO: (1,)}:
            r.answer(2, second)
        r.callback()
        if second != {FOO: (1,)}:
            r.answer(2, second)
        taken |= moves(r)
    r = make()
    r.stable({})
    r.advance(5_000)
    r.answer(2, {FOO: (0,)})
    return taken | moves(r)


@pytest.mark.parametrize("state", ACTIVE)
@pytest.mark.parametrize("event", EVENTS)
def test_an_active_member_can_be_ended_at_any_time(rig: MakeRig, state: str, event: str) -> None:
    r = rig(max_poll_interval_ms=MAX_POLL_MS)
    reach(r, state)
    before = len(r.moves)
    end(r, event)
    assert (str(r.moves[before].source), str(r.moves[before].event)) == (state, event)


def test_every_arrow_is_taken(rig: MakeRig) -> None:
    histories = (leave_every_active_state, leave_fenced_and_stale, leave_prepare_leaving, reconcile)
    taken = set().union(*(history(rig) for history in histories))
    never = {tuple(map(str, arrow)) for arrow in NEVER_TAKEN}
    assert taken | never == {tuple(map(str, arrow)) for arrow in CONSUMER_MEMBER.transitions}
    assert not taken & never
