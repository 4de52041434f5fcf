"""The same requests, byte by byte, to our broker and to Kafka's: producers, transactions, settings, logs."""

from __future__ import annotations

import asyncio
import datetime
import io
import struct
import sys
import time
import uuid
import warnings
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

with warnings.catch_warnings():
    # It reads its schemas through an API that Python 3.11 deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.protocol.admin import DescribeTransactionsResponse

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]

SECOND = datetime.timedelta(seconds=1)
TRY_AGAIN = {
    "concurrent_transactions",
    "coordinator_load_in_progress",
    "coordinator_not_available",
    "not_coordinator",
}


def struct_of(key: int, version: int, kind: str, /, **fields: Any) -> Any:
    module = sys.modules[load_request_schema(key, version).__module__]
    return getattr(module, kind)(**fields)


def batch(producer: int = -1, epoch: int = -1, sequence: int = -1, *, txn: bool = False, n: int = 1) -> bytes:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=txn,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        batch_size=1 << 20,
    )
    now_ms = int(time.time() * 1000)
    for number in range(n):
        builder.append(number, now_ms, None, b"x", [])
    return bytes(builder.build())


class Peer:
    """One connection, one topic, one transactional id; remembers answers under what was asked."""

    def __init__(self) -> None:
        name = uuid.uuid4().hex[:8]
        self.topic, self.transactional_id, self.group = f"topic-{name}", f"id-{name}", f"group-{name}"
        self.producer = -1
        self.answers: dict[str, Any] = {}

    async def connect(self, servers: str) -> None:
        host, port = servers.split(",", maxsplit=1)[0].rsplit(":", 1)
        self.reader, self.writer = await asyncio.open_connection(host, int(port))

    async def ask(self, key: int, version: int, **fields: Any) -> Any:
        frame = await self.frame(key, version, **fields)
        answer = load_response_schema(key, version)
        reply, _ = entity_reader(answer)(frame, 5 if answer.__flexible__ else 4)
        return reply

    async def frame(self, key: int, version: int, **fields: Any) -> bytes:
        schema = load_request_schema(key, version)
        body = io.BytesIO()
        entity_writer(schema)(body, schema(**fields))
        head = struct.pack(">hhih", key, version, 1, 4) + b"same" + (b"\0" if schema.__flexible__ else b"")
        frame = head + body.getvalue()
        self.writer.write(struct.pack(">i", len(frame)) + frame)
        (size,) = struct.unpack(">i", await self.reader.readexactly(4))
        return await self.reader.readexactly(size)

    async def until_settled(self, code, key: int, version: int, **fields: Any) -> Any:
        """The answer once coordinators are there and earlier transactions are over."""
        deadline = time.monotonic() + 60
        while True:
            reply = await self.ask(key, version, **fields)
            if code(reply) not in TRY_AGAIN:
                return reply
            assert time.monotonic() < deadline, reply
            await asyncio.sleep(0.05)

    async def begin(self) -> None:
        """The topic exists, and coordinators are found."""
        await self.create(self.topic, 1)
        for kind, name in ((1, self.transactional_id), (0, self.group)):
            await self.until_settled(
                lambda r: r.coordinators[0].error_code.name, 10, 4, key_type=kind, coordinator_keys=(name,)
            )
        deadline = time.monotonic() + 60
        while (await self.produce(batch()))[0] != "none":
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)

    async def create(self, name: str, partitions: int, **configs: str) -> Any:
        """A topic; settings have underscores."""
        settings = tuple(
            struct_of(19, 7, "CreatableTopicConfig", name=key.replace("_", "."), value=value)
            for key, value in configs.items()
        )
        topic = struct_of(
            *(19, 7, "CreatableTopic"),
            name=name,
            num_partitions=partitions,
            replication_factor=1,
            assignments=(),
            configs=settings,
        )
        return await self.ask(19, 7, topics=(topic,), timeout=10 * SECOND, validate_only=False)

    async def produce(self, records: bytes, txn: str | None = None, version: int = 11) -> tuple[str, int]:
        data = struct_of(0, version, "PartitionProduceData", index=0, records=records)
        topic = struct_of(0, version, "TopicProduceData", name=self.topic, partition_data=(data,))
        reply = await self.ask(
            0, version, transactional_id=txn, acks=-1, timeout=5 * SECOND, topic_data=(topic,)
        )
        found = reply.responses[0].partition_responses[0]
        return found.error_code.name, found.base_offset

    async def in_txn(self, epoch: int, sequence: int, version: int = 11) -> tuple[str, int]:
        return await self.produce(
            batch(self.producer, epoch, sequence, txn=True), self.transactional_id, version
        )

    async def init(self, name: str | None = "", producer: int = -1, epoch: int = -1, ms: int = 60_000) -> Any:
        """`name` "" is the transactional id of this peer."""
        return await self.until_settled(
            lambda r: r.error_code.name,
            *(22, 4),
            transactional_id=self.transactional_id if name == "" else name,
            transaction_timeout=datetime.timedelta(milliseconds=ms),
            producer_id=producer,
            producer_epoch=epoch,
        )

    async def add(self, epoch: int, *partitions: tuple[str, int], producer: int | None = None) -> list[Any]:
        topics = tuple(
            struct_of(24, 3, "AddPartitionsToTxnTopic", name=name, partitions=(number,))
            for name, number in partitions
        )

        def codes(reply: Any) -> list[Any]:
            return sorted(
                (topic.name, one.partition_index, one.partition_error_code.name)
                for topic in reply.results_by_topic_v3_and_below
                for one in topic.results_by_partition
            )

        reply = await self.until_settled(
            lambda r: codes(r)[0][2],
            *(24, 3),
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer if producer is None else producer,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=topics,
        )
        return [(name == self.topic, number, code) for name, number, code in codes(reply)]

    async def end(self, epoch: int, *, commit: bool, version: int = 3) -> Any:
        reply = await self.until_settled(
            lambda r: r.error_code.name,
            *(26, version),
            transactional_id=self.transactional_id,
            producer_id=self.producer,
            producer_epoch=epoch,
            committed=commit,
        )
        return reply.error_code.name, getattr(reply, "producer_epoch", None)

    async def commit_offset(self, epoch: int, *, generation: int = -1, member: str = "") -> str:
        one = struct_of(
            *(28, 3, "TxnOffsetCommitRequestPartition"),
            partition_index=0,
            committed_offset=3,
            committed_metadata="",
        )
        topic = struct_of(28, 3, "TxnOffsetCommitRequestTopic", name=self.topic, partitions=(one,))
        reply = await self.until_settled(
            lambda r: r.topics[0].partitions[0].error_code.name,
            *(28, 3),
            transactional_id=self.transactional_id,
            group_id=self.group,
            producer_id=self.producer,
            producer_epoch=epoch,
            generation_id=generation,
            member_id=member,
            topics=(topic,),
        )
        name: str = reply.topics[0].partitions[0].error_code.name
        return name

    async def add_offsets(self, epoch: int) -> str:
        reply = await self.ask(
            *(25, 3),
            transactional_id=self.transactional_id,
            producer_id=self.producer,
            producer_epoch=epoch,
            group_id=self.group,
        )
        name: str = reply.error_code.name
        return name

    async def fetched_offset(self, *, stable: bool) -> Any:
        topic = struct_of(9, 7, "OffsetFetchRequestTopic", name=self.topic, partition_indexes=(0,))
        reply = await self.ask(9, 7, group_id=self.group, topics=(topic,), require_stable=stable)
        found = reply.topics[0].partitions[0]
        return found.error_code.name, found.committed_offset

    async def fetch(self, *, committed: bool, offset: int = 0) -> Any:
        part = struct_of(
            1, 12, "FetchPartition", partition=0, fetch_offset=offset, partition_max_bytes=1 << 20
        )
        reply = await self.ask(
            *(1, 12),
            max_wait=SECOND / 10,
            min_bytes=1,
            max_bytes=1 << 20,
            isolation_level=int(committed),
            topics=(struct_of(1, 12, "FetchTopic", topic=self.topic, partitions=(part,)),),
            forgotten_topics_data=(),
        )
        found = reply.responses[0].partitions[0]
        aborted = found.aborted_transactions
        return (
            found.error_code.name,
            (found.high_watermark, found.last_stable_offset, found.log_start_offset),
            len(found.records or b""),
            aborted if aborted is None else [one.first_offset for one in aborted],
        )

    async def list_offset(self, time_ms: int, *, committed: bool) -> Any:
        part = struct_of(2, 7, "ListOffsetsPartition", partition_index=0, timestamp=time_ms)
        topic = struct_of(2, 7, "ListOffsetsTopic", name=self.topic, partitions=(part,))
        reply = await self.ask(2, 7, replica_id=-1, isolation_level=int(committed), topics=(topic,))
        found = reply.topics[0].partitions[0]
        return found.error_code.name, found.offset, found.leader_epoch

    async def delete_records(self, offset: int, partition: int = 0) -> Any:
        part = struct_of(21, 2, "DeleteRecordsPartition", partition_index=partition, offset=offset)
        topic = struct_of(21, 2, "DeleteRecordsTopic", name=self.topic, partitions=(part,))
        reply = await self.ask(21, 2, topics=(topic,), timeout=5 * SECOND)
        found = reply.topics[0].partitions[0]
        return found.error_code.name, found.low_watermark

    async def alter(self, kind: int, name: str, *changes: tuple[str, int, str | None]) -> str:
        configs = tuple(
            struct_of(44, 1, "AlterableConfig", name=setting, config_operation=operation, value=value)
            for setting, operation, value in changes
        )
        resource = struct_of(
            44, 1, "AlterConfigsResource", resource_type=kind, resource_name=name, configs=configs
        )
        reply = await self.ask(44, 1, resources=(resource,), validate_only=False)
        code: str = reply.responses[0].error_code.name
        return code

    async def described(self, transactional_id: str) -> Any:
        """What DescribeTransactions says; of times whether there is one."""
        deadline = time.monotonic() + 60
        while True:
            frame = await self.frame(65, 0, transactional_ids=(transactional_id,))
            # kio reads no time of -1, which stands for none.
            reply = DescribeTransactionsResponse[0].decode(frame, framed=False, header=True)
            (found,) = reply.transaction_states
            if found.error_code not in {14, 15, 16}:  # the coordinator may be loading
                break
            assert time.monotonic() < deadline, found
            await asyncio.sleep(0.05)
        return (
            found.error_code,
            (found.transaction_state, found.transaction_timeout_ms, found.producer_epoch),
            (found.producer_id == self.producer, found.transaction_start_time_ms > 0),
            [(one.topic == self.topic, one.partitions) for one in found.topics],
        )

    async def listed(
        self, states: tuple[str, ...], producers: tuple[int, ...], ms: int, pattern: str | None
    ) -> Any:
        reply = await self.until_settled(
            lambda r: r.error_code.name,
            *(66, 2),
            state_filters=states,
            producer_id_filters=producers,
            duration_filter=ms,
            transactional_id_pattern=pattern,
        )
        found = [
            (one.producer_id == self.producer, one.transaction_state)
            for one in reply.transaction_states
            if one.transactional_id == self.transactional_id
        ]
        return reply.error_code.name, sorted(reply.unknown_state_filters), found

    async def producers(self, partition: int = 0, topic: str | None = None) -> Any:
        wanted = struct_of(61, 0, "TopicRequest", name=topic or self.topic, partition_indexes=(partition,))
        (found,) = (await self.ask(61, 0, topics=(wanted,))).topics[0].partitions
        return found.error_code.name, [
            (
                one.producer_id == self.producer,
                # Kafka's coordinator begins an epoch whenever its broker was too slow for a while.
                (one.producer_epoch, one.last_sequence, one.coordinator_epoch >= 0),
                (one.last_timestamp > 0, one.current_txn_start_offset),
            )
            for one in found.active_producers
        ]

    async def resources(self, version: int, *kinds: int) -> Any:
        fields = {"resource_types": kinds} if version else {}
        reply = await self.ask(74, version, **fields)
        found = {(one.resource_type, one.resource_name) for one in reply.config_resources}
        # Topics and groups of other tests may be there too.
        mine = {(2, self.topic), *(each for each in found if each[0] not in {2, 32})}
        return reply.error_code.name, sorted((kind, "" if kind == 2 else name) for kind, name in found & mine)


