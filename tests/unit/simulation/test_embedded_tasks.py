"""Members of a streams group on an embedded Kafka, each request the test's own."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from fencepost import EmbeddedKafka
from fencepost.coordinator.codec.client import read_response, request_frame
from fencepost.coordinator.codec.framing import FrameBuffer
from fencepost.coordinator.codec.registry import ApiKey
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.streams import (
    NO_TASK_IDS,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    Subtopology,
    TaskIds,
    Topology,
)
from fencepost.simulation.trace.schema import RowKind

TOPOLOGY = Topology(0, (Subtopology("0", ("orders",)), Subtopology("1", ("payments",))))
PARTITIONS = {TopicPartition("orders", 0), TopicPartition("orders", 1), TopicPartition("payments", 0)}


class Thread:
    """A thread of an application, by hand."""

    def __init__(self, kafka: EmbeddedKafka, member_id: str) -> None:
        host, _, port = kafka.bootstrap_servers.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=60)
        self.member_id = member_id
        self.epoch = 0
        self.tasks: TaskIds = NO_TASK_IDS

    def heartbeat(self, epoch: int | None = None, **fields: Any) -> StreamsGroupHeartbeatResponse:
        request = StreamsGroupHeartbeatRequest(
            group_id="app",
            member_id=self.member_id,
            member_epoch=self.epoch if epoch is None else epoch,
            **fields,
        )
        self.socket.sendall(request_frame(ApiKey.STREAMS_GROUP_HEARTBEAT, 0, 1, self.member_id, request))
        frames = FrameBuffer()
        while (frame := frames.next_frame()) is None:
            frames.feed(self.socket.recv(65_536))
        reply: StreamsGroupHeartbeatResponse = read_response(ApiKey.STREAMS_GROUP_HEARTBEAT, 0, frame)[1]
        assert reply.error_code == 0, reply.error_message
        self.epoch = reply.member_epoch
        if reply.tasks is not None:
            self.tasks = reply.tasks.active
        return reply

    def join(self) -> None:
        self.heartbeat(
            0, rebalance_timeout_ms=60_000, topology=TOPOLOGY, process_id=self.member_id, **owns(NO_TASK_IDS)
        )

    def confirm(self) -> None:
        """Say that it owns what it was given."""
        self.heartbeat(**owns(self.tasks))


def owns(active: TaskIds) -> dict[str, TaskIds]:
    return {"active_tasks": active, "standby_tasks": NO_TASK_IDS, "warmup_tasks": NO_TASK_IDS}


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders": 2, "payments": 1}) as running:
        yield running


@pytest.fixture
def threads(kafka: EmbeddedKafka) -> Iterator[list[Thread]]:
    made = [Thread(kafka, name) for name in ("one", "two")]
    yield made
    for thread in made:
        thread.socket.close()


def test_a_group_is_stable_once_its_tasks_are_confirmed(kafka: EmbeddedKafka, threads: list[Thread]) -> None:
    one, _ = threads
    group = kafka.group("app")
    one.join()
    (member,) = group.members()
    assert (set(member.assignment), member.owned) == (PARTITIONS, ())
    assert member.active_tasks == ("0_0", "0_1", "1_0")
    with pytest.raises(TimeoutError, match="one has not confirmed 3 of 3 partitions: is it polled"):
        group.wait_stable(1, timeout=0)
    one.confirm()
    (member,) = group.wait_stable(1, timeout=0)
    assert set(member.owned) == PARTITIONS


def test_two_that_claim_the_same_task_are_seen(kafka: EmbeddedKafka, threads: list[Thread]) -> None:
    one, two = threads
    one.join()
    one.confirm()
    two.join()
    one.heartbeat()
    assert kafka.check() == []
    two.heartbeat(**owns({"0": (0, 1)}))
    assert {violation.invariant for violation in kafka.check()} == {"one-claimant", "owned-honest"}


def test_a_thread_that_is_gone_claims_nothing(kafka: EmbeddedKafka, threads: list[Thread]) -> None:
    one, two = threads
    one.join()
    one.confirm()
    kafka.group("app").expire("one")
    two.join()
    two.confirm()
    (member,) = kafka.group("app").wait_stable(1, timeout=0)
    assert set(member.owned) == PARTITIONS
    removed = [row for row in kafka.events() if row.kind == RowKind.MEMBER_REMOVED]
    assert [(row.actor, row.detail) for row in removed] == [("one", "session")]
    assert kafka.check() == []


def test_only_threads_without_a_connection_time_out(kafka: EmbeddedKafka, threads: list[Thread]) -> None:
    one, two = threads
    one.join()
    two.join()
    kafka.disconnect("two")
    kafka.clock.advance(100)
    assert [each.member_id for each in kafka.group("app").members()] == ["one"]
