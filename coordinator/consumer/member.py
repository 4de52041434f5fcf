"""One member of a consumer group."""

from __future__ import annotations

import msgspec

from fencepost.coordinator.consumer.states import STATES_BY_CODE, ConsumerGroupMemberState
from fencepost.coordinator.epoch_groups import EpochMember
from fencepost.coordinator.protocol import records
from fencepost.coordinator.protocol.consumer import ConsumerGroupHeartbeatRequest
from fencepost.coordinator.protocol.ids import NO_PARTITIONS, Partitions, TopicId

STABLE = ConsumerGroupMemberState.STABLE
"""A module-level name: in Python 3.11 an attribute of an enum class costs as much as a call."""


class ConsumerGroupMember(EpochMember, frozen=True, kw_only=True, gc=False):
    """A member as the coordinator knows it: what it reported about itself, its epochs, and what it holds.

    `assigned` and `pending_revocation` are disjoint, and no other member holds any of them.
    """

    metadata_key = records.ConsumerGroupMemberMetadataKey
    metadata_value = records.ConsumerGroupMemberMetadataValue
    assignment_key = records.ConsumerGroupCurrentMemberAssignmentKey
    assignment_value = records.ConsumerGroupCurrentMemberAssignmentValue
    nothing = NO_PARTITIONS

    subscribed_topic_names: tuple[str, ...] = ()
    """Sorted, without duplicates."""
    subscribed_topic_regex: str | None = ""
    """"" until the member sends one; None only from a journal of another coordinator."""
    server_assignor: str | None = None
    state: ConsumerGroupMemberState = ConsumerGroupMemberState.STABLE
    assigned: Partitions = NO_PARTITIONS
    pending_revocation: Partitions = NO_PARTITIONS
    classic: records.ClassicMemberMetadata | None = None
    """The data of a member that speaks the classic protocol; None for other members (KIP-848, Migration)."""

    @property
    def regex(self) -> str | None:
        """The regular expression that it subscribes to; None without one, or for an empty one."""
        return self.subscribed_topic_regex or None

    def is_reconciled_to(self, epoch: int) -> bool:
        """Return true if nothing is left to do for the target of that epoch."""
        return self.member_epoch == epoch and self.state is STABLE

    def with_heartbeat(self, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroupMember:
        """Return the member updated by a heartbeat; None and -1 in the request keep the known values.

        It is the same object if nothing changed.
        """
        names = request.subscribed_topic_names
        if names is None and self._says_nothing_new(request):
            return self
        found = msgspec.structs.replace(
            self,
            instance_id=self.instance_id if request.instance_id is None else request.instance_id,
            rack_id=self.rack_id if request.rack_id is None else request.rack_id,
            client_id=request.client_id,
            client_host=request.client_host,
            rebalance_timeout_ms=self.rebalance_timeout_ms
            if request.rebalance_timeout_ms == -1
            else request.rebalance_timeout_ms,
            server_assignor=self.server_assignor
            if request.server_assignor is None
            else request.server_assignor,
            subscribed_topic_names=self.subscribed_topic_names
            if names is None
            else tuple(sorted(set(names))),
            subscribed_topic_regex=self.subscribed_topic_regex
            if request.subscribed_topic_regex is None
            else request.subscribed_topic_regex,
            classic=None,
        )
        return self if found == self else found

    def _says_nothing_new(self, request: ConsumerGroupHeartbeatRequest) -> bool:
        """Return true if a heartbeat without topics is a keepalive or an acknowledgement, as most are."""
        return (
            self.classic is None
            and request.rebalance_timeout_ms == -1
            and request.subscribed_topic_regex is None
            and request.server_assignor is None
            and request.rack_id is None
            and request.instance_id in (None, self.instance_id)
            and request.client_id == self.client_id
            and request.client_host == self.client_host
        )

    def with_assignment(
        self, value: records.ConsumerGroupCurrentMemberAssignmentValue, target: Partitions = NO_PARTITIONS
    ) -> ConsumerGroupMember:
        """Return the member after a CurrentMemberAssignment record.

        Partitions without an assignment epoch (a record older than KIP-1251) get the member's, at least 0.
        Equal parts stay the same objects, also for members that reach their target: most records only move an
        epoch, and thousands of members hold thousands of partitions.

        :raises ValueError: if the record has a partition twice.
        """
        holding = self.assigned, self.pending_revocation, self.assignment_epochs
        assigned, pending, epochs = value.assigned, value.pending_revocation, value.assignment_epochs
        if (assigned, pending, epochs) == holding:
            assigned, pending, epochs = holding
        else:
            if assigned is not target and assigned == target and [*assigned] == [*target]:
                assigned = target
            epochs = _assignment_epochs(value)
        return msgspec.structs.replace(
            self,
            member_epoch=value.member_epoch,
            previous_member_epoch=value.previous_member_epoch,
            state=STATES_BY_CODE[value.state],
            assigned=assigned,
            pending_revocation=pending,
            assignment_epochs=epochs,
        )


def _assignment_epochs(
    value: records.ConsumerGroupCurrentMemberAssignmentValue,
) -> dict[TopicId, dict[int, int]]:
    """Return an epoch for each partition of the record, and for no other.

    :raises ValueError: if the record has a partition twice.
    """
    epochs, held = value.assignment_epochs, value.assigned
    if pending := value.pending_revocation:
        held = {**held, **{topic_id: held.get(topic_id, ()) + pending[topic_id] for topic_id in pending}}
    if [*epochs] == [*held] and [*map(tuple, epochs.values())] == [*held.values()]:
        return epochs
    missing = max(value.member_epoch, 0)
    complete: dict[TopicId, dict[int, int]] = {}
    for topic_id, numbers in held.items():
        known = epochs.get(topic_id, {})
        complete[topic_id] = {number: known.get(number, missing) for number in numbers}
        if len(complete[topic_id]) != len(numbers):
            raise ValueError(f"a partition of {topic_id} cannot be held twice")
    return complete
