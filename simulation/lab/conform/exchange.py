"""One request with both responses, and our group before and after it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from fencepost.coordinator.classic.group import ClassicGroup
from fencepost.coordinator.classic.states import ClassicGroupState
from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.consumer.group import ConsumerGroup
from fencepost.coordinator.consumer.member import ConsumerGroupMember
from fencepost.coordinator.coordinator import GroupCoordinator
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import JOIN_EPOCH, MemberId
from fencepost.coordinator.protocol.records import Record
from fencepost.coordinator.streams.group import StreamsGroup
from fencepost.simulation.lab.conform.schedule import Beat, ClassicJoinStep, Step


class ConformGroupView(msgspec.Struct, frozen=True, kw_only=True):
    """A group at one moment."""

    kind: str = "none"
    """`consumer`, `classic`, `streams`, or `none` if it does not exist."""
    state: str = "Empty"
    group_epoch: int = 0
    members: Mapping[MemberId, Any] = {}
    targets: Mapping[MemberId, Any] = {}
    instances: Mapping[str, MemberId] = {}

    @classmethod
    def of(cls, coordinator: GroupCoordinator, group_id: str) -> ConformGroupView:
        """Return the group as it is now."""
        found = coordinator.kinds.find(group_id)
        if found is None:
            return cls()
        kind, group = found
        return cls(
            kind=_KINDS[type(group)],
            state=str(group.state),
            group_epoch=kind.epoch(group),
            members=dict(group.members),
            targets=dict(getattr(group, "targets", {})),
            instances=dict(group.static_members) if isinstance(group, ConsumerGroup) else {},
        )

    @property
    def consumers(self) -> Mapping[MemberId, ConsumerGroupMember]:
        """The members of a consumer group; empty if it is none."""
        return self.members if self.kind == "consumer" else {}


_KINDS: Final[Mapping[type, str]] = {
    ConsumerGroup: "consumer",
    ClassicGroup: "classic",
    StreamsGroup: "streams",
}


class History(msgspec.Struct, frozen=True, kw_only=True):
    """State of a group that a broker may remember, and ours does not: to recognize known deviations."""

    abandoned: frozenset[str] = frozenset()
    """Instance ids that members gave up by joining again under another one."""
    merged: bool = False
    """True if a known member joined again under an instance id that was not its own."""
    static_downgrade: bool = False
    """True if a static member made a consumer group classic, and ours rebalances because of it."""

    def after(self, exchange: ConformExchange) -> History:
        """Return the history, with what a request added."""
        before, after = exchange.before, exchange.after
        given_up = {
            member.instance_id
            for member_id, member in before.consumers.items()
            if member.instance_id is not None
            and (now := after.consumers.get(member_id)) is not None
            and now.instance_id != member.instance_id
        }
        return History(
            abandoned=self.abandoned | given_up,
            merged=self.merged or exchange.merges,
            static_downgrade=self.static_downgrade or exchange.rebalances_by_downgrade,
        )


class ConformExchange(msgspec.Struct, frozen=True, kw_only=True):
    """A request, the responses of Kafka and of our side, and our group before and after it."""

    step: Step
    request: Any
    version: int
    group_id: str
    answer: Any
    """Kafka's response."""
    ours: Any
    before: ConformGroupView
    after: ConformGroupView
    records: tuple[Record, ...]
    """The records that our side wrote."""
    config: GroupCoordinatorConfig
    history: History = History()
    superseded: bool = False
    """True if its member has sent another request while it waited."""

    @property
    def code(self) -> ErrorCode:
        """The error code of our response."""
        code: ErrorCode = getattr(self.ours, "error_code", ErrorCode.NONE)
        return code

    @property
    def member_id(self) -> MemberId:
        """The member id in our response, or in the request."""
        return getattr(self.ours, "member_id", None) or getattr(self.request, "member_id", "") or ""

    @property
    def known(self) -> ConsumerGroupMember | None:
        """The member that sent it, as it was before."""
        return self.before.consumers.get(self.request.member_id)

    @property
    def member(self) -> ConsumerGroupMember | None:
        """The member that sent it, as it is now."""
        return self.after.consumers.get(self.member_id)

    @property
    def holder(self) -> ConsumerGroupMember | None:
        """The member that held the request's instance id before."""
        instance_id = getattr(self.request, "instance_id", None)
        return self.before.consumers.get(self.before.instances.get(instance_id or "", ""))

    @property
    def merges(self) -> bool:
        """True if a known member joins again under an instance id that is not its own."""
        request = self.request
        return (
            isinstance(self.step, Beat)
            and request.member_epoch == JOIN_EPOCH
            and request.instance_id is not None
            and (known := self.known) is not None
            and known.instance_id != request.instance_id
        )

    @property
    def rebalances_by_downgrade(self) -> bool:
        """True if a static member makes a consumer group classic, and ours rebalances because of it."""
        return (
            isinstance(self.step, ClassicJoinStep)
            and bool(self.before.consumers)
            and self.after.kind == "classic"
            and self.after.state == ClassicGroupState.PREPARING_REBALANCE
        )

    @property
    def bumped(self) -> bool:
        """True if the group's epoch went up."""
        return self.after.group_epoch > self.before.group_epoch
