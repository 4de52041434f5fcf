"""The endpoint's answers to single requests. Real sockets on a real loop."""

from __future__ import annotations

import asyncio
import struct

import pytest

from fencepost.coordinator.codec.registry import REGISTRY
from fencepost.coordinator.config import GroupCoordinatorConfig, NewTopicConfig
from fencepost.coordinator.protocol.ids import uuid_from_topic_id
from fencepost.coordinator.server.brokers import Broker
from tests.batches import batch
from tests.kio_objects import milliseconds
from tests.unit.coordinator.wire.raw_client import (
    Wire,
    fetch_fields,
    heartbeat_fields,
    nested,
    produce_fields,
)
from tests.waiting import until

pytestmark = pytest.mark.real


@pytest.mark.parametrize("version", range(5))
async def test_versions_are_told_in_each_version(wire, version):
    fields = {} if version < 3 else {"client_software_name": "test", "client_software_version": "1"}
    reply = await wire.ask(18, version, **fields)
    told = {api.api_key: (api.min_version, api.max_version) for api in reply.api_keys}
    spoken = {int(api.key): (api.min_version, api.max_version) for api in REGISTRY.values()}
    assert told == {**spoken, 0: (0, 13)}
    if version >= 3:
        assert [(one.name, one.max_version_level) for one in reply.finalized_features] == [
            ("group.version", 1),
            ("streams.version", 1),
            ("transaction.version", 2),
        ]


@pytest.mark.parametrize("version", [0, 2])
async def test_versions_of_produce_that_only_old_clients_look_for_close_the_connection(wire, version):
    wire.raw(struct.pack(">hhihhii", 0, version, 5, -1, -1, 1000, 0))
    assert await wire.ended()


async def test_versions_asked_for_in_an_unknown_version_are_told_in_version_0(wire):
    wire.raw(struct.pack(">hhi", 18, 99, 5) + b"\xff" * 20)
    frame = await wire.frame()
    assert frame[:6] == struct.pack(">ih", 5, 35)
    assert (await wire.ask(18, 0)).error_code == 0


async def test_a_fetch_waits_for_enough_bytes_or_until_its_time_is_over(broker, wire):
    size = len(batch(b"value"))
    wire.send(1, 17, **fetch_fields(broker, max_wait=10_000, min_bytes=2 * size))
    other = await Wire.to(broker)
    for _ in range(2):
        await other.ask(0, 9, **produce_fields(b"value"))
    (topic,) = (await wire.receive()).responses
    assert len(topic.partitions[0].records) == 2 * size
    reply = await wire.ask(1, 17, **fetch_fields(broker, max_wait=50, min_bytes=9 * size))
    assert len(reply.responses[0].partitions[0].records) == 2 * size
    assert reply.responses[0].partitions[0].high_watermark == 2


async def test_a_fetch_does_not_wait_on_an_error_or_on_nothing(broker, wire):
    reply = await wire.ask(1, 17, **fetch_fields(broker, max_wait=60_000, offset=5))
    assert reply.responses[0].partitions[0].error_code == 1
    fields = fetch_fields(broker, max_wait=60_000) | {"topics": ()}
    assert (await wire.ask(1, 17, **fields)).responses == ()
    fields = fetch_fields(broker, max_wait=60_000) | {"session_id": 7, "session_epoch": 3}
    assert (await wire.ask(1, 17, **fields)).error_code == 70


async def test_a_fetch_ends_when_its_topic_is_deleted(broker, wire):
    wire.send(1, 17, **fetch_fields(broker, max_wait=60_000))
    await asyncio.sleep(0.02)
    broker.cluster.delete_topic(broker.cluster.image.by_name["orders"])
    assert (await wire.receive()).responses[0].partitions[0].error_code == 3


async def test_heartbeats(broker, wire):
    joined = await wire.ask(68, 1, **heartbeat_fields(0))
    assert (joined.error_code, joined.member_id) == (0, "m")
    (topic,) = joined.assignment.topic_partitions
    assert topic.partitions == (0, 1)
    for _ in range(3):
        again = await wire.ask(68, 1, **heartbeat_fields(joined.member_epoch))
        assert (again.error_code, again.member_epoch, again.assignment) == (0, joined.member_epoch, None)
    member = broker.coordinator.groups["g"].members["m"]
    assert (member.client_id, member.client_host) == ("me", "/127.0.0.1")
    left = await wire.ask(68, 1, **heartbeat_fields(-1))
    assert (left.error_code, left.member_epoch) == (0, -1)
    assert (await wire.ask(68, 1, **heartbeat_fields(joined.member_epoch))).error_code == 25


