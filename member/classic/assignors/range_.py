"""Kafka's `range` of the classic protocol: each topic by itself, in ranges of the sorted members."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fencepost.coordinator.protocol.consumer_protocol import ConsumerProtocolAssignment
from fencepost.coordinator.protocol.ids import MemberId
from fencepost.member.classic.assignor import Subscriber
from fencepost.member.classic.assignors.plain import PlainAssignor, in_order


class RangeAssignor(PlainAssignor):
    """Gives the first members of a topic one partition more where they do not come out even."""

    name = "range"

    def assign(
        self, partitions: Mapping[str, int], members: Sequence[Subscriber]
    ) -> Mapping[MemberId, ConsumerProtocolAssignment]:
        """Who has which range of each topic."""
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
