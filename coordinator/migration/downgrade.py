"""Turns a consumer group into a classic group, when its last member with the newer protocol leaves."""

from __future__ import annotations

from collections.abc import Collection

from fencepost.coordinator.classic.group import ClassicGroup
from fencepost.coordinator.classic.member import ClassicGroupMember
from fencepost.coordinator.classic.states import ClassicGroupEvent
from fencepost.coordinator.config import ConsumerGroupMigrationPolicy, GroupCoordinatorConfig
from fencepost.coordinator.consumer.group import ConsumerGroup
from fencepost.coordinator.consumer.member import ConsumerGroupMember
from fencepost.coordinator.protocol import consumer_protocol
from fencepost.coordinator.protocol.classic import CONSUMER_PROTOCOL_TYPE, JoinGroupProtocol
from fencepost.coordinator.protocol.ids import NO_PARTITIONS, MemberId, Partitions
from fencepost.coordinator.protocol.topics import TopicsImage

_ALLOWING = (ConsumerGroupMigrationPolicy.BIDIRECTIONAL, ConsumerGroupMigrationPolicy.DOWNGRADE)


def may_downgrade(
    group: ConsumerGroup, leaving: Collection[MemberId], config: GroupCoordinatorConfig, *, joining: int = 0
) -> bool:
    """Return true if the group becomes a classic one when the `leaving` members leave and `joining` classic
    ones join."""
    staying = len(group.members) - len(leaving) + joining
    return (
        config.group_consumer_migration_policy in _ALLOWING
        and 0 < staying <= config.group_max_size
        and all(
            member.classic is not None
            for member_id, member in group.members.items()
            if member_id not in leaving
        )
    )


def downgrade(
    group: ConsumerGroup, leaving: Collection[MemberId], image: TopicsImage, now_ms: int
) -> ClassicGroup:
    """Return the classic group of the members that stay: Stable, with the group's epoch as its generation.

    Each member has the assignment of the last target.
    """
    classic = ClassicGroup(group.group_id, now_ms)
    classic.generation = group.group_epoch
    for member_id, member in group.members.items():
        if member_id not in leaving:
            classic.add(_member(member), CONSUMER_PROTOCOL_TYPE)
    classic.protocol = classic.protocol_of_next_generation()
    for member_id, each in classic.members.items():
        target = group.targets.get(member_id, NO_PARTITIONS)
        each.assignment = assignment_bytes(each.metadata(classic.protocol), target, image)
    classic.move(ClassicGroupEvent.LOADED, now_ms)
    classic.compute_subscribed_topics()
    return classic


def _member(member: ConsumerGroupMember) -> ClassicGroupMember:
    assert member.classic is not None
    return ClassicGroupMember(
        member.member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        session_timeout_ms=member.classic.session_timeout_ms,
        protocols=tuple(JoinGroupProtocol(name, data) for name, data in member.classic.supported_protocols),
    )


def assignment_bytes(subscription: bytes, partitions: Partitions, image: TopicsImage) -> bytes:
    """Return partitions as a classic consumer reads them, in the version of its subscription.

    Topics that were deleted are left out.
    """
    try:
        version = max(0, min(consumer_protocol.version_of(subscription), consumer_protocol.NEWEST_VERSION))
    except consumer_protocol.MalformedConsumerProtocol:
        version = 0
    named = {image.name_of(topic_id): numbers for topic_id, numbers in partitions.items()}
    by_name = {name: numbers for name, numbers in named.items() if name is not None}
    return consumer_protocol.write_assignment(
        consumer_protocol.ConsumerProtocolAssignment(partitions=dict(sorted(by_name.items()))), version
    )
