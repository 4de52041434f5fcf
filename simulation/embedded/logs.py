"""Appends and reads records without a client, through the same handlers as clients' requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from fencepost.coordinator.codec.batches import stored_batch
from fencepost.coordinator.codec.context import RequestContext
from fencepost.coordinator.codec.record_contents import records_in
from fencepost.coordinator.codec.record_writing import BatchWriter
from fencepost.coordinator.codec.registry import ApiKey
from fencepost.coordinator.protocol import logs
from fencepost.coordinator.protocol.acls import ANONYMOUS
from fencepost.coordinator.protocol.cluster import MetadataRequest, TopicReference
from fencepost.coordinator.protocol.errors import ErrorCode, FencepostError, ProtocolError
from fencepost.coordinator.protocol.topics import Topic
from fencepost.coordinator.server.brokers import Brokers
from fencepost.coordinator.server.cluster_apis import metadata
from fencepost.coordinator.server.dispatch import handlers
from fencepost.coordinator.server.services import Asked, Handler
from fencepost.coordinator.server.turns import Share
from fencepost.simulation.embedded.settings import utf_8, whole

Text: TypeAlias = bytes | str | None
Headers: TypeAlias = Mapping[str, Text] | Sequence[tuple[str, Text]]

_BATCH_BYTES = 1_000_000
"""The limit on bytes of records in one batch, as with a producer's default `max.request.size`."""
_MURMUR_SEED, _MURMUR_FACTOR, _32_BITS = 0x9747B28C, 0x5BD1E995, 0xFFFFFFFF
_LATEST_MS = 2**63 - 1
"""Kafka's times have 64 bits."""


def check_time(timestamp_ms: int | None) -> None:
    """Refuse a time of records that none can have.

    :raises FencepostError: if it is given, and is not a whole number of 63 bits.
    """
    if timestamp_ms is not None:
        whole("timestamp_ms", timestamp_ms, 0, _LATEST_MS)


_FETCH_BYTES = 64 << 20
_IN_A_BATCH = 5_000
"""The limit on records in one batch, so that writing it takes milliseconds."""
_IN_A_TURN = 1_000
"""Number of records that are read in one turn of the loop."""


class ReadRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One record of a partition. Its time is in milliseconds since the epoch."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class NoConnection:
    """The connection of requests without a client."""

    is_closed = False
    principal = ANONYMOUS

    def __init__(self) -> None:
        self.share = Share()

    def close(self) -> None:
        """Do nothing: nothing is open."""


