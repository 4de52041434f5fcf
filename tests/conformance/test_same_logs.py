"""The same requests about records to our broker and to Kafka's: what is told, and in which order."""

from __future__ import annotations

import asyncio
import struct
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest

from fencepost.coordinator.codec.batches import whole_batches
from tests.conformance.both import SECOND, Peer, answers_of_both, batch_now, struct_of

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]
OWN, MORE, UNKNOWN = "own", "more", "no-such-topic"
"""Topics of one partition, of two, and one that there is not."""
FIRST_BY_ID, FIRST_WITH_SESSIONS, FIRST_WITH_EPOCHS, LAST_WITH_REPLICA = 13, 7, 12, 14
"""Versions of Fetch; Produce begins with ids at the same one."""

Wanted = tuple[str, int, int, int]
"""A topic, a partition, an offset, and the leader epoch of the record before it."""
Sent = tuple[str, int, bytes]
"""A topic, a partition and a batch."""


def name_of(topic: Any) -> str:
    name: str = topic.topic if hasattr(topic, "topic") else topic.name
    return name


def told(one: Any) -> Any:
    """What is told of one partition; a log that parts from what was fetched tells where."""
    end = getattr(one, "diverging_epoch", None)
    return (
        *(one.partition_index, one.error_code.name, len(one.records or b""), one.high_watermark),
        *(one.aborted_transactions, end and (end.epoch, end.end_offset)),
    )


