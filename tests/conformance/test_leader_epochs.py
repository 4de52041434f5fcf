"""The leader epoch in all responses that carry it, as leaders change. The values are Kafka 4.3.1's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from fencepost import EmbeddedKafka
from tests.conformance.both import SECOND, Peer, batch_now, struct_of

pytestmark = pytest.mark.real


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(brokers=3) as kafka:
        kafka.create_topic("copied", 1, replicas=3)
        kafka.create_topic("single", 1)
        yield kafka


class Node(Peer):
    """One broker, asked about partition 0 of a topic."""

    async def metadata(self, topic: str) -> tuple[int, int, tuple[int, ...]]:
        reply = await self.ask_plain(3, 12, topics=[{"name": topic}])
        (one,) = reply.topics[0].partitions
        return one.leader_id, one.leader_epoch, one.isr_nodes

    async def fetched(self, topic: str, version: int = 12, **values: Any) -> tuple[Any, Any]:
        part = {"partition": 0, "current_leader_epoch": -1, "last_fetched_epoch": -1, **values}
        part = {"fetch_offset": 0, "partition_max_bytes": 1 << 20, **part}
        fields: dict[str, Any] = {"topics": [{"topic": topic, "partitions": [part]}], "session_epoch": -1}
        if version <= 14:
            fields["replica_id"] = -1
        if version >= 13:
            reply = await self.ask_plain(3, 12, topics=[{"name": topic}])
            fields["topics"] = [{"topic_id": reply.topics[0].topic_id, "partitions": [part]}]
        reply = await self.ask_plain(1, version, max_bytes=1 << 20, **fields)
        return reply, reply.responses[0].partitions[0]

    async def listed(self, topic: str, time_ms: int, current: int = -1) -> tuple[str, int, int]:
        part = {"partition_index": 0, "timestamp": time_ms, "current_leader_epoch": current}
        fields = {"replica_id": -1, "topics": [{"name": topic, "partitions": [part]}]}
        (one,) = (await self.ask_plain(2, 7, **fields)).topics[0].partitions
        return one.error_code.name, one.offset, one.leader_epoch

    async def ended(self, topic: str, epoch: int, current: int = -1) -> tuple[str, int, int]:
        part = {"partition": 0, "leader_epoch": epoch, "current_leader_epoch": current}
        fields = {"replica_id": -1, "topics": [{"topic": topic, "partitions": [part]}]}
        (one,) = (await self.ask_plain(23, 4, **fields)).topics[0].partitions
        return one.error_code.name, one.leader_epoch, one.end_offset

    async def produced(self, topic: str) -> tuple[Any, Any]:
        data = struct_of(0, 11, "PartitionProduceData", index=0, records=batch_now(n=5))
        named = struct_of(0, 11, "TopicProduceData", name=topic, partition_data=(data,))
        reply = await self.ask(0, 11, transactional_id=None, acks=-1, timeout=SECOND, topic_data=(named,))
        return reply, reply.responses[0].partition_responses[0]


@pytest.fixture
async def nodes(kafka: EmbeddedKafka) -> AsyncIterator[dict[int, Node]]:
    found = {}
    for node_id, server in enumerate(kafka.bootstrap_servers.split(","), 1):
        found[node_id] = Node()
        await found[node_id].connect(server)
    yield found
    for node in found.values():
        await node.close()


async def test_metadata_has_the_leader_and_its_epoch(kafka, nodes):
    told = nodes[2].metadata
    assert [await told("copied"), await told("single")] == [(1, 0, (1, 2, 3)), (1, 0, (1,))]
    kafka.stop_broker(1)
    assert [await told("copied"), await told("single")] == [(2, 1, (2, 3)), (-1, 1, ())]
    kafka.start_broker(1)
    assert [await told("copied"), await told("single")] == [(2, 1, (1, 2, 3)), (1, 2, (1,))]
    kafka.elect_leaders()
    assert [await told("copied"), await told("single")] == [(1, 2, (1, 2, 3)), (1, 2, (1,))]
    kafka.restart()
    await nodes[2].connect_again()
    assert [await told("copied"), await told("single")] == [(1, 4, (1, 2, 3)), (1, 4, (1,))]


async def test_offsets_have_the_epochs_of_their_records(kafka, nodes):
    kafka.produce("copied", *"abcdefghij", timestamp_ms=1_000)
    kafka.stop_broker(1)
    kafka.produce("copied", *"abcde", timestamp_ms=2_000)
    node = nodes[2]
    ends = [await node.ended("copied", epoch) for epoch in (-1, 0, 1, 2)]
    assert ends == [("none", -1, -1), ("none", 0, 10), ("none", 1, 15), ("none", -1, -1)]
    offsets = [await node.listed("copied", time_ms) for time_ms in (-1, -2, -3, 500, 1_500)]
    assert [one[1:] for one in offsets] == [(15, 1), (0, 0), (10, 1), (0, 0), (10, 1)]
    _, fetched = await node.fetched("copied")
    second = 12 + int.from_bytes(fetched.records[8:12])
    assert [int.from_bytes(fetched.records[at + 12 : at + 16]) for at in (0, second)] == [0, 1]


async def test_another_epoch_than_the_leaders_is_refused(kafka, nodes):
    kafka.stop_broker(1)
    expected = {0: "fenced_leader_epoch", 1: "none", 2: "unknown_leader_epoch"}
    for epoch, error in expected.items():
        _, fetched = await nodes[2].fetched("copied", current_leader_epoch=epoch)
        assert fetched.error_code.name == error
        assert (await nodes[2].listed("copied", -1, epoch))[0] == error
        assert (await nodes[2].ended("copied", 0, epoch))[0] == error
        follower = {"none": "not_leader_or_follower"}.get(error, error)
        assert (await nodes[3].listed("copied", -1, epoch))[0] == follower


async def test_a_fetch_beyond_the_end_of_its_epoch_diverges(kafka, nodes):
    kafka.produce("copied", *"abcdefghij")
    kafka.stop_broker(1)
    kafka.produce("copied", *"abcde")
    for last, offset, expected in ((0, 10, None), (0, 11, (0, 10)), (1, 15, None), (1, 16, (1, 15))):
        _, one = await nodes[2].fetched("copied", last_fetched_epoch=last, fetch_offset=offset)
        assert one.error_code.name == "none"
        end = one.diverging_epoch
        assert (None if end.epoch == -1 else (end.epoch, end.end_offset)) == expected
    _, one = await nodes[2].fetched("copied", last_fetched_epoch=2, fetch_offset=15)
    assert one.error_code.name == "offset_out_of_range"


async def test_errors_have_the_current_leader(kafka, nodes):
    kafka.stop_broker(1)
    port = int(kafka.bootstrap_servers.split(",")[1].rsplit(":", 1)[1])
    reply, one = await nodes[2].fetched("copied", 16, current_leader_epoch=0)
    assert (one.error_code.name, one.current_leader.leader_id) == ("fenced_leader_epoch", 2)
    assert one.current_leader.leader_epoch == 1
    assert [(each.node_id, each.port) for each in reply.node_endpoints] == [(2, port)]
    reply, one = await nodes[2].fetched("copied", 15, current_leader_epoch=0)
    assert one.current_leader.leader_id == -1  # Kafka sends none before version 16
    reply, one = await nodes[3].produced("copied")
    assert (one.error_code.name, one.current_leader.leader_id) == ("not_leader_or_follower", 2)
    assert [(each.node_id, each.port) for each in reply.node_endpoints] == [(2, port)]
    reply, one = await nodes[2].produced("copied")
    assert (one.error_code.name, one.current_leader.leader_id) == ("none", -1)
    assert not reply.node_endpoints


async def test_a_fetch_that_waits_at_the_old_leader_ends(kafka, nodes):
    kafka.stop_broker(1)
    kafka.start_broker(1)
    fields: dict[str, Any] = {"partition": 0, "current_leader_epoch": 1, "last_fetched_epoch": -1}
    part = {**fields, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    request = {"topics": [{"topic": "copied", "partitions": [part]}], "session_epoch": -1, "replica_id": -1}
    frame = nodes[2].ask_plain(1, 12, max_bytes=1, min_bytes=1, max_wait=60_000, **request)
    waiting = asyncio.ensure_future(frame)
    await nodes[3].metadata("copied")
    kafka.elect_leaders()
    reply = await waiting
    assert reply.responses[0].partitions[0].error_code.name == "fenced_leader_epoch"


async def test_epochs_never_fall_when_a_journal_is_opened_again(tmp_path: Path):
    seen = []
    for _ in range(3):
        with EmbeddedKafka(topics={"t": 1}, journal=tmp_path / "journal") as kafka:
            node = Node()
            await node.connect(kafka.bootstrap_servers)
            seen.append((await node.metadata("t"))[1])
            kafka.restart()
            await node.connect_again()
            seen.append((await node.metadata("t"))[1])
            await node.close()
    assert seen == sorted(set(seen))
