"""Timers and contacts for exactly the members that there are, in many groups at once."""

from __future__ import annotations

import pytest

from fencepost.coordinator.protocol.consumer import LeaveGroupRequest
from fencepost.coordinator.timers import GroupTimerKey, GroupTimerKind
from tests.unit.simulation.judged_steps import ConsumerScene, beat

SESSION, REBALANCE = GroupTimerKind.SESSION, GroupTimerKind.REBALANCE
MEMORY, TIMERS = {"bounded-memory"}, {"timers-armed"}


def join(group_id, member_id):
    return beat(member_id, 0, group_id=group_id)


def leave(group_id, member_id):
    return LeaveGroupRequest(group_id=group_id, member_id=member_id)


def leak(count):
    def damage(live):
        for number in range(count):
            live.soft.timers.set(GroupTimerKey(SESSION, "gone", str(number)), 9_000)

    return damage


def without(*key):
    return lambda live: live.soft.timers.cancel(GroupTimerKey(*key))


def with_one(*key):
    return lambda live: live.soft.timers.set(GroupTimerKey(*key), 9_000)


def forget_contact(live):
    live.soft.groups["g"].contacts.pop("A")


def keep_group(live):
    for number in range(9):
        live.soft.groups[f"gone {number}"] = live.soft.groups["g"]


FIVE = [join(f"g{number}", member) for number in range(5) for member in "AB"]
TWO = [join("g", member) for member in "AB"]
REVOKING = [*TWO, beat("A", 2)]


@pytest.mark.parametrize(
    ("events", "damage", "found"),
    [
        ([*FIVE, *(leave(f"g{number}", "B") for number in range(5)), join("g0", "C")], leak(7), set()),
        # There may be two for each member, and one for the group's expiration.
        ([*FIVE, join("g", "A")], leak(12), set()),
        ([*FIVE, join("g", "A")], leak(13), MEMORY),
        ([*FIVE, *(leave(f"g{number}", "B") for number in range(5))], leak(7), MEMORY),
        ([*TWO, join("g", "C")], forget_contact, MEMORY),
        ([*TWO, join("g", "C")], keep_group, MEMORY),
        # Timers of the members that an event changed.
        ([join("g", "A")], without(SESSION, "g", "A"), TIMERS),
        ([join("g", "A")], with_one(REBALANCE, "g", "A"), TIMERS),
        ([*TWO, leave("g", "B")], with_one(SESSION, "g", "B"), TIMERS),
        (REVOKING, leak(0), set()),
        (REVOKING, without(REBALANCE, "g", "A"), TIMERS),
        ([*REVOKING, beat("A", 2, "0")], leak(0), set()),
        ([*REVOKING, beat("A", 2, "0")], with_one(REBALANCE, "g", "A"), TIMERS),
    ],
)
def test_soft_state_that_the_members_do_not_need_is_flagged(events, damage, found):
    scene = ConsumerScene()
    for event in events:
        assert scene.found == []
        outcome = scene.live.handle(event, 0)
        scene.live.apply_batch(outcome.records)
        if event is events[-1]:
            damage(scene.live)
        scene.show(event, outcome)
    assert scene.broken == found
