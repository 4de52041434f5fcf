"""Members of a consumer group that speak the classic protocol: JoinGroup, SyncGroup and Heartbeat.

No such member assigns: the group's target does. JoinGroup corresponds to a heartbeat, with the owned
partitions in the subscription; the generation is the member's epoch. SyncGroup returns the assignment of the
coordinator, and Heartbeat reports when to join again.
"""

from __future__ import annotations

import msgspec

from fencepost.coordinator.classic.join import MEMBER_ID_REQUIRED_VERSION
from fencepost.coordinator.config import ConsumerGroupMigrationPolicy
from fencepost.coordinator.consumer import heartbeat, validation
from fencepost.coordinator.consumer.group import ConsumerGroup
from fencepost.coordinator.consumer.heartbeat import ConsumerHeartbeatContext, Evaluated
from fencepost.coordinator.consumer.member import ConsumerGroupMember
from fencepost.coordinator.consumer.soft import ConsumerGroupSoftState
from fencepost.coordinator.consumer.states import ConsumerGroupMemberState
from fencepost.coordinator.migration.downgrade import assignment_bytes
from fencepost.coordinator.protocol import classic, consumer_protocol
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.ids import NO_PARTITIONS, MemberId, partitions_of
from fencepost.coordinator.protocol.records import ClassicMemberMetadata, Record
from fencepost.coordinator.protocol.topics import TopicsImage


def check_join(
    group: ConsumerGroup,
    request: classic.JoinGroupRequest,
    around: ConsumerHeartbeatContext,
    policy: ConsumerGroupMigrationPolicy,
) -> consumer_protocol.ConsumerProtocolSubscription:
    """Check that a classic consumer may join, and return its subscription.

    :raises ProtocolError: INCONSISTENT_GROUP_PROTOCOL, GROUP_MAX_SIZE_REACHED, or MEMBER_ID_REQUIRED.
    """
    if policy is ConsumerGroupMigrationPolicy.DISABLED:
        raise _inconsistent(f"group {group.group_id} is a consumer group, and migration is disabled")
    validation.check_not_full(group, request.member_id, request.instance_id, around.max_size)
    if request.protocol_type != classic.CONSUMER_PROTOCOL_TYPE or not _shares_a_protocol(group, request):
        raise _inconsistent("the member shares no protocol with the other classic members")
    dynamic = not request.member_id and request.instance_id is None
    if dynamic and request.api_version >= MEMBER_ID_REQUIRED_VERSION:
        raise ProtocolError(ErrorCode.MEMBER_ID_REQUIRED, "the member must join with the id it is given")
    try:
        return consumer_protocol.read_subscription(request.protocols[0].metadata)
    except consumer_protocol.MalformedConsumerProtocol as error:
        raise _inconsistent(f"the member's subscription is malformed: {error}") from error


def _shares_a_protocol(group: ConsumerGroup, request: classic.JoinGroupRequest) -> bool:
    names = {protocol.name for protocol in request.protocols}
    for member in group.members.values():
        if member.classic is not None:
            names.intersection_update(name for name, _ in member.classic.supported_protocols)
    return bool(names)


def join(
    group: ConsumerGroup,
    soft: ConsumerGroupSoftState,
    request: classic.JoinGroupRequest,
    subscription: consumer_protocol.ConsumerProtocolSubscription,
    around: ConsumerHeartbeatContext,
) -> Evaluated:
    """Return the member after it joined, with its owned partitions, and the records of that.

    :raises ProtocolError: UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID.
    """
    old, records = _member(group, request)
    new = msgspec.structs.replace(
        old,
        instance_id=old.instance_id if request.instance_id is None else request.instance_id,
        rack_id=old.rack_id if subscription.rack_id is None else subscription.rack_id,
        client_id=request.client_id,
        client_host=request.client_host,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        subscribed_topic_names=tuple(sorted(set(subscription.topics))),
        subscribed_topic_regex="",
        classic=ClassicMemberMetadata(
            request.session_timeout_ms,
            tuple((protocol.name, protocol.metadata) for protocol in request.protocols),
        ),
    )
    by_name = around.image.by_name
    owned = partitions_of(
        (by_name[topic].topic_id, partition)
        for topic, partitions in subscription.owned.items()
        if topic in by_name
        for partition in partitions
    )
    return heartbeat.evaluate(
        group, soft, old, old if new == old else new, owned=owned, records=records, around=around
    )


