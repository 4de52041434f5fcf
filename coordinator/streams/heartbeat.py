"""The effect of one heartbeat on its group: join, change, acknowledge, or nothing (KIP-1071, Heartbeat).

The order is Kafka's: find the member, update it, look at the topology's topics, raise the group epoch if the
assignment's inputs changed, compute a target if one is due, and bring this one member closer to it. Other
members learn of it in their own heartbeats.
"""

from __future__ import annotations

import msgspec

from fencepost.coordinator.assign.spec import may_assign_again
from fencepost.coordinator.config import ReleaseVersion, StreamsGroupSettings
from fencepost.coordinator.protocol import streams
from fencepost.coordinator.protocol.ids import JOIN_EPOCH
from fencepost.coordinator.protocol.outcome import CreateInternalTopics, Effect, Outcome
from fencepost.coordinator.protocol.records import Record
from fencepost.coordinator.protocol.streams_records import StreamsGroupTopologyKey, StreamsGroupTopologyValue
from fencepost.coordinator.protocol.topics import TopicsImage, metadata_hash
from fencepost.coordinator.streams import validation
from fencepost.coordinator.streams.endpoints import partitions_by_endpoint
from fencepost.coordinator.streams.group import NO_TOPOLOGY_EPOCH, StreamsGroup
from fencepost.coordinator.streams.member import StreamsGroupMember
from fencepost.coordinator.streams.partition_counts import broken
from fencepost.coordinator.streams.reconcile import reconcile
from fencepost.coordinator.streams.soft import StreamsGroupSoftState, StreamsSoftState
from fencepost.coordinator.streams.target import (
    NUM_STANDBY_REPLICAS,
    StreamsTarget,
    TaskAssignor,
    compute_target,
)
from fencepost.coordinator.streams.topology import (
    ConfiguredTopology,
    check_topology,
    configure,
    required_topics,
    same_topology,
)


class StreamsHeartbeatContext(msgspec.Struct, frozen=True, kw_only=True):
    """All inputs of a heartbeat other than its group and itself."""

    image: TopicsImage
    settings: StreamsGroupSettings
    assignor: TaskAssignor
    max_size: int
    release: ReleaseVersion
    now_ms: int


class _Step:
    """One heartbeat so far: its records, and its statuses for the member."""

    def __init__(
        self,
        group: StreamsGroup,
        soft: StreamsGroupSoftState,
        around: StreamsHeartbeatContext,
        before: tuple[Record, ...],
    ) -> None:
        self.group = group
        self.soft = soft
        self.around = around
        self.records: list[Record] = list(before)
        self.status: list[streams.Status] = []

    def tell(self, code: streams.StatusCode, detail: str) -> None:
        self.status.append(streams.Status(code, detail))


def heartbeat(
    group: StreamsGroup,
    all_soft: StreamsSoftState,
    request: streams.StreamsGroupHeartbeatRequest,
    around: StreamsHeartbeatContext,
    before: tuple[Record, ...] = (),
) -> Outcome:
    """Return the outcome of a heartbeat with an epoch of 0 or more; `group` is new if it did not exist.

    `before` are the records that end a group of another kind, which gives way to this one.

    :raises ProtocolError: if the heartbeat breaks a rule; no record is written then.
    """
    soft = all_soft.of(group.group_id)
    step = _Step(group, soft, around, before)
    old = _member(group, request, around)
    new = old.with_heartbeat(request)
    if new is not old:
        step.records.append(new.metadata_record(group.group_id))
    topology = _topology(step, request, new)
    configured, epoch = _bumped(step, request, topology, changed=new is not old)
    if not group.members:
        all_soft.wait_for_members(group.group_id, around.settings.initial_rebalance_delay_ms, around.now_ms)
    waits = all_soft.waits_for_members(group.group_id)
    target = _target(step, new, configured, epoch, waits=waits)
    step.records.extend(target.records)
    reconciled = reconcile(
        new, target_epoch=target.epoch, target=target.tasks, owned=request.owned, owners=group.owners
    )
    if reconciled is not new:
        step.records.append(reconciled.assignment_record(group.group_id))
    all_soft.heard(group.group_id, request.member_id, around.now_ms)
    if request.shutdown_application:
        soft.request_shutdown(request.member_id)
    is_kept = group.group_id in all_soft.groups or bool(before)
    return Outcome(
        records=tuple(step.records),
        reply=_reply(step, request, old, reconciled, configured, is_kept=is_kept),
        effects=_effects(group.group_id, configured),
    )


def _member(
    group: StreamsGroup, request: streams.StreamsGroupHeartbeatRequest, around: StreamsHeartbeatContext
) -> StreamsGroupMember:
    """Return the member before the heartbeat, new or known."""
    member_id = request.member_id
    if request.member_epoch != JOIN_EPOCH:
        member = group.member(member_id)
        validation.check_epoch(member, request.member_epoch, request.owned)
        return member
    validation.check_not_full(group, around.max_size)
    return group.members.get(member_id) or StreamsGroupMember(member_id=member_id)


