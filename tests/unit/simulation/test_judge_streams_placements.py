"""Where a target may put tasks: for each rule a target that breaks it, and one that does not.

A target is written as `a01/2`: member a has the active tasks 0 and 1, and stands by for 2.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from fencepost.coordinator.protocol.streams import Tasks
from fencepost.coordinator.streams.member import StreamsGroupMember
from fencepost.simulation.streams.placements import Placement
from fencepost.simulation.streams.targets import ExpectedTopics, TargetInput, targets


def target(text: str) -> dict[str, Tasks]:
    """Active and standby tasks of each member."""
    roles = {one[0]: [tuple(map(int, role)) for role in one[1:].split("/")] for one in text.split()}
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


FULL = "a01/ b23/ c45/ d/"
KEPT = "a01/ b23/ c4/ d5/"
PILED_UP = "a01/2345 b23/01 c45/"
THREE = "a0/1 b1/2 c2/0 d/ e/"
STOOD = "a0/1 b1/2 c2/0"


@pytest.mark.parametrize(
    ("processes", "standbys", "before", "wrong", "invariant", "message", "right"),
    [
        # A process has its share of the active tasks.
        ("abcd", 0, FULL, FULL, "target", "process d has 0 active tasks", "a01/ b23/ c4/ d5/"),
        # A full member keeps its tasks if one has to have more.
        ("abcd", 0, KEPT, "a0/ b23/ c14/ d5/", "sticky", "1 members keep 2 active tasks", KEPT),
        # Who stood by gets the active task. Its process has its share: only the wrong member is at fault.
        ("abb", 0, "a01/ b/2 c3/", "a01/ b/ c23/", "sticky", "('0', 2) passes over b", "a01/ b2/ c3/"),
        # New active tasks go to the process with the least load, and there to the member with the fewest.
        (
            "aaad",
            0,
            "",
            "a01/ b23/ c45/ d6/",
            "target",
            "process a takes on active tasks up to 6 for 3 members",
            "a01/ b23/ c4/ d56/",
        ),
        ("aacc", 0, "", "a01/ b/ c2/ d3/", "target", "a takes on active tasks up to 2, b of", None),
        ("aacc", 0, "a01/", None, "", "", "a01/ b/ c2/ d3/"),
        # Standby tasks beyond a share, no matter if the member had them before.
        ("abc", 1, "", PILED_UP, "standby", "a has 6 tasks, its share is 4", "a01/24 b23/05 c45/13"),
        ("abc", 1, PILED_UP, PILED_UP, "standby", "a has 6 tasks, its share is 4", "a01/24 b23/05 c45/13"),
        # Each has no more than the largest share, so that only their number shows the fault.
        ("abcde", 1, THREE, THREE, "standby", "3 members keep more than 1 tasks", "a0/1 b1/ c2/ d/2 e/0"),
        # A process may have more if the others have its tasks: b has the last one as its active task.
        ("abc", 1, "", None, "", "", "a0/12 b1/ c2/0"),
        # Standby tasks go to the member with the least tasks.
        (
            "aac",
            1,
            "c01/",
            "a/01 b/ c01/",
            "standby",
            "a takes on standby tasks up to 2, b of",
            "a/0 b/1 c01/",
        ),
        # Who stood by and has room stands by again, and so does a previous owner.
        ("abc", 1, STOOD, "a0/ b1/2 c2/01", "sticky", "standby of ('0', 1) passes over b, a", STOOD),
        ("abc", 1, "a01/ c2/", "a0/ b1/02 c2/1", "sticky", "standby of ('0', 1) passes over a", STOOD),
        # One of several that stood by gets the active task.
        ("abc", 0, "a0/ b/1 c/1", None, "", "", "a0/ b/ c1/"),
    ],
)
def test_targets(
    processes: str,
    standbys: int,
    before: str,
    wrong: str | None,
    invariant: str,
    message: str,
    right: str | None,
) -> None:
    names = dict(zip("abcde", processes, strict=False))
    if wrong is not None:
        findings = found(target(before), target(wrong), standbys, names)
        assert any(f"streams-{invariant}" == name and message in text for name, text in findings), findings
    if right is not None:
        assert found(target(before), target(right), standbys, names) == []


def test_a_member_with_room_counts_even_if_another_one_that_stood_by_is_full() -> None:
    """Kafka looks at the one with the least to do, and not at the first."""
    before = target("a0/ b1/0 c2/0 d3/")
    elsewhere = found(before, target("a0/1 b1/23 c2/ d3/0"), 1)
    assert any("standby of ('0', 0) passes over a, b, c" in text for _, text in elsewhere)
    back = target("a0/1 b1/2 c2/0 d3/1")
    assert all("passes over" not in text for _, text in found(before, back, 1))


@pytest.mark.parametrize(
    ("before", "after", "standbys", "broken"),
    [
        ("a01/23 b23/01", "a01/23 b23/01", 1, set()),
        ("a01/ b23/", "a23/ b01/", 0, {"streams-sticky"}),
        ("a01/2 b2/03 c3/1", "a01/3 b2/0 c3/12", 1, {"streams-sticky"}),
        # It may move to a process that has less to do.
        ("a01/23 b2/01 c3/", "a01/3 b2/01 c3/2", 1, set()),
        ("a01/01 b23/23", "a01/01 b23/23", 1, {"streams-standby"}),
        # Of several standby tasks only the first has to stay: Kafka 4.3 looks at no second one (KAFKA-20899).
        ("a0/23 b1/03 c2/01 d3/12", "a0/13 b1/02 c2/13 d3/02", 2, set()),
        ("a0/3 b1/0 c2/1 d3/2", "a0/1 b1/2 c2/3 d3/0", 1, {"streams-sticky"}),
    ],
)
def test_a_target_of_members_that_were_there(
    before: str, after: str, standbys: int, broken: set[str]
) -> None:
    members = {one: StreamsGroupMember(member_id=one, process_id=one) for one in target(after)}
    expected = ExpectedTopics({"0": 4}, frozenset({"0"}), frozenset(), None)
    given = TargetInput(members, target(before), members, target(after), expected, standbys)
    assert {invariant for invariant, _ in targets(given)} == broken
