"""What keeps a classic group from having settled: in its own eyes, and in those of its members."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from fencepost.coordinator.classic.states import ClassicGroupState
from fencepost.coordinator.protocol.consumer_protocol import read_assignment
from fencepost.coordinator.protocol.ids import MemberId, TopicPartition, topic_partitions
from fencepost.simulation.checkers.base import Finding, shown_names

if TYPE_CHECKING:
    from fencepost.coordinator.classic.group import ClassicGroup
    from fencepost.coordinator.classic.member import ClassicGroupMember
    from fencepost.coordinator.protocol.topics import TopicsImage
    from fencepost.simulation.kernel.observers import MemberView


def unsettled_classic(
    group: ClassicGroup,
    live: Mapping[MemberId, MemberView],
    image: TopicsImage,
    unnoticed: Mapping[str, int],
) -> Iterator[Finding]:
    """Findings of progress and gone-members; `live` are the hosts that run and subscribe, by member id.

    Partitions may be nobody's below a number that their topic has in `unnoticed`.
    """
    if group.state is not ClassicGroupState.STABLE and (live or group.members):
        yield "progress", f"{group.group_id} is {group.state} in generation {group.generation}"
    for member_id in live:
        if member_id not in group.members:
            yield "progress", f"{member_id or 'a member without id'} runs, but is not in {group.group_id}"
    for member_id, member in group.members.items():
        if member_id in live:
            yield from _own_eyes(group, member, live[member_id])
        else:
            yield (
                "gone-members",
                f"{member_id} is a member of {group.group_id}, but nobody runs under that id",
            )
    yield from _uncovered(group, image, unnoticed)


def _own_eyes(group: ClassicGroup, member: ClassicGroupMember, host: MemberView) -> Iterator[Finding]:
    driver = host.driver
    assert driver is not None
    settled = getattr(driver, "is_settled", False)  # one of another protocol is not
    if not settled or driver.member_epoch != group.generation:
        yield (
            "progress",
            f"{member.member_id} believes to be {driver.state} in generation {driver.member_epoch}; that of"
            f" {group.group_id} is {group.generation}",
        )
    assigned = _partitions(member)
    if assigned != set(driver.assignment):
        yield (
            "progress",
            f"{member.member_id} owns {shown_names(driver.assignment)}, assigned is {shown_names(assigned)}",
        )


def _partitions(member: ClassicGroupMember) -> set[TopicPartition]:
    given = read_assignment(member.assignment).partitions
    return {partition for topic, numbers in given.items() for partition in topic_partitions(topic, numbers)}


def _uncovered(group: ClassicGroup, image: TopicsImage, unnoticed: Mapping[str, int]) -> Iterator[Finding]:
    """Each partition of a subscribed topic has one owner."""
    given = Counter(partition for member in group.members.values() for partition in _partitions(member))
    for topic in sorted(group.subscribed_topics or ()):
        known = image.by_name.get(topic)
        count = 0 if known is None else known.partitions
        missing = [
            partition.partition
            for partition in topic_partitions(topic, range(count))
            if given[partition] != 1
            and not (given[partition] == 0 and partition.partition < unnoticed.get(topic, 0))
        ]
        if missing:
            yield (
                "progress",
                f"{group.group_id}: partitions {missing[:12]} of {topic} are not owned exactly once",
            )
