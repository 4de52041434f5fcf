"""Changelogs on Kafka: a producer that writes them, and a consumer of no group that reads them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import (
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    ListenerNotFound,
    OutOfOrderSequenceNumber,
    ProducerClosed,
    ProducerFenced,
    ReplicaNotAvailableError,
    TopicAlreadyExistsError,
    TopicAuthorizationFailedError,
    UnknownError,
    UnknownProducerId,
    for_code,
)
from aiokafka.structs import TopicPartition as KafkaPartition

from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.member.kafka.client import why_no_start
from fencepost.member.kafka.connections import stop
from fencepost.member.kafka.errors import AuthenticationError
from fencepost.member.streams.application.changelog import (
    ChangelogUnavailable,
    changelog_topic,
    decode_change,
    encode_change,
)
from fencepost.member.streams.application.port import CommitRefused
from fencepost.member.streams.application.store import Key, TaskStore, Value
from fencepost.member.streams.errors import StreamsError
from fencepost.member.streams.heartbeats import CHANGELOG_CONFIG

_POLL_MS = 200
_WAIT_MS = 10
"""Time that a broker may wait for records, in ms."""
_LOOK_S = 0.1
_VISIBLE_S = 10.0
"""Time until all brokers know of a topic that was created, at most."""
_STALLED_S = 30.0
"""Time in which brokers may return no record, or accept none, before that is a failure."""
_CLOSE_S = 5.0
"""Time that records in the producer may take to be sent when it is closed."""
_OF_THE_PRODUCER = (
    KafkaTimeoutError,
    OutOfOrderSequenceNumber,
    ProducerClosed,
    ProducerFenced,
    UnknownProducerId,
)
"""Errors of one producer, which a new producer may not have."""
_MAY_PASS = (KafkaTimeoutError, ListenerNotFound, ReplicaNotAvailableError, UnknownError)
"""Errors that may pass, though aiokafka does not call them retriable; the last one stands for every code that
it does not know."""


class KafkaChangelog:
    """The changelogs of one client of an application.

    `creates` is true if this client has to create the topics: in a streams group the brokers do.
    """

    def __init__(self, application_id: str, settings: Mapping[str, Any], *, creates: bool) -> None:
        self._application_id = application_id
        self._settings = settings
        self._creates = creates
        self._consumer: AIOKafkaConsumer | None = None
        self._producer: AIOKafkaProducer | None = None
        self._partitions: dict[str, int] = {}
        """The partition count of each changelog that was found, at the last lookup."""
        self._reading = asyncio.Lock()
        self._writing = asyncio.Lock()

    # -- reading -----------------------------------------------------------------------------------------

    async def restore(self, partition: TopicPartition, store: TaskStore) -> None:
        """Bring the store of a processed partition up to the end of its changelog.

        :raises ChangelogUnavailable: if that is not possible now; the store may be half restored.
        :raises AuthenticationError: if a broker does not accept the credentials.
        :raises StreamsError: if it never will be possible, such as for records that can't be read.
        """
        async with self._reading:
            try:
                consumer = await self._reader()
                await self._read(consumer, await self._find(consumer, partition), store)
            except (KafkaError, OSError, TimeoutError) as error:
                await self._forget_reader()
                if isinstance(error, AuthenticationError):
                    raise
                name = changelog_topic(self._application_id, partition.topic)
                reason = str(error) or type(error).__name__
                if not isinstance(error, KafkaError) or error.retriable or isinstance(error, _MAY_PASS):
                    raise ChangelogUnavailable(f"{name}: {reason}") from error
                where = f"{partition.topic}-{partition.partition}"
                raise StreamsError(f"the store of {where} can't be restored from {name}: {reason}") from error

    async def _reader(self) -> AIOKafkaConsumer:
        if self._consumer is None:
            # Brokers respond to one request of a connection after the other: a fetch that waits there for
            # more records than exist holds up the next partition.
            consumer = AIOKafkaConsumer(
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                fetch_max_wait_ms=_WAIT_MS,
                **self._settings,
            )
            await _started(consumer, lambda: stop(consumer))
            self._consumer = consumer
        return self._consumer

    async def _forget_reader(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await stop(consumer)

    async def _read(self, consumer: AIOKafkaConsumer, place: KafkaPartition, store: TaskStore) -> None:
        begin = (await consumer.beginning_offsets([place]))[place]
        end = (await consumer.end_offsets([place]))[place]
        at = store.checkpoint
        if at is None and begin == end:
            return  # there is no changelog yet: the content of the store stands
        if at is None or not begin <= at <= end:
            store.clear()
            at = begin
        if at < end:
            consumer.assign([place])
            try:
                await self._read_on(consumer, place, store, at, end)
            finally:
                consumer.pause(place)  # it would keep fetching more
        store.restored(end)

    async def _read_on(
        self, consumer: AIOKafkaConsumer, place: KafkaPartition, store: TaskStore, at: int, end: int
    ) -> None:
        consumer.seek(place, at)
        clock = asyncio.get_running_loop().time
        progress_at = clock()
        while (position := await consumer.position(place)) < end:
            if position > at:
                at, progress_at = position, clock()
            elif clock() - progress_at > _STALLED_S:
                raise ChangelogUnavailable(f"no record of {place.topic} came for {_STALLED_S:g} s")
            for record in (await consumer.getmany(place, timeout_ms=_POLL_MS)).get(place, ()):
                if store.is_closed:
                    raise ChangelogUnavailable("the store was closed meanwhile")
                store.restore(*self._change(record))

    def _change(self, record: Any) -> tuple[Key, Value | None]:
        try:
            return decode_change(record.key, record.value)
        except ValueError as error:
            raise StreamsError(
                f"{record.topic}-{record.partition} has a record at {record.offset} that is not a change of a"
                f" store: {error}"
            ) from error

    async def _find(self, consumer: AIOKafkaConsumer, partition: TopicPartition) -> KafkaPartition:
        """Return the changelog's partition, once brokers know it."""
        name = changelog_topic(self._application_id, partition.topic)
        count = self._partitions.get(name, 0)
        if partition.partition >= count:  # it may have grown, like the topic
            count = self._partitions[name] = await self._look_up(consumer, name, partition.topic)
        if partition.partition >= count:
            raise StreamsError(
                f"{name} has {count} partitions, too few for partition {partition.partition} of"
                f" {partition.topic}: delete it, or give it as many partitions as {partition.topic} has"
            )
        return KafkaPartition(name, partition.partition)

    async def _look_up(self, consumer: AIOKafkaConsumer, name: str, source: str) -> int:
        """Return the number of partitions of a changelog; create it if that is our task."""
        admin = AIOKafkaAdminClient(**self._settings)
        await _started(admin, admin.close)
        try:
            if self._creates and name not in await consumer.topics():
                await self._create(admin, name, source)
            deadline = asyncio.get_running_loop().time() + _VISIBLE_S
            while name not in await consumer.topics():
                if asyncio.get_running_loop().time() > deadline:
                    break
                await asyncio.sleep(_LOOK_S)
            return len(await _partitions(admin, name))
        finally:
            await admin.close()

    @staticmethod
    async def _create(admin: AIOKafkaAdminClient, name: str, source: str) -> None:
        """Create a compacted topic with as many partitions, and replicas, as another topic."""
        partitions = await _partitions(admin, source)
        topic = NewTopic(
            name,
            num_partitions=len(partitions),
            replication_factor=len(partitions[0]["replicas"]),
            topic_configs=dict(CHANGELOG_CONFIG),
        )
        answer = await admin.create_topics([topic])
        for _, code, *_ in answer.topic_errors:
            if code and code != TopicAlreadyExistsError.errno:
                raise for_code(code)(f"{name} can't be created")

    # -- writing -----------------------------------------------------------------------------------------

    async def write(self, partition: TopicPartition, changes: Mapping[Key, Value | None]) -> int:
        """Write the changes, in this order; return the offset after the last change.

        :raises CommitRefused: if not everything was written.
        :raises StreamsError: if it never will be: a change is too large, or the brokers forbid it.
        """
        name = changelog_topic(self._application_id, partition.topic)
        try:
            producer = await self._writer()
            sent = [
                await producer.send(name, key=key, value=value, partition=partition.partition)
                for key, value in (encode_change(*change) for change in changes.items())
            ]
            async with asyncio.timeout(_STALLED_S):
                written = await asyncio.gather(*sent)
        except (OSError, TimeoutError) as error:
            raise CommitRefused(f"{name}: {str(error) or type(error).__name__}") from error
        except KafkaError as error:
            if error.retriable:
                raise CommitRefused(f"{name}: {error}") from error
            # Brokers wait for the sequence number of a batch that they refused.
            await self._forget_writer()
            if isinstance(error, _OF_THE_PRODUCER):
                raise CommitRefused(f"{name}: {error}") from error
            where = f"{partition.topic}-{partition.partition}"
            raise StreamsError(f"the store of {where} can't be written to {name}: {error}") from error
        return int(written[-1].offset) + 1

    async def _writer(self) -> AIOKafkaProducer:
        async with self._writing:
            if self._producer is None:
                producer = AIOKafkaProducer(enable_idempotence=True, **self._settings)
                await _started(producer)
                self._producer = producer
        return self._producer

    async def _forget_writer(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            with contextlib.suppress(KafkaError):
                try:
                    async with asyncio.timeout(_CLOSE_S):
                        await producer.flush()
                except TimeoutError:
                    # An idempotent producer never gives up by itself, and its `stop` would wait for it.
                    await producer._sender.close()
                await producer.stop()

    async def close(self) -> None:
        """Disconnect. Never raises."""
        await self._forget_writer()
        await self._forget_reader()


async def _partitions(admin: AIOKafkaAdminClient, topic: str) -> Sequence[Any]:
    """Return the partitions of a topic, as brokers describe them.

    :raises ChangelogUnavailable: if there is no such topic.
    :raises KafkaError: if this client may not see it.
    """
    (described,) = await admin.describe_topics([topic])
    if described["error_code"] == TopicAuthorizationFailedError.errno:
        raise TopicAuthorizationFailedError(topic)
    found: Sequence[Any] = described["partitions"]
    if not found:
        raise ChangelogUnavailable(f"there is no topic {topic}")
    return found


async def _started(client: Any, close: Callable[[], Any] | None = None) -> None:
    """Start a client of aiokafka's, which leaves its connections open if it can't be started.

    :raises KafkaConnectionError: if it can't be; AuthenticationError, if that is because of the
        credentials.
    """
    try:
        await client.start()
    except BaseException as error:
        with contextlib.suppress(KafkaError):
            await (close or client.stop)()
        if isinstance(error, KafkaConnectionError):
            raise await why_no_start(client, error) from error
        raise