def _member(
    group: ConsumerGroup, request: classic.JoinGroupRequest
) -> tuple[ConsumerGroupMember, tuple[Record, ...]]:
    instance_id, member_id = request.instance_id, request.member_id or request.new_member_suffix
    if instance_id is None:
        return group.members.get(member_id) or ConsumerGroupMember(member_id=member_id), ()
    holder = group.static_member(instance_id)
    if request.member_id:
        holder = validation.check_instance_known(holder, instance_id)
        validation.check_instance_holder(holder, member_id, instance_id)
        return holder, ()
    if holder is None:
        return ConsumerGroupMember(member_id=member_id), ()
    return heartbeat.replacement(group, holder, member_id)


def joined(member: ConsumerGroupMember) -> classic.JoinGroupResponse:
    """Return the response to a member that joined: it leads no member, and has no leader."""
    return classic.JoinGroupResponse(
        generation=member.member_epoch,
        protocol_type=classic.CONSUMER_PROTOCOL_TYPE,
        protocol_name=_protocol(member)[0],
        member_id=member.member_id,
    )


def sync(
    group: ConsumerGroup, request: classic.SyncGroupRequest, image: TopicsImage
) -> classic.SyncGroupResponse:
    """Return the member's assignment.

    :raises ProtocolError: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION,
        INCONSISTENT_GROUP_PROTOCOL, or REBALANCE_IN_PROGRESS if there is a newer target by now.
    """
    member = _classic_member(group, request.member_id, request.instance_id, request.generation)
    name, data = _protocol(member)
    if request.protocol_type not in (None, classic.CONSUMER_PROTOCOL_TYPE) or request.protocol_name not in (
        None,
        name,
    ):
        raise _inconsistent(f"{request.protocol_type} {request.protocol_name} is not the member's protocol")
    # A member that has to revoke first joins again after that.
    if (
        member.member_epoch < group.assignment_epoch
        and member.state is not ConsumerGroupMemberState.UNREVOKED_PARTITIONS
    ):
        raise ProtocolError(ErrorCode.REBALANCE_IN_PROGRESS, "there is a newer target")
    return classic.SyncGroupResponse(
        protocol_type=request.protocol_type,
        protocol_name=request.protocol_name,
        assignment=assignment_bytes(data, member.assigned, image),
    )


def alive(group: ConsumerGroup, request: classic.HeartbeatRequest) -> bool:
    """Return true if the member may go on as it is; False if it must join again.

    :raises ProtocolError: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID or ILLEGAL_GENERATION.
    """
    member = _classic_member(group, request.member_id, request.instance_id, request.generation)
    match member.state:
        case ConsumerGroupMemberState.UNREVOKED_PARTITIONS:
            return False
        case ConsumerGroupMemberState.UNRELEASED_PARTITIONS if not _waits_for_others(group, member):
            return False
    return member.member_epoch >= group.assignment_epoch


def _waits_for_others(group: ConsumerGroup, member: ConsumerGroupMember) -> bool:
    """Return true if any member still has a partition that the target gives to this member."""
    target = group.targets.get(member.member_id, NO_PARTITIONS)
    return any(
        group.partition_epochs.taken(topic_id, set(numbers).difference(member.assigned.get(topic_id, ())))
        for topic_id, numbers in target.items()
    )


def _classic_member(
    group: ConsumerGroup, member_id: MemberId, instance_id: str | None, generation: int
) -> ConsumerGroupMember:
    if instance_id is None:
        member = group.member(member_id)
    else:
        member = validation.check_instance_known(group.static_member(instance_id), instance_id)
        validation.check_instance_holder(member, member_id, instance_id)
    if member.classic is None:
        raise ProtocolError(
            ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} does not use the classic protocol."
        )
    if generation != member.member_epoch:
        raise ProtocolError(
            ErrorCode.ILLEGAL_GENERATION,
            f"generation {generation} is not {member.member_epoch}, the epoch of {member_id}",
        )
    return member


def _protocol(member: ConsumerGroupMember) -> tuple[str, bytes]:
    assert member.classic is not None
    return member.classic.supported_protocols[0]


def _inconsistent(message: str) -> ProtocolError:
    return ProtocolError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, message)
