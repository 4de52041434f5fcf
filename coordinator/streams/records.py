"""Which record is applied how: the one way in which streams groups change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from fencepost.coordinator.protocol.streams_records import (
    StreamsGroupCurrentMemberAssignmentKey,
    StreamsGroupMemberMetadataKey,
    StreamsGroupMetadataKey,
    StreamsGroupTargetAssignmentMemberKey,
    StreamsGroupTargetAssignmentMetadataKey,
    StreamsGroupTopologyKey,
)
from fencepost.coordinator.streams.group import StreamsGroup

APPLY: Final[Mapping[type, Callable[[StreamsGroup, Any, Any], None]]] = {
    StreamsGroupMetadataKey: StreamsGroup.apply_metadata,
    StreamsGroupMemberMetadataKey: StreamsGroup.apply_member_metadata,
    StreamsGroupTargetAssignmentMetadataKey: StreamsGroup.apply_target_metadata,
    StreamsGroupTargetAssignmentMemberKey: StreamsGroup.apply_target,
    StreamsGroupCurrentMemberAssignmentKey: StreamsGroup.apply_current_assignment,
    StreamsGroupTopologyKey: StreamsGroup.apply_topology,
}
"""By the type of the key: every key of a streams group is here."""


def apply_to_groups(groups: dict[str, StreamsGroup], key: Any, value: Any) -> None:
    """Apply a record of a streams group. Any value makes the group; a tombstone of what is gone is nothing.

    :raises InconsistentRecord: if the record cannot follow those before it.
    """
    group = groups.get(key.group_id)
    if group is None:
        if value is None:
            return
        group = groups[key.group_id] = StreamsGroup(key.group_id)
    if value is None and type(key) is StreamsGroupMetadataKey:
        group.check_deletable(key)
        del groups[key.group_id]
        return
    APPLY[type(key)](group, key, value)