class LogAccess:
    """Appends to the logs of a cluster, and reads them."""

    def __init__(
        self,
        brokers: Brokers,
        observing: Callable[[Mapping[int, Handler]], Mapping[int, Handler]] = lambda table: table,
    ) -> None:
        self._brokers = brokers
        self._handlers = observing(handlers())
        self._asked = Asked(RequestContext(0, "fencepost", "/embedded"), "", NoConnection())
        self._turn: dict[str, int] = {}

    def topic(self, name: str, prefix: str = "") -> Topic:
        """Return a topic by its name.

        :raises FencepostError: if there is none; the message lists those with that prefix.
        """
        known = self._brokers.cluster.shown.by_name
        if not isinstance(name, str) or name not in known:
            others = ", ".join(sorted(each for each in known if each.startswith(prefix))) or "none"
            raise FencepostError(f"there is no topic {name!r}; there are {others}")
        return known[name]

    def partition(self, topic: Topic, number: int) -> int:
        """Return the partition's number, once it is checked.

        :raises FencepostError: if the topic has no such partition.
        """
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < topic.partitions:
            raise FencepostError(
                f"topic {topic.name!r} has partitions 0 to {topic.partitions - 1}, not {number!r}"
            )
        return number

    async def produce(
        self,
        name: str,
        values: Sequence[Text],
        *,
        key: Text,
        partition: int | None,
        headers: Headers,
        timestamp_ms: int | None,
        prefix: str = "",
    ) -> list[ReadRecord]:
        """Append values, and return the records. Without key and partition, all partitions take turns."""
        check_time(timestamp_ms)
        key_bytes, checked = _bytes("key", key), _headers(headers)
        if isinstance(name, str) and name not in self._brokers.cluster.shown.by_name:
            # If topics are created on demand, that includes demand from the test itself.
            asked_for = MetadataRequest(topics=(TopicReference(name=name),))
            metadata(self._brokers.services[0], asked_for, self._asked)
        topic = self.topic(name, prefix)
        if partition is not None:
            self.partition(topic, partition)
        assert self._brokers.clock is not None
        at_ms = self._brokers.clock.now_ms() if timestamp_ms is None else timestamp_ms
        records: list[ReadRecord] = []
        by_partition: dict[int, list[int]] = {}
        for at, value in enumerate(values):
            number = self._place(topic, key_bytes) if partition is None else partition
            by_partition.setdefault(number, []).append(at)
            records.append(
                ReadRecord(
                    topic=name,
                    partition=number,
                    offset=-1,
                    timestamp_ms=at_ms,
                    key=key_bytes,
                    value=_bytes("value", value),
                    headers=checked,
                )
            )
            await _in_turns(at)
        for number, mine in by_partition.items():
            for nth, (batch, chosen) in enumerate(_batches(records, mine), 1):
                await _in_turns(nth * _IN_A_TURN)
                answer = await self._append(topic, number, batch)
                became: dict[str, int] = {}
                if answer.log_append_time_ms >= 0:
                    became["timestamp_ms"] = answer.log_append_time_ms
                for index, at in enumerate(chosen):
                    became["offset"] = answer.base_offset + index
                    records[at] = msgspec.structs.replace(records[at], **became)
        return records

    def _place(self, topic: Topic, key: bytes | None) -> int:
        if key is not None:
            return (_murmur2(key) & 0x7FFFFFFF) % topic.partitions
        turn = self._turn.get(topic.name, 0)
        self._turn[topic.name] = turn + 1
        return turn % topic.partitions

    async def _append(self, topic: Topic, partition: int, batch: bytes) -> logs.AppendedPartition:
        data = logs.OfTopic(
            name=topic.name, topic_id=topic.topic_id, partitions=(logs.ProducedPartition(partition, batch),)
        )
        reply = await self._ask(
            topic, partition, ApiKey.PRODUCE, logs.ProduceRequest(acks=-1, topics=(data,))
        )
        answer: logs.AppendedPartition = reply.topics[0].partitions[0]
        if answer.error_code is not ErrorCode.NONE:
            raise FencepostError(
                f"{topic.name}-{partition}: {answer.error_code.name}: {answer.error_message}"
            )
        return answer

    async def records(
        self,
        name: str,
        partition: int | None,
        prefix: str = "",
        *,
        since: int = 0,
        most: int | None = None,
        in_turns: bool = False,
    ) -> list[ReadRecord]:
        """Return the records of a topic or of one partition, partition by partition.

        Of each partition they are those from the offset `since` on, `most` at most. With `in_turns`, other
        work of the loop has its turn after some records.
        """
        topic = self.topic(name, prefix)
        numbers = range(topic.partitions) if partition is None else [self.partition(topic, partition)]
        return [
            record
            for number in numbers
            for record in (await self._read(topic, number, since, most, in_turns))[:most]
        ]

    async def _read(
        self, topic: Topic, partition: int, since: int, most: int | None, in_turns: bool
    ) -> list[ReadRecord]:
        log = self._brokers.cluster.log(topic, partition)
        found: list[ReadRecord] = []
        turns = 0
        position = first = max(log.log_start_offset, since)
        while position < log.high_watermark and (most is None or len(found) < most):
            wanted = logs.FetchPartition(
                partition=partition, fetch_offset=position, partition_max_bytes=_FETCH_BYTES
            )
            data = logs.OfTopic(name=topic.name, topic_id=topic.topic_id, partitions=(wanted,))
            request = logs.FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=_FETCH_BYTES, topics=(data,))
            reply = await self._ask(topic, partition, ApiKey.FETCH, request)
            batches = reply.topics[0].partitions[0].batches
            if not batches:
                break
            for batch in batches:
                header = stored_batch(batch)
                if not header.is_control:
                    records: Iterable[ReadRecord] = _read_batch(
                        topic.name, partition, batch, header.base_offset
                    )
                    if in_turns and header.last_offset_delta >= _IN_A_TURN:
                        records = await asyncio.to_thread(list, records)
                    found += (each for each in records if each.offset >= first)
                position = header.base_offset + header.last_offset_delta + 1
                if in_turns and len(found) // _IN_A_TURN > turns:
                    turns = len(found) // _IN_A_TURN
                    await asyncio.sleep(0)
        return found

    async def _ask(self, topic: Topic, partition: int, api: ApiKey, request: Any) -> Any:
        services = self._brokers.services_of(self._brokers.cluster.leader_id(topic, partition))
        reply = self._handlers[api](services, request, self._asked)
        return await reply if hasattr(reply, "__await__") else reply