async def idempotence(peer: Peer) -> AsyncIterator[Any]:
    one = (await peer.init(None)).producer_id
    for epoch, sequence, count in (
        *((0, 0, 2), (0, 0, 2), (0, 5, 1), (0, 0, 1), (0, 1, 1), (0, 2, 1)),
        *((1, 3, 1), (1, 0, 1), (0, 2, 1), (0, 0, 2), (1, 1, 1)),
    ):
        yield await peer.produce(batch(one, epoch, sequence, n=count))
    yield await peer.produce(batch(one + 500_000, 0, 7)), "nothing is known of that producer"


async def initializations(peer: Peer) -> AsyncIterator[Any]:
    first = await peer.init()
    yield first.error_code.name, first.producer_epoch
    producer = first.producer_id
    for fields in (
        *({"ms": 10_000_000}, {"ms": 0}, {"producer": 5}, {"producer": producer + 77, "epoch": 0}),
        *({"producer": producer, "epoch": 0}, {"producer": producer, "epoch": 0}),
        *({}, {"producer": producer, "epoch": 0}),
    ):
        reply = await peer.init(**fields)
        yield fields.keys(), reply.error_code.name, reply.producer_epoch


async def transactions(peer: Peer) -> AsyncIterator[Any]:
    peer.producer = (await peer.init()).producer_id
    records = batch(peer.producer, 0, 0, txn=True)
    yield "not added", await peer.in_txn(0, 0), await peer.in_txn(0, 0, version=9)
    yield "no id", await peer.produce(records), "another id", await peer.produce(records, "other")
    yield "nothing open", await peer.end(0, commit=True), await peer.end(0, commit=False)
    here = (peer.topic, 0)
    yield await peer.add(0, here, ("no-such-topic", 0)), await peer.add(0, here, (peer.topic, 7))
    yield await peer.add(1, here), await peer.add(0, here, producer=peer.producer + 9)
    yield await peer.add(0, here), await peer.in_txn(0, 0)
    yield "outside", await peer.produce(batch(peer.producer, 0, 1))
    yield "open", await peer.fetch(committed=True), await peer.fetch(committed=False)
    for time_ms in (-1, -2, -3):
        yield time_ms, [await peer.list_offset(time_ms, committed=each) for each in (False, True)]
    yield "offsets not added", await peer.commit_offset(0)
    yield await peer.commit_offset(5), await peer.add_offsets(4), await peer.add_offsets(0)
    yield await peer.commit_offset(0), await peer.commit_offset(0, generation=4, member="m")
    yield [await peer.fetched_offset(stable=each) for each in (True, False)]
    yield await peer.end(0, commit=False), await peer.end(0, commit=False), await peer.end(0, commit=True)
    await peer.add(0, here)
    yield "aborted", await peer.fetch(committed=True), await peer.fetched_offset(stable=True)
    yield await peer.in_txn(0, 1), await peer.end(0, commit=True)
    await peer.add(0, here)
    yield "committed", await peer.fetch(committed=True), "a gap", await peer.in_txn(0, 9)
    again = await peer.init()
    yield "fenced", again.error_code.name, again.producer_epoch, await peer.end(0, commit=True)


