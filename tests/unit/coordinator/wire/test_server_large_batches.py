"""Batches that are small on the wire and large when they are read: other clients are served meanwhile."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer, codec
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.record.util import calc_crc32c, encode_varint

from fencepost.coordinator.codec import compression, record_checks
from fencepost.coordinator.protocol.administration import ResourceType
from fencepost.coordinator.protocol.cluster_records import ConfigKey
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.slices import at_once
from fencepost.coordinator.server import compaction
from fencepost.coordinator.server.logs import PartitionLog
from tests.kio_objects import milliseconds
from tests.unit.coordinator.wire.raw_client import Wire, nested
from tests.waiting import until

pytestmark = pytest.mark.real

NOW = 1_700_000_000_000
ENCODERS: tuple[Callable[[bytes], bytes], ...] = (
    bytes,
    codec.gzip_encode,
    codec.snappy_encode,
    codec.lz4_encode,
    codec.zstd_encode,
)


def sealed(records: bytes, count: int, compression: int = 4) -> bytes:
    """A batch of records that are encoded already."""
    content = ENCODERS[compression](records)
    tail = struct.pack(">hiqqqhii", compression, count - 1, NOW, NOW + count - 1, -1, -1, -1, count) + content
    return struct.pack(">qiibI", 0, 9 + len(tail), 0, 2, calc_crc32c(tail)) + tail


def large(count: int, compression: int = 4, keys: int = 1) -> bytes:
    """A batch of records with an empty value. Record n has the time NOW + n, and one of so many keys."""
    out = bytearray()
    for number in range(count):
        body = bytearray(b"\0")
        encode_varint(number, body.append)
        encode_varint(number, body.append)
        key = b"%d" % (number % keys)
        encode_varint(len(key), body.append)
        body += key + b"\0\0"
        encode_varint(len(body), out.append)
        out += body
    return sealed(bytes(out), count, compression)


def produced(records: bytes, acks: int = 1) -> dict[str, Any]:
    partition = nested(0, 9, "PartitionProduceData", index=0, records=records)
    topic = nested(0, 9, "TopicProduceData", name="orders", partition_data=(partition,))
    return {
        "acks": acks,
        "timeout": milliseconds(1000),
        "transactional_id": None,
        "topic_data": (topic,),
    }


def answer_of(response: Any) -> Any:
    return response.responses[0].partition_responses[0]


async def served_meanwhile(broker: Any, waits: asyncio.Future[Any] | asyncio.Task[Any]) -> int:
    """The number of requests that another client has answered before that is done."""
    other = await Wire.to(broker, "other")
    count = 0
    while not waits.done():
        await other.ask(18, 3, client_software_name="other", client_software_version="1")
        count += 1
    return count


async def test_other_clients_are_served_while_many_records_are_checked(broker, wire):
    batch = large(100_000)
    assert len(batch) < 500_000
    wire.send(0, 9, **produced(batch))
    answer = asyncio.create_task(wire.receive())
    assert await served_meanwhile(broker, answer) > 3
    assert answer_of(await answer).base_offset == 0
    topic = broker.cluster.image.by_name["orders"]
    (stored,) = broker.cluster.log(topic, 0).read(0, 1, at_least_one=True).batches
    assert sum(1 for _ in MemoryRecords(stored).next_batch()) == 100_000


async def test_a_producer_on_its_own_connection_goes_on_meanwhile(broker, wire):
    async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer:
        await producer.send_and_wait("orders", b"first", partition=1)
        wire.send(0, 9, **produced(large(100_000)))
        answer, sent = asyncio.create_task(wire.receive()), 0
        while not answer.done():
            await producer.send_and_wait("orders", b"v", partition=1)
            sent += 1
    assert sent > 2
    assert answer_of(await answer).base_offset == 0


@pytest.mark.parametrize("spec", [NOW + 99_999, -3], ids=["time", "latest"])
async def test_other_clients_are_served_while_a_time_is_searched(broker, wire, spec):
    topic = broker.cluster.image.by_name["orders"]
    broker.cluster.log(topic, 0).append(large(100_000))
    partition = nested(
        2, 7, "ListOffsetsPartition", partition_index=0, current_leader_epoch=-1, timestamp=spec
    )
    listed = nested(2, 7, "ListOffsetsTopic", name="orders", partitions=(partition,))
    wire.send(2, 7, replica_id=-1, isolation_level=0, topics=(listed,))
    answer = asyncio.create_task(wire.receive())
    assert await served_meanwhile(broker, answer) > 3
    assert (await answer).topics[0].partitions[0].offset == 99_999


def slices(work: Any) -> int:
    return sum(1 for _ in work)


def test_a_search_stops_at_the_first_record_that_fits():
    log = PartitionLog()
    log.append(large(50_000))
    assert slices(log.offset_for_time(NOW + 10)) <= 1
    assert slices(log.offset_for_time(NOW + 49_000)) >= 49_000 // record_checks.SLICE_RECORDS


def test_the_latest_time_is_remembered_until_a_later_one_comes():
    log = PartitionLog()
    log.append(large(50_000))
    assert slices(log.offset_of_max_timestamp()) > 10
    assert slices(log.offset_of_max_timestamp()) == 0
    assert at_once(log.offset_of_max_timestamp()) == (49_999, NOW + 49_999)
    log.append(large(60_000))
    assert at_once(log.offset_of_max_timestamp()) == (109_999, NOW + 59_999)


async def test_other_clients_are_served_while_a_log_is_compacted(broker, monkeypatch):
    topic = broker.cluster.image.by_name["orders"]
    log = broker.cluster.log(topic, 0)
    for _ in range(2):
        log.append(large(50_000, keys=3))
    monkeypatch.setattr("fencepost.coordinator.server.cleaner.INTERVAL_S", 0.001)
    broker.cluster.set_configs(ConfigKey(ResourceType.TOPIC, "orders"), {"cleanup.policy": "compact"})
    size = log.size
    cleaned = asyncio.create_task(until(lambda: log.size < size))
    assert await served_meanwhile(broker, cleaned) > 3
    held = [
        record.offset for record in MemoryRecords(log.read(0, 1, at_least_one=True).batches[0]).next_batch()
    ]
    assert held == [49_997, 49_998, 49_999]


def test_a_compaction_yields_and_then_holds_no_keys():
    log = PartitionLog()
    for _ in range(2):
        log.append(large(50_000, keys=50_000))
    assert slices(log.compact(NOW * 2, min_lag_ms=0, delete_retention_ms=NOW * 2)) > 20
    assert log._compaction is None


@pytest.mark.parametrize("kind", range(5), ids=["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("most", [1, 7, 1_000])
def test_a_compaction_in_many_passes_keeps_the_same_records(monkeypatch, kind, most):
    monkeypatch.setattr(compaction, "MAX_KEYS", most)
    log = PartitionLog()
    for _ in range(3):
        log.append(large(50, kind, keys=20))
    log.append(large(1))
    assert at_once(log.compact(NOW * 2, min_lag_ms=0, delete_retention_ms=NOW * 2)) == []
    batches = log.read(0, 1 << 20, at_least_one=True).batches[:-1]
    held = [record.offset for one in batches for record in MemoryRecords(one).next_batch()]
    assert held == list(range(130, 150))
    assert all(MemoryRecords(one).next_batch().validate_crc() for one in batches)


def test_a_log_that_is_compacted_twice_at_a_time_keeps_what_came_meanwhile():
    log = PartitionLog()
    for _ in range(2):
        log.append(large(50_000, keys=2))
    slow = log.compact(NOW * 2, min_lag_ms=0, delete_retention_ms=NOW * 2)
    next(slow)
    log.append(large(1))
    at_once(log.compact(NOW * 2, min_lag_ms=0, delete_retention_ms=NOW * 2))
    log.delete_records(100_000)
    after = log.read(100_000, 1 << 20, at_least_one=True).batches
    at_once(slow)
    assert log.read(100_000, 1 << 20, at_least_one=True).batches == after


async def test_a_topic_may_be_deleted_while_a_batch_is_checked(broker, wire):
    wire.send(0, 9, **produced(large(100_000)))
    answer = asyncio.create_task(wire.receive())
    await until(lambda: not broker.services[0].work_queue.is_idle)
    broker.cluster.delete_topic(broker.cluster.image.by_name["orders"])
    assert answer_of(await answer).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_large_batch_that_wants_no_answer_gets_none(broker, wire):
    wire.send(0, 9, **produced(large(50_000), acks=0))
    wire.expected.clear()
    assert (await wire.ask(18, 3, client_software_name="x", client_software_version="1")).error_code == 0
    topic = broker.cluster.image.by_name["orders"]
    assert broker.cluster.log(topic, 0).high_watermark == 50_000


async def test_a_large_batch_is_stored_though_its_connection_ends(broker, wire):
    wire.send(0, 9, **produced(large(100_000)))
    queue = broker.services[0].work_queue
    await until(lambda: not queue.is_idle)
    await wire.close()
    await until(lambda: queue.is_idle)
    topic = broker.cluster.image.by_name["orders"]
    assert broker.cluster.log(topic, 0).high_watermark == 100_000


async def test_more_records_than_a_batch_may_have_are_refused(broker, wire, monkeypatch):
    monkeypatch.setattr(record_checks, "MAX_RECORDS", 999)
    answer = answer_of(await wire.ask(0, 9, **produced(large(1_000))))
    assert answer.error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert answer.error_message == "a batch of 1000 records, at most 999: send smaller batches"
    assert answer_of(await wire.ask(0, 9, **produced(large(999)))).error_code == 0


@pytest.mark.parametrize("kind", range(1, 5), ids=["gzip", "snappy", "lz4", "zstd"])
async def test_records_that_become_too_large_are_refused_and_others_are_served(broker, wire, kind):
    body = bytes(2 * compression.MAX_UNCOMPRESSED_BYTES)
    bomb = sealed(body, 1, kind)
    del body
    broker.cluster.set_configs(ConfigKey(ResourceType.TOPIC, "orders"), {"max.message.bytes": str(100 << 20)})
    wire.send(0, 9, **produced(bomb))
    answer = answer_of(await wire.receive())
    assert answer.error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert f"exceed {compression.MAX_UNCOMPRESSED_BYTES} bytes" in answer.error_message


def test_only_the_first_of_very_many_refused_records_are_named(monkeypatch):
    monkeypatch.setattr(record_checks, "MAX_RECORD_ERRORS", 5)
    log = PartitionLog()
    with pytest.raises(ProtocolError) as refused:
        log.append(large(1_000), now_ms=0)
    assert [each.batch_index for each in refused.value.errors] == [0, 1, 2, 3, 4]  # type: ignore[attr-defined]
    assert refused.value.code is ErrorCode.INVALID_TIMESTAMP


def with_headers(records: int, headers: int) -> bytes:
    out = bytearray()
    for number in range(records):
        body = bytearray(b"\0\0")
        encode_varint(number, body.append)
        body += b"\1\1"
        encode_varint(headers, body.append)
        body += b"\0\1" * headers
        encode_varint(len(body), out.append)
        out += body
    return sealed(bytes(out), records, 4)


def test_records_with_very_many_headers_are_read_in_slices():
    log = PartitionLog()
    assert slices(log.checking(with_headers(20, 5_000))) == 19
    assert slices(log.checking(with_headers(20, 10))) == 0
    assert log.append(with_headers(20, 5_000)) == 0
    with pytest.raises(ProtocolError, match="100001 headers, at most 100000 are allowed") as refused:
        log.append(with_headers(1, record_checks.MAX_HEADERS + 1))
    assert refused.value.code is ErrorCode.MESSAGE_TOO_LARGE
    assert log.append(with_headers(1, record_checks.MAX_HEADERS)) == 20