async def test_members_of_version_0_are_named_by_the_broker(broker, wire):
    first = await wire.ask(68, 0, **heartbeat_fields(0, ""))
    second = await wire.ask(68, 0, **heartbeat_fields(0, ""))
    assert len(first.member_id) == 22
    assert first.member_id != second.member_id
    assert (await wire.ask(68, 1, **heartbeat_fields(0, ""))).error_code == 42


async def test_one_session_ends_in_time():
    config = GroupCoordinatorConfig(
        group_consumer_min_session_timeout_ms=50,
        group_consumer_session_timeout_ms=50,
        group_consumer_min_heartbeat_interval_ms=10,
        group_consumer_heartbeat_interval_ms=10,
    )
    async with Broker({"orders": 1}, config=config) as broker:
        wire = await Wire.to(broker)
        await wire.ask(68, 1, **heartbeat_fields(0))
        await until(lambda: not broker.coordinator.groups["g"].members)


async def test_topics_of_commits_are_looked_up_first(broker, wire):
    good = uuid_from_topic_id(broker.cluster.image.by_name["orders"].topic_id)
    bad = uuid_from_topic_id("A" * 21 + "Q")

    def topic(topic_id, *partitions):
        return nested(
            8,
            10,
            "OffsetCommitRequestTopic",
            topic_id=topic_id,
            partitions=tuple(
                nested(
                    8,
                    10,
                    "OffsetCommitRequestPartition",
                    partition_index=number,
                    committed_offset=3,
                    committed_metadata=None,
                )
                for number in partitions
            ),
        )

    reply = await wire.ask(8, 10, group_id="g", member_id="", topics=(topic(bad, 0), topic(good, 1, 2)))
    assert [[one.error_code for one in part.partitions] for part in reply.topics] == [[100], [3, 0]]
    asked = nested(
        9,
        10,
        "OffsetFetchRequestGroup",
        group_id="g",
        topics=(
            nested(9, 10, "OffsetFetchRequestTopics", topic_id=good, partition_indexes=(0, 1)),
            nested(9, 10, "OffsetFetchRequestTopics", topic_id=bad, partition_indexes=(0,)),
        ),
    )
    everything = nested(9, 10, "OffsetFetchRequestGroup", group_id="g", topics=None)
    some, every = (await wire.ask(9, 10, groups=(asked, everything))).groups
    assert [[(one.committed_offset, one.error_code) for one in part.partitions] for part in some.topics] == [
        [(-1, 0), (3, 0)],
        [(-1, 100)],
    ]
    assert [(part.topic_id, [one.committed_offset for one in part.partitions]) for part in every.topics] == [
        (good, [3])
    ]


async def test_administration_of_members(broker, wire):
    joined = await wire.ask(68, 1, **heartbeat_fields(0))
    identity = nested(13, 5, "MemberIdentity", member_id="m")
    stranger = nested(13, 5, "MemberIdentity", member_id="stranger")
    reply = await wire.ask(13, 5, group_id="g", members=(stranger, identity))
    assert [(one.member_id, one.error_code) for one in reply.members] == [("stranger", 25), ("m", 0)]
    assert (await wire.ask(68, 1, **heartbeat_fields(joined.member_epoch))).error_code == 25
    assert (await wire.ask(13, 2, group_id="g", member_id="m")).error_code == 25
    (result,) = (await wire.ask(42, 2, groups_names=("g", "g"))).results
    assert (result.group_id, result.error_code) == ("g", 0)


@pytest.mark.parametrize("version", range(6))
async def test_members_leave_no_group_without_a_name(wire, version):
    if version < 3:
        assert (await wire.ask(13, version, group_id="", member_id="m")).error_code == 24
        return
    for members in ((), (nested(13, version, "MemberIdentity", member_id="m"),)):
        reply = await wire.ask(13, version, group_id="", members=members)
        assert (reply.error_code, reply.members) == (24, ())
    reply = await wire.ask(13, version, group_id="no-such-group", members=())
    assert (reply.error_code, reply.members) == (0, ())


@pytest.mark.parametrize(
    ("places", "message"),
    [
        ([(0, 1), (0, 1)], "Found multiple manual partition assignments for partition 0"),
        ([(0, 1), (1, 1), (0, 99)], "Found multiple manual partition assignments for partition 0"),
        ([(5, 1), (5, 1)], "Found multiple manual partition assignments for partition 5"),
        (
            [(0, 99), (0, 1)],
            "The manual partition assignment includes broker 99, but no such broker is registered.",
        ),
    ],
)
async def test_a_partition_that_is_placed_twice_is_refused(broker, wire, places, message):
    topic = nested(
        *(19, 7, "CreatableTopic"),
        name="new",
        num_partitions=-1,
        replication_factor=-1,
        assignments=tuple(
            nested(19, 7, "CreatableReplicaAssignment", partition_index=number, broker_ids=(node,))
            for number, node in places
        ),
        configs=(),
    )
    (answer,) = (await wire.ask(19, 7, topics=(topic,))).topics
    assert (answer.error_code.name, answer.error_message) == ("invalid_replica_assignment", message)
    assert "new" not in broker.cluster.image.by_name