class Reader(Peer):
    """Produces to the topics above, and fetches from them."""

    async def begin(self) -> None:
        await super().begin()
        self.names = {OWN: self.topic, MORE: f"{self.topic}-more", UNKNOWN: UNKNOWN}
        await self.create(self.names[MORE], 2)
        await self.until_led(self.names[MORE], 2)
        topics = [{"name": self.names[label]} for label in (OWN, MORE)]
        found = (await self.ask_plain(3, 12, topics=topics)).topics
        self.labels: dict[Any, str] = {name: label for label, name in self.names.items()}
        self.ids = {self.labels[topic.name]: topic.topic_id for topic in found}
        self.ids[UNKNOWN] = uuid.UUID(int=77)
        self.labels |= {topic_id: label for label, topic_id in self.ids.items()}

    def label_of(self, topic: Any) -> str:
        return self.labels[topic.topic_id if hasattr(topic, "topic_id") else name_of(topic)]

    async def delete(self, label: str) -> None:
        """Delete a topic; returns once the broker knows."""
        state = struct_of(20, 6, "DeleteTopicState", name=self.names[label], topic_id=None)
        await self.ask(20, 6, topics=(state,), timeout=10 * SECOND)
        deadline = time.monotonic() + 60
        while (await self.ask_plain(3, 12, topics=[{"name": self.names[label]}])).topics[
            0
        ].error_code.name == "none":
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)

    async def create_again(self, label: str, new_label: str) -> None:
        """Create a topic under the name of another; its id goes by the new label."""
        name = self.names[new_label] = self.names[label]
        await self.create(name, 1)
        await self.until_found(name)
        await self.until_led(name, 1)
        (topic,) = (await self.ask_plain(3, 12, topics=[{"name": name}])).topics
        self.ids[new_label] = topic.topic_id
        self.labels[topic.topic_id] = new_label
        self.labels.setdefault(name, new_label)

    async def fetch(
        self, version: int, *wanted: Wanted, session: tuple[int, int] = (0, -1), wait_ms: int = 0
    ) -> Any:
        """The answer's session, and what it tells, in its order."""
        topics = []
        for label, number, offset, epoch in wanted:
            part = {"partition": number, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
            if version >= FIRST_WITH_EPOCHS:
                part["last_fetched_epoch"] = epoch
            by = {"topic_id": self.ids[label]} if version >= FIRST_BY_ID else {"topic": self.names[label]}
            topics.append({**by, "partitions": [part]})
        fields: dict[str, Any] = {"topics": topics, "max_bytes": 1 << 20, "isolation_level": 1}
        if wait_ms:
            fields |= {"max_wait": wait_ms, "min_bytes": 1}
        if version <= LAST_WITH_REPLICA:
            fields["replica_id"] = -1
        if version >= FIRST_WITH_SESSIONS:
            fields["session_id"], fields["session_epoch"] = session
        reply = await self.ask_plain(1, version, **fields)
        return getattr(reply, "session_id", 0), [
            (self.label_of(topic), [told(one) for one in topic.partitions]) for topic in reply.responses
        ]

    async def send(self, version: int, *sent: Sent, txn: str | None = None) -> list[Any]:
        """Codes and offsets; they come in the order of a hash map."""
        topics = [
            {
                **({"topic_id": self.ids[label]} if version >= FIRST_BY_ID else {"name": self.names[label]}),
                "partition_data": (
                    struct_of(0, version, "PartitionProduceData", index=number, records=records),
                ),
            }
            for label, number, records in sent
        ]
        data = tuple(struct_of(0, version, "TopicProduceData", **topic) for topic in topics)
        fields = {"transactional_id": txn, "acks": -1, "timeout": 5 * SECOND, "topic_data": data}
        reply = await self.ask(0, version, **fields)
        return sorted(
            (self.label_of(topic), one.index, one.error_code.name, one.base_offset)
            for topic in reply.responses
            for one in topic.partition_responses
        )


MIXED: tuple[tuple[Wanted, ...], ...] = (
    ((UNKNOWN, 0, 0, -1), (OWN, 0, 0, -1)),
    ((MORE, 9, 0, -1), (UNKNOWN, 0, 0, -1), (MORE, 0, 0, -1), (OWN, 0, 0, -1), (OWN, 7, 0, -1)),
    ((OWN, 0, 99, -1), (MORE, 7, 0, -1), (OWN, 0, 0, -1), (MORE, 1, 0, -1)),
    ((OWN, 0, 0, -1), (MORE, 0, 0, -1), (OWN, 0, 1, -1), (MORE, 7, 0, -1), (MORE, 7, 1, -1)),
)


async def fetches(peer: Reader) -> AsyncIterator[Any]:
    """Of what there is and what there is not, some of it twice."""
    for version in (4, 7, 12, 13, 18):
        for wanted in MIXED:
            yield version, wanted, (await peer.fetch(version, *wanted))[1]


async def fetches_in_sessions(peer: Reader) -> AsyncIterator[Any]:
    """A session begins in the order of its first answer; what had records is read last the next time."""
    for version in (7, 12, 13):
        wanted = ((MORE, 7, 0, -1), (MORE, 0, 0, -1), (UNKNOWN, 0, 0, -1), (OWN, 0, 0, -1))
        session, answer = await peer.fetch(version, *wanted, session=(0, 0))
        yield version, session > 0, answer
        for epoch, more in enumerate(((), ((MORE, 1, 99, -1),), ((MORE, 0, 5, -1),), ()), 1):
            yield epoch, (await peer.fetch(version, *more, session=(session, epoch)))[1]


async def fetches_in_sessions_that_outlive_a_topic(peer: Reader) -> AsyncIterator[Any]:
    """A session keeps the name that a topic's id had, so the topic is deleted first, then another one."""
    for version in (12, 13, 18):
        session, answer = await peer.fetch(version, (OWN, 0, 1, -1), (MORE, 0, 0, -1), session=(0, 0))
        yield version, answer
        await peer.delete(OWN)
        for epoch in (1, 2):
            yield "deleted", (await peer.fetch(version, session=(session, epoch)))[1]
        again = f"{OWN}-{version}"
        await peer.create_again(OWN, again)
        for epoch in (3, 4):
            yield "created again", (await peer.fetch(version, session=(session, epoch)))[1]
        yield (
            "new id named",
            (await peer.fetch(version, (again, 0, 0, -1), session=(session, 5)))[1],
            (await peer.fetch(version, session=(session, 6)))[1],
        )
        yield "old id named again", (await peer.fetch(version, (OWN, 0, 0, -1), session=(session, 7)))[1]
        fresh, answer = await peer.fetch(version, (OWN, 0, 0, -1), (again, 0, 0, -1), session=(0, 0))
        yield "new session", answer, (await peer.fetch(version, session=(fresh, 1)))[1]
        yield "no session", (await peer.fetch(version, (OWN, 0, 0, -1)))[1]
        peer.ids[OWN] = peer.ids[again]
        peer.labels[peer.ids[OWN]] = OWN


async def waits_for_topics_that_are_gone(peer: Reader) -> AsyncIterator[Any]:
    """A deleted topic ends no wait for another one; one that was created again does, each time."""

    async def waited(session: int, epoch: int) -> tuple[bool, Any]:
        began = time.monotonic()
        answer = await peer.fetch(13, session=(session, epoch), wait_ms=3_000)
        return time.monotonic() - began > 2, answer[1]

    session, answer = await peer.fetch(13, (OWN, 0, 1, -1), (MORE, 0, 0, -1), session=(0, 0))
    yield answer
    await peer.delete(OWN)
    yield await waited(session, 1)
    await peer.create_again(OWN, "again")
    yield await waited(session, 2), await waited(session, 3)
    alone, _ = await peer.fetch(13, ("again", 0, 0, -1), session=(0, 0))
    peer.names[OWN] = peer.names["again"]
    await peer.delete("again")
    yield await waited(alone, 1), await waited(alone, 2)


async def topics_deleted_while_a_fetch_waits(peer: Reader) -> AsyncIterator[Any]:
    """The fetch ends at once, in a session or not, and in all versions with the same error."""
    for version in (12, 13, 18):
        for begin in (-1, 0):
            label = f"waited for {version} {begin}"
            peer.names[label] = f"{peer.topic}-{version}-{begin}"
            await peer.create_again(label, label)
            other = Peer()
            await other.connect(peer.servers)
            fetch = peer.fetch(version, (label, 0, 0, -1), session=(0, begin), wait_ms=30_000)
            waiting = asyncio.create_task(fetch)
            await asyncio.sleep(0.5)
            state = struct_of(20, 6, "DeleteTopicState", name=peer.names[label], topic_id=None)
            await other.ask(20, 6, topics=(state,), timeout=10 * SECOND)
            began = time.monotonic()
            answer = (await waiting)[1]
            yield version, begin, answer, time.monotonic() - began < 10
            await other.close()


async def fetches_after_other_epochs(peer: Reader) -> AsyncIterator[Any]:
    """From logs that never had what was fetched, or have no such epoch (KIP-595)."""
    for version in (11, 12, 18):
        for offset in (0, 1, 2, 99):
            for epoch in (-1, 0, 1):
                answer = await peer.fetch(version, (OWN, 0, offset, epoch), (MORE, 0, 0, epoch))
                yield version, offset, epoch, answer[1]
    session, answer = await peer.fetch(13, (OWN, 0, 99, 0), (MORE, 0, 0, -1), session=(0, 0))
    yield answer, [(await peer.fetch(13, session=(session, epoch)))[1] for epoch in (1, 2)]


async def fetches_within_limits(peer: Reader) -> AsyncIterator[Any]:
    """Of what does not fit it is not told either which transactions were aborted."""
    await peer.send(13, (MORE, 0, batch_now(n=9)), (MORE, 1, batch_now(n=3)))
    topics = [
        {"topic": peer.names[label], "partitions": [{"partition": number, "partition_max_bytes": 1 << 20}]}
        for label, number in ((MORE, 0), (OWN, 0), (MORE, 1))
    ]
    for most in (0, 1, 69, 70, 138, 200, 300, 1 << 20):
        for committed in (0, 1):
            fields = {"replica_id": -1, "session_epoch": -1, "isolation_level": committed}
            reply = await peer.ask_plain(1, 12, topics=topics, max_bytes=most, **fields)
            yield (
                most,
                committed,
                [
                    (
                        peer.label_of(topic),
                        len(list(whole_batches(one.records or b""))),
                        one.aborted_transactions,
                    )
                    for topic in reply.responses
                    for one in topic.partitions
                ],
            )


async def positions_in_open_transactions(peer: Reader) -> AsyncIterator[Any]:
    """As consumers are told, and as others are."""
    producer = (await peer.init()).producer_id
    yield await peer.produce(batch_now(producer, 0, 0, txn=True, n=3), peer.transactional_id, 12)
    for replica in (-1, -2):
        for time_ms in (-1, -2, -3, 0):
            for committed in (0, 1):
                wanted = [{"name": peer.topic, "partitions": [{"partition_index": 0, "timestamp": time_ms}]}]
                fields = {"replica_id": replica, "isolation_level": committed, "topics": wanted}
                yield replica, time_ms, committed, await peer.asked(2, 7, "timestamp", **fields)


async def batches(peer: Reader) -> AsyncIterator[Any]:
    """Batches with an offset, and several for one partition: the last one counts."""
    for version in (3, 12, 13):
        yield version, await peer.send(version, (OWN, 0, struct.pack(">q", 55) + batch_now()[8:]))
        both = (
            (OWN, 0, batch_now(n=2)),
            (MORE, 0, batch_now()),
            (OWN, 0, batch_now(n=3)),
            (OWN, 7, batch_now()),
        )
        yield await peer.send(version, *both), await peer.list_offset(-1, committed=False)


async def batches_of_other_formats(peer: Reader) -> AsyncIterator[Any]:
    """What is no batch of today is no transactional one either, whatever its bits say."""
    odd = bytearray(batch_now(5, 0, 0, txn=True))
    for magic in (0, 1):
        odd[16] = magic
        for version in (9, 12, 13):
            yield magic, version, await peer.send(version, (OWN, 0, bytes(odd)), (MORE, 0, batch_now()))


async def batches_of_several_producers(peer: Reader) -> AsyncIterator[Any]:
    """A transaction is one producer's, at one epoch; partitions that there are not don't matter."""
    producer = (await peer.init()).producer_id
    for version in (9, 12, 13):
        for own, other in (((producer, 0), (producer, 1)), ((producer, 0), (producer + 1, 0))):
            for label, number in ((MORE, 0), (MORE, 7), (UNKNOWN, 0)):
                sent = (
                    (OWN, 0, batch_now(*own, 5, txn=True)),
                    (label, number, batch_now(*other, 0, txn=True)),
                )
                yield version, label, number, await peer.send(version, *sent, txn=peer.transactional_id)
            for more in ((MORE, 7, batch_now()), (MORE, 1, b"?" * 61), (UNKNOWN, 0, batch_now())):
                both = ((OWN, 0, batch_now(*own, 5, txn=True)), (MORE, 0, batch_now(*other, 0, txn=True)))
                yield version, more[:2], await peer.send(version, *both, more, txn=peer.transactional_id)


async def markers(peer: Reader) -> AsyncIterator[Any]:
    """Who sets the time of what ends a transaction."""
    for kind in ("CreateTime", "LogAppendTime"):
        peer.topic = f"{peer.names[OWN]}-{kind}"
        await peer.create(peer.topic, 1, message_timestamp_type=kind)
        await peer.until_led(peer.topic, 1)
        begun = await peer.init()
        peer.producer, epoch = begun.producer_id, begun.producer_epoch
        records = batch_now(peer.producer, epoch, 0, txn=True)
        yield kind, await peer.produce(records, peer.transactional_id, 12)
        for _ in range(2):  # the second answer comes when the markers are written
            yield await peer.end(epoch, commit=True, version=5)
        parts = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}]
        fields = {"replica_id": -1, "session_epoch": -1, "max_bytes": 1 << 20}
        reply = await peer.ask_plain(1, 12, topics=[{"topic": peer.topic, "partitions": parts}], **fields)
        (found,) = reply.responses[0].partitions
        yield [(header.attributes, header.records) for header, _ in whole_batches(found.records)]


