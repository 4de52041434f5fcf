"""A coordinator of one streams group under test, and members that do what they are told."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.coordinator.protocol import streams
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.outcome import CreateInternalTopics
from fencepost.coordinator.streams.group import StreamsGroup
from fencepost.coordinator.streams.member import StreamsGroupMember
from tests.hosting import HostedScene

GROUP = "app"
SIMPLE = streams.Topology(0, (streams.Subtopology("0", ("in",)),))
"""One subtopology without state, as many tasks as the topic `in` has partitions."""
COUNTING = streams.Topology(
    0,
    (
        streams.Subtopology("0", ("in",), repartition_sink_topics=("app-repartition",)),
        streams.Subtopology(
            "1",
            state_changelog_topics=(streams.TopicInfo("app-changelog"),),
            repartition_source_topics=(streams.TopicInfo("app-repartition"),),
        ),
    ),
)
"""Two subtopologies over a repartition topic; the second one keeps state."""


class StreamsScene(HostedScene):
    """One coordinator of a streams group."""

    def __init__(self, topology: streams.Topology = SIMPLE, **config: Any) -> None:
        config.setdefault("group_streams_assignment_interval_ms", 0)
        config.setdefault("group_streams_initial_rebalance_delay_ms", 0)
        super().__init__(**config)
        self.topology = topology

    @property
    def group(self) -> StreamsGroup:
        return self.coordinator.streams.groups[GROUP]

    def member(self, member_id: str) -> StreamsGroupMember:
        return self.group.members[member_id]

    def beat(
        self, member_id: str, epoch: int, owned: streams.Tasks | None = None, **fields: Any
    ) -> streams.StreamsGroupHeartbeatResponse:
        """A heartbeat; without more fields a keepalive."""
        if owned is not None:
            fields = {
                "active_tasks": owned.active,
                "standby_tasks": owned.standby,
                "warmup_tasks": owned.warmup,
                **fields,
            }
        request = streams.StreamsGroupHeartbeatRequest(
            **{"group_id": GROUP, "endpoint_information_epoch": 0, **fields},
            member_id=member_id,
            member_epoch=epoch,
        )
        reply = self.process(request).reply
        assert isinstance(reply, streams.StreamsGroupHeartbeatResponse)
        return reply

    def join(
        self, member_id: str, process_id: str = "", **fields: Any
    ) -> streams.StreamsGroupHeartbeatResponse:
        """A first heartbeat; each member is a process of its own unless a process is named."""
        fields = {
            "rebalance_timeout_ms": 60_000,
            "topology": self.topology,
            "process_id": process_id or f"process-of-{member_id}",
            **fields,
        }
        return self.beat(member_id, 0, streams.Tasks(), **fields)

    def error(
        self, member_id: str, epoch: int, owned: streams.Tasks | None = None, **fields: Any
    ) -> ErrorCode:
        """The code that a heartbeat fails with; the state must not change."""
        before = self.coordinator.hard_state()
        reply = self.beat(member_id, epoch, owned, **fields)
        assert self.coordinator.hard_state() == before
        assert not self.last.records
        return reply.error_code

    def settle(self, *member_ids: str, rounds: int = 8) -> None:
        """Members do what they are told, over as many heartbeats as it takes."""
        for _ in range(rounds):
            for member_id in member_ids:
                member = self.member(member_id)
                self.beat(member_id, member.member_epoch, member.assigned)

    def active(self, member_id: str) -> dict[str, tuple[int, ...]]:
        return dict(self.member(member_id).assigned.active)

    def epochs(self) -> tuple[int, int]:
        """Group epoch and assignment epoch."""
        return self.group.group_epoch, self.group.assignment_epoch

    def statuses(self) -> list[str]:
        """The names of the statuses of the last answer."""
        reply = self.last.reply
        assert isinstance(reply, streams.StreamsGroupHeartbeatResponse)
        assert reply.status is not None
        return [status.code.name for status in reply.status]

    def wanted_topics(self) -> dict[str, int]:
        """Partitions by internal topic that the last step wants created."""
        return {
            topic.name: topic.partitions
            for effect in self.last.effects
            if isinstance(effect, CreateInternalTopics)
            for topic in effect.topics
        }


@pytest.fixture
def scene() -> StreamsScene:
    """The topic `in` with four partitions; targets computed without delay."""
    made = StreamsScene()
    made.topics(**{"in": 4})
    return made


@pytest.fixture
def scenes() -> type[StreamsScene]:
    """Makes scenes with a topology and a configuration of their own."""
    return StreamsScene


@pytest.fixture
def counting() -> StreamsScene:
    """A topology with a repartition topic and a changelog, neither of which is there; `in` has four."""
    made = StreamsScene(COUNTING)
    made.topics(**{"in": 4})
    return made
