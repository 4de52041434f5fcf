"""One member of a consumer group: a frozen value, replaced as a whole when a record says so."""

from __future__ import annotations

import msgspec

from fencepost.coordinator.consumer.states import STATES_BY_CODE, ConsumerGroupMemberState
from fencepost.coordinator.protocol.consumer import ConsumerGroupHeartbeatRequest
from fencepost.coordinator.protocol.ids import LEAVE_EPOCH, NO_PARTITIONS, MemberId, Partitions, TopicId
from fencepost.coordinator.protocol.records import (
    ClassicMemberMetadata,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    Record,
)

STABLE = ConsumerGroupMemberState.STABLE
"""A name of its own: in Python 3.11 an attribute of an enum class costs as much as a call."""


class ConsumerGroupMember(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the coordinator knows of a member: what it said of itself, its epochs, and what it holds.

    `assigned` and `pending_revocation` are disjoint, and no other member holds any of them.
    """

    member_id: MemberId
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: tuple[str, ...] = ()
    """Sorted, without duplicates."""
    subscribed_topic_regex: str | None = ""
    """"" until the member brings one; None only from a journal of another coordinator."""
    rebalance_timeout_ms: int = -1
    server_assignor: str | None = None
    member_epoch: int = 0
    previous_member_epoch: int = 0
    """The epoch before the last evaluation; a member may come with it when an answer was lost."""
    state: ConsumerGroupMemberState = ConsumerGroupMemberState.STABLE
    assigned: Partitions = NO_PARTITIONS
    pending_revocation: Partitions = NO_PARTITIONS
    assignment_epochs: dict[TopicId, dict[int, int]] = {}
    """The member epoch at which each held partition became assigned (KIP-1251); covers both sets above."""
    classic: ClassicMemberMetadata | None = None
    """What marks a member that speaks the classic protocol (KIP-848, Migration)."""

    @property
    def regex(self) -> str | None:
        """The regular expression it subscribes to; None if there is none, or an empty one."""
        return self.subscribed_topic_regex or None

    def is_reconciled_to(self, epoch: int) -> bool:
        """Whether nothing is left to do for the target of that epoch."""
        return self.member_epoch == epoch and self.state is STABLE

    def with_heartbeat(self, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroupMember:
        """The member with what a heartbeat says of it; None and -1 in the request keep what is known.

        Answers the same object if nothing changed.
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
        """Whether a heartbeat without topics is a keepalive, or an acknowledgement: most are."""
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

    def with_metadata(self, value: ConsumerGroupMemberMetadataValue) -> ConsumerGroupMember:
        """The member after a MemberMetadata record."""
        return msgspec.structs.replace(
            self,
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            subscribed_topic_names=value.subscribed_topic_names,
            subscribed_topic_regex=value.subscribed_topic_regex,
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            server_assignor=value.server_assignor,
            classic=value.classic,
        )

    def with_assignment(
        self, value: ConsumerGroupCurrentMemberAssignmentValue, target: Partitions = NO_PARTITIONS
    ) -> ConsumerGroupMember:
        """The member after a CurrentMemberAssignment record.

        Partitions without an assignment epoch (a record older than KIP-1251) get the member's, at least 0.
        What stays equal stays the same object, also for members that reach their target: most records
        move an epoch and nothing else, and thousands of members hold thousands of partitions.

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

    def without_assignment(self) -> ConsumerGroupMember:
        """The member after the tombstone of its assignment: it holds nothing, and is about to go."""
        return msgspec.structs.replace(
            self,
            member_epoch=LEAVE_EPOCH,
            previous_member_epoch=LEAVE_EPOCH,
            assigned=NO_PARTITIONS,
            pending_revocation=NO_PARTITIONS,
            assignment_epochs={},
        )

    def metadata_record(self, group_id: str) -> Record:
        """The record of what the member said of itself."""
        return Record(
            ConsumerGroupMemberMetadataKey(group_id, self.member_id),
            ConsumerGroupMemberMetadataValue(
                instance_id=self.instance_id,
                rack_id=self.rack_id,
                client_id=self.client_id,
                client_host=self.client_host,
                subscribed_topic_names=self.subscribed_topic_names,
                subscribed_topic_regex=self.subscribed_topic_regex,
                rebalance_timeout_ms=self.rebalance_timeout_ms,
                server_assignor=self.server_assignor,
                classic=self.classic,
            ),
        )

    def assignment_record(self, group_id: str) -> Record:
        """The record of its epochs, its state and what it holds."""
        return Record(
            ConsumerGroupCurrentMemberAssignmentKey(group_id, self.member_id),
            ConsumerGroupCurrentMemberAssignmentValue(
                member_epoch=self.member_epoch,
                previous_member_epoch=self.previous_member_epoch,
                state=self.state.code,
                assigned=self.assigned,
                pending_revocation=self.pending_revocation,
                assignment_epochs=self.assignment_epochs,
            ),
        )


def _assignment_epochs(value: ConsumerGroupCurrentMemberAssignmentValue) -> dict[TopicId, dict[int, int]]:
    """An epoch for each partition of the record, and for no other.

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
