"""The classic protocol's requests to groups of both kinds, and the conversion of one kind into the other."""

from __future__ import annotations

from collections.abc import Sequence

from fencepost.coordinator.classic.group import ClassicGroup
from fencepost.coordinator.classic.groups import ClassicGroups
from fencepost.coordinator.classic.join import check_request
from fencepost.coordinator.classic.states import ClassicGroupState
from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.consumer import heartbeat, leaving
from fencepost.coordinator.consumer.group import ConsumerGroup
from fencepost.coordinator.consumer.groups import ConsumerGroups
from fencepost.coordinator.consumer.heartbeat import ConsumerHeartbeatContext, Evaluated
from fencepost.coordinator.consumer.member import ConsumerGroupMember
from fencepost.coordinator.consumer.soft import ConsumerGroupSoftState
from fencepost.coordinator.consumer.states import ConsumerGroupMemberState
from fencepost.coordinator.kinds import GiveWay, GroupKinds
from fencepost.coordinator.migration import downgrade, members, upgrade
from fencepost.coordinator.protocol.classic import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from fencepost.coordinator.protocol.consumer import ConsumerGroupHeartbeatRequest
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.ids import MemberId
from fencepost.coordinator.protocol.outcome import Outcome
from fencepost.coordinator.protocol.records import ConsumerGroupMetadataValue, GroupMetadataKey, Record
from fencepost.coordinator.protocol.topics import TopicsImage
from fencepost.coordinator.timers import GroupTimerKind

_IN_A_ROUND = (ClassicGroupState.PREPARING_REBALANCE, ClassicGroupState.COMPLETING_REBALANCE)


