"""The hard state of one consumer group. Records are the only way to change it, live and on load."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from fencepost.coordinator.consumer.member import ConsumerGroupMember
from fencepost.coordinator.consumer.owners import PartitionEpochs
from fencepost.coordinator.consumer.states import ConsumerGroupMemberState, GroupState
from fencepost.coordinator.consumer.subscription import SubscriptionCounts
from fencepost.coordinator.epoch_groups import EpochGroup
from fencepost.coordinator.protocol.errors import InconsistentRecord
from fencepost.coordinator.protocol.ids import NO_PARTITIONS, MemberId, Partitions
from fencepost.coordinator.protocol.records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    Record,
    RecordKey,
)

# Module-level names: in Python 3.11 an attribute of an enum class costs as much as a call.
EMPTY, ASSIGNING, RECONCILING, STABLE, _ = GroupState
MEMBER_STABLE = ConsumerGroupMemberState.STABLE

NO_REFRESH = -(2**63)
"""Time of the last resolution in a group that never resolved a regular expression."""


class ConsumerGroup(EpochGroup[ConsumerGroupMember, Partitions]):
    """A consumer group: epochs, members, the target assignment, and what is derived from them.

    Derived data (state, counts, partition epochs) is updated as members change, so reading it costs the same
    in a group of any size.
    """

    __slots__ = (
        "_resolved",
        "_stable_at",
        "_static_members",
        "counts",
        "partition_epochs",
        "resolved",
        "static_members",
    )

    member_type = ConsumerGroupMember

    def __init__(self, group_id: str) -> None:
        super().__init__(group_id)
        self._static_members: dict[str, MemberId] = {}
        self._resolved: dict[str, ConsumerGroupRegularExpressionValue] = {}
        self._stable_at: dict[int, int] = {}
        """Number of stable members at each epoch."""
        self.static_members: Mapping[str, MemberId] = MappingProxyType(self._static_members)
        """Member ids by instance id."""
        self.resolved: Mapping[str, ConsumerGroupRegularExpressionValue] = MappingProxyType(self._resolved)
        """The matches of each resolved regular expression."""
        self.counts = SubscriptionCounts()
        self.partition_epochs = PartitionEpochs()

    @property
    def state(self) -> GroupState:
        """The group's state, in the order of KIP-848's conditions."""
        if not self._members:
            return EMPTY
        if self.group_epoch > self.assignment_epoch:
            return ASSIGNING
        if self._stable_at.get(self.assignment_epoch, 0) < len(self._members):
            return RECONCILING
        return STABLE

    def static_member(self, instance_id: str) -> ConsumerGroupMember | None:
        """Return the member that holds the instance id, if any."""
        member_id = self._static_members.get(instance_id)
        return None if member_id is None else self._members[member_id]

    def is_subscribed_to(self, topic: str) -> bool:
        """Return true if any member names the topic, or any resolved regular expression matches it."""
        return topic in self.counts.by_name or topic in self.counts.by_regex

    def is_subscribed_to_any(self, topics: frozenset[str]) -> bool:
        """Return true if it is subscribed to one of them; this takes no longer than the fewer of both."""
        subscribed = itertools.chain(self.counts.by_name, self.counts.by_regex)
        if len(topics) > len(self.counts.by_name) + len(self.counts.by_regex):
            return any(map(self.is_subscribed_to, topics.intersection(subscribed)))
        return any(map(self.is_subscribed_to, topics))

    def settled_for(self, member_id: MemberId) -> bool:
        """Return true if the member has reached the group's newest target."""
        member = self._members.get(member_id)
        return member is not None and member.is_reconciled_to(self.group_epoch)

    def last_resolution(self) -> tuple[int, int]:
        """Return the time and the image version of the last resolution of regular expressions; NO_REFRESH and
        0 if never.

        All expressions of a group are resolved together, so any of them has the answer.
        """
        newest = max(self._resolved.values(), key=lambda value: value.timestamp_ms, default=None)
        return (NO_REFRESH, 0) if newest is None else (newest.timestamp_ms, newest.image_version)

    def hard_state(self) -> dict[str, Any]:
        """Everything that records made, derived values included, to compare with another group."""
        return {
            "group_epoch": self.group_epoch,
            "metadata_hash": self.metadata_hash,
            "assignment": (self.assignment_epoch, self.assignment_timestamp_ms),
            "members": dict(self._members),
            "targets": dict(self._targets),
            "static_members": dict(self._static_members),
            "resolved": dict(self._resolved),
            "partition_epochs": self.partition_epochs.as_dict(),
            "by_name": dict(self.counts.by_name),
            "by_regex": dict(self.counts.by_regex),
            "regexes": dict(self.counts.regexes),
            "assignors": dict(self.counts.assignors),
            "stable_at": dict(self._stable_at),
        }

    def records(self) -> tuple[Record, ...]:
        """Records that make this group."""
        group_id = self.group_id
        return (
            *(member.metadata_record(group_id) for member in self._members.values()),
            Record(
                ConsumerGroupMetadataKey(group_id),
                ConsumerGroupMetadataValue(self.group_epoch, self.metadata_hash),
            ),
            *(
                Record(ConsumerGroupRegularExpressionKey(group_id, expression), value)
                for expression, value in self._resolved.items()
            ),
            *self.target_records({}, self._targets, self.assignment_epoch, self.assignment_timestamp_ms),
            *(member.assignment_record(group_id) for member in self._members.values()),
        )

    def apply_metadata(self, key: ConsumerGroupMetadataKey, value: ConsumerGroupMetadataValue) -> None:
        """Type 3: the group's epoch, and the digest of its topics."""
        self.group_epoch = value.epoch
        self.metadata_hash = value.metadata_hash

    def check_deletable(self, key: ConsumerGroupMetadataKey) -> None:
        """Take the group's tombstone (type 3): nothing of the group may be left.

        :raises InconsistentRecord: if something is.
        """
        if self._targets and not self._members:
            raise InconsistentRecord.of(key, f"the target assignment still has {len(self._targets)} members")
        super().check_deletable(key)

    def apply_target(
        self,
        key: ConsumerGroupTargetAssignmentMemberKey,
        value: ConsumerGroupTargetAssignmentMemberValue | None,
    ) -> None:
        """Type 7: the target of one member."""
        if value is None:
            self._targets.pop(key.member_id, None)
        else:
            self._targets[key.member_id] = value.partitions

    def apply_current_assignment(
        self,
        key: ConsumerGroupCurrentMemberAssignmentKey,
        value: ConsumerGroupCurrentMemberAssignmentValue | None,
    ) -> None:
        """Type 8: apply a member's epochs and its partitions; the tombstone removes both."""
        old = self._members.get(key.member_id)
        if value is None:
            if old is not None:
                self._place(old, old.without_assignment(), key)
            return
        target = self._targets.get(key.member_id, NO_PARTITIONS)
        try:
            new = (old or ConsumerGroupMember(member_id=key.member_id)).with_assignment(value, target)
        except ValueError as error:
            raise InconsistentRecord.of(key, str(error)) from error
        if old is None:
            self._replace(None, new, key)
        else:
            self._place(old, new, key)

    def apply_regular_expression(
        self, key: ConsumerGroupRegularExpressionKey, value: ConsumerGroupRegularExpressionValue | None
    ) -> None:
        """Type 16: apply the matches of a regular expression."""
        old = self._resolved.pop(key.regular_expression, None)
        self.counts.replace_resolution(
            () if old is None else old.topics, () if value is None else value.topics
        )
        if value is not None:
            self._resolved[key.regular_expression] = value

    metadata_key = ConsumerGroupMetadataKey
    target_key = ConsumerGroupTargetAssignmentMemberKey
    target_value = ConsumerGroupTargetAssignmentMemberValue
    target_metadata_key = ConsumerGroupTargetAssignmentMetadataKey
    target_metadata_value = ConsumerGroupTargetAssignmentMetadataValue
    applied_by = MappingProxyType(
        {
            ConsumerGroupMetadataKey: apply_metadata,
            ConsumerGroupMemberMetadataKey: EpochGroup.apply_member_metadata,
            ConsumerGroupTargetAssignmentMetadataKey: EpochGroup.apply_target_metadata,
            ConsumerGroupTargetAssignmentMemberKey: apply_target,
            ConsumerGroupCurrentMemberAssignmentKey: apply_current_assignment,
            ConsumerGroupRegularExpressionKey: apply_regular_expression,
        }
    )

    def _replace(
        self, old: ConsumerGroupMember | None, new: ConsumerGroupMember | None, key: RecordKey
    ) -> None:
        self.counts.replace(old, new)
        self._place(old, new, key)
        if old is not None:
            self._forget_instance(old)
        if new is not None and new.instance_id is not None:
            self._static_members[new.instance_id] = new.member_id

    def _place(
        self, old: ConsumerGroupMember | None, new: ConsumerGroupMember | None, key: RecordKey
    ) -> None:
        """Replace a member whose metadata is unchanged: only epochs and partitions may differ."""
        try:
            self.partition_epochs.replace(old, new)
        except ValueError as error:
            raise InconsistentRecord.of(key, str(error)) from error
        if new is not None:
            self._members[new.member_id] = new
            if new.state is MEMBER_STABLE:
                self._stable_at[new.member_epoch] = self._stable_at.get(new.member_epoch, 0) + 1
        elif old is not None:
            del self._members[old.member_id]
        if old is not None and old.state is MEMBER_STABLE:
            left = self._stable_at.pop(old.member_epoch) - 1
            if left:
                self._stable_at[old.member_epoch] = left

    def _forget_instance(self, old: ConsumerGroupMember) -> None:
        """Frees the instance id if it is still this member's (KAFKA-20747)."""
        if old.instance_id is not None and self._static_members.get(old.instance_id) == old.member_id:
            del self._static_members[old.instance_id]
