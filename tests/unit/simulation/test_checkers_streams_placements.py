"""Where a target may put tasks: for each rule a target that breaks it, and one that does not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import pytest

from fencepost.coordinator.protocol.streams import Tasks
from fencepost.simulation.streams.placements import Placement

_Roles: TypeAlias = tuple[Iterable[int], Iterable[int]]


def target(**members: _Roles) -> dict[str, Tasks]:
    """Active and standby tasks of each member."""
    roles = {name: [tuple(role) for role in both] for name, both in members.items()}
    return {
        name: Tasks({"0": active} if active else {}, {"0": standby} if standby else {})
        for name, (active, standby) in roles.items()
    }


def found(
    before: Mapping[str, Tasks],
    after: Mapping[str, Tasks],
    standbys: int = 0,
    processes: Mapping[str, str] | None = None,
) -> list[tuple[str, str]]:
    """What is reported of a target; without `processes` each member is a process of its own."""
    tasks = {("0", number) for one in after.values() for number in one.active.get("0", ())}
    return list(
        Placement(
            processes or {one: one for one in after}, before, after, tasks, standbys=standbys
        ).findings()
    )


def assert_found(findings: list[tuple[str, str]], invariant: str, message: str) -> None:
    """That kind of finding is among them."""
    assert any(name == invariant and message in text for name, text in findings), findings


THREE_FULL = target(a=((0, 1), ()), b=((2, 3), ()), c=((4, 5), ()), d=((), ()))


def test_a_process_with_less_than_its_share_is_found() -> None:
    assert_found(found(THREE_FULL, THREE_FULL), "streams-target", "process d has 0 active tasks")
    fair = {**THREE_FULL, **target(c=((4,), ()), d=((5,), ()))}
    assert found(THREE_FULL, fair) == []


def test_a_full_member_keeps_its_tasks_if_one_has_to_have_more() -> None:
    before = target(a=((0, 1), ()), b=((2, 3), ()), c=((4,), ()), d=((5,), ()))
    taken = {**before, **target(a=((0,), ()), c=((1, 4), ()))}
    assert_found(found(before, taken), "streams-sticky", "1 members keep 2 active tasks")
    assert found(before, before) == []


def test_a_member_that_stood_by_gets_the_active_task() -> None:
    """The process of two members has its share, so that only the wrong member is at fault."""
    processes = {"a": "P", "b": "Q", "c": "Q"}
    before = target(a=((0, 1), ()), b=((), (2,)), c=((3,), ()))
    passed_over = target(a=((0, 1), ()), b=((), ()), c=((2, 3), ()))
    assert_found(found(before, passed_over, processes=processes), "streams-sticky", "('0', 2) passes over b")
    right = target(a=((0, 1), ()), b=((2,), ()), c=((3,), ()))
    assert found(before, right, processes=processes) == []


def test_one_of_several_that_stood_by_gets_the_active_task() -> None:
    before = target(a=((0,), ()), b=((), (1,)), c=((), (1,)))
    assert found(before, target(a=((0,), ()), b=((), ()), c=((1,), ()))) == []


def test_new_active_tasks_go_to_the_process_with_the_least_load() -> None:
    processes = {"a": "P", "b": "P", "c": "P", "d": "Q"}
    uneven = target(a=((0, 1), ()), b=((2, 3), ()), c=((4, 5), ()), d=((6,), ()))
    findings = found({}, uneven, processes=processes)
    assert_found(findings, "streams-target", "process P takes on active tasks up to 6 for 3 members")
    even = target(a=((0, 1), ()), b=((2, 3), ()), c=((4,), ()), d=((5, 6), ()))
    assert found({}, even, processes=processes) == []


def test_new_active_tasks_go_to_the_member_with_the_least_tasks() -> None:
    processes = {"a": "P", "b": "P", "c": "Q", "d": "Q"}
    uneven = target(a=((0, 1), ()), b=((), ()), c=((2,), ()), d=((3,), ()))
    assert_found(
        found({}, uneven, processes=processes), "streams-target", "a takes on active tasks up to 2, b of"
    )
    kept = target(a=((0, 1), ()))
    assert found(kept, uneven, processes=processes) == []


PILED_UP = target(a=((0, 1), (2, 3, 4, 5)), b=((2, 3), (0, 1)), c=((4, 5), ()))
EVEN = target(a=((0, 1), (2, 4)), b=((2, 3), (0, 5)), c=((4, 5), (1, 3)))


@pytest.mark.parametrize("before", [{}, PILED_UP])
def test_standby_tasks_beyond_a_share_are_found(before: Mapping[str, Tasks]) -> None:
    """No matter if the member had them before."""
    assert_found(found(before, PILED_UP, 1), "streams-standby", "a has 6 tasks, its share is 4")
    assert found(before, EVEN, 1) == []


def test_a_process_may_have_more_if_the_others_have_its_tasks() -> None:
    """The last one could go nowhere else: b has it as its active task."""
    after = target(a=((0,), (1, 2)), b=((1,), ()), c=((2,), (0,)))
    assert found({}, after, 1) == []


def test_more_full_members_than_there_may_be_are_found() -> None:
    """Each has no more than the largest share, so that only their number shows the fault."""
    three = target(a=((0,), (1,)), b=((1,), (2,)), c=((2,), (0,)), d=((), ()), e=((), ()))
    assert_found(found(three, three, 1), "streams-standby", "3 members keep more than 1 tasks")
    one = {**three, **target(b=((1,), ()), c=((2,), ()), d=((), (2,)), e=((), (0,)))}
    assert found(three, one, 1) == []


def test_standby_tasks_go_to_the_member_with_the_least_tasks() -> None:
    processes = {"a": "P", "b": "P", "c": "Q"}
    before = target(c=((0, 1), ()))
    uneven = target(a=((), (0, 1)), b=((), ()), c=((0, 1), ()))
    assert_found(
        found(before, uneven, 1, processes), "streams-standby", "a takes on standby tasks up to 2, b of"
    )
    assert found(before, target(a=((), (0,)), b=((), (1,)), c=((0, 1), ())), 1, processes) == []


def test_a_member_that_stood_by_and_has_room_stands_by_again() -> None:
    before = target(a=((0,), (1,)), b=((1,), (2,)), c=((2,), (0,)))
    moved = {**before, **target(a=((0,), ()), c=((2,), (0, 1)))}
    assert_found(found(before, moved, 1), "streams-sticky", "standby of ('0', 1) passes over b, a")
    assert found(before, before, 1) == []


def test_a_previous_owner_that_has_room_stands_by() -> None:
    before = target(a=((0, 1), ()), c=((2,), ()))
    elsewhere = target(a=((0,), ()), b=((1,), (0, 2)), c=((2,), (1,)))
    assert_found(found(before, elsewhere, 1), "streams-sticky", "standby of ('0', 1) passes over a")
    assert found(before, target(a=((0,), (1,)), b=((1,), (2,)), c=((2,), (0,))), 1) == []


def test_a_member_with_room_counts_even_if_another_one_that_stood_by_is_full() -> None:
    """Kafka looks at the one with the least to do, and not at the first."""
    before = target(a=((0,), ()), b=((1,), (0,)), c=((2,), (0,)), d=((3,), ()))
    elsewhere = target(a=((0,), (1,)), b=((1,), (2, 3)), c=((2,), ()), d=((3,), (0,)))
    assert_found(found(before, elsewhere, 1), "streams-sticky", "standby of ('0', 0) passes over a, b, c")
    back = target(a=((0,), (1,)), b=((1,), (2,)), c=((2,), (0,)), d=((3,), (1,)))
    assert all("passes over" not in text for _, text in found(before, back, 1))