async def deletions_of_one_partition(peer: Reader) -> AsyncIterator[Any]:
    """Several for one partition: the last one counts."""
    await peer.produce(batch_now(n=5))
    partitions = [
        {"partition_index": number, "offset": offset} for number, offset in ((0, 4), (7, 1), (0, 2))
    ]
    topics = [{"name": peer.topic, "partitions": partitions}] * 2
    yield await peer.asked(21, 2, topics=topics, timeout=5_000)
    yield await peer.list_offset(-2, committed=False)


async def producers(peer: Reader) -> AsyncIterator[Any]:
    """Ids without an epoch, and epochs without an id."""
    for version in (3, 4, 5):
        for name in (None, peer.transactional_id):
            for producer, epoch in ((5, -1), (-1, 0), (5, 0) if name is None else (-1, 0)):
                fields = {"transactional_id": name, "producer_id": producer, "producer_epoch": epoch}
                reply = await peer.ask_plain(22, version, transaction_timeout=60_000, **fields)
                yield version, name is None, producer, epoch, reply.error_code.name, reply.producer_epoch


@pytest.mark.parametrize(
    "script",
    [
        *(fetches, fetches_in_sessions, fetches_after_other_epochs),
        *(fetches_in_sessions_that_outlive_a_topic, waits_for_topics_that_are_gone),
        topics_deleted_while_a_fetch_waits,
        *(fetches_within_limits, positions_in_open_transactions),
        *(batches, batches_of_other_formats, batches_of_several_producers),
        *(markers, deletions_of_one_partition, producers),
    ],
    ids=lambda script: script.__name__,
)
async def test_kafka_answers_the_same(script, ours, cluster):
    for mine, kafkas in await answers_of_both(script, Reader, ours.servers, cluster.bootstrap_servers):
        assert mine == kafkas
