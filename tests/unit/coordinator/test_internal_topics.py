"""Internal topics of Streams applications: tried, not tried again too soon, and told to members."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fencepost.coordinator.protocol.outcome import CreateInternalTopics
from fencepost.coordinator.protocol.streams import (
    Status,
    StatusCode,
    StreamsGroupHeartbeatResponse,
    TopicInfo,
)
from fencepost.coordinator.server.internal_topics import InternalTopics

MISSING = Status(StatusCode.MISSING_INTERNAL_TOPICS, "missing")
REPLY = StreamsGroupHeartbeatResponse(status=(Status(StatusCode.ASSIGNMENT_DELAYED, "late"), MISSING))


class Cluster:
    def __init__(self) -> None:
        self.problem: str | None = "no room"
        self.tried: list[str] = []

    def create(self, topics: Sequence[TopicInfo]) -> dict[str, str]:
        names = [topic.name for topic in topics]
        self.tried += names
        return {} if self.problem is None else dict.fromkeys(names, self.problem)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def topics(cluster) -> InternalTopics:
    made = InternalTopics()
    made.create = cluster.create
    return made


def request(topics: InternalTopics, now_ms: int, *names: str) -> None:
    effect = CreateInternalTopics(group_id="g", topics=tuple(map(TopicInfo, names)))
    topics.request(effect, now_ms=now_ms, retry_ms=100)


def test_what_failed_is_told_and_tried_again_later(topics, cluster):
    request(topics, 0, "a", "b")
    assert topics.explained("g", REPLY, 50).status == (
        REPLY.status[0],  # type: ignore[index]
        Status(StatusCode.MISSING_INTERNAL_TOPICS, "missing; Creation failed: a (no room), b (no room)."),
    )
    request(topics, 50, "a", "b", "c")
    assert cluster.tried == ["a", "b", "c"]
    cluster.problem = None
    request(topics, 100, "a", "b", "c")
    assert cluster.tried == ["a", "b", "c", "a", "b"]
    assert topics.explained("g", REPLY, 100).status[1].detail == "missing; Creation failed: c (no room)."
    assert topics.explained("g", REPLY, 150) == REPLY


def test_only_some_are_told(topics):
    request(topics, 0, *"abcde")
    detail = topics.explained("g", REPLY, 1).status[1].detail
    assert detail == "missing; Creation failed: a (no room), b (no room), c (no room) and 2 more."


def test_other_answers_are_left_alone(topics):
    request(topics, 0, "a")
    for reply in (StreamsGroupHeartbeatResponse(), StreamsGroupHeartbeatResponse(status=())):
        assert topics.explained("g", reply, 1) is reply
    assert topics.explained("other", REPLY, 1) is REPLY
