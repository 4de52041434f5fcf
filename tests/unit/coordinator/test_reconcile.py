"""Branches of a reconciliation that whole groups hardly show, each as a call of the pure function."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from fencepost.coordinator.consumer.member import ConsumerGroupMember
from fencepost.coordinator.consumer.reconcile import reconcile, releases
from fencepost.coordinator.consumer.states import ConsumerGroupMemberState as S
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError

Held = Mapping[str, tuple[int, ...]]


def member(
    state: S = S.STABLE,
    epoch: int = 2,
    previous: int = 1,
    assigned: Held | None = None,
    pending: Held | None = None,
) -> ConsumerGroupMember:
    assigned, pending = assigned or {}, pending or {}
    epochs: dict[str, dict[int, int]] = {}
    for part in (assigned, pending):
        for topic, numbers in part.items():
            epochs.setdefault(topic, {}).update(dict.fromkeys(numbers, 1))
    return ConsumerGroupMember(
        member_id="A",
        state=state,
        member_epoch=epoch,
        previous_member_epoch=previous,
        assigned=assigned,
        pending_revocation=pending,
        assignment_epochs=epochs,
    )


def step(before: ConsumerGroupMember, **given: Any) -> tuple[str, int, Held, Held]:
    """State, epoch, assigned and pending after one reconciliation; others hold what `taken` says."""
    after = evaluated(before, **given)
    return after.state.name, after.member_epoch, after.assigned, after.pending_revocation


def evaluated(before: ConsumerGroupMember, **given: Any) -> ConsumerGroupMember:
    others: Held = given.pop("taken", {})

    def taken(topic: str, partitions: Iterable[int]) -> set[int]:
        held = {
            *others.get(topic, ()),
            *before.assigned.get(topic, ()),
            *before.pending_revocation.get(topic, ()),
        }
        return held.intersection(partitions)

    arguments = {
        "target_epoch": 3,
        "target": {},
        "subscribed": frozenset({"t", "u"}),
        "names_nothing": False,
        "subscription_changed": False,
        "owned": None,
        **given,
    }
    return reconcile(before, taken=taken, **arguments)


STABLE = member(assigned={"t": (0, 1), "u": (0,)})
UNREVOKED = member(S.UNREVOKED_PARTITIONS, assigned={"t": (0,)}, pending={"t": (1,), "u": (0,)})


class TestWhichBranch:
    def test_stable_at_the_target_is_left_alone(self) -> None:
        assert evaluated(STABLE, target_epoch=2, target={"t": (5,)}) is STABLE

    def test_stable_at_the_target_shrinks_when_it_unsubscribes(self) -> None:
        after = step(STABLE, target_epoch=2, subscription_changed=True, subscribed=frozenset({"t"}))
        assert after == ("UNREVOKED_PARTITIONS", 2, {"t": (0, 1)}, {"u": (0,)})

    def test_a_shrink_that_is_confirmed_at_once_keeps_state_and_epoch(self) -> None:
        changed = {"subscription_changed": True, "subscribed": frozenset({"t"})}
        after = step(STABLE, target_epoch=2, **changed, owned={"t": (0, 1)})
        assert after == ("STABLE", 2, {"t": (0, 1)}, {})

    def test_stable_that_names_nothing_forgets_the_epoch_before(self) -> None:
        """Kafka 4.3.1: an unresolved regular expression names nothing, a topic that is missing is named."""
        empty = member(epoch=2, previous=1)
        changed = {"target_epoch": 2, "subscription_changed": True, "subscribed": frozenset()}
        assert evaluated(empty, **changed) is empty
        for owned in (None, {}):
            after = evaluated(empty, **changed, names_nothing=True, owned=owned)
            assert after == member(epoch=2, previous=2)
        assert evaluated(after, **changed, names_nothing=True) is after

    @pytest.mark.parametrize("owned", [None, {"t": (1,)}, {"u": (0,), "t": (0,)}])
    def test_unrevoked_waits_for_the_confirmation(self, owned: Held | None) -> None:
        assert evaluated(UNREVOKED, owned=owned, target={"t": (0, 1)}) is UNREVOKED

    @pytest.mark.parametrize("owned", [None, {"t": (0,)}])
    def test_an_unknown_state_is_fenced(self, owned: Held | None) -> None:
        with pytest.raises(ProtocolError) as error:
            evaluated(member(S.UNKNOWN, assigned={"t": (0,)}), owned=owned)
        assert error.value.code is ErrorCode.FENCED_MEMBER_EPOCH

    def test_an_unknown_state_starts_over_once_it_owns_nothing(self) -> None:
        after = step(member(S.UNKNOWN, assigned={"t": (0,)}), owned={}, target={"t": (0, 1)})
        assert after == ("STABLE", 3, {"t": (0, 1)}, {})


class TestNext:
    def test_revoke_of_what_the_client_gave_up_already(self) -> None:
        after = step(STABLE, target={"t": (0, 7)}, owned={"t": (0,)})
        assert after == ("STABLE", 3, {"t": (0, 7)}, {})

    def test_a_topic_outside_the_subscription_is_no_target(self) -> None:
        after = step(STABLE, target={"t": (0, 1), "u": (0,), "w": (4,)}, subscribed=frozenset({"t", "w"}))
        assert after == ("UNREVOKED_PARTITIONS", 2, {"t": (0, 1)}, {"u": (0,)})

    def test_epochs_of_partitions(self) -> None:
        after = evaluated(STABLE, target={"t": (0, 1, 5), "u": (0,)})
        assert after.assignment_epochs == {"t": {0: 1, 1: 1, 5: 3}, "u": {0: 1}}
        revoking = evaluated(STABLE, target={"t": (0,)})
        assert revoking.assignment_epochs == {"t": {0: 1, 1: 1}, "u": {0: 1}}

    def test_the_result_is_in_order_of_topics(self) -> None:
        after = evaluated(member(assigned={"u": (0,)}), target={"u": (0, 1), "t": (0,)})
        assert list(after.assigned) == ["t", "u"]


@pytest.mark.parametrize(
    ("owned", "partitions", "expected"),
    [
        (None, {}, False),
        (None, {"t": (0,)}, False),
        ({}, {"t": (0,)}, True),
        ({"t": (1, 2)}, {"t": (0,), "u": (1,)}, True),
        ({"t": (0, 2)}, {"t": (0,)}, False),
        ({"w": (0,)}, {"t": (0,)}, True),
    ],
)
def test_releases(owned: Held | None, partitions: Held, expected: bool) -> None:
    assert releases(owned, partitions) is expected
