"""What a fetch waits for. Real sockets on a real loop."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import uuid_from_topic_id
from fencepost.coordinator.server.brokers import Broker
from fencepost.coordinator.server.logs import PartitionLog
from tests.batches import batch
from tests.kio_objects import milliseconds
from tests.unit.coordinator.wire.raw_client import Wire, fetch_fields, nested, produce_fields
from tests.waiting import until

pytestmark = pytest.mark.real


def beside_a_missing_topic(fields: dict[str, Any]) -> dict[str, Any]:
    """The same topics, and before them one that was deleted."""
    partition = nested(1, 17, "FetchPartition", partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    gone = nested(1, 17, "FetchTopic", topic_id=uuid.UUID(int=77), partitions=(partition,))
    return fields | {"topics": (gone, *fields["topics"])}


async def test_a_missing_topic_does_not_hurry_the_others(broker, wire):
    fields = beside_a_missing_topic(fetch_fields(broker, max_wait=60_000))
    wire.send(1, 17, **fields)
    await (await Wire.to(broker)).ask(0, 9, **produce_fields(b"value"))
    found, missing = (topic.partitions[0] for topic in (await wire.receive()).responses)
    assert ErrorCode(int(missing.error_code)) is ErrorCode.UNKNOWN_TOPIC_ID
    assert (found.error_code, len(found.records) > 0) == (0, True)
    alone = fields | {"topics": fields["topics"][:1]}
    assert len((await wire.ask(1, 17, **alone)).responses) == 1, "without others there is nothing to wait for"


async def test_nothing_waits_for_more_than_the_answer_may_hold(broker, wire):
    await wire.ask(0, 9, **produce_fields(b"value"))
    fields = fetch_fields(broker, max_wait=60_000, min_bytes=1 << 20) | {"max_bytes": 1}
    assert (await wire.ask(1, 17, **fields)).responses[0].partitions[0].records


async def test_a_session_that_names_topics_does_not_go_on_with_their_ids(broker, wire):
    fields = fetch_fields(broker, max_wait=0) | {"session_epoch": 0}
    session = (await wire.ask(1, 17, **fields)).session_id
    later = {"session_id": session, "session_epoch": 1, "topics": ()}
    reply = await wire.ask(1, 12, **fields | later)
    assert ErrorCode(int(reply.error_code)) is ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    assert (await wire.ask(1, 17, **fields | later)).error_code == 0


async def test_an_append_looks_at_one_log_of_each_fetch_that_waits(monkeypatch):
    async with Broker({"wide": 200}) as broker:
        topic = broker.cluster.image.by_name["wide"]
        parts = tuple(
            nested(1, 17, "FetchPartition", partition=number, fetch_offset=0, partition_max_bytes=1 << 20)
            for number in range(200)
        )
        topics = (nested(1, 17, "FetchTopic", topic_id=uuid_from_topic_id(topic.topic_id), partitions=parts),)
        records = len(batch(b"value"))
        fields = {"max_wait": milliseconds(60_000), "min_bytes": 3 * records, "forgotten_topics_data": ()}
        waiting = [await Wire.to(broker) for _ in range(10)]
        for wire in waiting:
            wire.send(1, 17, topics=topics, **fields)
        log = broker.cluster.log(topic, 7)
        await until(lambda: bool(log._listeners))
        (on_change,) = log._listeners
        crowd = on_change.__self__  # type: ignore[attr-defined]
        await until(lambda: len(crowd._waiting[log]) == 10)
        assert len(log._listeners) == 1
        looked = 0
        available = PartitionLog.available

        def counted(self: PartitionLog, offset: int, *, committed: bool = False) -> int:
            nonlocal looked
            looked += 1
            return available(self, offset, committed=committed)

        monkeypatch.setattr(PartitionLog, "available", counted)
        log.append(batch(b"value"))
        assert looked == 0, "the client that appends does not wait for it"
        await until(lambda: looked == 10)
        broker.cluster.log(topic, 8).append(batch(b"value"))
        await until(lambda: looked == 20)
        log.append(batch(b"value"))
        found = [await wire.receive() for wire in waiting]
        assert not log._listeners
        assert not crowd._waiting
        for each in found:
            assert sum(len(part.records or b"") for part in each.responses[0].partitions) == 3 * records
