"""From a record to the consumer group it is about: groups come and go with their records."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from fencepost.coordinator.consumer.group import ConsumerGroup
from fencepost.coordinator.protocol.records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMetadataKey,
)

APPLY: Final[Mapping[type, Callable[[ConsumerGroup, Any, Any], None]]] = {
    ConsumerGroupMetadataKey: ConsumerGroup.apply_metadata,
    ConsumerGroupMemberMetadataKey: ConsumerGroup.apply_member_metadata,
    ConsumerGroupTargetAssignmentMetadataKey: ConsumerGroup.apply_target_metadata,
    ConsumerGroupTargetAssignmentMemberKey: ConsumerGroup.apply_target,
    ConsumerGroupCurrentMemberAssignmentKey: ConsumerGroup.apply_current_assignment,
    ConsumerGroupRegularExpressionKey: ConsumerGroup.apply_regular_expression,
}
"""By the type of the key: every key of a consumer group is here."""


def apply_to_groups(groups: dict[str, ConsumerGroup], key: Any, value: Any) -> None:
    """Apply a record of a consumer group. Any value makes the group; a tombstone of what is gone is nothing.

    :raises InconsistentRecord: if the record cannot follow those before it.
    """
    group = groups.get(key.group_id)
    if group is None:
        if value is None:
            return
        group = groups[key.group_id] = ConsumerGroup(key.group_id)
    if value is None and type(key) is ConsumerGroupMetadataKey:
        group.check_deletable(key)
        del groups[key.group_id]
        return
    APPLY[type(key)](group, key, value)
