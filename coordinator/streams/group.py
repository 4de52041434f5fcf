"""The hard state of one streams group. Records are the only way to change it, live and on load."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from fencepost.coordinator.epoch_groups import EpochGroup
from fencepost.coordinator.protocol import streams_records
from fencepost.coordinator.protocol.ids import MemberId
from fencepost.coordinator.protocol.records import Record
from fencepost.coordinator.protocol.streams import NO_TASKS, Tasks, Topology
from fencepost.coordinator.streams.member import StreamsGroupMember
from fencepost.coordinator.streams.owners import TaskOwners
from fencepost.coordinator.streams.states import StreamsGroupState
from fencepost.coordinator.streams.topology import required_topics, source_subtopologies

# Module-level names: in Python 3.11 an attribute of an enum class costs as much as a call.
EMPTY, NOT_READY, ASSIGNING, RECONCILING, STABLE, _ = StreamsGroupState

NO_TOPOLOGY_EPOCH = -1
"""Validated topology epoch while the topics are not as the topology needs them."""


class StreamsGroup(EpochGroup[StreamsGroupMember, Tasks]):
    """A streams group: epochs, topology, members, the target assignment, and what is derived from them.

    Derived data is updated as members change.
    """

    __slots__ = (
        "_reconciled",
        "last_assignment_configs",
        "owners",
        "source_subtopologies",
        "topology",
        "validated_topology_epoch",
    )

    member_type = StreamsGroupMember

    def __init__(self, group_id: str) -> None:
        super().__init__(group_id)
        self.topology: Topology | None = None
        """The topology that the first member brought; it stays as long as the group exists."""
        self.source_subtopologies: Mapping[str, str] = {}
        """The subtopology that reads each topic."""
        self.validated_topology_epoch = 0
        self.last_assignment_configs: Mapping[str, str] = {}
        self._reconciled = 0
        self.owners = TaskOwners()

    @property
    def state(self) -> StreamsGroupState:
        """The group's state: the first of KIP-1071's conditions that holds."""
        if not self._members:
            return EMPTY
        if self.topology is None or self.topology.epoch != self.validated_topology_epoch:
            return NOT_READY
        if self.group_epoch > self.assignment_epoch:
            return ASSIGNING
        if self._reconciled < len(self._members):
            return RECONCILING
        return STABLE

    def target(self, member_id: MemberId) -> Tasks:
        """Return a member's target; no tasks if it has no target."""
        return self._targets.get(member_id, NO_TASKS)

    def is_subscribed_to(self, topic: str) -> bool:
        """Return true if the application reads the topic; a group without members reads nothing."""
        return bool(self._members) and topic in self.source_subtopologies

    def needs_any(self, topics: frozenset[str]) -> bool:
        """Return true if the topology needs one of the topics to exist: it is read, or is a changelog."""
        return self.topology is not None and not topics.isdisjoint(required_topics(self.topology))

    def hard_state(self) -> dict[str, Any]:
        """Everything that records made, derived values included, to compare with another group."""
        return {
            "group_epoch": self.group_epoch,
            "metadata_hash": self.metadata_hash,
            "topology": self.topology,
            "validated_topology_epoch": self.validated_topology_epoch,
            "last_assignment_configs": dict(self.last_assignment_configs),
            "assignment": (self.assignment_epoch, self.assignment_timestamp_ms),
            "members": dict(self._members),
            "targets": dict(self._targets),
            "owners": self.owners.as_dict(),
            "reconciled": self._reconciled,
        }

    def metadata_record(
        self, epoch: int, metadata_hash: int, validated_topology_epoch: int, configs: Mapping[str, str]
    ) -> Record:
        """Return the record of a new group epoch."""
        value = streams_records.StreamsGroupMetadataValue(
            epoch, metadata_hash, validated_topology_epoch, configs
        )
        return Record(streams_records.StreamsGroupMetadataKey(self.group_id), value)

    def apply_metadata(
        self, key: streams_records.StreamsGroupMetadataKey, value: streams_records.StreamsGroupMetadataValue
    ) -> None:
        """Type 17: apply the group's epoch, and the inputs that it was raised for."""
        self.group_epoch = value.epoch
        self.metadata_hash = value.metadata_hash
        self.validated_topology_epoch = value.validated_topology_epoch
        self.last_assignment_configs = value.last_assignment_configs

    def apply_target_metadata(
        self,
        key: streams_records.StreamsGroupTargetAssignmentMetadataKey,
        value: streams_records.StreamsGroupTargetAssignmentMetadataValue | None,
    ) -> None:
        """Type 20: the target's epoch, by which members count as reconciled."""
        super().apply_target_metadata(key, value)
        epoch = self.assignment_epoch
        self._reconciled = sum(member.is_reconciled_to(epoch) for member in self._members.values())

    def apply_target(
        self,
        key: streams_records.StreamsGroupTargetAssignmentMemberKey,
        value: streams_records.StreamsGroupTargetAssignmentMemberValue | None,
    ) -> None:
        """Type 21: the target of one member."""
        if value is None:
            self._targets.pop(key.member_id, None)
        else:
            self._targets[key.member_id] = value.tasks

    def apply_current_assignment(
        self,
        key: streams_records.StreamsGroupCurrentMemberAssignmentKey,
        value: streams_records.StreamsGroupCurrentMemberAssignmentValue | None,
    ) -> None:
        """Type 22: a member's epochs and its tasks; its tombstone takes everything from it."""
        old = self._members.get(key.member_id)
        if value is not None:
            before = StreamsGroupMember(member_id=key.member_id) if old is None else old
            self._replace(old, before.with_assignment(value), key)
        elif old is not None:
            self._replace(old, old.without_assignment(), key)

    def apply_topology(
        self,
        key: streams_records.StreamsGroupTopologyKey,
        value: streams_records.StreamsGroupTopologyValue | None,
    ) -> None:
        """Type 23: the topology."""
        self.topology = None if value is None else Topology(value.epoch, value.subtopologies)
        self.source_subtopologies = {} if self.topology is None else source_subtopologies(self.topology)

    metadata_key = streams_records.StreamsGroupMetadataKey
    target_key = streams_records.StreamsGroupTargetAssignmentMemberKey
    target_value = streams_records.StreamsGroupTargetAssignmentMemberValue
    target_metadata_key = streams_records.StreamsGroupTargetAssignmentMetadataKey
    target_metadata_value = streams_records.StreamsGroupTargetAssignmentMetadataValue
    applied_by = MappingProxyType(
        {
            streams_records.StreamsGroupMetadataKey: apply_metadata,
            streams_records.StreamsGroupMemberMetadataKey: EpochGroup.apply_member_metadata,
            streams_records.StreamsGroupTargetAssignmentMetadataKey: apply_target_metadata,
            streams_records.StreamsGroupTargetAssignmentMemberKey: apply_target,
            streams_records.StreamsGroupCurrentMemberAssignmentKey: apply_current_assignment,
            streams_records.StreamsGroupTopologyKey: apply_topology,
        }
    )

    def _replace(self, old: StreamsGroupMember | None, new: StreamsGroupMember | None, key: Any) -> None:
        self.owners.replace(old, new)
        epoch = self.assignment_epoch
        if new is not None:
            self._members[new.member_id] = new
            self._reconciled += new.is_reconciled_to(epoch)
        elif old is not None:
            del self._members[old.member_id]
        if old is not None:
            self._reconciled -= old.is_reconciled_to(epoch)
