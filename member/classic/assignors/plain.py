"""Kafka's `range` and `roundrobin` of the classic protocol, which use subscriptions alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fencepost.coordinator.protocol.consumer_protocol import ConsumerProtocolAssignment
from fencepost.coordinator.protocol.ids import MemberId
from fencepost.member.classic.assignor import Subscriber


class PlainAssignor:
    """Eager, and keeps nothing from one generation to the next."""

    cooperative = False

    def user_data(self) -> bytes | None:
        """Return nothing: the leader needs no data."""
        return None

    def on_assignment(self, assignment: ConsumerProtocolAssignment) -> int | None:
        """Do nothing."""
        return None


def in_order(members: Iterable[Subscriber]) -> list[Subscriber]:
    """Members as Kafka sorts them: static ones first, by their instance ids."""
    return sorted(
        members, key=lambda member: (member.instance_id is None, member.instance_id or member.member_id)
    )


class RangeAssignor(PlainAssignor):
    """Assign each topic by itself, in ranges of the sorted members.

    The first members of a topic get one partition more if they do not come out even.
    """

    name = "range"

    def assign(
        self, partitions: Mapping[str, int], members: Sequence[Subscriber]
    ) -> Mapping[MemberId, ConsumerProtocolAssignment]:
        """Return the range of each topic that each member gets."""
        given: dict[MemberId, dict[str, tuple[int, ...]]] = {}
        for topic in sorted(partitions):
            wanted = [
                member for member in members if member.subscription and topic in member.subscription.topics
            ]
            for number, member in enumerate(in_order(wanted)):
                size, more = divmod(partitions[topic], len(wanted))
                first = number * size + min(number, more)
                mine = tuple(range(first, first + size + (number < more)))
                if mine:
                    given.setdefault(member.member_id, {})[topic] = mine
        return {
            member_id: ConsumerProtocolAssignment(partitions=topics) for member_id, topics in given.items()
        }


class RoundRobinAssignor(PlainAssignor):
    """Deals partitions like cards, topic by topic; members that do not want a topic are skipped."""

    name = "roundrobin"

    def assign(
        self, partitions: Mapping[str, int], members: Sequence[Subscriber]
    ) -> Mapping[MemberId, ConsumerProtocolAssignment]:
        """Return the partitions that each member is dealt."""
        circle = [
            (member.member_id, frozenset(member.subscription.topics))
            for member in in_order(members)
            if member.subscription
        ]
        wanted = frozenset[str]().union(*(topics for _, topics in circle))
        given: dict[MemberId, dict[str, tuple[int, ...]]] = {}
        turn = 0
        for topic in sorted(wanted.intersection(partitions)):
            for number in range(partitions[topic]):
                while topic not in circle[turn % len(circle)][1]:
                    turn += 1
                mine = given.setdefault(circle[turn % len(circle)][0], {})
                mine[topic] = (*mine.get(topic, ()), number)
                turn += 1
        return {
            member_id: ConsumerProtocolAssignment(partitions=topics) for member_id, topics in given.items()
        }
