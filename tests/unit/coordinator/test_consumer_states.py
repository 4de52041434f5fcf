"""The tables of groups and members, whole."""

from __future__ import annotations

import pytest

from fencepost.coordinator.consumer.states import (
    GROUP_TABLE,
    MEMBER_TABLE,
    STATES_BY_CODE,
    ConsumerGroupMemberState,
    ConsumerReconciliationStep,
    GroupState,
)
from fencepost.coordinator.protocol.machine import IllegalTransition


@pytest.mark.parametrize("step", ConsumerReconciliationStep)
@pytest.mark.parametrize("state", ConsumerGroupMemberState)
def test_each_step_of_a_reconciliation_has_one_arrow(
    state: ConsumerGroupMemberState, step: ConsumerReconciliationStep
) -> None:
    if (state, step) == (ConsumerGroupMemberState.UNKNOWN, ConsumerReconciliationStep.REVOKE):
        # Such a member goes on only once it owns nothing, so there is nothing left to revoke.
        with pytest.raises(IllegalTransition):
            MEMBER_TABLE.next(state, step)
        return
    expected = {
        ConsumerReconciliationStep.REVOKE: ConsumerGroupMemberState.UNREVOKED_PARTITIONS,
        ConsumerReconciliationStep.WAIT: ConsumerGroupMemberState.UNRELEASED_PARTITIONS,
        ConsumerReconciliationStep.SETTLE: ConsumerGroupMemberState.STABLE,
        ConsumerReconciliationStep.UNREADABLE: ConsumerGroupMemberState.UNKNOWN,
    }
    assert MEMBER_TABLE.next(state, step) is expected[step]


@pytest.mark.parametrize(
    ("code", "name"), [(0, "STABLE"), (1, "UNREVOKED_PARTITIONS"), (2, "UNRELEASED_PARTITIONS")]
)
def test_members_states_have_kafkas_numbers(code: int, name: str) -> None:
    assert STATES_BY_CODE[code].name == name
    assert ConsumerGroupMemberState[name].code == code


@pytest.mark.parametrize("code", [3, 42, 127, -1])
def test_other_numbers_are_unknown(code: int) -> None:
    assert STATES_BY_CODE[code] is ConsumerGroupMemberState.UNKNOWN


def test_a_group_moves_only_along_these_arrows() -> None:
    allowed = {(a.value, b.value) for a in GroupState for b in GroupState if GROUP_TABLE.allows(a, b)}
    assert allowed == {
        ("Empty", "Assigning"),
        ("Empty", "Reconciling"),
        ("Empty", "Stable"),
        ("Empty", "Dead"),
        ("Assigning", "Dead"),
        ("Reconciling", "Dead"),
        ("Stable", "Dead"),
        ("Assigning", "Reconciling"),
        ("Assigning", "Stable"),
        ("Assigning", "Empty"),
        ("Reconciling", "Stable"),
        ("Reconciling", "Assigning"),
        ("Reconciling", "Empty"),
        ("Stable", "Assigning"),
        ("Stable", "Reconciling"),
        ("Stable", "Empty"),
    }
    assert GROUP_TABLE.terminal == (GroupState.DEAD,)
