"""Who in a group is a run's own."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.coordinator.protocol.classic import DescribedClassicGroup, DescribedClassicMember
from fencepost.coordinator.protocol.consumer import DescribedGroup, DescribedMember, DescribedPartitions
from fencepost.coordinator.protocol.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    write_assignment,
    write_subscription,
)
from fencepost.coordinator.protocol.streams import (
    DescribedStreamsGroup,
    DescribedStreamsMember,
    DescribedSubtopology,
    Tasks,
)
from fencepost.simulation.lab.chaos.foreign_members import ForeignMembers

ROSTER = ForeignMembers(["member-1", "member-2"], ["orders", "refunds"])
MEMBER = {"member_id": "m", "instance_id": None, "client_host": "/10.0.0.7"}


def consumers(client_id: str, *names: str, has: str = "") -> DescribedGroup:
    partitions = (DescribedPartitions(topic_id="t", topic_name=has, partitions=(0,)),) if has else ()
    member = DescribedMember(
        **MEMBER,
        client_id=client_id,
        rack_id=None,
        member_epoch=1,
        subscribed_topic_names=names,
        subscribed_topic_regex=None,
        assignment=(),
        target_assignment=partitions,
    )
    return DescribedGroup(group_id="g", members=(member,))


def classic(client_id: str, metadata: bytes = b"", assignment: bytes = b"") -> DescribedClassicGroup:
    member = DescribedClassicMember(**MEMBER, client_id=client_id, metadata=metadata, assignment=assignment)
    return DescribedClassicGroup(group_id="g", group_state="Stable", members=(member,))


def streams(client_id: str, *topics: str) -> DescribedStreamsGroup:
    member = DescribedStreamsMember(
        **MEMBER,
        client_id=client_id,
        rack_id=None,
        member_epoch=1,
        topology_epoch=0,
        process_id="p",
        user_endpoint=None,
        client_tags={},
        assignment=Tasks(),
        target_assignment=Tasks(),
    )
    subtopology = DescribedSubtopology(subtopology_id="0", source_topics=topics)
    return DescribedStreamsGroup(group_id="g", subtopologies=(subtopology,), members=(member,))


SUBSCRIBED = write_subscription(ConsumerProtocolSubscription(topics=("orders",)))


@pytest.mark.parametrize(
    "group",
    [
        DescribedGroup(group_id="g"),
        consumers("member-1", "orders"),
        consumers("member-2", "orders", "refunds", has="refunds"),
        classic(
            "member-1", SUBSCRIBED, write_assignment(ConsumerProtocolAssignment(partitions={"orders": (0,)}))
        ),
        classic("member-1", b"\x00", b"\x00"),
        streams("member-1", "orders"),
    ],
)
def test_who_is_on_it_is_no_stranger(group: Any) -> None:
    assert ROSTER.stranger(group) is None
    assert all(ROSTER.has(group, member) for member in group.members)


@pytest.mark.parametrize(
    ("group", "told"),
    [
        (consumers("billing", "orders"), "client billing at /10.0.0.7"),
        (
            consumers("member-1", "orders", "payments"),
            "client member-1 at /10.0.0.7, which reads payments",
        ),
        (consumers("member-1", has="payments"), "client member-1 at /10.0.0.7, which reads payments"),
        (classic("billing"), "client billing at /10.0.0.7"),
        (
            classic(
                "member-1", write_subscription(ConsumerProtocolSubscription(topics=("z", "a", "orders")))
            ),
            "client member-1 at /10.0.0.7, which reads a, z",
        ),
        (
            classic(
                "member-1",
                SUBSCRIBED,
                write_assignment(ConsumerProtocolAssignment(partitions={"payments": (0,)})),
            ),
            "client member-1 at /10.0.0.7, which reads payments",
        ),
        (streams("member-1", "payments"), "client member-1 at /10.0.0.7, which reads payments"),
    ],
)
def test_a_stranger_has_another_name_or_reads_other_topics(group: Any, told: str) -> None:
    assert ROSTER.stranger(group) == told
    assert not any(ROSTER.has(group, member) for member in group.members)
