"""What assignors have in common that go by subscriptions alone."""

from __future__ import annotations

from collections.abc import Iterable

from fencepost.coordinator.protocol.consumer_protocol import ConsumerProtocolAssignment
from fencepost.member.classic.assignor import Subscriber


class PlainAssignor:
    """Eager, and keeps nothing from one generation to the next."""

    cooperative = False

    def user_data(self) -> bytes | None:
        """The leader has to know nothing."""
        return None

    def on_assignment(self, assignment: ConsumerProtocolAssignment) -> int | None:
        """Nothing follows from it."""
        return None


def in_order(members: Iterable[Subscriber]) -> list[Subscriber]:
    """Members as Kafka sorts them: static ones come first, by their instance ids."""
    return sorted(
        members, key=lambda member: (member.instance_id is None, member.instance_id or member.member_id)
    )
