"""The assignor of a member of a classic group: the half of the protocol that is left to clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from fencepost.coordinator.protocol import consumer_protocol
from fencepost.coordinator.protocol.ids import MemberId


class Subscriber(NamedTuple):
    """One member, as the leader sees it."""

    member_id: MemberId
    instance_id: str | None
    subscription: consumer_protocol.ConsumerProtocolSubscription | None
    """None if its bytes are not a subscription: such a member is given nothing."""


class Assignor(Protocol):
    """A way to assign. It may keep state from one generation to the next, and serves one member."""

    name: str
    """The name of the assignor, the same in all members of a group."""
    cooperative: bool
    """True if members keep the partitions that they own while they join again (KIP-429)."""

    def user_data(self) -> bytes | None:
        """Return the bytes that this member sends to the leader; called for each JoinGroup."""

    def assign(
        self, partitions: Mapping[str, int], members: Sequence[Subscriber]
    ) -> Mapping[MemberId, consumer_protocol.ConsumerProtocolAssignment]:
        """As the leader, return the assignment of each member. Topics that do not exist are not in
        `partitions`.

        Members that are left out are given nothing. It must not raise because of another member's data.
        """

    def on_assignment(self, assignment: consumer_protocol.ConsumerProtocolAssignment) -> int | None:
        """Take this member's assignment. Return the delay in ms after which it has to join again, or None."""
