"""The most frequent step of a large group: a heartbeat moves its member to the target's epoch, and does no
more.

A rebalance moves a few partitions, and every member's epoch. The rules for such a step are stated here in one
place, so that it needs no list of changes and no checker of its own. A step that is anything else, or that is
wrong, goes through all checkers, which report the error: this never finds an error itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencepost.coordinator.consumer.states import ConsumerGroupMemberState
from fencepost.coordinator.protocol.consumer import ConsumerGroupHeartbeatResponse
from fencepost.coordinator.protocol.records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
)
from fencepost.simulation.checkers.heartbeats import NONE, is_full

if TYPE_CHECKING:
    from fencepost.coordinator.consumer.group import ConsumerGroup
    from fencepost.coordinator.consumer.member import ConsumerGroupMember
    from fencepost.coordinator.protocol.consumer import ConsumerGroupHeartbeatRequest
    from fencepost.coordinator.protocol.ids import Partitions
    from fencepost.coordinator.protocol.outcome import Outcome
    from fencepost.coordinator.protocol.topics import TopicsImage
    from fencepost.simulation.checkers.step import KnownGroup

# A name of its own: in Python 3.11 an attribute of an enum class costs as much as a call.
STABLE = ConsumerGroupMemberState.STABLE


def moved_member(
    request: ConsumerGroupHeartbeatRequest, outcome: Outcome, known: KnownGroup, group: ConsumerGroup
) -> ConsumerGroupMember | None:
    """Return the current member if the step moved its epoch, and nothing else; None for any other step.

    `known` is the group before the step.
    """
    if len(outcome.records) != 1:
        return None
    (record,) = outcome.records
    key, value, reply = record.key, record.value, outcome.reply
    member_id = request.member_id
    if (
        type(key) is not ConsumerGroupCurrentMemberAssignmentKey
        or type(value) is not ConsumerGroupCurrentMemberAssignmentValue
        or type(reply) is not ConsumerGroupHeartbeatResponse
        or reply.error_code is not NONE
        or key.member_id != member_id
        or key.group_id != request.group_id
    ):
        return None
    before, after = known.members.get(member_id), group.members.get(member_id)
    if before is None or after is None:
        return None
    moved = (
        after.assigned is before.assigned
        and after.assignment_epochs is before.assignment_epochs
        and not after.pending_revocation
        and not before.pending_revocation
        and after.state is STABLE
        and before.state is STABLE
        and after.classic is None
        and before.classic is None
        and after.subscribed_topic_names is before.subscribed_topic_names
        and not after.subscribed_topic_regex
        and after.subscribed_topic_regex == before.subscribed_topic_regex
        and after.server_assignor == before.server_assignor
        and after.instance_id is None
        and before.instance_id is None
        and after.rebalance_timeout_ms == before.rebalance_timeout_ms
    )
    return after if moved else None


def is_sound(
    request: ConsumerGroupHeartbeatRequest,
    reply: ConsumerGroupHeartbeatResponse,
    after: ConsumerGroupMember,
    known: KnownGroup,
    group: ConsumerGroup,
) -> bool:
    """Return true if the epochs, the target and the reply of such a step are right.

    The whole group is unchanged. The member has reached the target, has held its partitions since an earlier
    epoch, and receives its epoch and no assignment.
    """
    before = known.members[after.member_id]
    epoch = after.member_epoch
    return (
        epoch == group.assignment_epoch == group.group_epoch == known.group_epoch == known.assignment_epoch
        and group.assignment_timestamp_ms == known.assignment_timestamp_ms
        and 0 < before.member_epoch <= epoch
        and 0 <= after.previous_member_epoch <= epoch
        and group.targets.get(after.member_id) is after.assigned
        and request.member_epoch > 0
        and not is_full(request)
        and reply.member_epoch == epoch
        and reply.assignment is None
        and reply.heartbeat_interval_ms > 0
    )


class SubscribedTopics:
    """Decides if members subscribe by name to all topics of a target: most need a single comparison."""

    def __init__(self) -> None:
        self._image: TopicsImage | None = None
        self._names: tuple[str, ...] | None = None
        self._topics: frozenset[str] = frozenset()

    def include(self, names: tuple[str, ...], target: Partitions, image: TopicsImage) -> bool:
        """Return true if the image has all topics of the target under these names."""
        if names is not self._names or image is not self._image:
            by_name = image.by_name
            self._image, self._names = image, names
            self._topics = frozenset([by_name[name].topic_id for name in names if name in by_name])
        return target.keys() <= self._topics
