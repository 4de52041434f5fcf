"""What a member of a classic group wants of its assignor: the half that the protocol leaves to clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from fencepost.coordinator.protocol.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)
from fencepost.coordinator.protocol.ids import MemberId


class Subscriber(NamedTuple):
    """One member, as the leader sees it."""

    member_id: MemberId
    instance_id: str | None
    subscription: ConsumerProtocolSubscription | None
    """None if its bytes are no subscription: a stranger, who is given nothing."""


class Assignor(Protocol):
    """A way to assign. It may keep state from one generation to the next, and serves one member."""

    name: str
    """What all members of a group have to call it."""
    cooperative: bool
    """Whether members keep what they own while they join again (KIP-429)."""

    def user_data(self) -> bytes | None:
        """What this member tells the leader; asked for with each JoinGroup."""

    def assign(
        self, partitions: Mapping[str, int], members: Sequence[Subscriber]
    ) -> Mapping[MemberId, ConsumerProtocolAssignment]:
        """As the leader: what each member is given. Topics that do not exist are not in `partitions`.

        Members that are left out are given nothing. It must not raise for what other members said.
        """

    def on_assignment(self, assignment: ConsumerProtocolAssignment) -> int | None:
        """What this member was given. In how many milliseconds it has to join again, if it has to."""
