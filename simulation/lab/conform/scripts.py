"""Schedules by hand: what random ones meet seldom, without waiting for anything."""

from __future__ import annotations

from typing import Any

from fencepost.simulation.lab.conform.generate import MISSING, TIMEOUT_MS
from fencepost.simulation.lab.conform.schedule import (
    Beat,
    CommitStep,
    CreateTopicStep,
    DeleteGroup,
    DeleteTopicStep,
    Describe,
    DescribeClassic,
    Epoch,
    Fetch,
    Forget,
    Grow,
    List,
    Owned,
    Remove,
    Removed,
    Step,
)


def join(member: str, *names: str, **fields: Any) -> Beat:
    """A member joins, with these topics or with what the fields say."""
    fields = {"rebalance_timeout_ms": TIMEOUT_MS, "assignor": "range", **fields}
    if names or "regex" not in fields:
        fields["names"] = names
    return Beat(member=member, epoch=0, owned=Owned.EMPTY, **fields)


def confirm(*members: str) -> list[Step]:
    """Each of the members says that it owns what it was assigned."""
    return [Beat(member=member, owned=Owned.ASSIGNED) for member in members]


def simple_group() -> list[Step]:
    """Offsets of a group that nobody joins."""
    x = {"x": (0, 1)}
    return [
        CommitStep(topics=x, epoch=3),
        CommitStep(topics=x, epoch=3, version=8),
        CommitStep(topics={"x": (0,), MISSING: (0,), "z": (7,)}, offset=5),
        Fetch(topics={"x": (0, 1), "z": (7,), MISSING: (0,)}),
        Fetch(),
        List(),
        List(types=("classic",)),
        List(types=("consumer",)),
        List(states=("EMPTY",)),
        Describe(),
        CommitStep(topics=x, member="A", epoch=3),
        CommitStep(topics=x, version=2, offset=6),
        Fetch(topics=x, member="A", epoch=-1),
        Fetch(topics=x, member="A", epoch=3),
        Forget(topics={"x": (1, 9), MISSING: (0,), "y": (0,)}),
        Fetch(),
        DeleteGroup(),
        DeleteGroup(),
        Fetch(),
        Forget(topics=x),
    ]


def simple_then_join() -> list[Step]:
    """A group of offsets gets members, and loses them."""
    return [
        CommitStep(topics={"x": (0,), "y": (0,)}, offset=5),
        join("A", "x"),
        Describe(),
        Fetch(member="A"),
        CommitStep(topics={"x": (0,)}),
        CommitStep(topics={"x": (0,)}, member="A", epoch=Epoch.AHEAD),
        CommitStep(topics={"x": (0,)}, member="A", offset=7),
        Forget(topics={"x": (0,), "y": (0,)}),
        Fetch(member="A"),
        Beat(member="A", epoch=-1),
        Fetch(),
        CommitStep(topics={"x": (0,)}, offset=9),
        Forget(topics={"x": (0, 1)}),
        Describe(),
        DeleteGroup(),
        List(),
    ]


def offsets() -> list[Step]:
    """Commits and fetches of a member, at all epochs and versions."""
    x = {"x": (0,)}
    return [
        join("A", "x"),
        *(
            CommitStep(topics=x, member="A", version=version, offset=version)
            for version in (2, 5, 6, 7, 8, 9, 10)
        ),
        *(CommitStep(topics=x, member="A", epoch=epoch) for epoch in (-1, 0, 1, 99)),
        CommitStep(topics=x, member="B", epoch=2),
        CommitStep(topics=x, member="A", instance="nobody"),
        CommitStep(topics={"x": (0, 9), "y": (0,)}, member="A"),
        CommitStep(topics={"x": (0,), MISSING: (0,)}, member="A", version=10),
        CommitStep(topics=x, member="A", metadata_bytes=4096),
        CommitStep(topics=x, member="A", metadata_bytes=4097),
        *(Fetch(topics=x, member="A", epoch=epoch) for epoch in (Epoch.LAST, -1, 0, 1, 99)),
        Fetch(topics=x, member="B", epoch=2),
        *(Fetch(topics=x, version=version) for version in (1, 2, 6, 7, 8, 9, 10)),
        *(Fetch(version=version) for version in (2, 7, 8, 10)),
        Fetch(topics=x, stable=True),
    ]


def old_epochs() -> list[Step]:
    """KIP-1251: an older epoch may commit what has been held since then."""
    return [
        join("A", "x", "y"),
        join("B", "x"),
        *confirm("A", "B"),
        Beat(member="A", owned=Owned.ASSIGNED),
        CommitStep(topics={"x": (0,)}, member="A", epoch=Epoch.PREVIOUS),
        CommitStep(topics={"x": (3,)}, member="A", epoch=Epoch.PREVIOUS),
        CommitStep(topics={"x": (0, 3)}, member="A", epoch=Epoch.PREVIOUS),
        CommitStep(topics={"x": (0,)}, member="A", epoch=1),
        Beat(member="B", epoch=-1),
        *confirm("A", "A"),
        CommitStep(topics={"x": (3,)}, member="A", epoch=Epoch.PREVIOUS),
        CommitStep(topics={"x": (3,)}, member="A", epoch=Epoch.OLDER),
        CommitStep(topics={"x": (0,)}, member="A", epoch=Epoch.OLDER),
        CommitStep(topics={"x": (3,)}, member="A"),
    ]


