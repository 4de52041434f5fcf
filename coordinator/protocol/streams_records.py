"""The facts a coordinator writes about streams groups: keys and values of `__consumer_offsets` (KIP-1071)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from fencepost.coordinator.protocol.ids import MemberId
from fencepost.coordinator.protocol.streams import NO_TASKS, Endpoint, Subtopology, Tasks


class StreamsGroupMetadataKey(msgspec.Struct, frozen=True, tag=17, array_like=True, gc=False):
    """Type 17: the group itself."""

    group_id: str


class StreamsGroupMetadataValue(msgspec.Struct, frozen=True, tag=17, array_like=True, gc=False):
    """The group's epoch, and the inputs that it was raised for."""

    epoch: int
    metadata_hash: int = 0
    """A digest of the topics that the topology needs."""
    validated_topology_epoch: int = -1
    """The epoch of the topology whose topics were all found; -1 if some were not."""
    last_assignment_configs: Mapping[str, str] = {}
    """The configuration that the assignor received, by Kafka's names without their prefix."""


class StreamsGroupMemberMetadataKey(msgspec.Struct, frozen=True, tag=19, array_like=True, gc=False):
    """Type 19: a member's metadata."""

    group_id: str
    member_id: MemberId


class StreamsGroupMemberMetadataValue(msgspec.Struct, frozen=True, tag=19, array_like=True, gc=False):
    """A member's identity and process."""

    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    topology_epoch: int
    process_id: str
    user_endpoint: Endpoint | None = None
    client_tags: Mapping[str, str] = {}


class StreamsGroupTargetAssignmentMetadataKey(msgspec.Struct, frozen=True, tag=20, array_like=True, gc=False):
    """Type 20: the epoch of the target assignment."""

    group_id: str


class StreamsGroupTargetAssignmentMetadataValue(
    msgspec.Struct, frozen=True, tag=20, array_like=True, gc=False
):
    """The group epoch for which the target was computed, and when."""

    assignment_epoch: int
    assignment_timestamp_ms: int = 0


class StreamsGroupTargetAssignmentMemberKey(msgspec.Struct, frozen=True, tag=21, array_like=True, gc=False):
    """Type 21: the target of one member."""

    group_id: str
    member_id: MemberId


class StreamsGroupTargetAssignmentMemberValue(msgspec.Struct, frozen=True, tag=21, array_like=True, gc=False):
    """The tasks that the assignor wants the member to own."""

    tasks: Tasks


class StreamsGroupCurrentMemberAssignmentKey(msgspec.Struct, frozen=True, tag=22, array_like=True, gc=False):
    """Type 22: one member's progress towards its target."""

    group_id: str
    member_id: MemberId


class StreamsGroupCurrentMemberAssignmentValue(
    msgspec.Struct, frozen=True, tag=22, array_like=True, gc=False
):
    """A member's epochs, state, and tasks."""

    member_epoch: int
    previous_member_epoch: int
    state: int
    """A `MemberState` of coordinator.streams."""
    assigned: Tasks = NO_TASKS
    pending_revocation: Tasks = NO_TASKS
    assignment_epochs: dict[str, dict[int, int]] = {}
    """The member epoch at which each active task of both became assigned, by subtopology and partition."""


class StreamsGroupTopologyKey(msgspec.Struct, frozen=True, tag=23, array_like=True, gc=False):
    """Type 23: the group's topology."""

    group_id: str


class StreamsGroupTopologyValue(msgspec.Struct, frozen=True, tag=23, array_like=True, gc=False):
    """The topology that the first member brought."""

    epoch: int
    subtopologies: tuple[Subtopology, ...] = ()


StreamsGroupRecordKey: TypeAlias = (
    StreamsGroupMetadataKey
    | StreamsGroupMemberMetadataKey
    | StreamsGroupTargetAssignmentMetadataKey
    | StreamsGroupTargetAssignmentMemberKey
    | StreamsGroupCurrentMemberAssignmentKey
    | StreamsGroupTopologyKey
)
StreamsGroupRecordValue: TypeAlias = (
    StreamsGroupMetadataValue
    | StreamsGroupMemberMetadataValue
    | StreamsGroupTargetAssignmentMetadataValue
    | StreamsGroupTargetAssignmentMemberValue
    | StreamsGroupCurrentMemberAssignmentValue
    | StreamsGroupTopologyValue
)
