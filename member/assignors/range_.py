"""Kafka's `range` of the classic protocol: each topic by itself, in ranges of the sorted members."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fencepost.coordinator.protocol.consumer_protocol import Assignment
from fencepost.coordinator.protocol.ids import MemberId
from fencepost.member.classic.assignor import Subscriber


def in_order(members: Iterable[Subscriber]) -> list[Subscriber]:
    """Members as Kafka sorts them: static ones come first, by their instance ids."""
    return sorted(
        members, key=lambda member: (member.instance_id is None, member.instance_id or member.member_id)
    )


class RangeAssignor:
    """Gives the first members of a topic one partition more where they do not come out even. Eager."""

    name = "range"
    cooperative = False

    def user_data(self) -> bytes | None:
        """The leader has to know nothing."""
        return None

    def assign(
        self, partitions: Mapping[str, int], members: Sequence[Subscriber]
    ) -> Mapping[MemberId, Assignment]:
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
        return {member_id: Assignment(partitions=topics) for member_id, topics in given.items()}

    def on_assignment(self, assignment: Assignment) -> int | None:
        """Nothing follows from it."""
        return None
