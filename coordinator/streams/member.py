"""One member of a streams group."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from fencepost.coordinator.epoch_groups import EpochMember
from fencepost.coordinator.protocol import streams_records
from fencepost.coordinator.protocol.streams import NO_TASKS, Endpoint, StreamsGroupHeartbeatRequest, Tasks
from fencepost.coordinator.streams.states import STREAMS_STATES_BY_CODE, StreamsGroupMemberState

STABLE = StreamsGroupMemberState.STABLE
"""A module-level name: in Python 3.11 an attribute of an enum class costs as much as a call."""

AssignmentEpochs = dict[str, dict[int, int]]
"""By subtopology and partition."""


class StreamsGroupMember(EpochMember, frozen=True, kw_only=True, gc=False):
    """A member as the coordinator knows it: what it reported about itself, its epochs, and its tasks.

    `assigned` and `pending_revocation` are disjoint in each role. `instance_id` is None: Kafka 4.3 refuses
    static members of streams groups.
    """

    metadata_key = streams_records.StreamsGroupMemberMetadataKey
    metadata_value = streams_records.StreamsGroupMemberMetadataValue
    assignment_key = streams_records.StreamsGroupCurrentMemberAssignmentKey
    assignment_value = streams_records.StreamsGroupCurrentMemberAssignmentValue
    nothing = NO_TASKS

    topology_epoch: int = -1
    """Of the topology that it joined with."""
    process_id: str = ""
    user_endpoint: Endpoint | None = None
    client_tags: Mapping[str, str] = {}
    state: StreamsGroupMemberState = StreamsGroupMemberState.STABLE
    assigned: Tasks = NO_TASKS
    pending_revocation: Tasks = NO_TASKS

    def is_reconciled_to(self, epoch: int) -> bool:
        """Return true if nothing is left to do for the target of that epoch."""
        return self.member_epoch == epoch and self.state is STABLE

    def with_heartbeat(self, request: StreamsGroupHeartbeatRequest) -> StreamsGroupMember:
        """Return the member updated by a heartbeat; None and -1 in the request keep the known values.

        It is the same object if nothing changed.
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

    def with_assignment(
        self, value: streams_records.StreamsGroupCurrentMemberAssignmentValue
    ) -> StreamsGroupMember:
        """Return the member after a CurrentMemberAssignment record.

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
            state=STREAMS_STATES_BY_CODE[value.state],
            assigned=value.assigned,
            pending_revocation=value.pending_revocation,
            assignment_epochs=epochs,
        )
