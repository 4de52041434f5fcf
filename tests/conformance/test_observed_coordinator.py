"""A real broker's group, seen through its journal: what is replayed is what the broker answers."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
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
from fencepost.coordinator.protocol.topics import TopicsImage
from fencepost.simulation.brokers.connection import BrokerConnection
from fencepost.simulation.judge import real_judges
from fencepost.simulation.kernel.observers import hook_lists
from fencepost.simulation.lab.chaos.group_log_tail import GroupLogTail, Stretch
from fencepost.simulation.lab.chaos.merge import LOG, Merge, Merged, RunClock, mark_before
from fencepost.simulation.lab.chaos.observed import ObservedCoordinator
from fencepost.simulation.lab.chaos.played import Arrival
from fencepost.simulation.lab.clusters.artifacts import Installation
from fencepost.simulation.lab.clusters.cluster import RealCluster
from fencepost.simulation.scenarios.load import load_any
from fencepost.simulation.trace.rows import TraceRows
from fencepost.simulation.trace.writer import TraceWriter

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


class Host:
    """A member's host, as observers read it."""

    def __init__(self, name: str) -> None:
        self.name, self.status, self.instance_id, self.member_id = name, "running", None, ""
        self.wanted = True
        self.driver: Any = None


class Rows:
    def __init__(self) -> None:
        self.rows: list[Any] = []

    def write(self, rows: Any, /) -> None:
        self.rows.extend(rows)


class LiveMerge(Merge[Callable[[int], None]]):
    """Lets go of what happened while more of it is still to come, once it was held back for a while.

    A broker that does not answer keeps the journal behind: nothing goes beyond what of it was read.
    """

    HOLD_US = 200_000

    def __init__(self, clock: RunClock) -> None:
        super().__init__()
        self._clock = clock
        self._complete_us = 0

    @property
    def now_us(self) -> int:
        return time.monotonic_ns() // 1_000 - self._clock.began_us

    def follow(self, observed: ObservedCoordinator) -> None:
        """What one fetch brought has arrived when the next one is made."""
        read, complete_ns = observed.journal.read, None

        async def reading() -> Stretch:
            nonlocal complete_ns
            if complete_ns is not None:
                self._complete_us = complete_ns // 1_000 - self._clock.began_us
            stretch = await read()
            complete_ns = stretch.complete_to_ns
            return stretch

        observed.journal.read = reading  # type: ignore[method-assign]

    def take(self) -> Iterator[Merged[Callable[[int], None]]]:
        until_us = min(self.now_us, self._complete_us) - self.HOLD_US
        while self._next and self._next[0][0] <= until_us:
            yield from self._go_on()


