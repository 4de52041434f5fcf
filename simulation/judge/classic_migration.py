"""Groups that change between the two protocols, and classic members of consumer groups.

A classic group becomes a consumer group when the first member of the newer protocol joins it, and a classic
one again when the last of them leaves (KIP-848, Migration). Members stay, with their partitions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from fencepost.coordinator.config import ConsumerGroupMigrationPolicy, GroupCoordinatorConfig
from fencepost.coordinator.consumer.states import ConsumerGroupMemberState
from fencepost.coordinator.protocol import consumer, consumer_protocol, ids
from fencepost.coordinator.protocol import records as r
from fencepost.coordinator.protocol.classic import (
    CONSUMER_PROTOCOL_TYPE,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.outcome import Outcome
from fencepost.coordinator.protocol.topics import TopicsImage
from fencepost.coordinator.timers import GroupTimerKey, GroupTimerKind
from fencepost.simulation.judge import classic_expected
from fencepost.simulation.judge.base import OF_LOG, Finding
from fencepost.simulation.judge.classic_account import ExpectedGroup
from fencepost.simulation.judge.consumer_model import both, held, minus
from fencepost.simulation.kernel.observers import StepEvent

if TYPE_CHECKING:
    from fencepost.coordinator.consumer.group import ConsumerGroup
    from fencepost.coordinator.consumer.member import ConsumerGroupMember
    from fencepost.coordinator.coordinator import GroupCoordinator

_E = ErrorCode
_NONE = ErrorCode.NONE
_Policy = ConsumerGroupMigrationPolicy
_UPGRADES: Final = (_Policy.BIDIRECTIONAL, _Policy.UPGRADE)
_DOWNGRADES: Final = (_Policy.BIDIRECTIONAL, _Policy.DOWNGRADE)
_OF_GROUPS: Final = frozenset(
    {
        r.ConsumerGroupMetadataKey,
        r.ConsumerGroupMemberMetadataKey,
        r.ConsumerGroupTargetAssignmentMetadataKey,
        r.ConsumerGroupTargetAssignmentMemberKey,
        r.ConsumerGroupCurrentMemberAssignmentKey,
    }
)

Named: TypeAlias = dict[str, tuple[int, ...]]
"""Partitions by the names of their topics."""


class KnownConsumers:
    """A consumer group after the previous event; its members' values are immutable."""

    __slots__ = ("assignment_epoch", "epoch", "members", "targets")

    def __init__(self, group: ConsumerGroup) -> None:
        self.members: dict[ids.MemberId, ConsumerGroupMember] = dict(group.members)
        self.targets: dict[ids.MemberId, ids.Partitions] = dict(group.targets)
        self.epoch = group.group_epoch
        self.assignment_epoch = group.assignment_epoch

    def take(self, group: ConsumerGroup, member_id: ids.MemberId | None) -> bool:
        """Take in a record of the group, or of one member; return true if that one was removed."""
        self.epoch, self.assignment_epoch = group.group_epoch, group.assignment_epoch
        if member_id is None:
            return False
        if (target := group.targets.get(member_id)) is None:
            self.targets.pop(member_id, None)
        else:
            self.targets[member_id] = target
        if (member := group.members.get(member_id)) is None:
            return self.members.pop(member_id, None) is not None
        self.members[member_id] = member
        return False

    def error_of(self, request: HeartbeatRequest | SyncGroupRequest) -> ErrorCode:
        """Return the error for the member, instance and generation of a request; NONE if they are right."""
        error = classic_expected.member_error(self.members, request.member_id, request.instance_id)
        if error is not _NONE:
            return error
        member = self.members[request.member_id]
        if member.classic is None:
            return _E.UNKNOWN_MEMBER_ID
        return _NONE if request.generation == member.member_epoch else _E.ILLEGAL_GENERATION

    def join_error(self, request: JoinGroupRequest, config: GroupCoordinatorConfig) -> ErrorCode:
        """Return the error with which a JoinGroup is refused; NONE if the member may be in the group."""
        if (error := classic_expected.request_error(request, config)) is not _NONE:
            return error
        if config.group_consumer_migration_policy is _Policy.DISABLED:
            return _E.INCONSISTENT_GROUP_PROTOCOL
        holder = classic_expected.holder_of(self.members, request.instance_id)
        if (
            holder is None
            and request.member_id not in self.members
            and len(self.members) >= config.group_consumer_max_size
        ):
            return _E.GROUP_MAX_SIZE_REACHED
        offered = {each.name for each in request.protocols}
        for member in self.members.values():
            if member.classic is not None:
                offered &= {name for name, _ in member.classic.supported_protocols}
        if request.protocol_type != CONSUMER_PROTOCOL_TYPE or not offered:
            return _E.INCONSISTENT_GROUP_PROTOCOL
        static = request.instance_id is not None
        if not request.member_id and not static and request.api_version >= classic_expected.ID_GIVEN_FIRST:
            return _E.MEMBER_ID_REQUIRED
        if _topics(request.protocols[0].metadata) is None:
            return _E.INCONSISTENT_GROUP_PROTOCOL
        if static and request.member_id:
            return classic_expected.member_error(self.members, request.member_id, request.instance_id)
        return _NONE

    def must_rejoin(self, member: ConsumerGroupMember) -> bool:
        """Return true if a classic member has something to give up, or something new to take."""
        if member.state is ConsumerGroupMemberState.UNREVOKED_PARTITIONS:
            return True
        if member.state is ConsumerGroupMemberState.UNRELEASED_PARTITIONS and not self._waits(member):
            return True
        return member.member_epoch < self.assignment_epoch

    def _waits(self, member: ConsumerGroupMember) -> bool:
        """Return true if another member still has partitions that the target gives to this member."""
        missing = minus(self.targets.get(member.member_id, ids.NO_PARTITIONS), member.assigned)
        return any(both(missing, held(each)) for each in self.members.values() if each is not member)