async def transactions_with_epochs(peer: Peer) -> AsyncIterator[Any]:
    peer.producer = (await peer.init()).producer_id
    yield await peer.in_txn(0, 0, version=12), await peer.end(0, commit=True, version=5)
    yield "retry", await peer.end(0, commit=True, version=5), await peer.in_txn(0, 1, version=12)
    yield await peer.in_txn(1, 0, version=12), await peer.end(1, commit=False, version=5)
    yield (
        "nothing open",
        await peer.end(2, commit=False, version=5),
        await peer.end(3, commit=True, version=5),
    )
    for epoch in (3, 3, 1):
        reply = await peer.init(producer=peer.producer, epoch=epoch)
        yield reply.error_code.name, reply.producer_epoch
    yield await peer.in_txn(4, 0, version=12)
    reply = await peer.init()
    yield "over an open one", reply.error_code.name, reply.producer_epoch


async def settings(peer: Peer) -> AsyncIterator[Any]:
    retention, session = "retention.ms", "consumer.session.timeout.ms"
    for kind, name, *changes in (
        *((2, peer.topic, (retention, 0, "5000")), (2, peer.topic, (retention, 0, "abc"))),
        *((2, peer.topic, ("nope", 0, "1")), (2, "no-such-topic", (retention, 0, "1"))),
        *((2, peer.topic, (retention, 2, "1")), (2, peer.topic, ("cleanup.policy", 2, "compact"))),
        *((2, peer.topic, ("cleanup.policy", 0, "burn")), (2, peer.topic, (retention, 0, None))),
        *((2, peer.topic, (retention, 0, "1"), (retention, 0, "2")), (2, "a b", (retention, 0, "1"))),
        *(
            (32, "g", (session, 0, "50000")),
            (32, "g", (session, 0, "1")),
            (32, "g", ("consumer.nope", 0, "1")),
        ),
        *((32, "", (session, 0, "50000")), (2, peer.topic, ("min.insync.replicas", 0, "0"))),
        *(
            (2, peer.topic, ("min.cleanable.dirty.ratio", 0, "1.5")),
            (2, peer.topic, ("segment.bytes", 0, "5")),
        ),
    ):
        yield changes, await peer.alter(kind, name, *changes)
    reply = await peer.create(f"more-{peer.topic}", 1)
    yield sorted(one.name for one in reply.topics[0].configs)


