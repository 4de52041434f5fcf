"""The removal of members that leave or time out, and the end of a group (KIP-1071)."""

from __future__ import annotations

from collections.abc import Collection

from fencepost.coordinator.config import ReleaseVersion
from fencepost.coordinator.protocol.ids import MemberId
from fencepost.coordinator.protocol.records import Record
from fencepost.coordinator.protocol.streams_records import (
    StreamsGroupCurrentMemberAssignmentKey,
    StreamsGroupMemberMetadataKey,
    StreamsGroupMetadataKey,
    StreamsGroupTargetAssignmentMemberKey,
    StreamsGroupTargetAssignmentMetadataKey,
    StreamsGroupTargetAssignmentMetadataValue,
    StreamsGroupTopologyKey,
)
from fencepost.coordinator.streams.group import StreamsGroup


def removal_records(
    group: StreamsGroup, member_ids: Collection[MemberId], release: ReleaseVersion
) -> tuple[Record, ...]:
    """Return the records that remove members, and raise the group epoch once for all of them.

    From Kafka 4.4 on, a group that loses its last member has the target of its epoch, so that no target is
    computed.
    """
    epoch = group.group_epoch + 1
    gone = [record for member_id in member_ids for record in member_tombstones(group.group_id, member_id)]
    raised = group.metadata_record(
        epoch,
        group.metadata_hash,
        group.validated_topology_epoch,
        group.last_assignment_configs,
    )
    if release is ReleaseVersion.V4_3 or not member_ids or len(member_ids) < len(group.members):
        return (*gone, raised)
    # As of time 0, as in a new group: the next target waits for nothing.
    target = StreamsGroupTargetAssignmentMetadataValue(epoch, 0)
    return (*gone, raised, Record(StreamsGroupTargetAssignmentMetadataKey(group.group_id), target))


def member_tombstones(group_id: str, member_id: MemberId) -> tuple[Record, ...]:
    """Return the tombstones of one member. Replay relies on their order."""
    return (
        Record(StreamsGroupCurrentMemberAssignmentKey(group_id, member_id), None),
        Record(StreamsGroupTargetAssignmentMemberKey(group_id, member_id), None),
        Record(StreamsGroupMemberMetadataKey(group_id, member_id), None),
    )


def group_tombstones(group: StreamsGroup) -> tuple[Record, ...]:
    """Return the tombstones of a group, whatever is left in it. Replay relies on their order."""
    group_id = group.group_id
    members = sorted(group.members)
    # A target can outlive its member only in a journal that lost records; it must not keep the group alive.
    targets = sorted({*group.members, *group.targets})
    return (
        *(Record(StreamsGroupCurrentMemberAssignmentKey(group_id, one), None) for one in members),
        *(Record(StreamsGroupTargetAssignmentMemberKey(group_id, one), None) for one in targets),
        Record(StreamsGroupTargetAssignmentMetadataKey(group_id), None),
        *(Record(StreamsGroupMemberMetadataKey(group_id, one), None) for one in members),
        Record(StreamsGroupMetadataKey(group_id), None),
        Record(StreamsGroupTopologyKey(group_id), None),
    )
