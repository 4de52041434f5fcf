"""A real broker's group, seen through its journal: what is replayed is what the broker answers."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiokafka.structs import OffsetAndMetadata, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from fencepost import KIP848Consumer
from fencepost.coordinator.codec.registry import ApiKey
from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.coordinator import GroupCoordinator
from fencepost.coordinator.protocol import records as r
from fencepost.coordinator.protocol.consumer import ConsumerGroupDescribeRequest, DescribedGroup
from fencepost.coordinator.protocol.errors import EnvironmentLacks, ErrorCode
from fencepost.coordinator.protocol.outcome import TopicsChanged
from fencepost.simulation.brokers.connection import BrokerConnection
from fencepost.simulation.lab.chaos.group_log_tail import GroupLogTail
from fencepost.simulation.lab.chaos.merge import RunClock
from fencepost.simulation.lab.chaos.observed import ObservedCoordinator
from fencepost.simulation.lab.chaos.played import Arrival
from fencepost.simulation.lab.clusters.artifacts import Installation
from fencepost.simulation.lab.clusters.cluster import RealCluster
from tests.unit.simulation.played_group import PlayedGroup

pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]

SESSION_MS = 4_000
MEMBER = Path(__file__).parent / "confluent_member.py"


@pytest.fixture(scope="module")
def node(kafka_installation: Installation) -> Iterator[RealCluster]:
    one = RealCluster(properties={"group.consumer.session.timeout.ms": str(SESSION_MS)})
    asyncio.run(one.start())
    try:
        yield one
    finally:
        one.stop()


CONFIG = GroupCoordinatorConfig(
    group_consumer_min_session_timeout_ms=100,
    group_consumer_session_timeout_ms=SESSION_MS,
    group_consumer_min_heartbeat_interval_ms=50,
    group_consumer_heartbeat_interval_ms=100,
)


class Watch(PlayedGroup):
    """A group of a real broker, whose journal is played as it comes."""

    log: ObservedCoordinator

    def __init__(self, cluster: RealCluster) -> None:
        super().__init__(f"group-{uuid.uuid4().hex[:8]}", CONFIG)
        self.servers = cluster.bootstrap_servers
        self.arrivals: list[Arrival] = []
        self.admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[Watch]:
        log = ObservedCoordinator(
            self.group_id, self.servers, clock=RunClock(time.monotonic_ns() // 1_000), arrive=self._arrive
        )
        async with log as self.log:
            yield self

    def _arrive(self, arrival: Arrival) -> None:
        self.arrivals.append(arrival)
        self.played.play(arrival, arrival.t_us)

    async def topic(self, partitions: int) -> str:
        """A new topic, once the coordinator's broker knows of it."""
        name = f"topic-{uuid.uuid4().hex[:8]}"
        self.admin.create_topics([NewTopic(name, partitions, 1)])[name].result(60)
        async with asyncio.timeout(30):
            while name not in self.log.topics.by_name:
                await self.log.journal.topics()
        return name

    async def described(self) -> DescribedGroup:
        request = ConsumerGroupDescribeRequest(group_ids=(self.group_id,))
        deadline = time.monotonic() + 60
        while True:
            for server in self.servers.split(","):
                host, _, port = server.partition(":")
                with contextlib.suppress(EnvironmentLacks):
                    connection = await BrokerConnection.open(host, int(port), "judge")
                    try:
                        reply = await connection.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, request)
                    finally:
                        await connection.close()
                    if reply.groups[0].error_code in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND):
                        return canonical(reply.groups[0])
            assert time.monotonic() < deadline, "no broker coordinates the group"
            await asyncio.sleep(0.1)

    def replayed(self) -> DescribedGroup:
        asked = ConsumerGroupDescribeRequest(group_ids=(self.group_id,))
        reply = self.active.handle(asked, 0).reply
        return canonical(reply.groups[0])

    async def same(self, members: int, *, state: str = "Stable", seconds: float = 60) -> DescribedGroup:
        """Wait until the broker's group is so; what is replayed must be the same then."""
        deadline = time.monotonic() + seconds
        while True:
            before = await self.described()
            await self.log.caught_up()
            ours, after = self.replayed(), await self.described()
            quiet = before == after
            if quiet and (after.group_state, len(after.members)) == (state, members):
                assert ours == after
                return after
            assert time.monotonic() < deadline, f"not {state} with {members} members: {after}"
            await asyncio.sleep(0.05)

    @asynccontextmanager
    async def consumer(self, name: str, *topics: str, **settings: Any) -> AsyncIterator[KIP848Consumer]:
        """A consumer that polls all the time."""
        consumer = KIP848Consumer(
            bootstrap_servers=self.servers,
            group_id=self.group_id,
            auto_offset_reset="earliest",
            client_id=name,
            **settings,
        )
        await consumer.start()

        async def poll() -> None:
            while True:
                await consumer.getmany(timeout_ms=50)

        if topics:
            consumer.subscribe(topics)
        polling = asyncio.create_task(poll())
        try:
            yield consumer
        finally:
            polling.cancel()
            await asyncio.gather(polling, return_exceptions=True)
            self.played.left(consumer.member_id)
            await consumer.stop()


