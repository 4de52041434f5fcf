"""The checks of a heartbeat, in Kafka's order: the first one that fails decides the response."""

from __future__ import annotations

from collections.abc import Collection

from fencepost.coordinator.consumer.group import ConsumerGroup
from fencepost.coordinator.consumer.member import ConsumerGroupMember
from fencepost.coordinator.protocol.consumer import ConsumerGroupHeartbeatRequest
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.ids import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    MemberId,
    Partitions,
)

MEMBER_ID_REQUIRED_VERSION = 1
"""From this version of the request on, members make their own ids (KIP-1082)."""


def check_request(request: ConsumerGroupHeartbeatRequest, assignors: Collection[str]) -> None:
    """Run the checks that need no group.

    :raises ProtocolError: INVALID_REQUEST or UNSUPPORTED_ASSIGNOR.
    """
    epoch = request.member_epoch
    if request.api_version >= MEMBER_ID_REQUIRED_VERSION or epoch > 0 or epoch == LEAVE_EPOCH:
        _check_not_blank(request.member_id, "MemberId")
    _check_not_blank(request.group_id, "GroupId")
    if request.instance_id is not None:
        _check_not_blank(request.instance_id, "InstanceId")
    if request.rack_id is not None:
        _check_not_blank(request.rack_id, "RackId")
    if epoch == JOIN_EPOCH:
        _check_join(request)
    elif epoch == STATIC_LEAVE_EPOCH and request.instance_id is None:
        raise _invalid("InstanceId can't be null.")
    elif epoch < STATIC_LEAVE_EPOCH:
        raise _invalid("MemberEpoch is invalid.")
    if request.server_assignor is not None and request.server_assignor not in assignors:
        raise ProtocolError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.server_assignor} is not supported. "
            f"Supported assignors: {', '.join(assignors)}.",
        )


def _check_join(request: ConsumerGroupHeartbeatRequest) -> None:
    if request.rebalance_timeout_ms == -1:
        raise _invalid("RebalanceTimeoutMs must be provided in first request.")
    if request.topic_partitions is None or request.topic_partitions:
        raise _invalid("TopicPartitions must be empty when (re-)joining.")
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        raise _invalid(
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
        )


def _check_not_blank(value: str, field: str) -> None:
    if not value.strip():
        raise _invalid(f"{field} can't be empty.")


def _invalid(message: str) -> ProtocolError:
    return ProtocolError(ErrorCode.INVALID_REQUEST, message)


def check_not_full(group: ConsumerGroup, member_id: MemberId, instance_id: str | None, max_size: int) -> None:
    """Refuse a new member if the group is full; one that replaces a static member is not new (KAFKA-20601).

    :raises ProtocolError: GROUP_MAX_SIZE_REACHED.
    """
    if instance_id is not None and instance_id in group.static_members:
        return
    if len(group.members) >= max_size and member_id not in group.members:
        raise ProtocolError(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"The consumer group has reached its maximum capacity of {max_size} members.",
        )


def check_epoch(member: ConsumerGroupMember, epoch: int, owned: Partitions | None) -> None:
    """Check that a heartbeat has the member's epoch, or the previous one, whose response may have been lost.

    Epoch 0 of a known member is a rejoin (KAFKA-19233). The epoch before is accepted only with a list of
    owned partitions, all of which are assigned.

    :raises ProtocolError: FENCED_MEMBER_EPOCH.
    """
    if epoch in (JOIN_EPOCH, member.member_epoch):
        return
    if epoch == member.previous_member_epoch < member.member_epoch and is_subset(owned, member.assigned):
        return
    kind = "greater" if epoch > member.member_epoch else "smaller"
    raise ProtocolError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The consumer group member has a {kind} member epoch ({epoch}) than the one known by the group "
        f"coordinator ({member.member_epoch}). The member must abandon all its partitions and rejoin.",
    )


def is_subset(owned: Partitions | None, assigned: Partitions) -> bool:
    """Return true if the request lists its partitions, and lists only assigned ones."""
    if owned is None:
        return False
    return all(set(numbers).issubset(assigned.get(topic_id, ())) for topic_id, numbers in owned.items())


def check_instance_known(member: ConsumerGroupMember | None, instance_id: str) -> ConsumerGroupMember:
    """Return the member that holds the instance id.

    :raises ProtocolError: UNKNOWN_MEMBER_ID if no member does.
    """
    if member is None:
        raise ProtocolError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
    return member


def check_instance_holder(member: ConsumerGroupMember, member_id: MemberId, instance_id: str) -> None:
    """Check that the member that uses the instance id holds it.

    :raises ProtocolError: FENCED_INSTANCE_ID if it is not.
    """
    if member.member_id != member_id:
        raise ProtocolError(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} was fenced by member "
            f"{member.member_id}.",
        )


def check_instance_released(member: ConsumerGroupMember, member_id: MemberId, instance_id: str) -> None:
    """Check that a static member left for a while, and so may be replaced.

    One that speaks the classic protocol has no way to say so, and may always be replaced (KAFKA-17228).

    :raises ProtocolError: UNRELEASED_INSTANCE_ID if it did not.
    """
    if member.classic is None and member.member_epoch != STATIC_LEAVE_EPOCH:
        raise ProtocolError(
            ErrorCode.UNRELEASED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} cannot join the group because the "
            f"instance id is owned by {member.member_id} member.",
        )
