"""The order of the answers about partitions of which some do not exist. Real sockets on a real loop."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from fencepost.coordinator.protocol.ids import uuid_from_topic_id
from fencepost.coordinator.server.brokers import Broker
from tests.kio_objects import milliseconds
from tests.unit.coordinator.wire.raw_client import Wire, nested

pytestmark = pytest.mark.real

Asked = tuple[str, list[int]]
NONE, MISSING, NO_SUCH_ID = 0, 3, 100
NOWHERE = ("nowhere", [0])
POSITION = {"committed_offset": 3, "committed_metadata": ""}

ORDERS = [
    pytest.param(
        [("orders", [0]), NOWHERE, ("more", [1, 0])],
        [("nowhere", [(0, MISSING)]), ("orders", [(0, NONE)]), ("more", [(1, NONE), (0, NONE)])],
        id="a topic that does not exist",
    ),
    pytest.param(
        [("orders", [1, 7, 0, -1]), NOWHERE],
        [("orders", [(7, MISSING), (-1, MISSING), (1, NONE), (0, NONE)]), ("nowhere", [(0, MISSING)])],
        id="partitions that do not exist",
    ),
    pytest.param(
        [("more", [1]), ("orders", [0]), ("more", [0])],
        [("more", [(1, NONE)]), ("orders", [(0, NONE)]), ("more", [(0, NONE)])],
        id="a topic twice, all of it there",
    ),
    pytest.param(
        [("more", [1]), NOWHERE, ("orders", [0]), ("more", [0]), NOWHERE],
        [
            ("nowhere", [(0, MISSING), (0, MISSING)]),
            ("more", [(1, NONE), (0, NONE)]),
            ("orders", [(0, NONE)]),
        ],
        id="topics twice, one not there",
    ),
    pytest.param([("orders", []), NOWHERE], [("nowhere", [(0, MISSING)])], id="no partition of a topic"),
    pytest.param([("orders", [])], [], id="nothing"),
]


@pytest.fixture
def topic_ids(broker: Broker) -> dict[str, uuid.UUID]:
    broker.cluster.create_topics({"more": 2})
    known = broker.cluster.image.by_name.values()
    ids = {topic.name: uuid_from_topic_id(topic.topic_id) for topic in known}
    return {**ids, "nowhere": uuid.UUID(int=77)}


def structs(key: int, version: int, kind: str, asked: list[Asked], fields: dict[str, Any]) -> tuple[Any, ...]:
    """Topics of a request with names and structs for partitions."""
    return tuple(
        nested(
            *(key, version, f"{kind}Topic"),
            name=name,
            partitions=tuple(
                nested(key, version, f"{kind}Partition", partition_index=number, **fields)
                for number in numbers
            ),
        )
        for name, numbers in asked
    )


def told(reply: Any) -> list[tuple[str, list[tuple[int, int]]]]:
    return [
        (topic.name, [(one.partition_index, one.error_code) for one in topic.partitions])
        for topic in reply.topics
    ]


async def commit(wire: Wire, asked: list[Asked]) -> Any:
    topics = structs(8, 9, "OffsetCommitRequest", asked, POSITION)
    return await wire.ask(8, 9, group_id="g", member_id="", topics=topics)


@pytest.mark.parametrize(("asked", "answer"), ORDERS)
async def test_of_commits(wire, topic_ids, asked, answer):
    assert told(await commit(wire, asked)) == answer


@pytest.mark.parametrize(("asked", "answer"), ORDERS)
async def test_of_commits_by_id(wire, topic_ids, asked, answer):
    names = {topic_id: name for name, topic_id in topic_ids.items()}

    def partition(number: int) -> Any:
        return nested(8, 10, "OffsetCommitRequestPartition", partition_index=number, **POSITION)

    topics = tuple(
        nested(
            *(8, 10, "OffsetCommitRequestTopic"),
            topic_id=topic_ids[name],
            partitions=tuple(map(partition, numbers)),
        )
        for name, numbers in asked
    )
    reply = await wire.ask(8, 10, group_id="g", member_id="", topics=topics)
    found = [
        (
            names[topic.topic_id],
            [
                (one.partition_index, MISSING if one.error_code == NO_SUCH_ID else one.error_code)
                for one in topic.partitions
            ],
        )
        for topic in reply.topics
    ]
    assert found == answer


@pytest.mark.parametrize(("asked", "answer"), ORDERS)
async def test_of_commits_in_transactions(wire, topic_ids, asked, answer):
    fields = {"transactional_id": "t", "transaction_timeout": milliseconds(60_000)}
    producer = (await wire.ask(22, 4, **fields)).producer_id
    topics = structs(28, 5, "TxnOffsetCommitRequest", asked, POSITION)
    request = {"transactional_id": "t", "producer_id": producer, "producer_epoch": 0, "topics": topics}
    assert told(await wire.ask(28, 5, group_id="g", **request)) == answer
    without_group = [
        (name, [(number, 24 if code == NONE else code) for number, code in partitions])
        for name, partitions in answer
    ]
    assert told(await wire.ask(28, 5, group_id="", **request)) == without_group


@pytest.mark.parametrize(("asked", "answer"), ORDERS)
async def test_of_deletions(wire, topic_ids, asked, answer):
    await commit(wire, [("orders", [0])])
    reply = await wire.ask(47, 0, group_id="g", topics=structs(47, 0, "OffsetDeleteRequest", asked, {}))
    assert (reply.error_code, told(reply)) == (NONE, answer)


async def test_topics_with_unknown_ids_are_fetched_last(wire, topic_ids):
    await commit(wire, [("orders", [0])])
    topics = tuple(
        nested(9, 10, "OffsetFetchRequestTopics", topic_id=topic_ids[name], partition_indexes=numbers)
        for name, numbers in (("nowhere", (1, 0)), ("more", (1,)), ("nowhere", (2,)), ("orders", (9, 0)))
    )
    group = nested(9, 10, "OffsetFetchRequestGroup", group_id="g", topics=topics)
    (answer,) = (await wire.ask(9, 10, groups=(group,))).groups
    names = {topic_id: name for name, topic_id in topic_ids.items()}
    assert [
        (
            names[topic.topic_id],
            [(one.partition_index, one.committed_offset, one.error_code) for one in topic.partitions],
        )
        for topic in answer.topics
    ] == [
        ("more", [(1, -1, NONE)]),
        ("orders", [(9, -1, NONE), (0, 3, NONE)]),
        ("nowhere", [(1, -1, NO_SUCH_ID), (0, -1, NO_SUCH_ID)]),
        ("nowhere", [(2, -1, NO_SUCH_ID)]),
    ]
