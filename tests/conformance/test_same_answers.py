"""The same requests, byte by byte, to our broker and to Kafka's: producers, transactions, settings, logs."""

from __future__ import annotations

import asyncio
import pathlib
import tempfile
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from fencepost import EmbeddedKafka
from tests.conformance.both import SECOND, Peer, answers_of_both, batch_now, struct_of

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]


LISTS = ("", ",", ",,", "delete,", ",delete", "compact,,delete")
"""Elements of a setting, some of them empty."""


class Producer(Peer):
    """Asks what producers ask, and who looks after them."""

    async def in_txn(self, epoch: int, sequence: int, version: int = 11) -> tuple[str, int]:
        return await self.produce(
            batch_now(self.producer, epoch, sequence, txn=True), self.transactional_id, version
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
            (found,) = (await self.described_transactions(transactional_id)).transaction_states
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


async def idempotence(peer: Producer) -> AsyncIterator[Any]:
    one = (await peer.init(None)).producer_id
    for epoch, sequence, count in (
        *((0, 0, 2), (0, 0, 2), (0, 5, 1), (0, 0, 1), (0, 1, 1), (0, 2, 1)),
        *((1, 3, 1), (1, 0, 1), (0, 2, 1), (0, 0, 2), (1, 1, 1)),
    ):
        yield await peer.produce(batch_now(one, epoch, sequence, n=count))
    yield await peer.produce(batch_now(one + 500_000, 0, 7)), "nothing is known of that producer"


async def initializations(peer: Producer) -> AsyncIterator[Any]:
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


async def transactions(peer: Producer) -> AsyncIterator[Any]:
    peer.producer = (await peer.init()).producer_id
    records = batch_now(peer.producer, 0, 0, txn=True)
    yield "not added", await peer.in_txn(0, 0), await peer.in_txn(0, 0, version=9)
    yield "no id", await peer.produce(records), "another id", await peer.produce(records, "other")
    yield "nothing open", await peer.end(0, commit=True), await peer.end(0, commit=False)
    here = (peer.topic, 0)
    yield await peer.add(0, here, ("no-such-topic", 0)), await peer.add(0, here, (peer.topic, 7))
    yield await peer.add(1, here), await peer.add(0, here, producer=peer.producer + 9)
    yield await peer.add(0, here), await peer.in_txn(0, 0)
    yield "outside", await peer.produce(batch_now(peer.producer, 0, 1))
    yield "no id", await peer.produce(batch_now(peer.producer, 0, 1, txn=True))
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


async def transactions_with_epochs(peer: Producer) -> AsyncIterator[Any]:
    peer.producer = (await peer.init()).producer_id
    yield "first", await peer.in_txn(0, 3, version=12), await peer.in_txn(0, 0, version=12)
    yield await peer.end(0, commit=True, version=5)
    yield "retry", await peer.end(0, commit=True, version=5), await peer.in_txn(0, 1, version=12)
    for name in (peer.transactional_id, "other", None):
        yield name == "other", await peer.produce(batch_now(peer.producer, 0, 2, txn=True), name, 12)
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


async def settings(peer: Producer) -> AsyncIterator[Any]:
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
        *((2, peer.topic, ("cleanup.policy", operation, value)) for operation in (2, 3) for value in LISTS),
        *((2, peer.topic, (retention, 2, "1"), (name, 0, None)) for name in ("nope", "cleanup.policy")),
    ):
        yield changes, await peer.alter(kind, name, *changes)
    reply = await peer.create(f"more-{peer.topic}", 1)
    yield sorted(one.name for one in reply.topics[0].configs)


async def times_and_keys(peer: Producer) -> AsyncIterator[Any]:
    began_ms = int(time.time() * 1000)
    for number, configs in enumerate(
        ({"message_timestamp_type": "LogAppendTime"}, {"cleanup_policy": "compact"}, {})
    ):
        name = f"{peer.topic}-{number}"
        yield configs, (await peer.create(name, 1, **configs)).topics[0].error_code.name
        deadline = time.monotonic() + 60
        while True:
            data = struct_of(0, 11, "PartitionProduceData", index=0, records=batch_now(n=2))
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


async def deletions(peer: Producer) -> AsyncIterator[Any]:
    await peer.produce(batch_now(n=5))
    for offset, partition in ((2, 0), (1, 0), (10**6, 0), (-5, 0), (0, 9)):
        yield offset, await peer.delete_records(offset, partition)
    yield await peer.fetch(committed=False), await peer.list_offset(-2, committed=False)
    yield await peer.delete_records(-1), await peer.list_offset(-2, committed=False)


