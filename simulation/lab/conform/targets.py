"""Compares targets of assignors that may choose among equals, or that differ: sizes, moves and validity."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TypeAlias

from fencepost.coordinator.assign.spec import GroupSpec
from fencepost.coordinator.assign.tasks import TaskGroupSpec
from fencepost.coordinator.protocol.ids import MemberId, Partitions, TopicId, partition_count
from fencepost.coordinator.protocol.streams import Tasks

Target: TypeAlias = Mapping[MemberId, Partitions]
TaskTarget: TypeAlias = Mapping[MemberId, Tasks]
Placement: TypeAlias = dict[tuple[TopicId, int], MemberId]


TARGET_RULES: Mapping[str, tuple[str, ...]] = {
    "range": ("assignor.range.equal",),
    "uniform": ("assignor.uniform.valid", "assignor.uniform.sizes", "assignor.uniform.moves"),
}
"""The rules for two targets of an assignor, by assignor."""


def placement(target: Target) -> Placement:
    """Return the member that has each partition."""
    return {
        (topic, number): member
        for member, held in target.items()
        for topic, numbers in held.items()
        for number in numbers
    }


def sizes(target: Target) -> list[int]:
    """Return the sizes of the members that have partitions, sorted."""
    return sorted(size for size in map(partition_count, target.values()) if size)


def moves(before: Placement, after: Placement) -> int:
    """Return the number of partitions that left their owner."""
    return sum(after.get(partition) != member for partition, member in before.items())


def valid(target: Target, spec: GroupSpec) -> bool:
    """Return true if each partition with subscribers is at exactly one of them, and no member has anything
    else."""
    placed = placement(target)
    subscribed = {topic for topics in spec.subscriptions.values() for topic in topics}
    every = {(topic, number) for topic in subscribed for number in range(spec.partitions[topic])}
    once = sum(map(partition_count, target.values())) == len(placed)
    allowed = all(topic in spec.subscriptions.get(member, ()) for (topic, _), member in placed.items())
    return once and allowed and placed.keys() == every


def broken_rules(assignor: str, spec: GroupSpec, ours: Target, theirs: Target) -> list[str]:
    """Return the rules that two targets of an assignor for the same input break."""
    if assignor not in TARGET_RULES:
        return []
    before = placement(spec.targets)
    holds = {
        "assignor.range.equal": placement(ours) == placement(theirs),
        "assignor.uniform.valid": valid(theirs, spec),
        "assignor.uniform.sizes": sizes(ours) == sizes(theirs),
        "assignor.uniform.moves": moves(before, placement(ours)) <= moves(before, placement(theirs)),
    }
    return [rule for rule in TARGET_RULES[assignor] if not holds[rule]]


TASKS_ARE_VALID = "streams.target.valid"
"""The rule for targets of Kafka 4.4, whose task assignor is not the one of 4.3."""


def valid_tasks(target: TaskTarget, spec: TaskGroupSpec) -> bool:
    """Return true if each task is the active task of exactly one member, and there are no other tasks."""
    given = Counter(
        (subtopology, number)
        for tasks in target.values()
        for subtopology, numbers in tasks.active.items()
        for number in numbers
    )
    every = {(subtopology, number) for subtopology, count in spec.tasks.items() for number in range(count)}
    return given.keys() == every and given.total() == len(every)