def revocation() -> list[Step]:
    """KIP-848, the way of a partition from one member to another."""
    return [
        join("A", "x"),
        join("B", "x"),
        Beat(member="A"),
        Describe(),
        Beat(member="A"),
        Beat(member="A", owned=Owned.BEFORE),
        Beat(member="B"),
        CommitStep(topics={"x": (3,)}, member="A"),
        Beat(member="A", owned=Owned.ASSIGNED),
        Beat(member="B"),
        Beat(member="B", owned=Owned.ASSIGNED),
        Describe(),
    ]


def changed_target() -> list[Step]:
    """A new target comes while a member still revokes."""
    return [
        join("A", "x", "w"),
        join("B", "x", "w"),
        Beat(member="A"),
        join("C", "x", "w"),
        Beat(member="A"),
        Beat(member="A", owned=Owned.PARTIAL),
        Beat(member="A", names=("w",)),
        Describe(),
        Beat(member="A", owned=Owned.ASSIGNED),
        Beat(member="B", epoch=-1),
        *confirm("A", "C", "A", "C", "A"),
    ]


def waits_after_revoking() -> list[Step]:
    """A member lets go, and what it gets instead is still held by another."""
    return [
        join("A", "x"),
        join("D", "w"),
        join("B", "x"),
        Beat(member="A"),
        Beat(member="A", names=("x", "w")),
        Beat(member="A", owned=Owned.ASSIGNED),
        Describe(),
        Beat(member="D"),
        *confirm("A", "D", "A", "B"),
    ]


def goes_while_revoking() -> list[Step]:
    """A static member goes away with partitions that it has to let go."""
    return [
        join("A", "x", instance="i1"),
        join("B", "x"),
        Beat(member="A", instance="i1"),
        Describe(),
        Beat(member="A", epoch=-2, instance="i1"),
        Describe(),
        *confirm("B", "B"),
        join("C", "x", instance="i1"),
        *confirm("C", "B"),
    ]


def lost_answers() -> list[Step]:
    """A member repeats itself because it did not hear."""
    full: dict[str, Any] = {"names": ("x",), "rebalance_timeout_ms": TIMEOUT_MS}
    return [
        join("A", "x", lost=True),
        join("A", "x"),
        join("B", "x"),
        Beat(member="A", owned=Owned.EMPTY, lost=True),
        Beat(member="A"),
        Beat(member="A", owned=Owned.ASSIGNED),
        Beat(member="A", owned=Owned.EMPTY),
        Beat(member="A", owned=Owned.EMPTY, **full),
        *confirm("A", "B"),
        join("C", "x"),
        Beat(member="B", owned=Owned.EMPTY, lost=True),
        Beat(member="B", epoch=Epoch.PREVIOUS, owned=Owned.EMPTY, **full),
        Beat(member="B", owned=Owned.EMPTY, lost=True),
        Beat(member="B", owned=Owned.EMPTY, lost=True),
        Beat(member="B"),
        Beat(member="B", epoch=-1, lost=True),
        Beat(member="B", epoch=-1),
    ]


def static() -> list[Step]:
    """KIP-848, static membership."""
    one: dict[str, Any] = {"instance": "i1"}
    return [
        join("A", "x", **one),
        join("A", "x", **one),
        join("B", "x", **one),
        join("B", "x", instance="i2"),
        Beat(member="A", owned=Owned.ASSIGNED),
        Beat(member="A", owned=Owned.ASSIGNED, **one),
        Beat(member="A", owned=Owned.ASSIGNED, instance="i2"),
        Beat(member="A", owned=Owned.ASSIGNED, instance="i3"),
        Beat(member="A", epoch=-2),
        Beat(member="A", epoch=-2, instance="i3"),
        Beat(member="A", epoch=-2, instance="i2"),
        Beat(member="A", epoch=-1, instance="i2"),
        join("C", "x"),
        Beat(member="A"),
        Describe(),
        Beat(member="A", epoch=-2, **one),
        Beat(member="A", epoch=-2, **one),
        Beat(member="A", **one),
        CommitStep(topics={"x": (0,)}, member="A", epoch=2),
        Describe(),
        *confirm("B", "C"),
        join("D", "x", **one),
        *confirm("D", "B", "C", "D"),
        Beat(member="A", epoch=3, **one),
        Beat(member="D", epoch=-2, **one),
        join("D", "x", **one),
        Beat(member="D", epoch=-2, **one),
        join("E", "x", "y", **one),
        *confirm("E", "B", "C"),
        Beat(member="E", epoch=-1),
        join("F", "x", **one),
    ]