def _topology(
    step: _Step, request: streams.StreamsGroupHeartbeatRequest, member: StreamsGroupMember
) -> streams.Topology:
    """Return the group's topology, or else the one that this member brings.

    :raises ProtocolError: INVALID_REQUEST for another topology than the group's, unless it is an older one.
    """
    known, brought = step.group.topology, request.topology
    if brought is not None:
        check_topology(brought)
    if known is None:
        if brought is None:
            raise broken("The topology is null and the group topology is also null.")
        value = StreamsGroupTopologyValue(brought.epoch, brought.subtopologies)
        step.records.append(Record(StreamsGroupTopologyKey(step.group.group_id), value))
        return brought
    if brought is not None and known.epoch <= brought.epoch and not same_topology(known, brought):
        raise validation.invalid("Topology updates are not supported yet.")
    if member.topology_epoch < known.epoch:
        step.tell(
            streams.StatusCode.STALE_TOPOLOGY,
            f"The member's topology epoch {member.topology_epoch} is behind the group's topology epoch "
            f"{known.epoch}.",
        )
    return known


def _bumped(
    step: _Step, request: streams.StreamsGroupHeartbeatRequest, topology: streams.Topology, *, changed: bool
) -> tuple[ConfiguredTopology, int]:
    """Return the configured topology, and the group epoch, which is raised if an input of targets changed."""
    group, soft, around = step.group, step.soft, step.around
    epoch, digest, bump = group.group_epoch, group.metadata_hash, changed
    configured = soft.configured
    if group.topology is None or configured is None or soft.metadata_expired(epoch, around.now_ms):
        digest = metadata_hash(sorted(required_topics(topology)), around.image)
        if digest != group.metadata_hash:
            bump = True
        if digest != group.metadata_hash or group.topology is None or configured is None:
            configured = soft.configured = configure(topology, around.image)
    validated = NO_TOPOLOGY_EPOCH
    if configured.is_ready:
        validated = topology.epoch
        validation.check_tasks(configured, request)
    configs = {NUM_STANDBY_REPLICAS: str(around.settings.num_standby_replicas)}
    if bump or validated != group.validated_topology_epoch or configs != group.last_assignment_configs:
        epoch += 1
        step.records.append(group.metadata_record(epoch, digest, validated, configs))
        soft.metadata_refreshed(epoch, around.now_ms)
    return configured, epoch


def _target(
    step: _Step, member: StreamsGroupMember, configured: ConfiguredTopology, epoch: int, *, waits: bool
) -> StreamsTarget:
    group, around = step.group, step.around
    last = StreamsTarget(group.assignment_epoch, group.target(member.member_id))
    if waits:
        step.tell(
            streams.StatusCode.ASSIGNMENT_DELAYED,
            "Assignment delayed due to the configured initial rebalance delay.",
        )
        return StreamsTarget(group.assignment_epoch, streams.NO_TASKS)
    if group.assignment_epoch >= epoch:
        return last
    interval_ms = around.settings.assignment_interval_ms
    if not may_assign_again(group.assignment_timestamp_ms, interval_ms, around.now_ms):
        step.tell(
            streams.StatusCode.ASSIGNMENT_DELAYED,
            "Assignment delayed due to the configured assignment interval.",
        )
        return last
    configs = {NUM_STANDBY_REPLICAS: str(around.settings.num_standby_replicas)}
    return compute_target(
        group,
        member,
        configured,
        epoch=epoch,
        configs=configs,
        assignor=around.assignor,
        now_ms=around.now_ms,
    )


def _reply(
    step: _Step,
    request: streams.StreamsGroupHeartbeatRequest,
    old: StreamsGroupMember,
    new: StreamsGroupMember,
    configured: ConfiguredTopology,
    *,
    is_kept: bool,
) -> streams.StreamsGroupHeartbeatResponse:
    """Return the response. It has the tasks of a member that joins, or whose tasks changed.

    :raises ProtocolError: UNKNOWN_SERVER_ERROR if Kafka can't determine the partitions of an endpoint.
    """
    soft = step.soft
    changed = old.assigned != new.assigned
    shown = request.member_epoch == JOIN_EPOCH or changed
    if step.around.release is ReleaseVersion.V4_3:
        is_news = shown
    else:
        # A member that joins again with unchanged tasks and endpoint is no news any more.
        is_news = changed or old.user_endpoint != new.user_endpoint
    if is_news and new.user_endpoint is not None:
        soft.endpoint_epoch += 1
    endpoints = None
    if soft.endpoint_epoch != request.endpoint_information_epoch:
        endpoints = partitions_by_endpoint(step.group, new, configured, step.around.image)
    if configured.problem is not None:
        step.tell(configured.problem.code, configured.problem.detail)
    if soft.shutdown_requested_by is not None:
        step.tell(
            streams.StatusCode.SHUTDOWN_APPLICATION,
            f"Streams group member {soft.shutdown_requested_by} encountered a fatal error and requested a "
            "shutdown for the entire application.",
        )
    return streams.StreamsGroupHeartbeatResponse(
        member_id=new.member_id,
        member_epoch=new.member_epoch,
        heartbeat_interval_ms=step.around.settings.heartbeat_interval_ms,
        status=tuple(step.status),
        tasks=new.assigned if shown else None,
        # A group that this heartbeat creates does not keep the epoch.
        endpoint_information_epoch=soft.endpoint_epoch if is_kept else 0,
        partitions_by_endpoint=endpoints,
    )


def _effects(group_id: str, configured: ConfiguredTopology) -> tuple[Effect, ...]:
    missing = configured.missing_internal_topics
    return (CreateInternalTopics(group_id=group_id, topics=missing),) if missing else ()