class ClassicProtocolRequests:
    """Handles the requests of members that speak the classic protocol, in groups of either kind."""

    __slots__ = ("_classic", "_config", "_give_way", "_groups", "_kinds", "_soft", "_surroundings")

    def __init__(
        self,
        config: GroupCoordinatorConfig,
        consumer: ConsumerGroups,
        classic: ClassicGroups,
        kinds: GroupKinds,
        give_way: GiveWay,
    ) -> None:
        self._config = config
        self._give_way = give_way
        self._groups = consumer.groups
        self._classic = classic
        self._kinds = kinds
        self._soft = consumer.soft
        self._surroundings = consumer.surroundings

    def join(self, request: JoinGroupRequest, now_ms: int) -> Outcome:
        """JoinGroup. An empty group of another kind gives way to a classic one."""
        group = self._groups.get(request.group_id)
        if group is None or not group.members:
            return self._join_any(request, now_ms)
        member_id = request.member_id
        try:
            check_request(request, self._config)
            member_id = ""  # Kafka leaves it out of the group's refusals.
            return self._join(group, request, now_ms)
        except ProtocolError as error:
            if error.code is ErrorCode.MEMBER_ID_REQUIRED:
                member_id = request.new_member_suffix
            return Outcome(reply=JoinGroupResponse(error_code=error.code, member_id=member_id))

    def _join_any(self, request: JoinGroupRequest, now_ms: int) -> Outcome:
        """Join a classic group; a member of the classic protocol can only follow the last of another kind."""
        found = self._kinds.find(request.group_id)
        if found is None or found[0] is self._classic:
            return self._classic.join(request, now_ms)
        end = found[0].end_of_empty(found[1])
        if end is not None:
            return self._classic.join(request, now_ms, end)
        try:
            check_request(request, self._config)
        except ProtocolError as error:
            return Outcome(reply=JoinGroupResponse(error_code=error.code, member_id=request.member_id))
        return Outcome(
            reply=JoinGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id="")
        )

    def _join(self, group: ConsumerGroup, request: JoinGroupRequest, now_ms: int) -> Outcome:
        group_id = group.group_id
        around = self._surroundings(group_id, now_ms)
        policy = self._config.group_consumer_migration_policy
        subscription = members.check_join(group, request, around, policy)
        soft = self._soft.of(group_id)
        found = members.join(group, soft, request, subscription, around)
        member = found.member
        replaced = None if request.instance_id is None else group.static_members.get(request.instance_id)
        if replaced not in (None, member.member_id) and downgrade.may_downgrade(
            group, (replaced,), self._config, joining=1
        ):
            return self._join_ends_the_group(group, found, around)
        if found.effects:
            self._soft.resolving[group_id] = None
        self._heard(group_id, member, now_ms)
        self._soft.expect_no_more(GroupTimerKind.JOIN, group_id, member.member_id)
        self._soft.expect(GroupTimerKind.SYNC, group_id, member)
        return Outcome(records=found.records, reply=members.joined(member), effects=found.effects)

    def _join_ends_the_group(
        self, group: ConsumerGroup, found: Evaluated, around: ConsumerHeartbeatContext
    ) -> Outcome:
        """Let a static member return with the classic protocol, after which no member speaks the newer
        one."""
        after = _copy_of(group)
        for record in found.records:
            ConsumerGroup.apply(after, record.key, record.value)
        then = after[group.group_id]
        classic = downgrade.downgrade(then, (), around.image, around.now_ms)
        # Members learn of pending changes only if they join again.
        behind = any(
            member.member_epoch < then.group_epoch or member.state is not ConsumerGroupMemberState.STABLE
            for member in then.members.values()
        )
        stale = behind or then.group_epoch > group.group_epoch or then.assignment_epoch < then.group_epoch
        return Outcome(
            records=self._replace(group, classic, around.now_ms, rebalance=stale),
            reply=members.joined(found.member),
        )

    def sync(self, request: SyncGroupRequest, now_ms: int) -> Outcome:
        """SyncGroup."""
        if request.lacks_protocol:
            # Kafka checks for missing fields of the request before it looks for the group.
            return Outcome(reply=SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
        group = self._groups.get(request.group_id)
        if group is None or not group.members:
            return self._classic.sync(request, now_ms)
        try:
            reply = members.sync(group, request, self._surroundings(group.group_id, now_ms).image)
        except ProtocolError as error:
            return Outcome(reply=SyncGroupResponse(error_code=error.code))
        self._heard(group.group_id, group.members[request.member_id], now_ms)
        self._soft.expect_no_more(GroupTimerKind.SYNC, group.group_id, request.member_id)
        return Outcome(reply=reply)

    def heartbeat(self, request: HeartbeatRequest, now_ms: int) -> Outcome:
        """Heartbeat."""
        group = self._groups.get(request.group_id)
        if group is None or not group.members:
            return self._classic.heartbeat(request, now_ms)
        try:
            goes_on = members.alive(group, request)
        except ProtocolError as error:
            return Outcome(reply=HeartbeatResponse(error_code=error.code))
        member = group.members[request.member_id]
        self._heard(group.group_id, member, now_ms)
        if goes_on:
            return Outcome(reply=HeartbeatResponse())
        self._soft.expect(GroupTimerKind.JOIN, group.group_id, member)
        return Outcome(reply=HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))

    def _heard(self, group_id: str, member: ConsumerGroupMember, now_ms: int) -> None:
        contact = self._soft.of(group_id).contacts.get(member.member_id)
        if contact is not None:
            contact.last_ms = now_ms

    def upgrade(
        self, request: ConsumerGroupHeartbeatRequest, member_id: MemberId, now_ms: int
    ) -> Outcome | None:
        """Let a member join a classic group with the newer protocol; return None if there is no such group.

        Offsets without members are an empty one.

        :raises ProtocolError: GROUP_ID_NOT_FOUND if the group remains a classic one, or is a streams group.
        """
        kind = self._kinds.of(request.group_id)
        if kind is not None and kind is not self._classic:
            raise ProtocolError(
                ErrorCode.GROUP_ID_NOT_FOUND, f"Group {request.group_id} is not a consumer group."
            )
        before = self._give_way(request.group_id)
        if before == ():
            return None
        around = self._surroundings(request.group_id, now_ms)
        if before is not None:
            group = ConsumerGroup(request.group_id)
            found = heartbeat.heartbeat(group, ConsumerGroupSoftState(), request, member_id, around)
            return Outcome(records=before + found.records, reply=found.reply, effects=found.effects)
        classic = self._classic.groups[request.group_id]
        upgrade.check_may_upgrade(classic, self._config)
        group, before = upgrade.upgrade(classic, around.image)
        found = heartbeat.heartbeat(group, ConsumerGroupSoftState(), request, member_id, around)
        unfinished = classic.is_in(*_IN_A_ROUND) or upgrade.leaves_out(group, around.image)
        if unfinished and not _raises_epoch(found):
            # A static member that returns changes nothing. But the round that it ends had a reason, and since
            # the digest is computed now, no member would learn of partitions added after the last round.
            group, before = upgrade.upgrade(classic, around.image, stale=True)
            found = heartbeat.heartbeat(group, ConsumerGroupSoftState(), request, member_id, around)
        if found.effects:
            self._soft.resolving[request.group_id] = None
        return Outcome(
            records=before + found.records,
            reply=found.reply,
            effects=found.effects + upgrade.released(classic),
        )

    def removal(
        self, group: ConsumerGroup, gone: Sequence[ConsumerGroupMember], image: TopicsImage, now_ms: int
    ) -> tuple[Record, ...]:
        """Return the records that remove members of a consumer group for good, or turn it into a classic
        group."""
        ids = {member.member_id for member in gone}
        if not downgrade.may_downgrade(group, ids, self._config):
            return leaving.removal_records(group, gone, image, self._config.release_version)
        classic = downgrade.downgrade(group, ids, image, now_ms)
        return self._replace(group, classic, now_ms, rebalance=True)

    def _replace(
        self, group: ConsumerGroup, classic: ClassicGroup, now_ms: int, *, rebalance: bool
    ) -> tuple[Record, ...]:
        """Return the records that replace a consumer group by a classic group; once written, that group
        runs."""
        self._classic.adopt(classic, now_ms, rebalance=rebalance)
        value = classic.value(classic.assignments)
        return (*leaving.group_tombstones(group), Record(GroupMetadataKey(group.group_id), value))


def _raises_epoch(outcome: Outcome) -> bool:
    return any(isinstance(record.value, ConsumerGroupMetadataValue) for record in outcome.records)


def _copy_of(group: ConsumerGroup) -> dict[str, ConsumerGroup]:
    """Another group that is equal to this one, as a mapping to apply records to."""
    groups = {group.group_id: ConsumerGroup(group.group_id)}
    for record in group.records():
        ConsumerGroup.apply(groups, record.key, record.value)
    return groups
