"""All streams groups of a coordinator: their records, their state in memory, and their timers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from fencepost.coordinator.assign.spec import may_assign_again
from fencepost.coordinator.assign.tasks import sticky
from fencepost.coordinator.config import GroupCoordinatorConfig, ReleaseVersion, StreamsGroupSettings
from fencepost.coordinator.epoch_groups import EpochGroups
from fencepost.coordinator.kinds import GiveWay, GroupMember, ReportedMember, RequestHandler
from fencepost.coordinator.protocol import streams, streams_records
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.ids import JOIN_EPOCH, MemberId, Partitions
from fencepost.coordinator.protocol.offsets import OffsetCommitRequest, PartitionFence
from fencepost.coordinator.protocol.outcome import NOTHING, Effect, Outcome
from fencepost.coordinator.protocol.records import Record
from fencepost.coordinator.protocol.topics import TopicsImage, metadata_hash
from fencepost.coordinator.streams import describe, offset_fencing
from fencepost.coordinator.streams.group import StreamsGroup
from fencepost.coordinator.streams.heartbeat import StreamsHeartbeatContext, heartbeat
from fencepost.coordinator.streams.soft import StreamsSoftState
from fencepost.coordinator.streams.states import STREAMS_GROUP_TABLE, StreamsGroupMemberState
from fencepost.coordinator.streams.target import TaskAssignor, compute_target
from fencepost.coordinator.streams.topology import required_topics
from fencepost.coordinator.streams.validation import check_request
from fencepost.coordinator.timers import GroupTimerKind


class StreamsGroups(EpochGroups[StreamsGroup, StreamsGroupSettings]):
    """Takes events about streams groups, and the records that they led to.

    `give_way` knows the groups of other kinds, by id: an empty classic group gives way to a streams group.
    """

    __slots__ = ("_give_way", "assignor", "soft")

    soft: StreamsSoftState

    name = describe.STREAMS_GROUP_TYPE
    group_type = StreamsGroup
    group_table = STREAMS_GROUP_TABLE
    member_key = streams_records.StreamsGroupMemberMetadataKey
    heartbeat_requests = (streams.StreamsGroupHeartbeatRequest,)
    leaves_by_request = False

    def __init__(self, config: GroupCoordinatorConfig, give_way: GiveWay) -> None:
        self._give_way = give_way
        self.assignor: TaskAssignor = sticky
        self.soft = StreamsSoftState(self._session_timeout_ms)
        super().__init__(config, lambda own: own.streams_settings(config))

    def handlers(self) -> Mapping[type, RequestHandler]:
        """Return the handlers of KIP-1071's requests."""
        return {
            streams.StreamsGroupHeartbeatRequest: self.heartbeat,
            streams.StreamsGroupDescribeRequest: self.describe,
        }

    # Records

    def discard(self, outcome: Outcome, code: ErrorCode) -> tuple[Effect, ...]:
        """Look at topics again for groups whose records were not written."""
        for group_id in {record.key.group_id: None for record in outcome.records}:
            soft = self.soft.groups.get(group_id)
            if soft is not None:
                soft.configured = None
        return ()

    # Requests

    def heartbeat(self, request: streams.StreamsGroupHeartbeatRequest, now_ms: int) -> Outcome:
        """StreamsGroupHeartbeat."""
        try:
            return self._checked_heartbeat(request, now_ms)
        except ProtocolError as error:
            # As in Kafka, clients get no message for an unexpected error.
            message = None if error.code is ErrorCode.UNKNOWN_SERVER_ERROR else error.message
            return Outcome(
                reply=streams.StreamsGroupHeartbeatResponse(error_code=error.code, error_message=message)
            )

    def _checked_heartbeat(self, request: streams.StreamsGroupHeartbeatRequest, now_ms: int) -> Outcome:
        if self.name not in self.config.group_coordinator_rebalance_protocols:
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
            assignor=self.assignor,
            max_size=self.config.group_streams_max_size,
            release=self.config.release_version,
            now_ms=now_ms,
        )
        return heartbeat(group, self.soft, request, around, before)

    def _new_group(self, group_id: str, *, joins: bool) -> tuple[StreamsGroup, tuple[Record, ...]]:
        """Return a group to join, and the records that end an empty group of another kind with the id."""
        before = self._give_way(group_id)
        if before is None or not joins:
            raise self._not_found(group_id)
        return StreamsGroup(group_id), before

    def _not_found(self, group_id: str) -> ProtocolError:
        is_other = self._give_way(group_id) != ()
        problem = f"Group {group_id} is not a streams group." if is_other else f"Group {group_id} not found."
        return ProtocolError(ErrorCode.GROUP_ID_NOT_FOUND, problem)

    def _leave(self, group: StreamsGroup | None, request: streams.StreamsGroupHeartbeatRequest) -> Outcome:
        """Remove a member. Its request to stop the application counts even if it is not a member
        (KAFKA-19190)."""
        if group is None:
            raise self._not_found(request.group_id)
        if request.shutdown_application:
            self.soft.of(group.group_id).request_shutdown(request.member_id)
        member = group.member(request.member_id)
        reply = streams.StreamsGroupHeartbeatResponse(
            member_id=request.member_id, member_epoch=request.member_epoch, status=()
        )
        return Outcome(
            records=removal_records(group, (member.member_id,), self.config.release_version), reply=reply
        )

    def describe(self, request: streams.StreamsGroupDescribeRequest, now_ms: int) -> Outcome:
        """StreamsGroupDescribe: describe each group of the request, in that order."""
        groups = []
        for group_id in request.group_ids:
            group = self._groups.get(group_id)
            if group is not None:
                groups.append(describe.describe(group, self.soft.of(group_id).configured))
            else:
                groups.append(describe.missing(group_id, self._not_found(group_id).message))
        return Outcome(reply=streams.StreamsGroupDescribeResponse(groups=tuple(groups)))

    def end_of_members(
        self, group: StreamsGroup, member_ids: Collection[MemberId], now_ms: int
    ) -> tuple[Record, ...]:
        """Return the records that remove members for good."""
        return removal_records(group, member_ids, self.config.release_version)

    def raised(self, group: StreamsGroup) -> tuple[Record, ...]:
        """Return the record that raises the epoch of a group, and changes nothing else."""
        return removal_records(group, (), self.config.release_version)

    # What happens without a request

    def topics_changed(self, before: TopicsImage, after: TopicsImage, changed: Iterable[str]) -> None:
        """Take over the changed topics of the cluster; `changed` has the names of those that differ."""
        self.image = after
        names = frozenset(changed)
        for group_id, group in self._groups.items():
            if group.needs_any(names):
                self.soft.groups[group_id].request_metadata_refresh()

    def deadline_reached(self, now_ms: int) -> Outcome | None:
        """Run the most overdue timer that has an effect; return None without one."""
        while (key := self.soft.timers.pop_due(now_ms)) is not None:
            if key.kind is GroupTimerKind.INITIAL:
                outcome = self._first_target(key.group_id, now_ms)
                if outcome.records:
                    return outcome
            elif key.kind is GroupTimerKind.REBALANCE:
                self.soft.retry_later(key, now_ms)
                return self._fence(key, now_ms)
            elif self.soft.session_is_over(key, now_ms):
                return self._fence(key, now_ms)
        return None

    def _first_target(self, group_id: str, now_ms: int) -> Outcome:
        """Compute the target of all members that joined while the group waited for them."""
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
            group,
            None,
            configured,
            epoch=group.group_epoch,
            configs=configs,
            assignor=self.assignor,
            now_ms=now_ms,
        )
        return Outcome(records=target.records)

    def end_of_empty(self, group: StreamsGroup) -> tuple[Record, ...] | None:
        """Return the tombstones of a group without members; None if it has members."""
        if group.members:
            return None
        return group.tombstones(after=[Record(streams_records.StreamsGroupTopologyKey(group.group_id), None)])

    # Offsets

    def check_commit(
        self, group: StreamsGroup, image: TopicsImage, now_ms: int, request: OffsetCommitRequest
    ) -> PartitionFence | None:
        """Fence an OffsetCommit by the member's epoch and tasks."""
        return offset_fencing.check_commit(group, image, request)

    # What observers see

    def members(
        self, group: StreamsGroup, owned: Mapping[MemberId, Partitions], image: TopicsImage
    ) -> list[GroupMember]:
        """Return the members, by member id."""
        return describe.members(group, owned, image)

    def reported(
        self, request: streams.StreamsGroupHeartbeatRequest, member_id: MemberId, image: TopicsImage
    ) -> ReportedMember:
        """Return what a heartbeat reports about its member; partitions are those that active tasks read."""
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
        """Return true if the target is based on the present topics of the topology."""
        if group.topology is None:
            return True
        return group.metadata_hash == metadata_hash(sorted(required_topics(group.topology)), image)

    def may_read(self, group: StreamsGroup, topic: str) -> bool:
        """Return true if the topology reads the topic."""
        return topic in group.source_subtopologies


def removal_records(
    group: StreamsGroup, member_ids: Collection[MemberId], release: ReleaseVersion
) -> tuple[Record, ...]:
    """Return the records that remove members, and raise the group epoch once for all of them."""
    epoch = group.group_epoch + 1
    return (
        *(record for member_id in member_ids for record in group.member_tombstones(member_id)),
        group.metadata_record(
            epoch,
            group.metadata_hash,
            group.validated_topology_epoch,
            group.last_assignment_configs,
        ),
        *group.target_without_members(epoch, len(member_ids), release),
    )