def canonical(group: DescribedGroup) -> DescribedGroup:
    """In one order: a broker's is that of its hash maps. The topics' ids tell topics apart."""

    def topics(found: Any) -> Any:
        ordered = (msgspec.structs.replace(each, partitions=tuple(sorted(each.partitions))) for each in found)
        return tuple(sorted(ordered, key=lambda each: each.topic_id))

    members = (
        msgspec.structs.replace(
            member,
            assignment=topics(member.assignment),
            target_assignment=topics(member.target_assignment),
            subscribed_topic_names=tuple(sorted(member.subscribed_topic_names)),
        )
        for member in group.members
    )
    return msgspec.structs.replace(
        group, members=tuple(sorted(members, key=lambda each: each.member_id)), error_message=None
    )


@pytest.mark.long
async def test_what_is_replayed_is_what_the_broker_answers(node: RealCluster) -> None:
    watch = Watch(node)
    async with watch.watching(), AsyncExitStack() as stack:
        topic = await watch.topic(6)
        first = await stack.enter_async_context(watch.consumer("one", topic))
        await watch.same(1)
        await stack.enter_async_context(watch.consumer("two", topic, group_instance_id="static"))
        group = await watch.same(2)
        assert sorted(len(member.assignment[0].partitions) for member in group.members) == [3, 3]

        process = await asyncio.create_subprocess_exec(
            sys.executable, MEMBER, watch.servers, watch.group_id, topic, stdout=asyncio.subprocess.PIPE
        )
        await watch.same(3)
        process.kill()
        await process.wait()
        await watch.same(2)

        async with watch.consumer("three") as third:
            third.subscribe(pattern=f"{topic}.*")
            await watch.same(3)
        await watch.same(2)
        first.subscribe([topic, await watch.topic(2)])
        await watch.same(2)
        watch.admin.create_partitions([NewPartitions(topic, 9)])[topic].result(60)
        await stack.enter_async_context(watch.consumer("four", topic))
        group = await watch.same(3)
        assert sum(len(each.partitions) for member in group.members for each in member.assignment) == 11
    assert watch.findings == []
    watch.recorder.flush()
    rows = watch.rows
    kinds = {row[5] for row in rows}
    assert {"group.state", "group.epoch", "group.target", "member.removed"} <= kinds
    assert "session" in {row[-1] for row in rows if row[5] == "member.removed"}


async def test_a_partition_with_two_owners_is_found_in_a_broker_s_own_records(node: RealCluster) -> None:
    """The last change of a real journal is given another partition, which is somebody else's."""
    watch = Watch(node)
    clean, tampered = PlayedGroup(watch.group_id, CONFIG), PlayedGroup(watch.group_id, CONFIG)
    async with watch.watching(), AsyncExitStack() as stack:
        topic = await watch.topic(4)
        await stack.enter_async_context(watch.consumer("one", topic))
        await stack.enter_async_context(watch.consumer("two", topic))
        await watch.same(2)
        arrivals = watch.arrivals.copy()  # while members leave, one may own all partitions
    granted = next(each for each in reversed(arrivals) if grants(each.records))
    for arrival in arrivals:
        clean.played.play(arrival, arrival.t_us)
        spoiled = with_everything(arrival, 4) if arrival is granted else arrival
        tampered.played.play(spoiled, arrival.t_us)
    assert clean.findings == []
    assert {"one-owner", "journal-replay"} & tampered.broken


