"""A played coordinator, fed with a simulated one's journal; and judges that see what is wrong in one."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fencepost.coordinator.assign.java_order import offsets_partition
from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.protocol import consumer
from fencepost.coordinator.protocol import records as r
from fencepost.coordinator.protocol.ids import TopicId
from fencepost.coordinator.protocol.records import Record
from fencepost.coordinator.protocol.topics import Topic, TopicsImage
from fencepost.simulation.judge import real_judges
from fencepost.simulation.judge.catalogue import INVARIANTS, NOT_ON_REAL
from fencepost.simulation.kernel.observers import FindingReport, Observer, WorldView
from fencepost.simulation.lab.chaos.played import Arrival
from fencepost.simulation.run import run
from fencepost.simulation.scenarios.load import load
from tests.unit.simulation.played_group import PlayedGroup

GROUP = "group"
TOPIC = Topic(topic_id="Qrl94gisRa6Dob-bDfRD8g", name="orders", partitions=4)
IMAGE = TopicsImage.of([TOPIC])


class Simulated(Observer):
    """What a simulated coordinator wrote: when, and for which topics."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, tuple[Record, ...], TopicsImage]] = []

    def attach(self, world: WorldView, report: FindingReport) -> None:
        self.world = world

    def on_coordinator_step(self, host: str, event: Any, outcome: Any, now_us: int) -> None:
        if outcome.records and self.world.active is not None:
            self.steps.append((now_us, outcome.records, self.world.active.image))


@pytest.fixture(params=["rolling-deploy", "static-rolling-deploy", "regex-subscriptions"])
def simulated(request: pytest.FixtureRequest) -> tuple[str, GroupCoordinatorConfig, Simulated]:
    """A group's id, its coordinator's configuration, and what that one did."""
    chosen = load(request.param, members=5)
    watching = Simulated()
    run(chosen, 3, judges=[watching])
    return chosen.group.id, GroupCoordinatorConfig.from_properties(chosen.config), watching


class Watch(PlayedGroup):
    """A group of which tests say what was written."""

    def __init__(self, group_id: str = GROUP, config: GroupCoordinatorConfig | None = None) -> None:
        super().__init__(group_id, config)
        self.offset = 0

    def play(self, *records: Record, at_us: int = 0, image: TopicsImage = IMAGE, **more: Any) -> None:
        self.offset += len(records)
        arrival = Arrival(
            t_us=at_us,
            timestamp_ms=at_us // 1_000,
            offset=self.offset,
            leader=1,
            leader_epoch=more.pop("leader_epoch", 0),
            records=records,
            image=image,
            unsettled=more.pop("unsettled", frozenset()),
            **more,
        )
        self.played.play(arrival, at_us)


def place(
    member_id: str, epoch: int, *assigned: int, state: int = 0, pending: tuple[int, ...] = (), before: int = 0
) -> Record:
    held = {TOPIC.topic_id: tuple(sorted({*assigned, *pending}))} if assigned or pending else {}
    return Record(
        r.ConsumerGroupCurrentMemberAssignmentKey(GROUP, member_id),
        r.ConsumerGroupCurrentMemberAssignmentValue(
            epoch,
            before or epoch,
            state,
            {TOPIC.topic_id: assigned} if assigned else {},
            {TOPIC.topic_id: pending} if pending else {},
            {topic_id: dict.fromkeys(numbers, 0) for topic_id, numbers in held.items()},
        ),
    )


def member(member_id: str, instance_id: str | None = None) -> Record:
    return Record(
        r.ConsumerGroupMemberMetadataKey(GROUP, member_id),
        r.ConsumerGroupMemberMetadataValue(instance_id, None, "", "", ("orders",), None, 1_000, None),
    )


def epoch(number: int, digest: int = 77) -> Record:
    return Record(r.ConsumerGroupMetadataKey(GROUP), r.ConsumerGroupMetadataValue(number, digest))


async def test_an_epoch_that_is_raised_for_nothing_is_found() -> None:
    for digest, broken in ((78, set()), (77, {"epoch-caused"})):
        watch = await two_members()
        watch.play(epoch(4, digest), at_us=5_000)
        assert watch.broken == broken


