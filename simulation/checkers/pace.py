"""The pace at which targets and members follow the group's epoch: with the next heartbeat, and targets not
too often.

A target is made once per assignment interval at most (KIP-1263), and by the first heartbeat after it. A
heartbeat takes its member as far as others allow; no other event would (KIP-848, Reconciliation).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from fencepost.coordinator.config import ReleaseVersion
from fencepost.coordinator.consumer.states import ConsumerGroupMemberState
from fencepost.coordinator.protocol.ids import NO_PARTITIONS
from fencepost.simulation.checkers.base import Finding, shown
from fencepost.simulation.checkers.ownership import changes, in_order
from fencepost.simulation.checkers.step import subscribed_topics

if TYPE_CHECKING:
    from fencepost.coordinator.consumer.group import ConsumerGroup
    from fencepost.coordinator.consumer.member import ConsumerGroupMember
    from fencepost.coordinator.protocol.consumer import ConsumerGroupHeartbeatRequest
    from fencepost.coordinator.protocol.topics import TopicsImage
    from fencepost.simulation.checkers.ownership import Ownership
    from fencepost.simulation.checkers.step import GroupStep

# Names of their own: in Python 3.11 an attribute of an enum class costs as much as a call.
STABLE, UNREVOKED, UNRELEASED, _ = ConsumerGroupMemberState

_NO_TARGET: Final = 1
"""The target's epoch in a group that never had one."""


def check_new_target(step: GroupStep, interval_ms: int, release: ReleaseVersion) -> Iterator[Finding]:
    """Check that a new target has the current time and the newest epoch, and was not made too soon.

    A group without members has a target of its epoch from Kafka 4.4 on, dated 0 (KAFKA-20442).
    """
    group = step.group
    if group is None:
        return
    if not group.members:
        got = group.assignment_epoch, group.assignment_timestamp_ms
        if release is ReleaseVersion.V4_3 or got != (group.group_epoch, 0):
            yield (
                "target-due",
                f"{step.group_id} lost its last member at epoch {group.group_epoch}, and got target {got[0]}"
                f" dated {got[1]} ms in release {release}",
            )
        return
    if group.assignment_epoch != group.group_epoch:
        yield (
            "target-due",
            f"target {group.assignment_epoch} of {step.group_id} was made at group epoch {group.group_epoch}",
        )
    made_ms = group.assignment_timestamp_ms
    if made_ms != step.now_ms:
        yield (
            "target-due",
            f"target {group.assignment_epoch} of {step.group_id} was made at {step.now_ms} ms, and is dated"
            f" {made_ms}",
        )
    last_ms = step.known.assignment_timestamp_ms
    if last_ms and step.now_ms - last_ms < interval_ms:
        yield (
            "target-due",
            f"target {group.assignment_epoch} of {step.group_id} was made {step.now_ms - last_ms} ms after"
            f" the one before, the assignment interval is {interval_ms} ms",
        )


def check_progress(
    request: ConsumerGroupHeartbeatRequest,
    before: ConsumerGroupMember | None,
    after: ConsumerGroupMember,
    group: ConsumerGroup,
    *,
    ownership: Ownership,
    image: TopicsImage,
    interval_ms: int,
    now_ms: int,
) -> Iterator[Finding]:
    """Return true if a heartbeat that was accepted did all that it can for its group and its member."""
    who = f"{after.member_id} of {group.group_id}"
    if group.assignment_epoch < group.group_epoch:
        waited_ms = now_ms - group.assignment_timestamp_ms
        if group.assignment_epoch <= _NO_TARGET or waited_ms >= interval_ms:
            yield (
                "target-due",
                f"{who} sent a heartbeat, and {group.group_id} at epoch {group.group_epoch} still has target"
                f" {group.assignment_epoch}, {waited_ms} ms old",
            )
    if before is not None and not _subscribes_alike(before, after):
        dropped = after.assigned.keys() - subscribed_topics(after, group.resolved, image)
        if dropped:
            yield "heartbeat-reconciles", f"{who} keeps {sorted(dropped)}, which it has just dropped"
    if after.state is UNREVOKED:
        if before is not None and before.pending_revocation and request.topic_partitions is not None:
            owned = request.topic_partitions
            kept = {
                topic_id: numbers
                for topic_id, numbers in before.pending_revocation.items()
                if set(numbers) & set(after.pending_revocation.get(topic_id, ()))
            }
            if kept and not any(set(owned.get(t, ())) & set(n) for t, n in before.pending_revocation.items()):
                yield "heartbeat-reconciles", f"{who} has released {shown(kept)}, and is to release it still"
        return
    if after.member_epoch != group.assignment_epoch:
        yield (
            "heartbeat-reconciles",
            f"{who} is {after.state} at epoch {after.member_epoch} after its heartbeat, the target has epoch"
            f" {group.assignment_epoch}",
        )
    elif after.state is UNRELEASED:
        topics = subscribed_topics(after, group.resolved, image)
        target = group.targets.get(after.member_id, NO_PARTITIONS)
        wanted = {topic_id: numbers for topic_id, numbers in target.items() if topic_id in topics}
        lacking = in_order(changes(wanted, after.assigned)[0])
        held = {(topic_id, number) for topic_id, number, _ in ownership.others(after.member_id, lacking)}
        free = {
            topic_id: rest
            for topic_id, numbers in lacking.items()
            if (rest := tuple(number for number in numbers if (topic_id, number) not in held))
        }
        if free:
            yield "heartbeat-reconciles", f"{who} was not given {shown(free)}, which no other member holds"


def _subscribes_alike(before: ConsumerGroupMember, after: ConsumerGroupMember) -> bool:
    return (
        before.subscribed_topic_names is after.subscribed_topic_names
        or before.subscribed_topic_names == after.subscribed_topic_names
    ) and before.subscribed_topic_regex == after.subscribed_topic_regex
