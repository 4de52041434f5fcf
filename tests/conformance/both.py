"""The same questions to our broker and to Kafka's: one who asks, and the answers of both, side by side."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime
import io
import struct
import sys
import time
import typing
import uuid
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, TypeVar

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from fencepost.coordinator.codec.registry import ApiKey
from tests.batches import batch

with warnings.catch_warnings():
    # It reads its schemas through an API that Python 3.11 deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.protocol.admin import DescribeTransactionsResponse

SECOND = datetime.timedelta(seconds=1)
TRY_AGAIN = {
    "concurrent_transactions",
    "coordinator_load_in_progress",
    "coordinator_not_available",
    "not_coordinator",
}


P = TypeVar("P", bound="Peer")


def struct_of(key: int, version: int, kind: str, /, **fields: Any) -> Any:
    """One of kio's structs, by its name."""
    module = sys.modules[load_request_schema(key, version).__module__]
    return getattr(module, kind)(**fields)


def made(kind: Any, value: Any) -> Any:
    """A value as kio wants it: what is left out of a struct is empty, durations are milliseconds."""
    arguments = typing.get_args(kind)
    if value is None:
        return None
    if dataclasses.is_dataclass(kind):
        of_kind: Any = kind
        return of_kind(**of_struct(kind, value))
    if typing.get_origin(kind) is tuple:
        return tuple(made(arguments[0], one) for one in value)
    if arguments:
        return made(next(one for one in arguments if one is not type(None)), value)
    return datetime.timedelta(milliseconds=value) if "imedelta" in str(kind) else value


def of_struct(kind: Any, values: dict[str, Any]) -> dict[str, Any]:
    """The fields of a struct, with all that have no default."""
    hints = typing.get_type_hints(kind)
    fields = {field.name: field.default is dataclasses.MISSING for field in dataclasses.fields(kind)}
    assert values.keys() <= fields.keys(), kind
    return {
        name: made(hints[name], values[name]) if name in values else empty(hints[name])
        for name, needed in fields.items()
        if needed or name in values
    }


def fields_of(key: int, version: int, /, **values: Any) -> dict[str, Any]:
    """The fields of a request, from dictionaries for structs and numbers for times."""
    return of_struct(load_request_schema(key, version), values)


def empty(kind: Any) -> Any:
    if typing.get_origin(kind) is tuple:
        return ()
    if type(None) in typing.get_args(kind):
        return None
    name = getattr(kind, "__name__", str(kind))
    if "imedelta" in str(kind):
        return datetime.timedelta()
    return "" if kind is str or "Name" in name or "Id" in name else 0


def shown(entity: Any, own: str, hidden: tuple[str, ...]) -> Any:
    """Codes and names of an answer; what differs between any two brokers is left out, and `own` of names."""
    hide = {"throttle_time", "brokers", "cluster_id", "controller_id", "leader_id", "isr_nodes", *hidden}
    if dataclasses.is_dataclass(entity):
        fields = [field.name for field in dataclasses.fields(entity)]
        return {name: shown(getattr(entity, name), own, hidden) for name in fields if name not in hide}
    if isinstance(entity, tuple):
        return sorted((shown(one, own, hidden) for one in entity), key=str)
    if isinstance(entity, str):
        return entity.replace(own, "")
    return entity.name if hasattr(entity, "name") else entity


def batch_now(
    producer: int = -1, epoch: int = -1, sequence: int = -1, *, txn: bool = False, n: int = 1
) -> bytes:
    """Records of now."""
    values = (b"x",) * n
    now_ms = int(time.time() * 1000)
    return batch(*values, at=now_ms, producer=(producer, epoch, sequence), transactional=txn)


