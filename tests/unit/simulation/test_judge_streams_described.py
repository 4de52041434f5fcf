"""What a description of a streams group may say: the right one, and the same with one thing wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.coordinator import GroupCoordinator
from fencepost.coordinator.protocol import streams
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.outcome import Event, TopicsChanged
from fencepost.coordinator.protocol.topics import Topic, TopicsImage
from fencepost.simulation.streams.described import descriptions

TOPICS = TopicsImage.of(Topic(topic_id=name, name=name, partitions=2) for name in ("orders", "store"))
TOPOLOGY = streams.Topology(0, (streams.Subtopology("0", ("orders",), (), (streams.TopicInfo("store"),)),))
ASKED = streams.StreamsGroupDescribeRequest(group_ids=("g", "none", ""))


def coordinator() -> GroupCoordinator:
    """A group with one member, which has all tasks."""
    live = GroupCoordinator(GroupCoordinatorConfig(group_streams_initial_rebalance_delay_ms=0))
    join = streams.StreamsGroupHeartbeatRequest(
        group_id="g",
        member_id="a",
        member_epoch=0,
        rebalance_timeout_ms=60_000,
        topology=TOPOLOGY,
        active_tasks=streams.NO_TASK_IDS,
        standby_tasks=streams.NO_TASK_IDS,
        warmup_tasks=streams.NO_TASK_IDS,
        process_id="p",
    )
    step(live, TopicsChanged(image=TOPICS))
    step(live, join)
    return live


def step(live: GroupCoordinator, event: Event) -> Any:
    outcome = live.handle(event, 0)
    live.apply_batch(outcome.records)
    return outcome.reply


def found(
    change: Callable[[streams.DescribedStreamsGroup], streams.DescribedStreamsGroup], index: int = 0
) -> list[str]:
    """What is reported of a description that differs in this."""
    live = coordinator()
    reply = step(live, ASKED)
    groups = list(reply.groups)
    groups[index] = change(groups[index])
    told = streams.StreamsGroupDescribeResponse(groups=tuple(groups))
    return [invariant for invariant, _ in descriptions(live.streams.groups, TOPICS, ASKED, told)]


def group(**changes: Any) -> Callable[[streams.DescribedStreamsGroup], streams.DescribedStreamsGroup]:
    return lambda described: msgspec.structs.replace(described, **changes)


def member(**changes: Any) -> Callable[[streams.DescribedStreamsGroup], streams.DescribedStreamsGroup]:
    return lambda described: msgspec.structs.replace(
        described, members=(msgspec.structs.replace(described.members[0], **changes),)
    )


def part(**changes: Any) -> Callable[[streams.DescribedStreamsGroup], streams.DescribedStreamsGroup]:
    right = {"source_topics": ("orders",), "state_changelog_topics": (streams.TopicInfo("store", 2),)}
    return group(subtopologies=(streams.DescribedSubtopology(subtopology_id="0", **{**right, **changes}),))


def test_right_descriptions_are_in_order() -> None:
    """Internal topics have the number that was declared, none, or the one that they turned out to have."""
    assert found(lambda described: described) == []
    assert found(part(state_changelog_topics=(streams.TopicInfo("store", 0),))) == []


@pytest.mark.parametrize(
    ("change", "index"),
    [
        (group(group_state="NotReady"), 0),
        (group(group_epoch=9), 0),
        (group(assignment_epoch=9), 0),
        (group(topology_epoch=9), 0),
        (group(members=()), 0),
        (group(subtopologies=()), 0),
        (group(error_code=ErrorCode.GROUP_ID_NOT_FOUND), 0),
        (group(error_code=ErrorCode.NONE), 1),
        (group(error_code=ErrorCode.GROUP_ID_NOT_FOUND), 2),
        (group(subtopologies=(streams.DescribedSubtopology(subtopology_id="0"),)), 1),
        (member(member_epoch=9), 0),
        (member(process_id="q"), 0),
        (member(client_id="another"), 0),
        (member(assignment=streams.NO_TASKS), 0),
        (member(target_assignment=streams.Tasks({"0": (0,)})), 0),
        (part(source_topics=()), 0),
        (part(repartition_sink_topics=("orders",)), 0),
        (part(state_changelog_topics=()), 0),
        (part(state_changelog_topics=(streams.TopicInfo("store", 3),)), 0),
    ],
)
def test_a_wrong_description_is_found(
    change: Callable[[streams.DescribedStreamsGroup], streams.DescribedStreamsGroup], index: int
) -> None:
    assert set(found(change, index)) == {"streams-described"}


def test_groups_come_in_the_order_of_the_request() -> None:
    live = coordinator()
    told = streams.StreamsGroupDescribeResponse(groups=step(live, ASKED).groups[::-1])
    findings = list(descriptions(live.streams.groups, TOPICS, ASKED, told))
    assert [invariant for invariant, _ in findings] == ["streams-described"]