async def times_and_keys(peer: Peer) -> AsyncIterator[Any]:
    began_ms = int(time.time() * 1000)
    for number, configs in enumerate(
        ({"message_timestamp_type": "LogAppendTime"}, {"cleanup_policy": "compact"}, {})
    ):
        name = f"{peer.topic}-{number}"
        yield configs, (await peer.create(name, 1, **configs)).topics[0].error_code.name
        deadline = time.monotonic() + 60
        while True:
            data = struct_of(0, 11, "PartitionProduceData", index=0, records=batch(n=2))
            topic = struct_of(0, 11, "TopicProduceData", name=name, partition_data=(data,))
            reply = await peer.ask(
                *(0, 11), transactional_id=None, acks=-1, timeout=5 * SECOND, topic_data=(topic,)
            )
            found = reply.responses[0].partition_responses[0]
            if found.error_code.name not in {"unknown_topic_or_partition", "not_leader_or_follower"}:
                break
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        stamp = found.log_append_time
        yield found.error_code.name, stamp is not None and stamp.timestamp() * 1000 >= began_ms - 1000
        peer.topic, before = name, peer.topic
        for time_ms in (-3, began_ms - 1000):
            code, offset, _ = await peer.list_offset(time_ms, committed=False)
            yield time_ms == -3, code, offset
        peer.topic = before