class Peer:
    """One connection, one topic, one transactional id, one group, under names that nobody else has."""

    def __init__(self) -> None:
        name = uuid.uuid4().hex[:8]
        self.topic, self.transactional_id, self.group = f"topic-{name}", f"id-{name}", f"group-{name}"
        self.producer = -1
        self.servers = ""

    async def connect(self, servers: str) -> None:
        self.servers = servers
        host, port = servers.split(",", maxsplit=1)[0].rsplit(":", 1)
        self.reader, self.writer = await asyncio.open_connection(host, int(port))

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()

    async def connect_again(self) -> None:
        await self.close()
        await self.connect(self.servers)

    async def ask(self, key: int, version: int, /, **fields: Any) -> Any:
        """The answer to a request with kio's values."""
        frame = await self.frame(key, version, **fields)
        answer = load_response_schema(key, version)
        # ApiVersions is answered with the first header in every version.
        flexible = answer.__flexible__ and key != ApiKey.API_VERSIONS
        reply, _ = entity_reader(answer)(frame, 5 if flexible else 4)
        return reply

    async def ask_plain(self, key: int, version: int, /, **fields: Any) -> Any:
        """The answer to a request with dictionaries for structs, and numbers for times."""
        return await self.ask(key, version, **fields_of(key, version, **fields))

    async def asked(self, key: int, version: int, /, *hidden: str, **fields: Any) -> Any:
        """As `ask_plain`; the answer without the fields that are `hidden`, lists sorted, or "closed"."""
        try:
            reply = await self.ask_plain(key, version, **fields)
            return shown(reply, self.topic, hidden)
        except (asyncio.IncompleteReadError, ConnectionError):
            await self.connect_again()
            return "closed"

    async def frame(self, key: int, version: int, /, **fields: Any) -> bytes:
        schema = load_request_schema(key, version)
        body = io.BytesIO()
        entity_writer(schema)(body, schema(**fields))
        head = struct.pack(">hhih", key, version, 1, 4) + b"same" + (b"\0" if schema.__flexible__ else b"")
        frame = head + body.getvalue()
        self.writer.write(struct.pack(">i", len(frame)) + frame)
        (size,) = struct.unpack(">i", await self.reader.readexactly(4))
        return await self.reader.readexactly(size)

    async def described_transactions(self, *names: str) -> Any:
        """DescribeTransactions, which kio can't read: it knows no time of -1, which stands for none."""
        frame = await self.frame(ApiKey.DESCRIBE_TRANSACTIONS, 0, transactional_ids=names)
        return DescribeTransactionsResponse[0].decode(frame, framed=False, header=True)

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
        while (await self.produce(batch_now()))[0] != "none":
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

    async def until_found(self, topic: str) -> None:
        """A new topic is known to the broker a little later than to the controller."""
        deadline = time.monotonic() + 60
        while (await self.asked(3, 12, topics=[{"name": topic}]))["topics"][0]["error_code"] != "none":
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)

    async def until_led(self, topic: str, partitions: int) -> None:
        """The logs of a new topic are there a little later than the topic."""
        wanted = [{"partition_index": number, "timestamp": -1} for number in range(partitions)]
        deadline = time.monotonic() + 60
        while True:
            topics = [{"name": topic, "partitions": wanted}]
            reply = await self.ask_plain(2, 7, replica_id=-1, topics=topics)
            if {one.error_code.name for one in reply.topics[0].partitions} == {"none"}:
                return
            assert time.monotonic() < deadline, reply
            await asyncio.sleep(0.05)

    async def produce(self, records: bytes, txn: str | None = None, version: int = 11) -> tuple[str, int]:
        data = struct_of(0, version, "PartitionProduceData", index=0, records=records)
        topic = struct_of(0, version, "TopicProduceData", name=self.topic, partition_data=(data,))
        reply = await self.ask(
            0, version, transactional_id=txn, acks=-1, timeout=5 * SECOND, topic_data=(topic,)
        )
        found = reply.responses[0].partition_responses[0]
        return found.error_code.name, found.base_offset

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


async def answers_of_both(
    script: Callable[[P], AsyncIterator[Any]], peers: type[P], ours: str, kafkas: str
) -> Iterator[tuple[Any, Any]]:
    """What two brokers say to the same script, answer by answer; each has its own topic and names."""
    told = []
    for servers in (ours, kafkas):
        peer = peers()
        await peer.connect(servers)
        try:
            await peer.begin()
            told.append([answer async for answer in script(peer)])
        finally:
            await peer.close()
    return zip(*told, strict=True)
