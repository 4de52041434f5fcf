"""The model of a consumer group's heartbeat: one true step, one thing changed, and what must follow."""

from __future__ import annotations

import pytest

from fencepost.coordinator.protocol.ids import NO_PARTITIONS
from fencepost.simulation.judge import consumer_model as model
from fencepost.simulation.judge.consumer_model import (
    STABLE,
    UNRELEASED,
    UNREVOKED,
    CoordinatorChoice,
    Standing,
)

X, Y = "X", "Y"
ALL = {X: (0, 1, 2, 3)}
LEFT, RIGHT = {X: (0, 1)}, {X: (2, 3)}


def choice(
    target=LEFT, *, epoch=3, topics=(X,), changed=False, nothing=False, taken=NO_PARTITIONS
) -> CoordinatorChoice:
    return CoordinatorChoice(
        epoch, target, frozenset(topics), changed, nothing, lambda wanted: model.both(wanted, taken)
    )


def at(state=STABLE, epoch=2, previous=2, assigned=ALL, revoking=NO_PARTITIONS) -> Standing:
    return Standing(state, epoch, previous, assigned, revoking)


REVOKING = at(UNREVOKED, assigned=LEFT, revoking=RIGHT)


@pytest.mark.parametrize(
    ("before", "owned", "chosen", "after"),
    [
        # It has reached its target: nothing changes, whatever it lists.
        (at(epoch=3, assigned=LEFT), None, choice(), at(epoch=3, assigned=LEFT)),
        # A new target with the same partitions moves the epoch.
        (at(assigned=LEFT), None, choice(), at(epoch=3, previous=2, assigned=LEFT)),
        # Partitions outside of the target are revoked first, at the same epoch (KAFKA-19974).
        (at(), None, choice(), REVOKING),
        (at(), ALL, choice(), REVOKING),
        # One that lists its partitions without them has released them.
        (at(), LEFT, choice(), at(epoch=3, previous=2, assigned=LEFT)),
        (REVOKING, None, choice(), REVOKING),
        (REVOKING, {X: (0, 1, 2)}, choice(), REVOKING),
        (REVOKING, LEFT, choice(), at(epoch=3, previous=2, assigned=LEFT)),
        # A target that gives them back does not cancel the revocation.
        (REVOKING, None, choice(ALL), REVOKING),
        # What the member releases itself is free for it (KAFKA-19449).
        (REVOKING, LEFT, choice(ALL, taken=RIGHT), at(epoch=3, previous=2)),
        # Partitions of others are waited for, at the new epoch.
        (
            at(assigned=LEFT),
            None,
            choice(ALL, taken={X: (3,)}),
            at(UNRELEASED, 3, 2, {X: (0, 1, 2)}),
        ),
        (at(UNRELEASED, 3, 2, {X: (0, 1, 2)}), None, choice(ALL), at(epoch=3, previous=3)),
        # Topics that it does not subscribe to are not given (KAFKA-19431).
        (at(assigned=LEFT), None, choice({**LEFT, Y: (0,)}), at(epoch=3, previous=2, assigned=LEFT)),
        # A dropped topic goes at once, also while the target's epoch is reached or a revocation waits.
        (
            at(assigned={**LEFT, Y: (0,)}),
            None,
            choice(epoch=2, changed=True),
            at(UNREVOKED, assigned=LEFT, revoking={Y: (0,)}),
        ),
        (at(assigned={**LEFT, Y: (0,)}), LEFT, choice(epoch=2, changed=True), at(assigned=LEFT)),
        (
            at(UNREVOKED, assigned={**LEFT, Y: (0,)}, revoking=RIGHT),
            None,
            choice(changed=True),
            at(UNREVOKED, assigned=LEFT, revoking={**RIGHT, Y: (0,)}),
        ),
    ],
)
def test_one_place_follows_from_a_request(before, owned, chosen, after):
    assert model.standings(before, owned, chosen) == (after,)


@pytest.mark.parametrize("owned", [None, ALL, LEFT, {}])
@pytest.mark.parametrize("before", [at(), REVOKING, at(assigned=LEFT)])
def test_a_judge_without_the_request_expects_what_any_request_leads_to(before, owned):
    seen = model.standings(before, owned, choice())
    assert set(map(str, seen)) <= set(map(str, model.standings(before, model.UNSEEN, choice())))


def test_a_member_that_goes_away_keeps_what_it_is_assigned():
    assert model.away(REVOKING) == at(UNREVOKED, -2, 2, LEFT)


def test_partitions_keep_the_epoch_since_which_they_are_held():
    known = {X: {0: 1, 1: 2, 2: 1, 3: 1}}
    grown = at(epoch=5, previous=2, assigned={X: (0, 1, 2)}, revoking=NO_PARTITIONS)
    assert model.held_since(known, at(assigned=LEFT), grown) == {X: {0: 1, 1: 2, 2: 5}}
    assert model.held_since(known, at(), model.away(at(assigned=LEFT))) == {X: {0: 0, 1: 0}}


@pytest.mark.parametrize(
    ("group", "target", "waited_ms", "due"),
    [(3, 3, 9_999, False), (3, 2, 999, False), (3, 2, 1_000, True), (2, 1, 0, True)],
)
def test_a_target_is_due_once_per_interval(group, target, waited_ms, due):
    assert model.is_target_due(group, target, waited_ms, 1_000) is due