def _topics(data: bytes) -> set[str] | None:
    """Return the topics of a subscription; None if it can't be read."""
    try:
        return {*consumer_protocol.read_subscription(data).topics}
    except consumer_protocol.MalformedConsumerProtocol:
        return None


def _subscribed(account: ExpectedGroup, member: classic_expected.ExpectedMember) -> set[str] | None:
    """Return the topics that a member of a classic group subscribes to; None if they can't be read."""
    return _topics(member.metadata(account.protocol) or member.offers[0][1])


def _named(partitions: ids.Partitions, image: TopicsImage) -> Named:
    """Return the partitions by name, without topics that were deleted."""
    return {
        name: tuple(sorted(numbers))
        for topic_id, numbers in partitions.items()
        if numbers and (name := image.name_of(topic_id)) is not None
    }


def _assigned(data: bytes) -> Named:
    try:
        found = consumer_protocol.read_assignment(data).partitions
    except consumer_protocol.MalformedConsumerProtocol:
        return {}
    return {topic: tuple(sorted(numbers)) for topic, numbers in found.items() if numbers}


class ClassicMigration:
    """Judges groups between the protocols: `before` an event is taken in, and `after` it."""

    def __init__(self, config: GroupCoordinatorConfig) -> None:
        self._known: dict[str, KnownConsumers] = {}
        self._config = config

    def loaded(self, live: GroupCoordinator) -> None:
        """Take in the groups of a coordinator that has loaded."""
        self._known = {group_id: KnownConsumers(group) for group_id, group in live.groups.items()}

    def has_members(self, group_id: str) -> bool:
        """Return true if there was a consumer group with members before the event."""
        known = self._known.get(group_id)
        return known is not None and bool(known.members)

    def offers(self, group_id: str) -> dict[ids.MemberId, classic_expected.Offered]:
        """Return the protocols that the classic members of a consumer group offered before the event."""
        known = self._known.get(group_id)
        return {
            member_id: member.classic.supported_protocols
            for member_id, member in ({} if known is None else known.members).items()
            if member.classic is not None
        }

    # -- members of consumer groups that speak the classic protocol ---------------------------------------

    def before(
        self, live: GroupCoordinator, event: StepEvent, outcome: Outcome, now_ms: int
    ) -> Iterator[Finding]:
        """Findings of a classic member's request to a consumer group, and of a request that is to upgrade a
        group."""
        if isinstance(event, consumer.ConsumerGroupHeartbeatRequest):
            yield from self._upgrade_refused(live, event, outcome)
            return
        if not isinstance(event, JoinGroupRequest | SyncGroupRequest | HeartbeatRequest):
            return
        known = self._known.get(event.group_id)
        if known is None or not known.members:
            return
        got = getattr(outcome.reply, "error_code", None)
        if isinstance(event, JoinGroupRequest):
            right = known.join_error(event, self._config)
        elif isinstance(event, SyncGroupRequest) and event.lacks_protocol:
            right = _E.INCONSISTENT_GROUP_PROTOCOL
        else:
            right = known.error_of(event)
            if right is _NONE:
                right = self._of_member(known, event)
        if got is not right and not (right is _NONE and got in OF_LOG):
            yield (
                "classic-answers",
                f"{event.member_id or event.instance_id} of {event.group_id}, a consumer group, sent"
                f" {type(event).__name__}: {getattr(got, 'name', got)} instead of {right.name}",
            )
        elif got is _NONE or got is _E.REBALANCE_IN_PROGRESS:
            yield from self._accepted(live, known, event, outcome, now_ms)

    def _of_member(self, known: KnownConsumers, request: HeartbeatRequest | SyncGroupRequest) -> ErrorCode:
        member = known.members[request.member_id]
        if isinstance(request, HeartbeatRequest):
            return _E.REBALANCE_IN_PROGRESS if known.must_rejoin(member) else _NONE
        assert member.classic is not None
        name = member.classic.supported_protocols[0][0]
        types = (None, CONSUMER_PROTOCOL_TYPE)
        if request.protocol_type not in types or request.protocol_name not in (None, name):
            return _E.INCONSISTENT_GROUP_PROTOCOL
        behind = member.member_epoch < known.assignment_epoch
        revokes = member.state is ConsumerGroupMemberState.UNREVOKED_PARTITIONS
        return _E.REBALANCE_IN_PROGRESS if behind and not revokes else _NONE

    def _accepted(
        self,
        live: GroupCoordinator,
        known: KnownConsumers,
        request: JoinGroupRequest | SyncGroupRequest | HeartbeatRequest,
        outcome: Outcome,
        now_ms: int,
    ) -> Iterator[Finding]:
        group_id, reply = request.group_id, outcome.reply
        member_id = getattr(reply, "member_id", "") or request.member_id
        group = live.groups.get(group_id)
        member = None if group is None else group.members.get(member_id)
        if group is None:
            return  # it is a classic group now
        if member is None or member.classic is None:
            yield "classic-migrates", f"{member_id} of {group_id} joined, and is not a classic member"
            return
        expects: dict[GroupTimerKind, bool] = {}
        if isinstance(reply, JoinGroupResponse) and isinstance(request, JoinGroupRequest):
            yield from _joined(group_id, request, reply, member)
            expects = {GroupTimerKind.JOIN: False, GroupTimerKind.SYNC: True}
        elif isinstance(reply, SyncGroupResponse) and reply.error_code is _NONE:
            had = known.members[member_id]
            given, right = _assigned(reply.assignment), _named(had.assigned, live.image)
            if given != right:
                yield "classic-synced", f"{member_id} of {group_id} was given {given}, it has {right}"
            expects = {GroupTimerKind.SYNC: False}
        elif isinstance(request, HeartbeatRequest) and getattr(reply, "error_code", _NONE) is not _NONE:
            expects = {GroupTimerKind.JOIN: True}
        for kind, wanted in expects.items():
            at_ms = live.soft.timers.deadline_of(GroupTimerKey(kind, group_id, member_id))
            if (at_ms is not None) != wanted or (at_ms or 0) > now_ms + member.rebalance_timeout_ms:
                yield (
                    "timers-armed",
                    f"{member_id} of {group_id} sent {type(request).__name__} at {now_ms}, its {kind} timer"
                    f" runs out at {at_ms}",
                )

    # -- from one kind to the other -----------------------------------------------------------------------

    def _upgrade_refused(
        self, live: GroupCoordinator, request: consumer.ConsumerGroupHeartbeatRequest, outcome: Outcome
    ) -> Iterator[Finding]:
        """Check that a classic group with members refuses a member of the newer protocol only if it can't be
        upgraded."""
        group, reply = live.classic.groups.get(request.group_id), outcome.reply
        if (
            group is None
            or not group.members
            or request.member_epoch != ids.JOIN_EPOCH
            or not isinstance(reply, consumer.ConsumerGroupHeartbeatResponse)
            or reply.error_code is not _E.GROUP_ID_NOT_FOUND
        ):
            return
        if (
            self._config.group_consumer_migration_policy in _UPGRADES
            and group.protocol_type == CONSUMER_PROTOCOL_TYPE
            and len(group.members) <= self._config.group_consumer_max_size
            and _fits(each.assignment for each in group.members.values())
            and all(
                _topics(one.metadata) is not None for each in group.members.values() for one in each.protocols
            )
        ):
            yield (
                "classic-migrates",
                f"{request.member_id} may not join {request.group_id}, which could become a consumer group",
            )

    def upgraded(
        self, live: GroupCoordinator, account: ExpectedGroup, event: consumer.ConsumerGroupHeartbeatRequest
    ) -> Iterator[Finding]:
        """Findings of a classic group that has become a consumer group."""
        group_id, group, config = account.group_id, live.groups.get(account.group_id), self._config
        if group is None:
            yield "classic-migrates", f"{group_id} has ended with members, and there is no consumer group"
            return
        if (
            config.group_consumer_migration_policy not in _UPGRADES
            or account.protocol_type != CONSUMER_PROTOCOL_TYPE
            or len(account.members) > config.group_consumer_max_size
        ):
            yield "classic-migrates", f"{group_id} became a consumer group, which is not allowed"
        for each in account.members.values():
            member = group.members.get(each.member_id)
            if each.instance_id is not None and each.instance_id == event.instance_id:
                continue  # that is the one that came back with the newer protocol
            topics, right = _subscribed(account, each), None
            if topics is not None:  # else it can't be converted
                right = (
                    account.generation,
                    each.instance_id,
                    tuple(sorted(topics)),
                    "",
                    {name: n for name, n in _assigned(each.assignment).items() if name in live.image.by_name},
                    each.rebalance_ms,
                    (each.session_ms, each.offers),
                )
            found = member and (
                member.member_epoch,
                member.instance_id,
                member.subscribed_topic_names,
                member.subscribed_topic_regex,
                _named(member.assigned, live.image),
                member.rebalance_timeout_ms,
                member.classic and (member.classic.session_timeout_ms, member.classic.supported_protocols),
            )
            if right is None or found != right:
                yield (
                    "classic-migrates",
                    f"{each.member_id} of {group_id} was converted to {found} instead of {right}",
                )
        left_out = _left_out(account, live.image)
        least = account.phase in (classic_expected.JOINING, classic_expected.SYNCING) or bool(left_out)
        most = least or _changes(account, event)
        if not least <= group.group_epoch - account.generation <= most:
            yield (
                "classic-migrates",
                f"{group_id} of generation {account.generation} was converted in {account.phase} without"
                f" {left_out} at epoch {group.group_epoch}; {'a' if most else 'no'} member or topic is new",
            )

    def downgraded(
        self,
        live: GroupCoordinator,
        group_id: str,
        value: r.GroupMetadataValue,
        event: StepEvent,
        outcome: Outcome,
    ) -> Iterator[Finding]:
        """Findings of a consumer group that has become a classic group."""
        known, config = self._known.get(group_id), self._config
        if known is None:
            return
        stay = {each.member_id: each for each in value.members}
        join = event if isinstance(event, JoinGroupRequest) else None
        came = "" if join is None else getattr(outcome.reply, "member_id", "")
        was = (
            classic_expected.holder_of(known.members, join.instance_id) if join is not None and came else None
        )
        strangers = [
            each
            for each in stay
            if each != came and (each not in known.members or known.members[each].classic is None)
        ]
        if (
            strangers
            or not stay
            or config.group_consumer_migration_policy not in _DOWNGRADES
            or len(stay) > config.group_max_size
        ):
            yield "classic-migrates", f"{group_id} may not become a classic group with {sorted(stay)}"
            return
        if (
            value.protocol_type != CONSUMER_PROTOCOL_TYPE
            or value.leader not in stay
            or value.generation < known.epoch
        ):
            yield (
                "classic-migrates",
                f"{group_id} at epoch {known.epoch} became a classic group of type {value.protocol_type} in"
                f" generation {value.generation} under {value.leader}",
            )
        common: set[str] | None = None
        for member_id, each in stay.items():
            member = was if member_id == came else known.members[member_id]
            if member is None:
                continue
            offers: classic_expected.Offered = (
                () if member.classic is None else member.classic.supported_protocols
            )
            if join is not None and member_id == came:
                offers = classic_expected.offers_of(join)
            names = {name for name, _ in offers}
            common = names if common is None else common & names
            if member_id == came or member.classic is None:
                continue
            given = right = _assigned(each.assignment)
            # A member that comes back may need a new target first.
            if not came or known.assignment_epoch == known.epoch == value.generation:
                right = _named(known.targets.get(member.member_id, ids.NO_PARTITIONS), live.image)
            said = (each.session_timeout_ms, each.rebalance_timeout_ms, each.subscription, given)
            known_as = (
                member.classic.session_timeout_ms,
                member.rebalance_timeout_ms,
                classic_expected.metadata_of(offers, value.protocol),
                right,
            )
            if said != known_as:
                yield (
                    "classic-migrates",
                    f"{member_id} of {group_id} was converted to {said} instead of {known_as}",
                )
        if common is not None and value.protocol not in common:
            yield "classic-migrates", f"{group_id} has protocol {value.protocol}, its members share {common}"
        group = live.classic.groups.get(group_id)
        if group is not None:
            yield from _rejoins(
                known, was, value.generation, joins_anew=group.state is not classic_expected.STABLE
            )

    def after(self, live: GroupCoordinator, outcome: Outcome) -> Iterator[Finding]:
        """Findings of consumer groups that are left without a member of the newer protocol; takes them in."""
        left: set[str] = set()
        for record in outcome.records:
            if type(record.key) not in _OF_GROUPS:
                continue
            group_id, group = record.key.group_id, live.groups.get(record.key.group_id)
            if group is None:
                self._known.pop(group_id, None)
            elif (known := self._known.get(group_id)) is None:
                self._known[group_id] = KnownConsumers(group)
            elif known.take(group, getattr(record.key, "member_id", None)):
                left.add(group_id)
        for group_id in sorted(left):
            members = self._known[group_id].members
            if (
                members
                and self._config.group_consumer_migration_policy in _DOWNGRADES
                and len(members) <= self._config.group_max_size
                and all(each.classic is not None for each in members.values())
            ):
                yield "classic-migrates", f"all members of {group_id} are classic, and it is a consumer group"