def target(number: int) -> Record:
    key = r.ConsumerGroupTargetAssignmentMetadataKey(GROUP)
    return Record(key, r.ConsumerGroupTargetAssignmentMetadataValue(number))


def wanted(member_id: str, *partitions: int, topic_id: TopicId = TOPIC.topic_id) -> Record:
    return Record(
        r.ConsumerGroupTargetAssignmentMemberKey(GROUP, member_id),
        r.ConsumerGroupTargetAssignmentMemberValue({topic_id: partitions} if partitions else {}),
    )


def removal(*member_ids: str) -> list[Record]:
    kinds = (
        r.ConsumerGroupCurrentMemberAssignmentKey,
        r.ConsumerGroupTargetAssignmentMemberKey,
        r.ConsumerGroupMemberMetadataKey,
    )
    return [Record(kind(GROUP, member_id), None) for member_id in member_ids for kind in kinds]


async def two_members() -> Watch:
    watch = Watch()
    first = [member("a"), epoch(2), wanted("a", 0, 1, 2, 3), target(2), place("a", 2, 0, 1, 2, 3)]
    watch.play(*first, at_us=1_000)
    watch.play(member("b"), epoch(3), wanted("b", 2, 3), wanted("a", 0, 1), target(3), place("b", 3, state=2))
    watch.play(place("a", 2, 0, 1, state=1, pending=(2, 3)), at_us=2_000)
    watch.play(place("a", 3, 0, 1, before=2), at_us=3_000)
    watch.play(place("b", 3, 2, 3), at_us=4_000)
    assert watch.findings == []
    return watch


async def test_a_simulated_journal_replays_without_a_finding(
    simulated: tuple[str, GroupCoordinatorConfig, Simulated],
) -> None:
    group_id, config, written = simulated
    watch = Watch(group_id, config)
    for now_us, records, image in written.steps:
        watch.play(*records, at_us=now_us, image=image)
    assert watch.findings == []
    assert len(watch.steps) == len(written.steps) > 100
    watch.recorder.flush()
    kinds = {row[5] for row in watch.rows}
    assert {"group.state", "group.epoch", "group.target"} <= kinds


async def test_a_partition_that_is_given_to_two_members_is_found() -> None:
    watch = await two_members()
    watch.play(epoch(4), wanted("b", 2, 3), target(4), place("b", 4, 1, 2, 3, before=3), at_us=5_000)
    assert {"one-owner", "assigned-in-target"} <= watch.broken


async def test_a_record_that_cannot_follow_is_found_and_left_out() -> None:
    watch = await two_members()
    watch.play(place("b", 3, 1, 2, 3), at_us=5_000)
    assert watch.broken == {"journal-replay"}
    assert watch.active.groups[GROUP].members["b"].assigned == {TOPIC.topic_id: (2, 3)}


async def test_a_target_with_a_partition_twice_is_found() -> None:
    watch = await two_members()
    watch.play(epoch(4), wanted("b", 1, 2, 3), target(4), at_us=5_000)
    assert "target-exclusive" in watch.broken


async def test_an_epoch_that_moves_in_a_revocation_is_found() -> None:
    watch = await two_members()
    watch.play(epoch(4), wanted("a", 0), wanted("b", 1, 2, 3), target(4), at_us=5_000)
    watch.play(place("a", 3, 0, state=1, pending=(1,)), at_us=6_000)
    watch.play(place("a", 4, 0, state=1, pending=(1,), before=3), at_us=7_000)
    assert "revocation-frozen" in watch.broken


async def test_a_revocation_may_last_its_timeout_and_what_a_timer_may_be_late() -> None:
    for lasted_us, found in ((5_900_000, False), (6_200_000, True)):
        watch = await two_members()
        watch.play(epoch(4), wanted("a", 0), wanted("b", 1, 2, 3), target(4), at_us=5_000)
        watch.play(place("a", 3, 0, state=1, pending=(1,)), at_us=10_000)
        watch.play(*removal("a"), epoch(5), at_us=10_000 + lasted_us)
        assert ("revocation-bounded" in watch.broken) == found
        assert watch.steps[-1].removed == {"a": "rebalance"}


