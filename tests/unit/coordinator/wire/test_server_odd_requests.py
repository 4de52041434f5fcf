"""What no client sends, but anybody could: answered as Kafka 4.3 answers it. Real sockets on a real loop."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from fencepost.coordinator.protocol.ids import uuid_from_topic_id
from tests.kio_objects import milliseconds
from tests.unit.coordinator.wire.raw_client import Wire, fetch_fields, nested, produce_fields

pytestmark = pytest.mark.real
TIMEOUT = milliseconds(5_000)

FILTER = {
    "resource_type_filter": 2,
    "resource_name_filter": None,
    "principal_filter": None,
    "host_filter": None,
    "operation": 3,
    "permission_type": 3,
}
GIVEN = {
    "resource_type": 2,
    "resource_name": "orders",
    "principal": "User:a",
    "host": "*",
    "operation": 3,
    "permission_type": 3,
}


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize(
    ("asked", "given"),
    [
        ("resource_type_filter", "resource_type"),
        ("pattern_type_filter", "resource_pattern_type"),
        ("operation", "operation"),
        ("permission_type", "permission_type"),
    ],
)
async def test_a_right_of_no_known_kind_closes_the_connection(broker, version, asked, given):
    """0 stands for unknown; what is merely new to the broker may be asked for."""
    for key, fields in (
        (29, FILTER | {asked: 0}),
        (30, {"creations": (nested(30, version, "AclCreation", **(GIVEN | {given: 0})),)}),
        (31, {"filters": (nested(31, version, "DeleteAclsFilter", **(FILTER | {asked: 0})),)}),
    ):
        wire = await Wire.to(broker)
        wire.send(key, version, **fields)
        assert await wire.ended(), key
    wire = await Wire.to(broker)
    assert (await wire.ask(29, version, **(FILTER | {asked: 99}))).error_code.name == "security_disabled"


@pytest.mark.parametrize("version", [10, 11])
async def test_metadata_of_these_versions_is_not_told_by_ids_alone(wire, broker, version):
    known = uuid_from_topic_id(broker.cluster.image.by_name["orders"].topic_id)
    topics = tuple(
        nested(3, version, "MetadataRequestTopic", name=name, topic_id=topic_id)
        for name, topic_id in ((None, known), ("orders", None))
    )
    more = {"include_cluster_authorized_operations": False} if version == 10 else {}
    reply = await wire.ask(3, version, topics=topics, **more)
    assert {topic.error_code.name for topic in reply.topics} == {"invalid_request"}


async def test_a_coordinator_that_is_found_comes_with_a_word_for_no_error(wire):
    for version in range(1, 4):
        assert (await wire.ask(10, version, key="g")).error_message == "NONE"
    for version in range(4, 7):
        (found,) = (await wire.ask(10, version, coordinator_keys=("g",))).coordinators
        assert found.error_message == ""


@pytest.mark.parametrize(("key", "version"), [(2, 7), (21, 2)])
async def test_topics_without_partitions_are_not_answered(wire, key, version):
    api = "ListOffsets" if key == 2 else "DeleteRecords"
    what = {"timestamp": -1} if key == 2 else {"offset": 0}
    partition = nested(key, version, f"{api}Partition", partition_index=0, **what)
    topics = tuple(
        nested(key, version, f"{api}Topic", name=name, partitions=partitions)
        for name, partitions in (("orders", ()), ("nowhere", (partition,)), ("nowhere", ()))
    )
    fields: dict[str, Any] = {"replica_id": -1, "isolation_level": 0} if key == 2 else {}
    fields |= {} if key == 2 else {"timeout": TIMEOUT}
    reply = await wire.ask(key, version, topics=topics, **fields)
    assert [(topic.name, len(topic.partitions)) for topic in reply.topics] == [("nowhere", 1)]


async def test_epochs_below_none_are_older_than_the_log(wire):
    await wire.ask(0, 9, transactional_id=None, **produce_fields(b"x"))

    async def ends(epoch: int, current: int) -> tuple[str, int, int]:
        partition = nested(
            *(23, 4, "OffsetForLeaderPartition"),
            partition=0,
            leader_epoch=epoch,
            current_leader_epoch=current,
        )
        topic = nested(23, 4, "OffsetForLeaderTopic", topic="orders", partitions=(partition,))
        (answer,) = (await wire.ask(23, 4, topics=(topic,))).topics
        (found,) = answer.partitions
        return found.error_code.name, found.leader_epoch, found.end_offset

    assert await ends(0, -2) == ("fenced_leader_epoch", -1, -1)
    assert await ends(-2, -1) == ("none", -2, 0)
    assert await ends(-1, -1) == ("none", -1, -1)
    assert await ends(0, -1) == ("none", 0, 1)


async def test_a_fetch_may_name_no_epoch_by_any_number_below_zero(wire, broker):
    await wire.ask(0, 9, transactional_id=None, **produce_fields(b"x"))
    fields = fetch_fields(broker, max_wait=0)
    (topic,) = fields["topics"]
    (partition,) = topic.partitions
    odd = dataclasses.replace(partition, current_leader_epoch=-2)
    fields["topics"] = (dataclasses.replace(topic, partitions=(odd,)),)
    (answer,) = (await wire.ask(1, 17, **fields)).responses
    assert answer.partitions[0].error_code.name == "none"


async def test_states_that_are_none_are_told_once(wire):
    reply = await wire.ask(66, 0, state_filters=("Nope", "Empty", "Nope"), producer_id_filters=())
    assert reply.unknown_state_filters == ("Nope",)


@pytest.mark.parametrize(("key", "version"), [(69, 1), (89, 0)])
async def test_a_group_without_a_name_is_refused_without_words(wire, key, version):
    reply = await wire.ask(key, version, group_ids=("", "g"), include_authorized_operations=False)
    told = [(group.error_code.name, group.error_message is None) for group in reply.groups]
    assert told == [("invalid_group_id", True), ("group_id_not_found", False)]


async def test_partitions_of_no_topic_are_refused_without_words(wire):
    topic = nested(37, 3, "CreatePartitionsTopic", name="nowhere", count=3, assignments=None)
    (result,) = (await wire.ask(37, 3, topics=(topic,), timeout=TIMEOUT, validate_only=False)).results
    assert (result.error_code.name, result.error_message) == ("unknown_topic_or_partition", None)


@pytest.mark.parametrize(
    ("topic", "code", "says_more"),
    [
        ("orders", "unknown_topic_or_partition", False),
        ("nowhere", "unknown_topic_or_partition", True),
        ("a b", "invalid_topic_exception", True),
        ("", "invalid_topic_exception", True),
    ],
)
async def test_producers_of_what_is_not_there(wire, topic, code, says_more):
    wanted = nested(61, 0, "TopicRequest", name=topic, partition_indexes=(9,))
    (answer,) = (await wire.ask(61, 0, topics=(wanted,))).topics
    (found,) = answer.partitions
    assert (found.error_code.name, found.error_message is not None) == (code, says_more)