def _rejoins(
    known: KnownConsumers, back: ConsumerGroupMember | None, generation: int, *, joins_anew: bool
) -> Iterator[Finding]:
    """Check if the members of a group that became a classic one have to join again.

    They need not if the last member of the newer protocol only came `back` with the classic one, and each
    other member has its newest target.
    """
    others = [each for each in known.members.values() if each is not back]
    settled = known.assignment_epoch == known.epoch and all(
        each.member_epoch == known.epoch and each.state is ConsumerGroupMemberState.STABLE for each in others
    )
    was_settled = (
        back is not None
        and back.member_epoch in (known.epoch, ids.STATIC_LEAVE_EPOCH)
        and back.state is ConsumerGroupMemberState.STABLE
        and generation == known.epoch
    )
    if not joins_anew and not (back is not None and (settled or not others)):
        yield "classic-migrates", "a group became a classic one, and its members do not join again"
    elif joins_anew and back is not None and settled and was_settled:
        yield (
            "classic-migrates",
            f"{back.member_id} came back with the classic protocol to a group that is settled,"
            " and all members join again",
        )


def _joined(
    group_id: str, request: JoinGroupRequest, reply: JoinGroupResponse, member: ConsumerGroupMember
) -> Iterator[Finding]:
    """Check the response to a classic member that joined a consumer group, and its new state there."""
    said = reply.generation, reply.protocol_type, reply.protocol_name, reply.leader, reply.members
    right: Any = (member.member_epoch, CONSUMER_PROTOCOL_TYPE, request.protocols[0].name, "", ())
    if said != right:
        yield "classic-joined", f"{member.member_id} of {group_id} received {said} instead of {right}"
    topics = _topics(request.protocols[0].metadata)
    assert member.classic is not None
    assert topics is not None
    known = (
        member.instance_id,
        member.rebalance_timeout_ms,
        member.classic.session_timeout_ms,
        member.classic.supported_protocols,
        member.subscribed_topic_names,
        member.subscribed_topic_regex,
    )
    asked = (
        member.instance_id if request.instance_id is None else request.instance_id,
        request.rebalance_timeout_ms,
        request.session_timeout_ms,
        classic_expected.offers_of(request),
        tuple(sorted(topics)),
        "",  # an expression would be one from before (KAFKA-19720)
    )
    if known != asked:
        yield "classic-migrates", f"{member.member_id} of {group_id} sent {asked}, and is stored as {known}"


