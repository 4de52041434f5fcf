"""The `uniform` assignor for groups whose members all subscribe to the same topics.

Members keep what they have up to their quota, in the order of the specification; free partitions go to
members below their quota. Sizes differ by at most one, and no partition moves without need. An unchanged
target stays the same object, so that a caller can compare by identity. A join costs one look at each member,
not at each partition. (Kafka's UniformAssignor, KIP-848 Server-side Assignors.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import compress

from fencepost.coordinator.assign.spec import GroupSpec
from fencepost.coordinator.assign.uniform_mixed import uniform_mixed
from fencepost.coordinator.protocol.ids import NO_PARTITIONS, MemberId, Partitions, TopicId, partition_count


def uniform(spec: GroupSpec) -> Mapping[MemberId, Partitions]:
    """Return a balanced target that moves as few partitions as it can; every member is in it."""
    if not spec.subscriptions:
        return {}
    if len(spec.subscriptions) == 1:
        return _all_to_one(spec)
    return _uniform_equal(spec) if spec.homogeneous else uniform_mixed(spec)


def _all_to_one(spec: GroupSpec) -> dict[MemberId, Partitions]:
    ((member, topics),) = spec.subscriptions.items()
    everything = {topic: tuple(range(spec.partitions[topic])) for topic in topics if spec.partitions[topic]}
    held = spec.targets.get(member)
    return {member: held if held == everything and [*held] == [*everything] else everything}


def _uniform_equal(spec: GroupSpec) -> dict[MemberId, Partitions]:
    old = spec.targets.get
    target = {member: old(member, NO_PARTITIONS) for member in spec.subscriptions}
    topics = next(iter(spec.subscriptions.values()))
    held_topics: set[TopicId] = set().union(*target.values())
    if not held_topics.issubset(topics):
        subscribed = frozenset(topics)
        target = {member: _within(held, subscribed) for member, held in target.items()}
    sizes = list(map(partition_count, target.values()))
    total = sum(map(spec.partitions.__getitem__, topics))
    # Targets are disjoint, so counting proves that nothing is free without looking at any partition.
    free = _Free(_unassigned(spec, topics, target) if sum(sizes) != total else ())
    surplus, vacant = _quotas(target, sizes, total)
    for member, quota in surplus:
        target[member] = free.trim(target[member], quota)
    for member, missing in vacant:
        target[member] = free.fill(target[member], missing)
    return target


def _quotas(
    target: Mapping[MemberId, Partitions], sizes: Sequence[int], total: int
) -> tuple[list[tuple[MemberId, int]], list[tuple[MemberId, int]]]:
    """Return the members above their quota, with that quota, and those below it, with the number that is
    missing.

    `extra` members may hold one more than the others. Members that hold it already keep it, in their order. A
    member that cannot use it passes it on, as long as enough later members may take it.
    """
    share, extra = divmod(total, len(sizes))
    surplus = []
    vacant = []
    following = len(sizes)
    for member, size in zip(target, sizes, strict=True):
        quota = share + 1 if extra else share
        if size < quota and extra and following > extra:
            quota -= 1
        elif extra:
            extra -= 1
        if size > quota:
            surplus.append((member, quota))
        elif size < quota:
            vacant.append((member, quota - size))
        following -= 1
    return surplus, vacant


def _within(held: Partitions, subscribed: frozenset[TopicId]) -> Partitions:
    if subscribed.issuperset(held):
        return held
    return {topic: numbers for topic, numbers in held.items() if topic in subscribed}


def _unassigned(
    spec: GroupSpec, topics: Sequence[TopicId], target: Mapping[MemberId, Partitions]
) -> list[tuple[TopicId, Sequence[int]]]:
    """Return the partitions that are in no target, topic by topic, ascending."""
    free: dict[TopicId, bytearray] = {}
    for held in target.values():
        for topic, numbers in held.items():
            marks = free.get(topic)
            if marks is None:
                marks = free[topic] = bytearray(b"\1") * spec.partitions[topic]
            for number in numbers:
                marks[number] = 0
    every = [(topic, range(spec.partitions[topic])) for topic in topics]
    return [
        (topic, list(compress(numbers, free[topic])) if topic in free else numbers)
        for topic, numbers in every
    ]


class _Free:
    """Partitions without a member, in the order in which they are given away."""

    def __init__(self, runs: Sequence[tuple[TopicId, Sequence[int]]]) -> None:
        self._runs = [run for run in runs if run[1]]
        self._run = 0
        self._within_run = 0

    def trim(self, held: Partitions, quota: int) -> Partitions:
        """Return the first `quota` partitions of a target; the others are free from now on, last in order."""
        kept = {}
        for topic, numbers in held.items():
            if quota > 0:
                kept[topic] = numbers[:quota]
            if quota < len(numbers):
                self._runs.append((topic, numbers[quota:]))
            quota = max(0, quota - len(numbers))
        return kept

    def fill(self, held: Partitions, missing: int) -> Partitions:
        """Return a target with `missing` more partitions."""
        filled = dict(held)
        while missing:
            topic, numbers = self._runs[self._run]
            taken = numbers[self._within_run : self._within_run + missing]
            missing -= len(taken)
            self._within_run += len(taken)
            if self._within_run == len(numbers):
                self._run += 1
                self._within_run = 0
            present = filled.get(topic)
            filled[topic] = tuple(taken) if present is None else tuple(sorted((*present, *taken)))
        return dict(sorted(filled.items())) if len(filled) > 1 else filled