def expressions() -> list[Step]:
    """Expressions come, change and go."""
    return [
        join("A", regex="[xy]"),
        *confirm("A", "A"),
        join("B", regex="[xy]"),
        *confirm("A", "B", "A", "B"),
        Beat(member="A", regex="("),
        Beat(member="A", regex="[xy]", names=("z",)),
        Beat(member="B", regex=""),
        *confirm("A", "B"),
        Beat(member="B", regex="[xy]"),
        *confirm("A", "B", "A", "B"),
        Beat(member="B", names=()),
        Beat(member="A", regex=""),
        Beat(member="A", names=(), regex=""),
        *confirm("A", "B"),
        Beat(member="B", regex="nothing"),
        *confirm("B", "A", "B"),
        Beat(member="B", epoch=-1),
        join("C", "x", regex="[xy]", version=1),
        *confirm("C"),
        Beat(member="C", names=(), regex=""),
        *confirm("C", "C"),
        Beat(member="C", owned=Owned.ASSIGNED, regex="y|z"),
        Beat(member="C", epoch=Epoch.PREVIOUS, owned=Owned.ASSIGNED, names=("x",)),
        join("D", MISSING),
        *confirm("D", "D"),
        Beat(member="D", owned=Owned.ASSIGNED, regex="y|w"),
        Beat(member="D", epoch=Epoch.PREVIOUS, owned=Owned.ASSIGNED),
        Beat(member="C", names=(), regex=""),
        *confirm("C", "C"),
        Beat(member="C", regex="z|w"),
        Beat(member="C"),
    ]


def expression_of_another() -> list[Step]:
    """A member with an expression takes over from one that is away, and brings another expression."""
    return [
        join("A", regex=".*", instance="i1"),
        join("B", "x", "y", instance="i2"),
        Beat(member="B", epoch=-2, instance="i2"),
        join("A", regex="[wm]", instance="i2"),
        Beat(member="A", owned=Owned.ASSIGNED, instance="i2"),
    ]


def topics() -> list[Step]:
    """Topics come, grow and go under the members."""
    return [
        join("A", "x", MISSING),
        join("B", regex="[xm].*"),
        *confirm("A", "B", "A", "B"),
        CreateTopicStep(topic=MISSING, partitions=2),
        CreateTopicStep(topic=MISSING, partitions=2),
        *confirm("A", "B", "A", "B"),
        CommitStep(topics={"x": (0,), MISSING: (1,)}, member="A"),
        Grow(topic="x", partitions=6),
        Grow(topic="x", partitions=6),
        *confirm("B", "A", "B", "A"),
        DeleteTopicStep(topic=MISSING),
        DeleteTopicStep(topic=MISSING),
        Describe(),
        *confirm("A", "B"),
        Fetch(),
        CreateTopicStep(topic=MISSING, partitions=1),
        *confirm("B", "A"),
        Fetch(topics={MISSING: (0, 1)}),
        Fetch(topics={MISSING: (0,)}, version=10),
        DeleteTopicStep(topic="x"),
        *confirm("A", "B", "A"),
    ]


def removals() -> list[Step]:
    """LeaveGroup by an administrator."""
    return [
        Remove(members=(Removed(member="A"),)),
        join("A", "x"),
        join("B", "x", instance="i1"),
        join("C", "x", instance="i2"),
        join("D", "x"),
        Remove(
            members=(Removed(member="nobody"), Removed(instance="i9"), Removed(member="A", instance="i1"))
        ),
        Remove(members=(Removed(instance="i1"), Removed(member="C", instance="i2"), Removed(member="A"))),
        Describe(),
        *confirm("D", "A"),
        Remove(members=(Removed(member="D"),), version=2),
        Remove(members=(Removed(member="D"),), version=2),
        Describe(),
    ]


def life() -> list[Step]:
    """From nothing to nothing."""
    return [
        Describe(),
        DescribeClassic(),
        List(),
        DeleteGroup(),
        Beat(member="A", epoch=1),
        Beat(member="A", epoch=-1),
        join("A", "x"),
        DescribeClassic(),
        DescribeClassic(version=5),
        DeleteGroup(),
        *confirm("A"),
        Describe(version=0),
        Beat(member="A", epoch=-1),
        Describe(),
        Beat(member="A", epoch=-1),
        join("B", "x"),
        Describe(),
        Beat(member="B", epoch=-1),
        DeleteGroup(),
        Describe(),
        join("C", "x"),
    ]


def full(size: int) -> list[Step]:
    """A group takes no more members than the broker allows."""
    joins = [join(f"M{number:02}", "x") for number in range(size - 1)]
    return [
        *joins,
        join("S", "x", instance="i1"),
        join("Z", "x"),
        Beat(member="Z", epoch=5),
        join("M00", "x"),
        Beat(member="S", epoch=-2, instance="i1"),
        join("T", "x", instance="i1"),
        join("Z", "x"),
        Beat(member="M00", epoch=-1),
        join("Z", "x"),
    ]