async def deletions_in_a_transaction(peer: Producer) -> AsyncIterator[Any]:
    peer.producer = (await peer.init()).producer_id
    for sequence in (0, 1):
        yield await peer.in_txn(0, sequence, version=12)
    end = (await peer.list_offset(-1, committed=False))[1]
    yield await peer.delete_records(end - 1), await peer.list_offset(-1, committed=True)
    yield await peer.fetch(committed=True, offset=end - 1), await peer.fetch(committed=False, offset=end - 1)
    for _ in range(2):  # the second answer comes when the markers are written
        yield await peer.end(0, commit=True, version=5)
    yield await peer.list_offset(-1, committed=True)


async def waits(peer: Producer) -> AsyncIterator[Any]:
    """Which fetches take as long as they may."""

    def of(name: str, offset: int) -> dict[str, Any]:
        partition = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
        return {"topic": name, "partitions": [partition]}

    end = (await peer.list_offset(-1, committed=False))[1]
    here, wrong, gone = of(peer.topic, end), of(peer.topic, end + 9), of("no-such-topic", 0)
    for topics in ([here], [gone, here], [gone], [wrong], [wrong, gone], [of(peer.topic, 0), gone]):
        for least, most in ((1, 1 << 20), (1 << 20, 1 << 20), (1 << 20, 1), (0, 1)):
            began = time.monotonic()
            fields = {"max_wait": 200, "min_bytes": least, "max_bytes": most, "topics": topics}
            await peer.ask_plain(1, 12, replica_id=-1, isolation_level=0, session_epoch=-1, **fields)
            yield len(topics), least, most, time.monotonic() - began > 0.15


async def inspections(peer: Producer) -> AsyncIterator[Any]:
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


async def sizes(peer: Producer) -> AsyncIterator[Any]:
    """How large logs are."""
    # Where they are, and how much room there is, differs between any two brokers.
    where = ("log_dir", "total_bytes", "usable_bytes")

    async def told(version: int, topics: list[dict[str, Any]] | None) -> Any:
        reply = await peer.asked(35, version, *where, topics=topics)
        for one in reply["results"]:
            # Topics of other tests may be there too.
            one["topics"] = [topic for topic in one["topics"] if topic["name"] in {"", "-more"}]
        return reply

    here, more = peer.topic, f"{peer.topic}-more"
    await peer.create(more, 3)
    deadline = time.monotonic() + 60
    while str(await told(1, None)).count("partition_index") < 4:  # logs are made one after the other
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
    for version in range(1, 6):
        yield version, await told(version, None)
        yield await told(version, [{"topic": here, "partitions": [0]}, {"topic": more, "partitions": [2, 0]}])
        yield await told(version, [{"topic": "no-such-topic", "partitions": [0]}])
    for wanted in (
        *([], [(here, [])], [(here, [0, 0, 7, -1])], [(here, [0]), (here, [0])], [("", [0])], [("a b", [0])]),
        [(more, [1]), ("no-such-topic", [0]), (more, [2, 1])],
    ):
        yield (
            [numbers for _, numbers in wanted],
            await told(5, [{"topic": name, "partitions": numbers} for name, numbers in wanted]),
        )
    peer.producer = (await peer.init()).producer_id
    for _ in range(3):
        await peer.produce(batch_now(n=500))
    await peer.in_txn(0, 0, version=12)
    for _ in range(2):  # the second answer comes when the markers are written
        yield await peer.end(0, commit=True, version=5)
    yield "with a marker", await told(5, None)


@pytest.mark.parametrize(
    "script",
    [
        idempotence,
        initializations,
        transactions,
        transactions_with_epochs,
        settings,
        deletions,
        deletions_in_a_transaction,
        waits,
        inspections,
        sizes,
        times_and_keys,
    ],
    ids=lambda script: script.__name__,
)
async def test_kafka_answers_the_same(script, ours, cluster):
    for mine, kafkas in await answers_of_both(script, Producer, ours.servers, cluster.bootstrap_servers):
        assert mine == kafkas


async def test_the_volume_of_a_journal_is_told_as_kafka_tells_its_own(cluster):
    """Both keep their logs on one disk."""

    async def told(servers: str) -> dict[str, Any]:
        peer = Peer()
        await peer.connect(servers)
        try:
            (found,) = (await peer.asked(35, 4, topics=[]))["results"]
        finally:
            await peer.close()
        return found

    kafkas = await told(cluster.bootstrap_servers)
    with (
        tempfile.TemporaryDirectory(dir=pathlib.Path(kafkas["log_dir"]).parent) as folder,
        EmbeddedKafka(journal=pathlib.Path(folder) / "journal") as kafka,
    ):
        mine = await told(kafka.bootstrap_servers)
        assert mine["log_dir"] == folder
        assert mine["total_bytes"] == kafkas["total_bytes"]
        # Others write to that disk too.
        assert abs(mine["usable_bytes"] - kafkas["usable_bytes"]) < kafkas["total_bytes"] / 10