async def _in_turns(done: int) -> None:
    """Let other work of the loop have its turn after each `_IN_A_TURN` records."""
    if done and done % _IN_A_TURN == 0:
        await asyncio.sleep(0)


def _bytes(what: str, text: object) -> bytes | None:
    if text is None or isinstance(text, bytes):
        return text
    if isinstance(text, str):
        return utf_8(what, text)
    several = ", or several as produce(topic, *values)" if isinstance(text, list | tuple) else ""
    raise FencepostError(f"{what}={text!r}: expected bytes, text or None{several}")


def _headers(headers: Headers) -> tuple[tuple[str, bytes | None], ...]:
    pairs: Iterable[Any] = headers.items() if isinstance(headers, Mapping) else headers
    try:
        named = [(name, value) for name, value in pairs]
    except (TypeError, ValueError):
        named = [(None, None)]
    if not all(isinstance(name, str) for name, _ in named):
        raise FencepostError(f"headers={headers!r}: expected a mapping, or pairs of a name and a value")
    for name, _ in named:
        utf_8("headers", name)
    return tuple((name, _bytes(f"headers: {name}", value)) for name, value in named)


def _batches(records: Sequence[ReadRecord], chosen: Sequence[int]) -> Iterator[tuple[bytes, list[int]]]:
    """Yield record batches of the chosen records, each as full as a producer would make it, with the indexes
    of its records."""
    writer, inside = BatchWriter(_BATCH_BYTES), list[int]()
    for at in chosen:
        record = records[at]
        content = (record.timestamp_ms, record.key, record.value, record.headers)
        if len(inside) == _IN_A_BATCH or not writer.add(*content):
            yield writer.batch(), inside
            writer, inside = BatchWriter(_BATCH_BYTES), []
            writer.add(*content)
        inside.append(at)
    if inside:
        yield writer.batch(), inside


def _murmur2(data: bytes) -> int:
    """Return the unsigned hash of a key that Kafka's own partitioner takes (`Utils.murmur2`)."""
    mixed = _MURMUR_SEED ^ len(data)
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        part = int.from_bytes(data[at : at + 4], "little") * _MURMUR_FACTOR & _32_BITS
        part = (part ^ part >> 24) * _MURMUR_FACTOR
        mixed = (mixed * _MURMUR_FACTOR ^ part) & _32_BITS
    if rest := data[whole:]:
        mixed = (mixed ^ int.from_bytes(rest, "little")) * _MURMUR_FACTOR & _32_BITS
    mixed = (mixed ^ mixed >> 13) * _MURMUR_FACTOR & _32_BITS
    return mixed ^ mixed >> 15


def _read_batch(topic: str, partition: int, batch: bytes, offset: int) -> Iterator[ReadRecord]:
    try:
        records = records_in(batch)
    except ProtocolError as error:
        raise FencepostError(
            f"{topic}-{partition}: the batch at offset {offset} can't be read: {error.message}; "
            "no consumer gets past it"
        ) from error
    for record in records:
        yield ReadRecord(
            topic=topic,
            partition=partition,
            offset=record.offset,
            timestamp_ms=record.timestamp,
            key=record.key,
            value=record.value,
            headers=record.headers,
        )
