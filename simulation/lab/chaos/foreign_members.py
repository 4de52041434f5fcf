"""Tells a run's own members from members of other clients, which spoil what the run is to show.

Two runs that begin at the same moment see no group of that id, and another program may join at any time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from fencepost.coordinator.protocol import consumer_protocol
from fencepost.coordinator.protocol.classic import DescribedClassicMember
from fencepost.coordinator.protocol.consumer import DescribedMember
from fencepost.coordinator.protocol.streams import DescribedStreamsGroup


class ForeignMembers(NamedTuple):
    """All members that a run may have: their client ids, and the topics that they read."""

    client_ids: Collection[str]
    topics: Collection[str]

    def has(self, group: Any, member: Any) -> bool:
        """Return true if a member of a described group is the run's own."""
        return member.client_id in self.client_ids and not self._others_topics(group, member)

    def stranger(self, group: Any) -> str | None:
        """Return a description of a group's first member that is not the run's own; None if there is no such
        member."""
        for member in group.members:
            topics = self._others_topics(group, member)
            if topics or member.client_id not in self.client_ids:
                who = f"client {member.client_id} at {member.client_host}"
                return f"{who}, which reads {', '.join(topics)}" if topics else who
        return None

    def _others_topics(self, group: Any, member: Any) -> list[str]:
        return sorted({topic for topic in _read_by(group, member) if topic not in self.topics})


def _read_by(group: Any, member: Any) -> Iterator[str]:
    """Yield the topics that a member subscribes to or has, as far as the group's description shows."""
    if isinstance(group, DescribedStreamsGroup):  # all members have its topology
        for subtopology in group.subtopologies:
            yield from subtopology.source_topics
    elif isinstance(member, DescribedMember):
        yield from member.subscribed_topic_names
        for each in (*member.assignment, *member.target_assignment):
            yield each.topic_name
    elif isinstance(member, DescribedClassicMember):
        try:
            if member.metadata:
                yield from consumer_protocol.read_subscription(member.metadata).topics
            if member.assignment:
                yield from consumer_protocol.read_assignment(member.assignment).partitions
        except consumer_protocol.MalformedConsumerProtocol:
            return  # only its name is known
