"""The numbers that records have for members' states."""

from __future__ import annotations

import pytest

from fencepost.coordinator.consumer.states import STATES_BY_CODE, ConsumerGroupMemberState


@pytest.mark.parametrize(
    ("code", "name"), [(0, "STABLE"), (1, "UNREVOKED_PARTITIONS"), (2, "UNRELEASED_PARTITIONS")]
)
def test_members_states_have_kafkas_numbers(code: int, name: str) -> None:
    assert STATES_BY_CODE[code].name == name
    assert ConsumerGroupMemberState[name].code == code


@pytest.mark.parametrize("code", [3, 42, 127, -1])
def test_other_numbers_are_unknown(code: int) -> None:
    assert STATES_BY_CODE[code] is ConsumerGroupMemberState.UNKNOWN
