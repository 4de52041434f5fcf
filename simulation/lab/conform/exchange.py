"""One request with both responses, our group around it, and the rules that judge it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import msgspec

from fencepost.coordinator.classic.group import ClassicGroup
from fencepost.coordinator.classic.states import ClassicGroupState
from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.consumer.group import ConsumerGroup
from fencepost.coordinator.consumer.member import ConsumerGroupMember
from fencepost.coordinator.consumer.states import GroupState
from fencepost.coordinator.coordinator import GroupCoordinator
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import JOIN_EPOCH, MemberId, Partitions
from fencepost.coordinator.protocol.records import Record
from fencepost.coordinator.protocol.streams import Tasks
from fencepost.coordinator.protocol.topics import TopicsImage
from fencepost.coordinator.streams.group import StreamsGroup
from fencepost.coordinator.streams.member import StreamsGroupMember
from fencepost.simulation.lab.conform.schedule import Beat, ClassicJoinStep, Step


class StreamsView(msgspec.Struct, frozen=True, kw_only=True):
    """A streams group at one moment."""

    group_epoch: int
    assignment_epoch: int
    state: str
    members: Mapping[MemberId, StreamsGroupMember]
    targets: Mapping[MemberId, Tasks]

    @classmethod
    def of(cls, group: StreamsGroup) -> StreamsView:
        """Return the group as it is now."""
        return cls(
            group_epoch=group.group_epoch,
            assignment_epoch=group.assignment_epoch,
            state=group.state,
            members=dict(group.members),
            targets=dict(group.targets),
        )


class ClassicMemberView(msgspec.Struct, frozen=True, kw_only=True):
    """A member of a classic group at one moment."""

    instance_id: str | None
    protocols: tuple[str, ...]
    assignment: bytes


class ClassicView(msgspec.Struct, frozen=True, kw_only=True):
    """A classic group at one moment."""

    generation: int
    state: ClassicGroupState
    protocol: str | None
    leader: MemberId | None
    members: Mapping[MemberId, ClassicMemberView]
    expected: frozenset[MemberId]
    """Ids that were given out, and with which no member has joined yet."""

    @classmethod
    def of(cls, group: ClassicGroup) -> ClassicView:
        """Return the group as it is now."""
        return cls(
            generation=group.generation,
            state=group.state,
            protocol=group.protocol,
            leader=group.leader,
            members={
                member_id: ClassicMemberView(
                    instance_id=member.instance_id,
                    protocols=tuple(protocol.name for protocol in member.protocols),
                    assignment=member.assignment,
                )
                for member_id, member in group.members.items()
            },
            expected=frozenset(group.pending_joins),
        )


class ConformGroupView(msgspec.Struct, frozen=True, kw_only=True):
    """A group at one moment."""

    exists: bool = False
    group_epoch: int = 0
    assignment_epoch: int = 0
    state: GroupState = GroupState.EMPTY
    members: Mapping[MemberId, ConsumerGroupMember] = {}
    targets: Mapping[MemberId, Partitions] = {}
    instances: Mapping[str, MemberId] = {}
    resolved: Mapping[str, tuple[str, ...]] = {}
    """The topics that each regular expression matches."""
    regexes: frozenset[str] = frozenset()
    """Regular expressions that members subscribe to."""
    has_offsets: bool = False
    streams: StreamsView | None = None
    """The group, if it is a streams group."""
    classic: ClassicView | None = None
    """The group, if it is a classic group."""
    image: TopicsImage = TopicsImage()

    @classmethod
    def of(cls, coordinator: GroupCoordinator, group_id: str) -> ConformGroupView:
        """Return the group as it is now."""
        found = coordinator.kinds.find(group_id)
        has_offsets = group_id in coordinator.offsets
        group = None if found is None else found[1]
        if not isinstance(group, ConsumerGroup):
            return cls(
                exists=group is not None,
                has_offsets=has_offsets,
                streams=StreamsView.of(group) if isinstance(group, StreamsGroup) else None,
                classic=ClassicView.of(group) if isinstance(group, ClassicGroup) else None,
                image=coordinator.image,
            )
        return cls(
            exists=True,
            group_epoch=group.group_epoch,
            assignment_epoch=group.assignment_epoch,
            state=group.state,
            members=dict(group.members),
            targets=dict(group.targets),
            instances=dict(group.static_members),
            resolved={regex: value.topics for regex, value in group.resolved.items()},
            regexes=frozenset(group.counts.regexes),
            has_offsets=has_offsets,
            image=coordinator.image,
        )

    @property
    def has_classic_members(self) -> bool:
        """True if it is a consumer group with members that speak the classic protocol."""
        return any(member.classic is not None for member in self.members.values())

    @property
    def has_members(self) -> bool:
        """True if any member is in it, whatever its kind."""
        other = self.streams or self.classic
        return bool(self.members or (other is not None and other.members))


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
            for member_id, member in before.members.items()
            if member.instance_id is not None
            and (now := after.members.get(member_id)) is not None
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
        return self.before.members.get(self.request.member_id)

    @property
    def member(self) -> ConsumerGroupMember | None:
        """The member that sent it, as it is now."""
        return self.after.members.get(self.member_id)

    @property
    def holder(self) -> ConsumerGroupMember | None:
        """The member that held the request's instance id before."""
        instance_id = getattr(self.request, "instance_id", None)
        return self.before.members.get(self.before.instances.get(instance_id or "", ""))

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
            and bool(self.before.members)
            and self.after.classic is not None
            and self.after.classic.state is ClassicGroupState.PREPARING_REBALANCE
        )

    @property
    def bumped(self) -> bool:
        """True if the group's epoch went up."""
        return self.after.group_epoch > self.before.group_epoch


Predicate: TypeAlias = Callable[[ConformExchange], bool]


class ConformRule(NamedTuple):
    """A rule of the protocol. A request that exercises it, with equal responses, passes it."""

    name: str
    about: str
    when: Predicate