async def deletions(peer: Peer) -> AsyncIterator[Any]:
    await peer.produce(batch(n=5))
    for offset, partition in ((2, 0), (1, 0), (10**6, 0), (-5, 0), (0, 9)):
        yield offset, await peer.delete_records(offset, partition)
    yield await peer.fetch(committed=False), await peer.list_offset(-2, committed=False)
    yield await peer.delete_records(-1), await peer.list_offset(-2, committed=False)


async def inspections(peer: Peer) -> AsyncIterator[Any]:
    yield "nothing yet", await peer.described(peer.transactional_id), await peer.described("")
    peer.producer = (await peer.init()).producer_id
    yield "initialized", await peer.described(peer.transactional_id), await peer.producers()
    await peer.add(0, (peer.topic, 0))
    await peer.in_txn(0, 0)
    yield "open", await peer.described(peer.transactional_id), await peer.producers()
    for states, producers, ms, pattern in (
        *(((), (), -1, None), (("Ongoing",), (), -1, None), (("Empty", "Nope"), (), -1, None)),
        *(((), (peer.producer,), -1, ""), ((), (peer.producer + 1,), -1, None), (("Nope",), (), -1, None)),
        *(((), (), 100_000_000, None), ((), (), -1, "[")),
        *(((), (), -1, peer.transactional_id[:-1] + "."), ((), (), -1, peer.transactional_id[:-1])),
    ):
        yield states, ms, await peer.listed(states, producers, ms, pattern)
    yield await peer.end(0, commit=False)
    await peer.add(0, (peer.topic, 0))
    yield "again", await peer.described(peer.transactional_id), await peer.producers()
    yield await peer.producers(1), await peer.producers(0, "no-such-topic")
    for version, kinds in ((1, (2, 4)), (1, (8,)), (1, (16,)), (1, (2, 99)), (0, ()), (1, ())):
        yield version, kinds, await peer.resources(version, *kinds)


@pytest.mark.parametrize(
    "script",
    [
        idempotence,
        initializations,
        transactions,
        transactions_with_epochs,
        settings,
        deletions,
        inspections,
        times_and_keys,
    ],
    ids=lambda script: script.__name__,
)
async def test_kafka_answers_the_same(script, ours, cluster):
    told = []
    for servers in (ours.servers, cluster.bootstrap_servers):
        peer = Peer()
        await peer.connect(servers)
        await peer.begin()
        told.append([answer async for answer in script(peer)])
        peer.writer.close()
    assert told[0] == told[1]
