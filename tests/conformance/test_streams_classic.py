"""Kafka Streams in the classic protocol: Java instances at our endpoint, our application in their group."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import aiokafka
import pytest
from confluent_kafka.admin import AdminClient

from fencepost.coordinator.protocol.consumer_protocol import read_subscription
from fencepost.member.classic.assignors.plain import RangeAssignor
from fencepost.member.classic.assignors.streams import StreamsAssignor
from fencepost.member.classic.assignors.subscription_info import read_subscription_info
from fencepost.member.kafka.classic import ClassicConsumer
from fencepost.member.kafka.streams import StreamsApp
from fencepost.member.streams.client_states import StreamClientState
from fencepost.member.streams.handler import StreamThreadExceptionResponse
from tests.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]

SECONDS = 90
QUICK = ("heartbeat.interval.ms=100", "session.timeout.ms=20000")


class Java:
    """An instance of java/StreamsApplication in a test that does not block."""

    def __init__(self, process: Any) -> None:
        self.process = process
        self.tell = process.tell

    @property
    def said(self) -> list[str]:
        return self.process.said

    async def says(self, condition: Callable[[str], object]) -> str:
        return await asyncio.to_thread(self.process.wait, condition)

    async def reaches(self, state: str) -> None:
        await self.says(lambda line: line.startswith(f"STATE {state} "))

    async def tasks(self) -> set[str]:
        """The ids of its active tasks."""
        self.tell("tasks")
        line = await self.says(lambda line: line.startswith("TASKS"))
        return set(line.split()[1].split(",")) - {"-"}


class Ours:
    """Our application: each value that was processed, and where to fail."""

    def __init__(self, servers: str, topic: str, group: str, **settings: Any) -> None:
        self.values: list[str] = []
        self.poison: str | None = None
        self.app = StreamsApp(
            self._process,
            topics=[topic],
            group_id=group,
            bootstrap_servers=servers,
            group_protocol="classic",
            commit_interval_ms=100,
            heartbeat_interval_ms=100,
            session_timeout_ms=20_000,
            handler=lambda error: StreamThreadExceptionResponse.SHUTDOWN_APPLICATION,
            **settings,
        )

    async def _process(self, partition: Any, records: Sequence[Any]) -> None:
        for record in records:
            value = record.value.decode()
            if value == self.poison:
                raise ValueError("told to fail")
            self.values.append(value)


class Stranger(RangeAssignor):
    """Calls itself as Kafka Streams does, and says something else."""

    name = "stream"
    cooperative = True

    def user_data(self) -> bytes | None:
        return b"\x00\x01 what is this"


class Group:
    """Instances of either make in one group, on a topic of twelve partitions."""

    def __init__(self, servers: str, name: str, topic: str, start_java: Callable[..., Any]) -> None:
        self.servers = servers
        self.name = name
        self.topic = topic
        self._start_java = start_java
        self._admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
        self.apps: list[StreamsApp] = []

    def java(self, *settings: str) -> Java:
        words = (self.servers, self.name, "classic", "copy", self.topic, "single", *QUICK, *settings)
        return Java(self._start_java(*words))

    async def ours(self, **settings: Any) -> Ours:
        made = Ours(self.servers, self.topic, self.name, **settings)
        self.apps.append(made.app)
        await made.app.start()
        return made

    async def produce(self, *values: str) -> None:
        async with aiokafka.AIOKafkaProducer(bootstrap_servers=self.servers) as producer:
            for number, value in enumerate(values):
                await producer.send_and_wait(self.topic, value.encode(), partition=number % 12)

    async def has_members(self, count: int) -> None:
        """Waits until the group is stable with that many members."""

        def look() -> tuple[str, int]:
            told = self._admin.describe_consumer_groups([self.name])[self.name].result(60)
            return told.state.name, len(told.members)

        deadline = time.monotonic() + SECONDS
        while (seen := await asyncio.to_thread(look)) != ("STABLE", count):
            assert time.monotonic() < deadline, f"it is {seen}"
            await asyncio.sleep(0.1)


@pytest.fixture
async def make_group(streams_application) -> AsyncIterator[Callable[..., Group]]:
    groups: list[Group] = []

    def make(servers: str, topic: str) -> Group:
        groups.append(Group(servers, f"app-{uuid.uuid4().hex[:8]}", topic, streams_application))
        return groups[-1]

    yield make
    for each in groups:
        for app in each.apps:
            await app.close(20)


@pytest.fixture
def group(served, make_group) -> Group:
    """At our broker."""
    return make_group(served.bootstrap_servers, "orders")


def numbers(first: int, last: int) -> list[str]:
    return [str(number) for number in range(first, last)]


@pytest.mark.long
async def test_two_java_instances_share_process_and_end_together(group):
    # Java's threads do not leave when their client closes: one that joins again waits for sessions to end.
    one = group.java("session.timeout.ms=8000")
    await one.reaches("RUNNING")
    await group.produce(*numbers(0, 24))
    two = group.java("session.timeout.ms=8000", "num.stream.threads=2")
    await two.reaches("RUNNING")
    deadline = time.monotonic() + SECONDS
    while not (theirs := await two.tasks()) or len(theirs | await one.tasks()) < 12:
        assert time.monotonic() < deadline, "the tasks are not shared"
        await asyncio.sleep(0.1)
    await group.produce(*numbers(24, 48))
    missing = set(numbers(0, 48))
    while missing:
        assert time.monotonic() < deadline, f"{missing} were not processed"
        await asyncio.sleep(0.1)
        for each in (one, two):
            await each.tasks()
            missing -= {line[7:] for line in each.said if line.startswith("RECORD")}
    one.tell("throw SHUTDOWN_APPLICATION")
    await one.reaches("ERROR")
    await two.reaches("ERROR")


@pytest.mark.parametrize("we_lead", [pytest.param(True, marks=pytest.mark.long), False])
async def test_our_application_shares_a_group_with_a_java_instance(group, we_lead):
    if we_lead:
        ours = await group.ours(threads=2)
        await until(lambda: ours.app.state is StreamClientState.RUNNING)
        java = group.java()
        await java.reaches("RUNNING")
    else:
        java = group.java()
        await java.reaches("RUNNING")
        ours = await group.ours(threads=2)
    await until(lambda: ours.app.state is StreamClientState.RUNNING)
    deadline = time.monotonic() + SECONDS
    while len(await java.tasks()) != 4:
        assert time.monotonic() < deadline, "the tasks are not shared"
        await asyncio.sleep(0.1)
    await group.produce(*numbers(0, 48))
    missing = set(numbers(0, 48))
    while missing:
        assert time.monotonic() < deadline, f"{missing} were not processed"
        await asyncio.sleep(0.1)
        await java.tasks()
        missing -= {line[7:] for line in java.said if line.startswith("RECORD")} | set(ours.values)
    assert ours.values
    if we_lead:
        java.tell("throw SHUTDOWN_APPLICATION")
    else:
        ours.poison = "poison"
        await group.produce(*["poison"] * 12)
    await java.reaches("ERROR")
    assert await asyncio.wait_for(ours.app.wait_ended(), SECONDS) is StreamClientState.ERROR


async def test_the_only_thread_of_a_client_takes_the_others_along(world, make_group):
    group = make_group(world.servers, world.topic(12))
    alone = await group.ours(threads=1)
    others = [await group.ours(threads=2) for _ in range(2)]
    apps = [alone.app, *(each.app for each in others)]
    await until(lambda: all(app.state is StreamClientState.RUNNING for app in apps))
    await group.has_members(5)
    alone.poison = "poison"
    await group.produce(*["poison"] * 12)
    ended = await asyncio.wait_for(asyncio.gather(*(app.wait_ended() for app in apps)), SECONDS)
    assert ended == [StreamClientState.ERROR] * 3


async def test_a_stranger_in_the_group_gets_nothing_and_stops_nobody(group):
    ours = await group.ours(threads=1)
    await until(lambda: ours.app.state is StreamClientState.RUNNING)
    stranger = ClassicConsumer(
        "orders",
        assignors=(Stranger(),),
        bootstrap_servers=group.servers,
        group_id=group.name,
        heartbeat_interval_ms=100,
    )
    await asyncio.wait_for(stranger.start(), SECONDS)
    assert stranger.assignment() == set()
    await group.has_members(2)
    await group.produce(*numbers(0, 24))
    await until(lambda: set(ours.values) >= set(numbers(0, 24)))
    assert ours.app.state is StreamClientState.RUNNING
    await stranger.stop()


@pytest.mark.parametrize("we_lead", [pytest.param(True, marks=pytest.mark.long), False])
async def test_a_java_instance_goes_down_to_our_version_and_up_again(group, served, we_lead):
    def versions(broker: Any) -> list[int]:
        members = broker.coordinator.classic.groups[group.name].members.values()
        said = [read_subscription(member.metadata("stream")).user_data for member in members]
        return sorted(read_subscription_info(data).version for data in said)

    async def shared(tasks: int, spoken: list[int]) -> None:
        deadline = time.monotonic() + SECONDS
        while len(await java.tasks()) != tasks or await asyncio.to_thread(served.look, versions) != spoken:
            assert time.monotonic() < deadline, served.look(versions)
            await asyncio.sleep(0.1)

    old = ClassicConsumer(
        "orders",
        assignors=(StreamsAssignor(uuid.uuid4(), (("orders",),), latest_version=8),),
        bootstrap_servers=group.servers,
        group_id=group.name,
        heartbeat_interval_ms=100,
    )
    java = None if we_lead else group.java()
    if java is not None:
        await java.reaches("RUNNING")
    await asyncio.wait_for(old.start(), SECONDS)
    polls = asyncio.create_task(old.getone())
    java = java or group.java()
    await shared(6, [8, 8])
    assert len(old.assignment()) == 6
    polls.cancel()
    await asyncio.wait((polls,))
    await old.stop()
    await shared(12, [11])
