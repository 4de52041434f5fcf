"""The checks of a heartbeat, in Kafka's order: the first one that fails decides the response."""

from __future__ import annotations

from collections.abc import Collection

from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.ids import JOIN_EPOCH, STATIC_LEAVE_EPOCH
from fencepost.coordinator.protocol.streams import StreamsGroupHeartbeatRequest, TaskIds, Tasks, Topology
from fencepost.coordinator.protocol.topics import INTERNAL_TOPICS, is_valid_name
from fencepost.coordinator.streams.group import StreamsGroup
from fencepost.coordinator.streams.member import StreamsGroupMember
from fencepost.coordinator.streams.partition_counts import invalid_topology
from fencepost.coordinator.streams.topology import ConfiguredTopology


def check_request(request: StreamsGroupHeartbeatRequest) -> None:
    """Run the checks that need no group.

    :raises ProtocolError: INVALID_REQUEST or STREAMS_INVALID_TOPOLOGY.
    """
    if request.topology is not None:
        _check_names(request.topology)
    _check_supported(request)
    _check_not_blank(request.member_id, "MemberId")
    _check_not_blank(request.group_id, "GroupId")
    _check_not_blank(request.rack_id, "RackId")
    epoch = request.member_epoch
    roles = (request.active_tasks, request.standby_tasks, request.warmup_tasks)
    if epoch == JOIN_EPOCH:
        _check_join(request, roles)
    elif epoch == STATIC_LEAVE_EPOCH:
        raise invalid("InstanceId can't be null.")
    elif epoch < STATIC_LEAVE_EPOCH:
        raise invalid(f"MemberEpoch is {epoch}, but must be greater than or equal to -2.")
    if any(role is not None for role in roles) and any(role is None for role in roles):
        raise invalid("If one task-type is non-null, all must be non-null.")
    if epoch != JOIN_EPOCH and request.topology is not None:
        raise invalid("Topology can only be provided when (re-)joining.")


def _check_names(topology: Topology) -> None:
    """Topics must have names that a topic of an application can have: the broker looks at that first."""
    names = list(
        dict.fromkeys(
            name
            for one in topology.subtopologies
            for name in (
                *one.source_topics,
                *one.repartition_sink_topics,
                *(topic.name for topic in one.repartition_source_topics),
                *(topic.name for topic in one.state_changelog_topics),
            )
        )
    )
    if internal := [name for name in names if name in INTERNAL_TOPICS]:
        raise invalid_topology(
            f"Use of Kafka internal topics {','.join(internal)} in a Kafka Streams topology is prohibited."
        )
    if invalid := [name for name in names if not is_valid_name(name)]:
        raise invalid_topology(f"Topic names {','.join(invalid)} are not valid topic names.")


def _check_supported(request: StreamsGroupHeartbeatRequest) -> None:
    """Refuse the parts of a request that Kafka 4.3 defines but refuses."""
    if request.instance_id is not None:
        raise invalid("Static membership is not yet supported.")
    if request.task_offsets is not None:
        raise invalid("TaskOffsets are not supported yet.")
    if request.task_end_offsets is not None:
        raise invalid("TaskEndOffsets are not supported yet.")
    if request.warmup_tasks:
        raise invalid("WarmupTasks are not supported yet.")
    if request.topology is not None and any(one.source_topic_regex for one in request.topology.subtopologies):
        raise invalid("Regular expressions for source topics are not supported yet.")


def _check_join(request: StreamsGroupHeartbeatRequest, roles: Collection[TaskIds | None]) -> None:
    if request.rebalance_timeout_ms == -1:
        raise invalid("RebalanceTimeoutMs must be provided in first request.")
    for name, tasks in zip(("ActiveTasks", "StandbyTasks", "WarmupTasks"), roles, strict=True):
        if tasks is None or tasks:
            raise invalid(f"{name} must be empty when (re-)joining.")
    if request.topology is None:
        raise invalid("Topology must be non-null when (re-)joining.")
    for one in request.topology.subtopologies:
        for topic in one.state_changelog_topics:
            if topic.partitions != 0:
                raise invalid_topology(
                    f"Changelog topic {topic.name} must have an undefined partition count, but it is set to "
                    f"{topic.partitions}."
                )


def _check_not_blank(value: str | None, field: str) -> None:
    if value is not None and not value.strip():
        raise invalid(f"{field} can't be empty.")


def invalid(message: str) -> ProtocolError:
    """Return the error for a request that no member should send."""
    return ProtocolError(ErrorCode.INVALID_REQUEST, message)


def check_not_full(group: StreamsGroup, max_size: int) -> None:
    """Refuse all members if the group is full, even one that joins again.

    :raises ProtocolError: GROUP_MAX_SIZE_REACHED.
    """
    if len(group.members) >= max_size:
        raise ProtocolError(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"The streams group has reached its maximum capacity of {max_size} members.",
        )


def check_epoch(member: StreamsGroupMember, epoch: int, owned: Tasks | None) -> None:
    """Check that a heartbeat has the member's epoch, or the previous one, whose response may have been lost.

    Epoch 0 of a known member is a rejoin (KAFKA-19233). The epoch before is accepted only with a list of
    owned tasks, all of which are assigned.

    :raises ProtocolError: FENCED_MEMBER_EPOCH.
    """
    if epoch in (JOIN_EPOCH, member.member_epoch):
        return
    if epoch == member.previous_member_epoch < member.member_epoch and _is_part(owned, member.assigned):
        return
    kind = "greater" if epoch > member.member_epoch else "smaller"
    raise ProtocolError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The streams group member has a {kind} member epoch ({epoch}) than the one known by the group "
        f"coordinator ({member.member_epoch}). The member must abandon all its partitions and rejoin.",
    )


def _is_part(owned: Tasks | None, assigned: Tasks) -> bool:
    """Return true if the request lists its tasks, and lists only assigned ones."""
    return owned is not None and (
        _is_subset(owned.active, assigned.active)
        and _is_subset(owned.standby, assigned.standby)
        and _is_subset(owned.warmup, assigned.warmup)
    )


def _is_subset(owned: TaskIds, assigned: TaskIds) -> bool:
    return all(set(numbers).issubset(assigned.get(one, ())) for one, numbers in owned.items())


def check_tasks(topology: ConfiguredTopology, request: StreamsGroupHeartbeatRequest) -> None:
    """Check that a member only reports tasks that exist.

    :raises ProtocolError: INVALID_REQUEST.
    """
    subtopologies = topology.subtopologies or {}
    for tasks in (request.active_tasks, request.standby_tasks, request.warmup_tasks):
        for subtopology_id, numbers in (tasks or {}).items():
            subtopology = subtopologies.get(subtopology_id)
            if subtopology is None:
                raise invalid(f"Subtopology {subtopology_id} does not exist in the topology.")
            for number in numbers:
                if not 0 <= number < subtopology.tasks:
                    raise invalid(
                        f"Task {number} for subtopology {subtopology_id} is invalid. "
                        f"Number of tasks for this subtopology: {subtopology.tasks}"
                    )