@pytest.mark.parametrize(("version", "code"), [(5, 0), (6, 69)])
async def test_a_consumer_group_is_no_classic_one(wire, version, code):
    await wire.ask(68, 1, **heartbeat_fields(0))
    reply = await wire.ask(15, version, groups=("g",), include_authorized_operations=False)
    (group,) = reply.groups
    assert (group.group_id, group.group_state, group.error_code, group.members) == ("g", "Dead", code, ())


async def test_offsets_are_deleted_unless_their_topic_is_subscribed(wire):
    def position(number):
        return nested(
            8,
            9,
            "OffsetCommitRequestPartition",
            partition_index=number,
            committed_offset=3,
            committed_metadata=None,
        )

    topic = nested(8, 9, "OffsetCommitRequestTopic", name="orders", partitions=(position(0), position(1)))
    await wire.ask(8, 9, group_id="g", member_id="", topics=(topic,))
    asked = nested(
        47,
        0,
        "OffsetDeleteRequestTopic",
        name="orders",
        partitions=tuple(nested(47, 0, "OffsetDeleteRequestPartition", partition_index=n) for n in (0, 7)),
    )

    async def delete() -> list[int]:
        reply = await wire.ask(47, 0, group_id="g", topics=(asked,))
        assert reply.error_code == 0
        return [one.error_code for one in reply.topics[0].partitions]

    assert await delete() == [3, 0]
    assert (await wire.ask(68, 1, **heartbeat_fields(0))).error_code == 0
    assert await delete() == [3, 86]


async def test_where_a_leader_epoch_ended(wire):
    await wire.ask(0, 9, **produce_fields(b"value"))

    async def end_of(epoch: int, current: int = -1) -> tuple[int, int, int]:
        partition = nested(
            23, 4, "OffsetForLeaderPartition", partition=0, leader_epoch=epoch, current_leader_epoch=current
        )
        topic = nested(23, 4, "OffsetForLeaderTopic", topic="orders", partitions=(partition,))
        (one,) = (await wire.ask(23, 4, topics=(topic,))).topics[0].partitions
        return one.error_code, one.leader_epoch, one.end_offset

    assert await end_of(0) == (0, 0, 1)
    assert await end_of(4) == (0, -1, -1)
    assert await end_of(0, current=3) == (75, -1, -1)


@pytest.mark.parametrize(("topic", "acks", "code"), [("orders", 7, 21), ("nowhere", 1, 3), ("orders", 1, 87)])
async def test_what_can_not_be_produced_is_refused(wire, topic, acks, code):
    reply = await wire.ask(0, 9, **produce_fields(None if code == 87 else b"value", acks, topic))
    (partition,) = reply.responses[0].partition_responses
    assert (partition.error_code, partition.base_offset) == (code, -1)


async def test_a_topic_that_is_asked_for_twice_is_described_once(wire):
    orders, other = (
        nested(3, 12, "MetadataRequestTopic", topic_id=None, name=one) for one in ("orders", "no")
    )
    reply = await wire.ask(3, 12, topics=(orders, other, orders))
    assert [topic.name for topic in reply.topics] == ["orders", "no"]


async def test_a_topic_is_created_when_it_is_asked_for_and_allowed():
    name = nested(3, 12, "MetadataRequestTopic", topic_id=None, name="new")
    async with Broker(new_topics=NewTopicConfig(num_partitions=4)) as broker:
        wire = await Wire.to(broker)
        reply = await wire.ask(3, 12, topics=(name,), allow_auto_topic_creation=False)
        assert reply.topics[0].error_code == 3
        reply = await wire.ask(3, 12, topics=(name,), allow_auto_topic_creation=True)
        assert (reply.topics[0].error_code, len(reply.topics[0].partitions)) == (0, 4)
        reply = await wire.ask(3, 12, topics=(name,), allow_auto_topic_creation=False)
        assert reply.topics[0].error_code == 0


async def test_a_producer_may_not_ask_for_a_longer_transaction_than_the_broker_allows():
    config = GroupCoordinatorConfig.from_properties({"transaction.max.timeout.ms": "5000"})
    async with Broker(config=config) as broker:
        wire = await Wire.to(broker)
        for timeout_ms, code in ((5000, "none"), (5001, "invalid_transaction_timeout")):
            reply = await wire.ask(
                *(22, 4), transactional_id="t", transaction_timeout=milliseconds(timeout_ms)
            )
            assert reply.error_code.name == code