class Watch:
    """A group of a real broker under the eyes of all judges, and of the trace_writer."""

    def __init__(self, cluster: RealCluster, group_id: str | None = None) -> None:
        self.servers = cluster.bootstrap_servers
        self.group_id = group_id or f"group-{uuid.uuid4().hex[:8]}"
        self.config = GroupCoordinatorConfig(
            group_consumer_min_session_timeout_ms=100,
            group_consumer_session_timeout_ms=SESSION_MS,
            group_consumer_min_heartbeat_interval_ms=50,
            group_consumer_heartbeat_interval_ms=100,
        )
        self.clock = RunClock()
        self.merge = LiveMerge(self.clock)
        self.members: dict[str, Host] = {}
        self.hosts_by_member: dict[str, str] = {}
        self.findings: list[tuple[str, str]] = []
        self.sink = Rows()
        self.recorder = TraceRows(world="real", group=self.group_id, sink=self.sink)
        self.observers = [TraceWriter(self.recorder), *real_judges()]
        for observer in self.observers:
            observer.attach(
                self, lambda invariant, message, rule="": self.findings.append((invariant, message))
            )
        self.hooks = hook_lists(self.observers)
        self.observed: ObservedCoordinator = None  # type: ignore[assignment]
        self.arrivals: list[Arrival] = []
        self.admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})

    # what judges read

    @property
    def active(self) -> GroupCoordinator:
        return self.observed.coordinator

    @property
    def topics(self) -> TopicsImage:
        return self.observed.topics

    rebalance_timeout_ms = 10_000
    now_us = 0
    scenario = load_any("steady")

    def subscription_of(self, host: str) -> None:
        """What its application subscribes to is not known here."""

    # what tests do

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[Watch]:
        observed = ObservedCoordinator(
            self.group_id,
            self.servers,
            clock=self.clock,
            config=self.config,
            hooks=self.hooks,
            arrive=self._arrive,
        )
        self.observed = observed
        self.merge.follow(observed)
        async with observed:
            pump = asyncio.create_task(self._pump())
            try:
                yield self
            finally:
                pump.cancel()

    def _arrive(self, arrival: Arrival) -> None:
        def play(now_us: int) -> None:
            self.arrivals.append(arrival)
            self.observed.play(arrival, now_us)

        self.merge.push(LOG, arrival.t_us, play, marks=arrival.marks)

    async def _pump(self) -> None:
        while True:
            self.release(self.merge.take())
            await asyncio.sleep(0.02)

    def release(self, released: Iterable[Any]) -> None:
        for each in released:
            self.now_us = each.t_us
            each.item(each.t_us)

    def tell(self, hook: str, *arguments: Any) -> None:
        for method in self.hooks[hook]:
            method(*arguments)

    async def topic(self, partitions: int) -> str:
        """A new topic, once the coordinator's broker knows of it."""
        name = f"topic-{uuid.uuid4().hex[:8]}"
        self.admin.create_topics([NewTopic(name, partitions, 1)])[name].result(20)
        async with asyncio.timeout(30):
            while name not in self.observed.topics.by_name:
                await self.observed.journal.topics()
        self.tell("on_topic", name, "created", partitions, self.now_us)
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
            await self.observed.caught_up()
            await self.played()
            ours, after = self.replayed(), await self.described()
            quiet = before == after
            if quiet and (after.group_state, len(after.members)) == (state, members):
                assert ours == after
                return after
            assert time.monotonic() < deadline, f"not {state} with {members} members: {after}"
            await asyncio.sleep(0.05)

    async def played(self) -> None:
        """Wait until everything that arrived up to now has been played."""
        done = asyncio.get_running_loop().create_future()
        self.merge.push("test", self.merge.now_us, lambda _: done.set_result(None))
        await done

    @asynccontextmanager
    async def consumer(self, name: str, *topics: str, **settings: Any) -> AsyncIterator[KIP848Consumer]:
        """A consumer that polls all the time, and all of whose doings are told."""
        host = self.members.setdefault(name, Host(name))
        told = Told(self, name)
        consumer = KIP848Consumer(
            bootstrap_servers=self.servers,
            group_id=self.group_id,
            auto_offset_reset="earliest",
            observer=told,
            client_id=name,
            **settings,
        )
        await consumer.start()
        host.member_id = consumer.member_id
        host.instance_id = settings.get("group_instance_id")
        self.hosts_by_member[consumer.member_id] = name
        told.push("on_member_host", "start")

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
            self.observed.left(consumer.member_id)
            await consumer.stop()
            told.push("on_member_host", "stopped")


