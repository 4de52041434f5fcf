"""One member of a streams group: a frozen value, replaced as a whole when a record says so."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from fencepost.coordinator.protocol.ids import LEAVE_EPOCH, MemberId
from fencepost.coordinator.protocol.records import Record
from fencepost.coordinator.protocol.streams import NO_TASKS, Endpoint, StreamsGroupHeartbeatRequest, Tasks
from fencepost.coordinator.protocol.streams_records import (
    StreamsGroupCurrentMemberAssignmentKey,
    StreamsGroupCurrentMemberAssignmentValue,
    StreamsGroupMemberMetadataKey,
    StreamsGroupMemberMetadataValue,
)
from fencepost.coordinator.streams.states import StreamsGroupMemberState

STABLE = StreamsGroupMemberState.STABLE
"""A name of its own: in Python 3.11 an attribute of an enum class costs as much as a call."""

AssignmentEpochs = dict[str, dict[int, int]]
"""By subtopology and partition."""


class StreamsGroupMember(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the coordinator knows of a member: what it said of itself, its epochs, and its tasks.

    `assigned` and `pending_revocation` are disjoint in each role.
    """

    member_id: MemberId
    instance_id: str | None = None
    """None: Kafka 4.3 refuses static members of streams groups."""
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    topology_epoch: int = -1
    """Of the topology that it joined with."""
    process_id: str = ""
    user_endpoint: Endpoint | None = None
    client_tags: Mapping[str, str] = {}
    member_epoch: int = 0
    previous_member_epoch: int = 0
    """The epoch before the last evaluation; a member may come with it when an answer was lost."""
    state: StreamsGroupMemberState = StreamsGroupMemberState.STABLE
    assigned: Tasks = NO_TASKS
    pending_revocation: Tasks = NO_TASKS
    assignment_epochs: AssignmentEpochs = {}
    """The target epoch at which each active task of both sets became assigned."""

    def is_reconciled_to(self, epoch: int) -> bool:
        """Whether nothing is left to do for the target of that epoch."""
        return self.member_epoch == epoch and self.state is STABLE

    def with_heartbeat(self, request: StreamsGroupHeartbeatRequest) -> StreamsGroupMember:
        """The member with what a heartbeat says of it; None and -1 in the request keep what is known.

        Answers the same object if nothing changed.
        """
        found = msgspec.structs.replace(
            self,
            rack_id=self.rack_id if request.rack_id is None else request.rack_id,
            client_id=request.client_id,
            client_host=request.client_host,
            rebalance_timeout_ms=self.rebalance_timeout_ms
            if request.rebalance_timeout_ms == -1
            else request.rebalance_timeout_ms,
            topology_epoch=self.topology_epoch if request.topology is None else request.topology.epoch,
            process_id=self.process_id if request.process_id is None else request.process_id,
            user_endpoint=self.user_endpoint if request.user_endpoint is None else request.user_endpoint,
            client_tags=self.client_tags if request.client_tags is None else request.client_tags,
        )
        return self if found == self else found

    def with_metadata(self, value: StreamsGroupMemberMetadataValue) -> StreamsGroupMember:
        """The member after a MemberMetadata record."""
        return msgspec.structs.replace(
            self,
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            topology_epoch=value.topology_epoch,
            process_id=value.process_id,
            user_endpoint=value.user_endpoint,
            client_tags=value.client_tags,
        )

    def with_assignment(self, value: StreamsGroupCurrentMemberAssignmentValue) -> StreamsGroupMember:
        """The member after a CurrentMemberAssignment record.

        Tasks without an assignment epoch (a record of Kafka 4.1) get the member's.
        """
        epochs: AssignmentEpochs = {}
        for tasks in (value.assigned.active, value.pending_revocation.active):
            for subtopology, numbers in tasks.items():
                known = value.assignment_epochs.get(subtopology, {})
                of_subtopology = epochs.setdefault(subtopology, {})
                of_subtopology.update((number, known.get(number, value.member_epoch)) for number in numbers)
        return msgspec.structs.replace(
            self,
            member_epoch=value.member_epoch,
            previous_member_epoch=value.previous_member_epoch,
            state=StreamsGroupMemberState.of_code(value.state),
            assigned=value.assigned,
            pending_revocation=value.pending_revocation,
            assignment_epochs=epochs,
        )

    def without_assignment(self) -> StreamsGroupMember:
        """The member after the tombstone of its assignment: it holds nothing, and is about to go."""
        return msgspec.structs.replace(
            self,
            member_epoch=LEAVE_EPOCH,
            previous_member_epoch=LEAVE_EPOCH,
            assigned=NO_TASKS,
            pending_revocation=NO_TASKS,
            assignment_epochs={},
        )

    def metadata_record(self, group_id: str) -> Record:
        """The record of what the member said of itself."""
        return Record(
            StreamsGroupMemberMetadataKey(group_id, self.member_id),
            StreamsGroupMemberMetadataValue(
                instance_id=self.instance_id,
                rack_id=self.rack_id,
                client_id=self.client_id,
                client_host=self.client_host,
                rebalance_timeout_ms=self.rebalance_timeout_ms,
                topology_epoch=self.topology_epoch,
                process_id=self.process_id,
                user_endpoint=self.user_endpoint,
                client_tags=self.client_tags,
            ),
        )

    def assignment_record(self, group_id: str) -> Record:
        """The record of its epochs, its state and its tasks."""
        return Record(
            StreamsGroupCurrentMemberAssignmentKey(group_id, self.member_id),
            StreamsGroupCurrentMemberAssignmentValue(
                member_epoch=self.member_epoch,
                previous_member_epoch=self.previous_member_epoch,
                state=self.state.code,
                assigned=self.assigned,
                pending_revocation=self.pending_revocation,
                assignment_epochs=self.assignment_epochs,
            ),
        )
