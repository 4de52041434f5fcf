"""Kafka's `roundrobin` of the classic protocol: all partitions in turn to the members that want them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fencepost.coordinator.protocol.consumer_protocol import ConsumerProtocolAssignment
from fencepost.coordinator.protocol.ids import MemberId
from fencepost.member.classic.assignor import Subscriber
from fencepost.member.classic.assignors.plain import PlainAssignor, in_order


class RoundRobinAssignor(PlainAssignor):
    """Deals partitions like cards, topic by topic; who does not want a topic is passed over."""

    name = "roundrobin"

    def assign(
        self, partitions: Mapping[str, int], members: Sequence[Subscriber]
    ) -> Mapping[MemberId, ConsumerProtocolAssignment]:
        """Who is dealt what."""
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
