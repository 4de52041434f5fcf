"""The `uniform` assignor for groups whose members subscribe to different topics.

Three steps: take away what a member no longer subscribes to; give each free partition to the least loaded
subscriber of its topic; then, topic by topic, move partitions from the most to the least loaded subscriber
while they differ by more than one. Loads count all topics. There is no global optimum: two members that share
no topic never exchange anything. (Kafka's UniformHeterogeneousAssignmentBuilder.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from fencepost.coordinator.assign.spec import GroupSpec
from fencepost.coordinator.protocol.ids import NO_PARTITIONS, MemberId, Partitions, TopicId

MAX_PASSES = 16
"""Each pass about halves the imbalance; a chain of overlapping subscriptions may need many."""

_NOBODY = -1


def uniform_mixed(spec: GroupSpec) -> dict[MemberId, Partitions]:
    """Return a target balanced within each topic; every member is in it, unchanged targets are the same
    objects."""
    return _Balancer(spec).target()


class _Balancer:
    """The state of one computation. Members are numbered in the order of the specification."""

    def __init__(self, spec: GroupSpec) -> None:
        self._members = list(spec.subscriptions)
        self._subscribers: dict[TopicId, list[int]] = {}
        for index, topics in enumerate(spec.subscriptions.values()):
            for topic in topics:
                self._subscribers.setdefault(topic, []).append(index)
        self._counts = spec.partitions
        self._order = sorted(self._subscribers, key=self._rank)
        self._loads = [0] * len(self._members)
        self._owners = {topic: [_NOBODY] * spec.partitions[topic] for topic in self._subscribers}
        self._kept: list[Partitions] = []
        self._changed: set[int] = set()
        for index, (member, topics) in enumerate(spec.subscriptions.items()):
            self._keep(index, spec.targets.get(member, NO_PARTITIONS), topics)

    def _rank(self, topic: TopicId) -> tuple[float, int, TopicId]:
        """Topics with the most partitions a subscriber first: they leave least choice."""
        subscribers = len(self._subscribers[topic])
        return -self._counts[topic] / subscribers, subscribers, topic

    def _keep(self, index: int, held: Partitions, topics: Sequence[TopicId]) -> None:
        self._kept.append(held)
        for topic, numbers in held.items():
            if topic not in topics:
                self._changed.add(index)
                continue
            owners = self._owners[topic]
            for number in numbers:
                owners[number] = index
            self._loads[index] += len(numbers)

    def target(self) -> dict[MemberId, Partitions]:
        for topic in self._order:
            self._assign_free(topic)
        shared = [topic for topic in self._order if len(self._subscribers[topic]) > 1]
        for _ in range(MAX_PASSES):
            moved = [self._balance(topic) for topic in shared]
            if not any(moved):
                break
        return self._result()

    def _give(self, topic: TopicId, number: int, receiver: int) -> None:
        owners = self._owners[topic]
        giver = owners[number]
        if giver != _NOBODY:
            self._loads[giver] -= 1
            self._changed.add(giver)
        owners[number] = receiver
        self._loads[receiver] += 1
        self._changed.add(receiver)

    def _by_load(self, topic: TopicId) -> list[int]:
        return sorted(self._subscribers[topic], key=self._loads.__getitem__)

    def _assign_free(self, topic: TopicId) -> None:
        free = [number for number, owner in enumerate(self._owners[topic]) if owner == _NOBODY]
        if free:
            lightest = _lightest_first(self._by_load(topic), self._loads)
            for number, (receiver, _) in zip(free, lightest, strict=False):
                self._give(topic, number, receiver)

    def _balance(self, topic: TopicId) -> bool:
        """Move partitions of one topic until its subscribers are balanced; return true if any moved."""
        order = self._by_load(topic)
        if self._loads[order[-1]] - self._loads[order[0]] <= 1:
            return False
        holdings: dict[int, list[int]] = {}
        for number, owner in enumerate(self._owners[topic]):
            holdings.setdefault(owner, []).append(number)
        moved = False
        receivers = _lightest_first(order, list(self._loads))
        for giver, high in _heaviest_first(order, list(self._loads), holdings):
            receiver, low = next(receivers)
            if high - low <= 1:
                break
            self._give(topic, holdings[giver].pop(), receiver)
            moved = True
        return moved

    def _result(self) -> dict[MemberId, Partitions]:
        fresh: dict[int, dict[TopicId, list[int]]] = {index: {} for index in sorted(self._changed)}
        for topic in sorted(self._owners):
            for number, owner in enumerate(self._owners[topic]):
                if owner in fresh:
                    fresh[owner].setdefault(topic, []).append(number)
        target: dict[MemberId, Partitions] = {}
        for index, member in enumerate(self._members):
            kept = self._kept[index]
            if index in fresh:
                now = {topic: tuple(numbers) for topic, numbers in fresh[index].items()}
                target[member] = kept if now == kept else now
            else:
                target[member] = kept
        return target


def _lightest_first(order: Sequence[int], loads: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield receivers forever, with the load of each: all members of the lowest level once, then a level up.

    `order` ascends by load. Members that the level has not reached are read from `loads` when it does, so it
    may be the live list.
    """
    end = 0
    level = loads[order[0]]
    while True:
        while end < len(order) and loads[order[end]] == level:
            end += 1
        for at in range(end):
            yield order[at], level
        level += 1


def _heaviest_first(
    order: Sequence[int], loads: Sequence[int], holdings: Mapping[int, Sequence[int]]
) -> Iterator[tuple[int, int]]:
    """Yield givers, with the load of each: all members of the highest level once, then a level down.

    Members that have no partition of the topic (any more) are skipped. It ends when no member has one.
    """
    waiting = [index for index in order if holdings.get(index)]
    ready: list[int] = []
    level = 0
    while True:
        ready = [index for index in ready if holdings[index]]
        level = level - 1 if ready else loads[waiting[-1]] if waiting else 0
        while waiting and loads[waiting[-1]] == level:
            ready.append(waiting.pop())
        if not ready:
            return
        for index in ready:
            yield index, level