def _changes(account: ExpectedGroup, request: consumer.ConsumerGroupHeartbeatRequest) -> bool:
    """Return true if the member that brings the newer protocol is new, or subscribes to other topics."""
    holder = classic_expected.holder_of(account.members, request.instance_id)
    if holder is None or request.subscribed_topic_regex:
        return True
    return _subscribed(account, holder) != {*(request.subscribed_topic_names or ())}


def _fits(assignments: Iterator[bytes]) -> bool:
    """Return true if all assignments can be read, do not overlap, and have no data of an assignor's own."""
    seen: set[tuple[str, int]] = set()
    for data in assignments:
        try:
            found = consumer_protocol.read_assignment(data)
        except consumer_protocol.MalformedConsumerProtocol:
            return False
        pairs = {(topic, number) for topic, numbers in found.partitions.items() for number in numbers}
        if found.user_data or seen & pairs:
            return False
        seen |= pairs
    return True


def _left_out(account: ExpectedGroup, image: TopicsImage) -> list[str]:
    """Topics that members subscribe to, and that have partitions without an owner."""
    given: dict[str, int] = {}
    topics: set[str] = set()
    for each in account.members.values():
        for name, numbers in _assigned(each.assignment).items():
            given[name] = given.get(name, 0) + len(numbers)
        topics |= _subscribed(account, each) or set()
    return sorted(
        name
        for name in topics
        if name in image.by_name and given.get(name, 0) < image.by_name[name].partitions
    )