async def test_a_new_leader_begins_time_outs_anew() -> None:
    watch = await two_members()
    watch.play(epoch(4), wanted("a", 0), wanted("b", 1, 2, 3), target(4), at_us=5_000)
    watch.play(place("a", 3, 0, state=1, pending=(1,)), at_us=10_000)
    watch.play(epoch(5), at_us=9_000_000, leader_epoch=1)
    watch.play(*removal("a"), epoch(6), at_us=12_000_000, leader_epoch=1)
    assert "revocation-bounded" not in watch.broken


async def test_topics_that_changed_just_now_are_not_judged_by() -> None:
    grown = TopicsImage.of([msgspec.structs.replace(TOPIC, partitions=6)], version=2)
    for unsettled, broken in ((frozenset({TOPIC.topic_id}), set()), (frozenset(), {"target-covers"})):
        watch = await two_members()
        raised = epoch(4, 78)
        watch.play(raised, wanted("a", 0, 1), target(4), image=grown, at_us=5_000, unsettled=unsettled)
        assert watch.broken == broken


async def test_removals_have_reasons() -> None:
    watch = await two_members()
    watch.played.left("a")
    watch.play(*removal("a"), epoch(4), at_us=5_000)
    assert (watch.steps[-1].cause, watch.steps[-1].removed) == ("leave", {"a": "left"})
    watch.play(*removal("b"), epoch(5, 0), at_us=6_000)
    assert (watch.steps[-1].cause, watch.steps[-1].removed) == ("timeout", {"b": "session"})
    assert watch.findings == []
    watch.recorder.flush()
    assert [row[-1] for row in watch.rows if row[5] == "member.removed"] == ["left", "session"]
    assert [row[7] for row in watch.rows if row[5] == "group.state"][-1] == "Empty"


async def test_a_static_member_is_replaced() -> None:
    watch = Watch()
    everything = 0, 1, 2, 3
    watch.play(member("a", "i"), epoch(2), wanted("a", *everything), target(2), place("a", 2, *everything))
    watch.play(place("a", -2, *everything, before=2), at_us=1_000)
    successor = [member("b", "i"), wanted("b", *everything), place("b", 0, *everything)]
    watch.play(*removal("a"), *successor, place("b", 2, *everything), at_us=2_000)
    assert (watch.steps[-1].cause, watch.steps[-1].removed) == ("join", {"a": "replaced"})
    assert watch.findings == []


async def test_an_answer_without_a_record_is_found() -> None:
    watch = await two_members()
    request = consumer.ConsumerGroupHeartbeatRequest(group_id=GROUP, member_id="a", member_epoch=3)

    def answered(at: int, assignment: Any) -> None:
        response = consumer.ConsumerGroupHeartbeatResponse(
            member_id="a", member_epoch=at, heartbeat_interval_ms=1, assignment=assignment
        )
        for hook in watch.played.hooks["on_member_response"]:
            hook("host", request, response, 5_000)

    answered(3, {TOPIC.topic_id: (0, 1)})
    answered(3, None)
    answered(2, {TOPIC.topic_id: (0, 1, 2, 3)})  # an answer that comes late
    assert watch.findings == []
    answered(3, {TOPIC.topic_id: (0, 1, 2)})
    assert watch.broken == {"reply-equals-state"}


def test_the_catalogue_says_of_each_invariant_what_becomes_of_it() -> None:
    assert INVARIANTS.keys() > NOT_ON_REAL
    assert all(INVARIANTS[name].on_real for name in NOT_ON_REAL)
    assert all(judge.left_out == NOT_ON_REAL for judge in real_judges())


@pytest.mark.parametrize(
    ("group_id", "partition"),
    # As java.lang.String.hashCode and Kafka's Utils.abs have it; the third hashes to Integer.MIN_VALUE.
    [("group-a", 47), ("", 0), ("polygenelubricants", 0), ("gruppe-\N{GRINNING FACE}", 11)],
)
def test_a_group_is_in_the_partition_of_javas_hash(group_id: str, partition: int) -> None:
    assert offsets_partition(group_id, 50) == partition
