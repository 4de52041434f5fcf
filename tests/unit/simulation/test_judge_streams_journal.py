"""Streams groups (KIP-1071) behind the journal's check: their records make what the coordinator has."""

from __future__ import annotations

import pytest

from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.coordinator import GroupCoordinator
from fencepost.coordinator.host import CoordinatorHost
from fencepost.coordinator.journal.memory import MemoryJournal
from fencepost.coordinator.protocol import streams
from fencepost.coordinator.protocol.outcome import Event, TopicsChanged
from fencepost.coordinator.protocol.records import Record
from fencepost.coordinator.protocol.streams_records import StreamsGroupMetadataKey
from fencepost.coordinator.protocol.topics import Topic, TopicsImage
from fencepost.simulation.judge.base import Finding
from fencepost.simulation.judge.journal import Shadow, check_replays, compare_coordinators
from fencepost.simulation.judge.step import touched_groups

CONFIG = GroupCoordinatorConfig(group_streams_initial_rebalance_delay_ms=0)
TOPOLOGY = streams.Topology(0, (streams.Subtopology("0", ("in",)),))


class Scene:
    """A coordinator, its journal, and the shadow that follows it."""

    def __init__(self) -> None:
        self.live = GroupCoordinator(CONFIG)
        self.journal = MemoryJournal()
        self.shadow = Shadow(CONFIG)
        self.findings: list[Finding] = []
        self._runtime = CoordinatorHost(self.live, self.journal)

    def process(self, event: Event, now_ms: int, *, unseen: type | None = None) -> object:
        """The reply; records with a key of the type `unseen` are kept from the shadow."""
        outcome = self._runtime.step(event, now_ms)
        records: tuple[Record, ...] = tuple(r for r in outcome.records if type(r.key) is not unseen)
        if records:
            self.findings += self.shadow.follow(self.live, records, touched_groups(records))
        return outcome.reply

    def beat(self, member_id: str, epoch: int, now_ms: int, *, unseen: type | None = None) -> int:
        """The epoch that a member is told."""
        fields: dict[str, object] = {"endpoint_information_epoch": 0}
        if epoch == 0:
            fields |= {"active_tasks": {}, "standby_tasks": {}, "warmup_tasks": {}}
            fields |= {"rebalance_timeout_ms": 60_000, "topology": TOPOLOGY, "process_id": member_id}
        request = streams.StreamsGroupHeartbeatRequest(
            group_id="app",
            member_id=member_id,
            member_epoch=epoch,
            **fields,  # type: ignore[arg-type]
        )
        reply = self.process(request, now_ms, unseen=unseen)
        assert isinstance(reply, streams.StreamsGroupHeartbeatResponse)
        return reply.member_epoch


@pytest.fixture
def scene() -> Scene:
    made = Scene()
    topics = [Topic(topic_id="id-of-in", name="in", partitions=4)]
    made.process(TopicsChanged(image=TopicsImage.of(topics, 1)), 0)
    return made


def test_what_members_do_is_followed(scene: Scene) -> None:
    one = scene.beat("one", 0, 1_000)
    scene.beat("two", 0, 2_000)
    for now_ms in range(3_000, 40_000, 5_000):
        one = scene.beat("one", one, now_ms)
    assert scene.live.streams.groups["app"].group_epoch > 1
    scene.beat("two", -1, 41_000)
    assert scene.findings == []
    assert list(compare_coordinators(scene.shadow.coordinator, scene.live, "the records")) == []
    assert list(check_replays(lambda: GroupCoordinator(CONFIG), scene.journal, scene.live)) == []


def test_a_group_that_differs_from_its_records_is_told(scene: Scene) -> None:
    scene.beat("one", 0, 1_000)
    scene.beat("two", 0, 2_000, unseen=StreamsGroupMetadataKey)
    ((invariant, message),) = compare_coordinators(scene.shadow.coordinator, scene.live, "the records")
    assert (invariant, message) == (
        "journal-replay",
        "app: group_epoch of the records differ from the live state",
    )
    scene.shadow = Shadow(CONFIG)
    ((_, message),) = compare_coordinators(scene.shadow.coordinator, scene.live, "the records")
    assert message == "app is there live, and missing in the records"
