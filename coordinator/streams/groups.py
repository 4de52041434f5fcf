"""All streams groups of a coordinator: what records say of them, what runs in memory, and their timers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from fencepost.coordinator.assign.spec import may_assign_again
from fencepost.coordinator.config import (
    GroupConfig,
    GroupCoordinatorConfig,
    SettingsByGroup,
    StreamsGroupSettings,
)
from fencepost.coordinator.kinds import (
    Applier,
    GiveWay,
    GroupKind,
    GroupMember,
    ReportedMember,
    RequestHandler,
)
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.ids import JOIN_EPOCH, MemberId, Partitions
from fencepost.coordinator.protocol.offsets import OffsetCommitRequest, OffsetFetchRequest, PartitionFence
from fencepost.coordinator.protocol.outcome import NOTHING, Effect, MemberFenced, Outcome
from fencepost.coordinator.protocol.records import Record
from fencepost.coordinator.protocol.streams import (
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
)
from fencepost.coordinator.protocol.streams_records import StreamsGroupMemberMetadataKey
from fencepost.coordinator.protocol.topics import TopicsImage, metadata_hash
from fencepost.coordinator.streams import describe, offset_fencing
from fencepost.coordinator.streams.group import StreamsGroup
from fencepost.coordinator.streams.heartbeat import StreamsHeartbeatContext, heartbeat
from fencepost.coordinator.streams.leaving import group_tombstones, removal_records
from fencepost.coordinator.streams.records import APPLY, apply_to_groups
from fencepost.coordinator.streams.soft import StreamsSoftState, StreamsTimerKey, StreamsTimerKind
from fencepost.coordinator.streams.states import STREAMS_GROUP_TABLE, StreamsGroupMemberState
from fencepost.coordinator.streams.target import compute_target
from fencepost.coordinator.streams.topology import required_topics
from fencepost.coordinator.streams.validation import check_request


class StreamsGroups(GroupKind):
    """Takes events about streams groups, and the records that they led to.

    `give_way` knows the groups of other kinds, by id: an empty classic group gives way to a streams group.
    """

    __slots__ = (
        "_config",
        "_give_way",
        "_groups",
        "_settings",
        "groups",
        "image",
        "replay",
        "soft",
        "timers",
    )

    name = describe.STREAMS_GROUP_TYPE
    group_table = STREAMS_GROUP_TABLE
    member_key = StreamsGroupMemberMetadataKey
    heartbeat_requests = (StreamsGroupHeartbeatRequest,)
    leaves_by_request = False

    def __init__(self, config: GroupCoordinatorConfig, give_way: GiveWay) -> None:
        self._config = config
        self._give_way = give_way
        self._groups: dict[str, StreamsGroup] = {}
        self.groups: Mapping[str, StreamsGroup] = MappingProxyType(self._groups)
        self.replay: Callable[[Any, Any], None] = partial(apply_to_groups, self._groups)
        """Makes a record of a journal true, or raises InconsistentRecord; `rebuild` ends a load."""
        self.soft = StreamsSoftState(self._session_timeout_ms)
        self.timers = self.soft.timers
        self.image = TopicsImage()
        """The cluster's topics, as of the last TopicsChanged."""
        self._settings = SettingsByGroup(lambda own: own.streams_settings(config))

    def handlers(self) -> Mapping[type, RequestHandler]:
        """Return the handlers of KIP-1071's requests."""
        return {
            StreamsGroupHeartbeatRequest: self.heartbeat,
            StreamsGroupDescribeRequest: self.describe,
        }

    # Records

    def appliers(self) -> Mapping[type, Applier]:
        """Return what makes the records of streams groups true."""
        return dict.fromkeys(APPLY, self.apply)

    def replayers(self) -> Mapping[type, Applier]:
        """Return the same, without what runs in memory."""
        return dict.fromkeys(APPLY, self.replay)

    def begin(self, now_ms: int) -> None:
        """Take the time of the event that is about to be handled."""
        self.soft.now_ms = now_ms

    def apply(self, key: Any, value: Any) -> None:
        """Make a record true, at the time of the event that was handled last.

        :raises InconsistentRecord: if it cannot follow the records before it.
        """
        self.replay(key, value)
        self.soft.follow(key, value, self._groups.get(key.group_id))

    def rebuild(self, now_ms: int) -> None:
        """Start all timers with their full length."""
        self.soft.rebuild(self._groups, now_ms)

    def discard(self, outcome: Outcome, code: ErrorCode) -> tuple[Effect, ...]:
        """Look again at what was seen for records that were not written."""
        for group_id in {record.key.group_id: None for record in outcome.records}:
            soft = self.soft.groups.get(group_id)
            if soft is not None:
                soft.configured = None
        return ()

    # Configuration

    def set_group_config(self, group_id: str, config: GroupConfig | None) -> None:
        """Give a group a configuration of its own, or take it away. Configuration is in no record."""
        self._settings.configure(group_id, config)
        self.soft.restart_sessions((group_id,))

    def settings(self, group_id: str) -> StreamsGroupSettings:
        """What holds for a group: session length, intervals, standby tasks."""
        return self._settings.of(group_id)

    def _session_timeout_ms(self, group_id: str) -> int:
        return self.settings(group_id).session_timeout_ms

    # Requests

    def heartbeat(self, request: StreamsGroupHeartbeatRequest, now_ms: int) -> Outcome:
        """StreamsGroupHeartbeat."""
        try:
            return self._checked_heartbeat(request, now_ms)
        except ProtocolError as error:
            # What a server did not expect it keeps to itself, as Kafka does.
            message = None if error.code is ErrorCode.UNKNOWN_SERVER_ERROR else error.message
            return Outcome(reply=StreamsGroupHeartbeatResponse(error_code=error.code, error_message=message))

    def _checked_heartbeat(self, request: StreamsGroupHeartbeatRequest, now_ms: int) -> Outcome:
        if self.name not in self._config.group_coordinator_rebalance_protocols:
            raise ProtocolError(ErrorCode.UNSUPPORTED_VERSION, "The streams group protocol is disabled.")
        check_request(request)
        group_id = request.group_id
        group = self._groups.get(group_id)
        before: tuple[Record, ...] = ()
        if request.member_epoch < JOIN_EPOCH:
            return self._leave(group, request)
        if group is None:
            group, before = self._new_group(group_id, joins=request.member_epoch == JOIN_EPOCH)
        around = StreamsHeartbeatContext(
            image=self.image,
            settings=self.settings(group_id),
            max_size=self._config.group_streams_max_size,
            now_ms=now_ms,
        )
        return heartbeat(group, self.soft, request, around, before)

    def _new_group(self, group_id: str, *, joins: bool) -> tuple[StreamsGroup, tuple[Record, ...]]:
        """A group to join, and the end of the empty group of another kind that has the id."""
        before = self._give_way(group_id)
        if before is None or not joins:
            raise self._not_found(group_id)
        return StreamsGroup(group_id), before

    def _not_found(self, group_id: str) -> ProtocolError:
        is_other = self._give_way(group_id) != ()
        problem = f"Group {group_id} is not a streams group." if is_other else f"Group {group_id} not found."
        return ProtocolError(ErrorCode.GROUP_ID_NOT_FOUND, problem)

    def _leave(self, group: StreamsGroup | None, request: StreamsGroupHeartbeatRequest) -> Outcome:
        """A member goes. What it wants of the others counts even if it is no member (KAFKA-19190)."""
        if group is None:
            raise self._not_found(request.group_id)
        if request.shutdown_application:
            self.soft.of(group.group_id).request_shutdown(request.member_id)
        member = group.member(request.member_id)
        reply = StreamsGroupHeartbeatResponse(
            member_id=request.member_id, member_epoch=request.member_epoch, status=()
        )
        return Outcome(records=removal_records(group, (member.member_id,)), reply=reply)

    def describe(self, request: StreamsGroupDescribeRequest, now_ms: int) -> Outcome:
        """StreamsGroupDescribe: each group that was asked for, in that order."""
        groups = []
        for group_id in request.group_ids:
            group = self._groups.get(group_id)
            if group is not None:
                groups.append(describe.describe(group, self.soft.of(group_id).configured))
            else:
                groups.append(describe.missing(group_id, self._not_found(group_id).message))
        return Outcome(reply=StreamsGroupDescribeResponse(groups=tuple(groups)))

    # What happens without a request

    def heard(self, group_id: str, member_id: MemberId, now_ms: int) -> None:
        """A member is alive, as the shell knows."""
        self.soft.heard(group_id, member_id, now_ms)

    def session_ended(self, group_id: str, member_id: MemberId, now_ms: int) -> Outcome:
        """A member is gone, as the shell knows."""
        group = self._groups.get(group_id)
        if group is None or member_id not in group.members:
            return NOTHING
        return self._fence(StreamsTimerKey(StreamsTimerKind.SESSION, group_id, member_id))

    def rebalance(self, group_id: str, now_ms: int) -> Outcome:
        """Raise the epoch of a group with members for its own sake."""
        group = self._groups.get(group_id)
        if group is None or not group.members:
            return NOTHING
        return Outcome(records=removal_records(group, ()))

    def topics_changed(self, before: TopicsImage, after: TopicsImage, changed: Iterable[str]) -> None:
        """The cluster's topics are others; `changed` are the names of those that differ."""
        self.image = after
        names = tuple(changed)
        for group_id, group in self._groups.items():
            if any(group.needs(name) for name in names):
                self.soft.groups[group_id].request_metadata_refresh()

    def deadline_reached(self, now_ms: int) -> Outcome | None:
        """Run the most overdue timer that does something; None if there is none."""
        while (key := self.soft.timers.pop_due(now_ms)) is not None:
            if key.kind is StreamsTimerKind.INITIAL:
                outcome = self._first_target(key.group_id, now_ms)
                if outcome.records:
                    return outcome
            elif key.kind is StreamsTimerKind.REBALANCE:
                self.soft.retry_later(key, now_ms)
                return self._fence(key)
            elif self.soft.session_is_over(key, now_ms):
                return self._fence(key)
        return None

    def _first_target(self, group_id: str, now_ms: int) -> Outcome:
        """The target of all members that joined while the group waited for them."""
        group = self._groups.get(group_id)
        configured = self.soft.of(group_id).configured
        if group is None or not group.members or configured is None:
            return NOTHING
        if group.group_epoch <= group.assignment_epoch:
            return NOTHING
        interval_ms = self.settings(group_id).assignment_interval_ms
        if not may_assign_again(group.assignment_timestamp_ms, interval_ms, now_ms):
            return NOTHING
        configs = group.last_assignment_configs
        target = compute_target(
            group, None, configured, epoch=group.group_epoch, configs=configs, now_ms=now_ms
        )
        return Outcome(records=target.records)

    def _fence(self, key: StreamsTimerKey) -> Outcome:
        group = self._groups[key.group_id]
        fenced = MemberFenced(group_id=key.group_id, member_id=key.member_id, reason=key.kind.value)
        return Outcome(records=removal_records(group, (key.member_id,)), effects=(fenced,))

    def end_of_empty(self, group: StreamsGroup) -> tuple[Record, ...] | None:
        """Return the tombstones of a group without members; None if it has members."""
        return None if group.members else group_tombstones(group)

    # Offsets

    def check_commit(
        self, group: StreamsGroup, image: TopicsImage, now_ms: int, request: OffsetCommitRequest
    ) -> PartitionFence | None:
        """Fence an OffsetCommit by the member's epoch and tasks."""
        return offset_fencing.check_commit(group, image, request)

    def check_fetch(self, group: StreamsGroup, request: OffsetFetchRequest) -> None:
        """Fence an OffsetFetch by the member's epoch."""
        offset_fencing.check_fetch(group, request)

    # What observers see

    def members(
        self, group: StreamsGroup, owned: Mapping[MemberId, Partitions], image: TopicsImage
    ) -> list[GroupMember]:
        """Return the members, by member id."""
        return describe.members(group, owned, image)

    def reported(
        self, request: StreamsGroupHeartbeatRequest, member_id: MemberId, image: TopicsImage
    ) -> ReportedMember:
        """Return what a heartbeat says of its member; partitions are those that active tasks read."""
        group = self._groups.get(request.group_id)
        if group is None:
            return ReportedMember(None, None)
        tasks, member = request.active_tasks, group.members.get(member_id)
        owned = None if tasks is None else describe.partitions_read(group, tasks, image)
        if member is None:
            return ReportedMember(owned, None)
        assigned = describe.partitions_read(group, member.assigned.active, image)
        return ReportedMember(owned, assigned, member.state == StreamsGroupMemberState.STABLE)

    def knows_its_topics(self, group: StreamsGroup, image: TopicsImage) -> bool:
        """Return whether the target is of the topics that the topology has now."""
        if group.topology is None:
            return True
        return group.metadata_hash == metadata_hash(sorted(required_topics(group.topology)), image)

    def may_read(self, group: StreamsGroup, topic: str) -> bool:
        """Return whether the topology reads the topic."""
        return topic in group.source_subtopologies