class Told:
    """The observer of a consumer: everything goes into the run's order."""

    def __init__(self, watch: Watch, name: str) -> None:
        self._watch, self._name = watch, name

    def push(self, hook: str, *arguments: Any, after: Any = None) -> None:
        watch = self._watch
        played = partial(watch.tell, hook, self._name, *arguments)
        watch.merge.push(self._name, watch.merge.now_us, played, after=after)

    def on_state(self, event: Any, source: Any, target: Any) -> None:
        self.push("on_member_state", event, source, target)

    def on_request(self, request: Any) -> None:
        self.push("on_member_request", request)

    def on_response(self, request: Any, response: Any) -> None:
        after = mark_before(request.member_id, response)
        self.push("on_member_response", request, response, after=after)

    def on_callback(self, kind: Any, phase: Any, partitions: Any) -> None:
        self.push("on_callback", kind, phase, partitions)

    def on_commit(self, request: Any, response: Any) -> None:
        self.push("on_commit", request, response)


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
        watch.admin.create_partitions([NewPartitions(topic, 9)])[topic].result(20)
        await stack.enter_async_context(watch.consumer("four", topic))
        group = await watch.same(3)
        assert sum(len(each.partitions) for member in group.members for each in member.assignment) == 11
    assert watch.findings == []
    assert watch.merge.overdue == 0
    watch.recorder.flush()
    rows = watch.sink.rows
    kinds = {row[5] for row in rows}
    assert {"group.state", "group.epoch", "group.target", "member.removed", "member.state"} <= kinds
    assert "session" in {row[-1] for row in rows if row[5] == "member.removed"}


async def test_a_partition_with_two_owners_is_found_in_a_broker_s_own_records(node: RealCluster) -> None:
    """The last change of a real journal is given another partition, which is somebody else's."""
    watch = Watch(node)
    clean, tampered = Watch(node, watch.group_id), Watch(node, watch.group_id)
    async with watch.watching(), AsyncExitStack() as stack:
        topic = await watch.topic(4)
        await stack.enter_async_context(watch.consumer("one", topic))
        await stack.enter_async_context(watch.consumer("two", topic))
        await watch.same(2)
    for other in (clean, tampered):
        other.observed = ObservedCoordinator(watch.group_id, watch.servers, hooks=other.hooks)
    arrivals = watch.arrivals
    granted = next(each for each in reversed(arrivals) if grants(each.records))
    for arrival in arrivals:
        clean.observed.play(arrival, arrival.t_us)
        spoiled = with_everything(arrival, 4) if arrival is granted else arrival
        tampered.observed.play(spoiled, arrival.t_us)
    assert clean.findings == []
    assert {"one-owner", "journal-replay"} & {invariant for invariant, _ in tampered.findings}


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
        watch.admin.delete_consumer_groups([watch.group_id])[watch.group_id].result(20)
        await watch.observed.caught_up()
        await watch.played()
        assert watch.group_id not in watch.active.groups
        assert watch.group_id not in watch.active.offsets
        async with watch.consumer("one", topic):
            group = await watch.same(1)
            assert group.group_epoch == 2
    assert watch.findings == []


@pytest.mark.long
async def test_a_group_that_was_there_before_is_loaded(node: RealCluster) -> None:
    early, late = Watch(node), None
    async with early.watching(), AsyncExitStack() as stack:
        topic = await early.topic(4)
        await stack.enter_async_context(early.consumer("one", topic, enable_auto_commit=False))
        await stack.enter_async_context(early.consumer("two", topic, enable_auto_commit=False))
        await early.same(2)
        late = Watch(node, early.group_id)
        async with late.watching():
            await late.same(2)
            await early.same(2)
            assert late.active.hard_state() == early.active.hard_state()
            async with early.consumer("three", topic):
                await late.same(3)
            await late.same(2)
        assert late.findings == []


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
                    written, left = watch.observed.journal.position, 0
                    if written % 100 == 0:
                        left = await count(watch)
                    if 0 < left < written / 2:
                        break
            again = Watch(cluster, watch.group_id)
            async with again.watching():
                await again.same(1)
                await watch.same(1)
                assert again.active.hard_state() == watch.active.hard_state()
            assert again.findings == []
        assert watch.findings == []


async def count(watch: Watch) -> int:
    """How many records of the group are in the journal."""
    found = 0
    async with GroupLogTail(watch.group_id, watch.servers) as journal:
        end = await journal.end()
        while journal.position < end:
            found += sum(len(batch.records) for batch in (await journal.read()).batches)
    return found


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
            assert watch.observed.journal.failures > 0
        assert watch.findings == []
        assert watch.merge.overdue == 0