def grants(records: tuple[r.Record, ...]) -> bool:
    return any(
        isinstance(each.value, r.ConsumerGroupCurrentMemberAssignmentValue) and each.value.assigned
        for each in records
    )


def with_everything(arrival: Arrival, partitions: int) -> Arrival:
    """All partitions of each topic are the member's."""
    spoiled = []
    for each in arrival.records:
        value = each.value
        if isinstance(value, r.ConsumerGroupCurrentMemberAssignmentValue):
            every = dict.fromkeys(value.assigned, tuple(range(partitions)))
            value = msgspec.structs.replace(value, assigned=every, member_epoch=value.member_epoch + 1)
        spoiled.append(msgspec.structs.replace(each, value=value))
    return msgspec.structs.replace(arrival, records=tuple(spoiled))


async def test_a_group_is_deleted_and_comes_back(node: RealCluster) -> None:
    watch = Watch(node)
    async with watch.watching():
        topic = await watch.topic(3)
        async with watch.consumer("one", topic) as consumer:
            await watch.same(1)
            await consumer.commit()
        await watch.same(0, state="Empty")
        watch.admin.delete_consumer_groups([watch.group_id])[watch.group_id].result(60)
        await watch.log.caught_up()
        assert watch.group_id not in watch.active.groups
        assert watch.group_id not in watch.active.offsets
        async with watch.consumer("one", topic):
            group = await watch.same(1)
            assert group.group_epoch == 2
    assert watch.findings == []


@pytest.mark.long
async def test_a_compacted_journal_leads_to_the_same_group(kafka_installation: Installation) -> None:
    """A broker that compacts at once: most of what happened is gone when the journal is read anew."""
    properties = {
        "offsets.topic.segment.bytes": str(1 << 20),
        "log.cleaner.backoff.ms": "200",
        "log.cleaner.min.cleanable.ratio": "0.01",
        "log.cleaner.delete.retention.ms": "100",
    }
    async with RealCluster(properties=properties) as cluster:
        watch = Watch(cluster)
        async with watch.watching(), AsyncExitStack() as stack:
            topic = await watch.topic(4)
            first = await stack.enter_async_context(watch.consumer("one", topic, enable_auto_commit=False))
            for _ in range(3):
                async with watch.consumer("two", topic):
                    await watch.same(2)
                await watch.same(1)
            async with asyncio.timeout(90):
                while True:
                    # A segment is compacted once it is full, and another one has begun.
                    await first.commit({TopicPartition(topic, 0): OffsetAndMetadata(0, "x" * 4_000)})
                    written, left = watch.log.journal.position, 0
                    if written % 100 == 0:
                        left, _ = await read_anew(watch)
                    if 0 < left < written / 2:
                        break
            await watch.same(1)
            _, again = await read_anew(watch)
            again.handle(TopicsChanged(image=watch.active.image), 0)
            assert again.hard_state() == watch.active.hard_state()
        assert watch.findings == []


async def read_anew(watch: Watch) -> tuple[int, GroupCoordinator]:
    """How many records of the group are in the journal, and the coordinator that they make."""
    found, made = 0, GroupCoordinator(CONFIG)
    async with GroupLogTail(watch.group_id, watch.servers) as journal:
        end = await journal.end()
        while journal.position < end:
            for batch in await journal.read():
                found += len(batch.records)
                made.replay([each.record for each in batch.records if isinstance(each.record, r.Record)], 0)
    return found, made


@pytest.mark.long
async def test_it_follows_the_journal_from_broker_to_broker(kafka_installation: Installation) -> None:
    async with RealCluster(nodes=3, properties={"group.consumer.session.timeout.ms": "20000"}) as cluster:
        watch = Watch(cluster)
        async with watch.watching(), AsyncExitStack() as stack:
            topic = await watch.topic(6)
            await stack.enter_async_context(watch.consumer("one", topic))
            await watch.same(1)
            (leader,) = {arrival.leader for arrival in watch.arrivals}
            await cluster.kill(leader)
            await stack.enter_async_context(watch.consumer("two", topic))
            await watch.same(2)
            await cluster.restart(leader)
            async with watch.consumer("three", topic):
                await watch.same(3)
            await watch.same(2)
            assert len({arrival.leader for arrival in watch.arrivals}) > 1
            assert watch.log.journal.failures > 0
        assert watch.findings == []
