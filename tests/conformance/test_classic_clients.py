"""Clients of other makes in classic groups of our coordinator, and on their way between the protocols."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import aiokafka
import pytest
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

with warnings.catch_warnings():
    # It reads its schemas through an API that Python 3.11 deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]

MEMBER = pathlib.Path(__file__).with_name("confluent_member.py")
SECONDS = 90
POLL_MS = 1_000
"""kafka-python forgets an answer to a member whose poll ends as it comes, and joins again: polls are long."""
PARTITIONS = 12
VALUES = [b"value %d" % number for number in range(120)]
CLASSIC = {"group.protocol": "classic", "session.timeout.ms": 30_000, "heartbeat.interval.ms": 200}


def produce(served: Any) -> None:
    producer = Producer({"bootstrap.servers": served.bootstrap_servers, "log_level": 0})
    for number, value in enumerate(VALUES):
        producer.produce("orders", value, partition=number % PARTITIONS)
    assert producer.flush(60) == 0


def committed(served: Any) -> int:
    """How many records the group's commits cover."""
    topics = served.look(lambda broker: dict(broker.coordinator.offsets.topics("g")))
    return sum(value.offset for value in topics.get("orders", {}).values())


class Crew:
    """librdkafka's consumers of one group, polled in turn; they commit what they read."""

    def __init__(
        self,
        servers: str,
        topic: str = "orders",
        group_id: str = "g",
        seen: Callable[[], object] = lambda: "not ours to look at",
    ) -> None:
        self.servers = servers
        self.topic = topic
        self.group_id = group_id
        self.seen = seen
        """What the coordinator has of the group: for who reads a failure."""
        self.members: list[Consumer] = []
        self.read: list[bytes] = []
        self.refusals: list[str] = []
        self.revoked = Counter[int]()

    def join(self, **settings: Any) -> Consumer:
        consumer = Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": self.group_id,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "log_level": 0,
                **settings,
            }
        )
        number = len(self.members)

        def count(_consumer: Consumer, partitions: list[Any]) -> None:
            self.revoked[number] += len(partitions)

        consumer.subscribe([self.topic], on_revoke=count)
        self.members.append(consumer)
        return consumer

    def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < deadline, ([self.owned(each) for each in self.members], self.seen())
            for member in self.members:
                message = member.poll(0.02)
                if message is not None and message.error() is not None:
                    self.refusals.append(message.error().str())
                elif message is not None:
                    self.read.append(message.value())
                    with contextlib.suppress(Exception):  # a rebalance came between: it is read again
                        member.commit(message=message, asynchronous=False)

    @staticmethod
    def owned(member: Consumer) -> list[int]:
        return sorted(one.partition for one in member.assignment())

    def shared(self) -> bool:
        """Whether all partitions are owned, each by one member, and nobody has much more than another."""
        owned = [self.owned(member) for member in self.members]
        sizes = [len(each) for each in owned]
        return sorted(n for each in owned for n in each) == list(range(PARTITIONS)) and (
            max(sizes) - min(sizes) <= 1
        )

    def leave(self, number: int) -> None:
        self.members.pop(number).close()

    def kind(self) -> str:
        """The group's type and its state, as an administrator sees them."""
        admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})
        groups = admin.list_consumer_groups().result(60).valid
        (group,) = (each for each in groups if each.group_id == self.group_id)
        return str(group.type.name)


@contextlib.contextmanager
def closing(crew: Crew) -> Iterator[Crew]:
    try:
        yield crew
    finally:
        for member in crew.members:
            member.close()


@pytest.fixture
def crew(served: Any) -> Iterator[Crew]:
    def seen(broker: Any) -> list[str]:
        coordinator = broker.coordinator
        group = coordinator.groups.get("g") or coordinator.classic.groups.get("g")
        return [str(getattr(group, "state", None)), *map(str, getattr(group, "members", {}).values())]

    with closing(Crew(served.bootstrap_servers, seen=lambda: served.look(seen))) as made:
        yield made


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_librdkafka_shares_rebalances_and_resumes(served: Any, crew: Crew, strategy: str) -> None:
    produce(served)
    settings = {**CLASSIC, "partition.assignment.strategy": strategy}
    crew.join(**settings)
    crew.join(**settings)
    crew.until(lambda: crew.shared() and set(crew.read) == set(VALUES))
    crew.join(**settings)
    crew.until(crew.shared)
    crew.leave(0)
    crew.until(lambda: crew.shared() and committed(served) == len(VALUES))
    for _ in range(2):
        crew.leave(0)
    read = len(crew.read)
    produce(served)
    crew.join(**settings)
    crew.until(lambda: committed(served) == 2 * len(VALUES))
    again = Counter(crew.read[read:])
    assert again == Counter(VALUES), "what was committed is not read again, and nothing is left out"


@pytest.mark.processes
def test_who_dies_without_a_word_is_replaced_when_its_session_ends(served: Any, crew: Crew) -> None:
    command = [sys.executable, str(MEMBER), served.bootstrap_servers, "g", "orders", "classic"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            while process.stdout.readline().strip() != str(PARTITIONS):
                assert process.poll() is None
            crew.join(**CLASSIC, **{"partition.assignment.strategy": "range"})
            crew.until(lambda: len(crew.owned(crew.members[0])) == PARTITIONS // 2)
        finally:
            process.kill()
    crew.until(crew.shared)


def test_a_static_member_restarts_without_a_rebalance(served: Any, crew: Crew) -> None:
    settings = {**CLASSIC, "partition.assignment.strategy": "range"}
    crew.join(**settings, **{"group.instance.id": "one"})
    crew.join(**settings, **{"group.instance.id": "two"})
    crew.until(crew.shared)
    generation = served.look(lambda broker: broker.coordinator.classic.groups["g"].generation)
    before = [crew.owned(member) for member in crew.members]
    revoked = crew.revoked[0]
    crew.leave(1)  # a static member says nothing when it goes
    crew.join(**settings, **{"group.instance.id": "two"})
    crew.until(crew.shared)
    assert [crew.owned(member) for member in crew.members] == before
    assert crew.revoked[0] == revoked
    assert served.look(lambda broker: broker.coordinator.classic.groups["g"].generation) == generation


@pytest.mark.parametrize("strategy", ["range", "roundrobin"])
def test_a_group_rolls_to_the_consumer_protocol_and_back(served: Any, crew: Crew, strategy: str) -> None:
    produce(served)
    classic = {**CLASSIC, "partition.assignment.strategy": strategy}
    modern = {"group.protocol": "consumer"}
    for _ in range(3):
        crew.join(**classic)
    crew.until(lambda: crew.shared() and committed(served) == len(VALUES))
    assert set(crew.read) == set(VALUES)
    read = len(crew.read)
    assert crew.kind() == "CLASSIC"
    for settings, during in ((modern, "CONSUMER"), (classic, "CONSUMER")):
        for number in range(3):
            crew.leave(0)
            crew.join(**settings)
            crew.until(crew.shared)
            if number < 2:
                assert crew.kind() == during
    assert crew.kind() == "CLASSIC"
    assert len(crew.read) == read, "commits outlive the changes of the protocol"


def test_a_cooperative_group_goes_over_until_its_assignments_carry_user_data(world: Any) -> None:
    """librdkafka's sticky assignor hands back what it was sent, and Kafka would lose it: it says no."""
    cooperative = {**CLASSIC, "partition.assignment.strategy": "cooperative-sticky"}
    modern = {"group.protocol": "consumer"}
    with closing(Crew(world.servers, world.topic(PARTITIONS), world.group)) as crew:
        crew.join(**cooperative)
        crew.until(crew.shared)
        for settings in (modern, cooperative):
            crew.join(**settings)
            crew.until(crew.shared)
            assert crew.kind() == "CONSUMER"
        crew.leave(1)
        crew.until(crew.shared)
        assert crew.kind() == "CLASSIC"
        crew.join(**cooperative)  # it gets its share in a generation of which the others know the one before
        crew.until(crew.shared)
        crew.join(**modern)
        crew.until(lambda: any("group id does not exist" in each for each in crew.refusals))
        assert crew.kind() == "CLASSIC"
        crew.leave(3)
        crew.until(crew.shared)


@pytest.mark.parametrize(
    "assignor", [RangePartitionAssignor, RoundRobinPartitionAssignor, StickyPartitionAssignor]
)
async def test_aiokafka_shares_rebalances_and_resumes(served: Any, assignor: Any) -> None:
    produce(served)

    def make() -> aiokafka.AIOKafkaConsumer:
        return aiokafka.AIOKafkaConsumer(
            "orders",
            bootstrap_servers=served.bootstrap_servers,
            group_id="g",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=30_000,
            heartbeat_interval_ms=200,
            partition_assignment_strategy=(assignor,),
        )

    consumers: list[aiokafka.AIOKafkaConsumer] = []
    read: list[bytes] = []

    async def until(condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < deadline, [sorted(each.assignment()) for each in consumers]
            for consumer in consumers:
                batches = await consumer.getmany(timeout_ms=20)
                if batches:
                    read.extend(message.value for batch in batches.values() for message in batch)
                    with contextlib.suppress(aiokafka.errors.CommitFailedError):
                        await consumer.commit()
            await asyncio.sleep(0)

    def shared() -> bool:
        owned = [one.partition for each in consumers for one in each.assignment()]
        return sorted(owned) == list(range(PARTITIONS))

    async with contextlib.AsyncExitStack() as stack:
        for _ in range(3):
            consumer = make()
            await consumer.start()
            stack.push_async_callback(consumer.stop)
            consumers.append(consumer)
        await until(lambda: shared() and committed(served) == len(VALUES))
        assert set(read) == set(VALUES)
        assert {len(each.assignment()) for each in consumers} == {4}
        await consumers.pop(0).stop()
        await until(shared)
    count = len(read)
    consumers[:] = [make()]
    await consumers[0].start()
    try:
        await until(shared)
        assert len(read) == count, "what was committed is not read again"
    finally:
        await consumers[0].stop()


def test_kafka_python_shares_and_resumes(served: Any) -> None:
    produce(served)

    def make() -> Any:
        return kafka.KafkaConsumer(
            "orders",
            bootstrap_servers=served.bootstrap_servers,
            group_id="g",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=30_000,
            heartbeat_interval_ms=200,
        )

    consumers = [make(), make()]
    read: list[bytes] = []
    over = threading.Event()

    def read_on(consumer: Any) -> None:
        with contextlib.closing(consumer):
            while not over.is_set():
                batches = consumer.poll(timeout_ms=POLL_MS)
                if batches:
                    read.extend(message.value for batch in batches.values() for message in batch)
                    with contextlib.suppress(kafka.errors.CommitFailedError):
                        consumer.commit()

    deadline = time.monotonic() + SECONDS
    with ThreadPoolExecutor() as pool:
        readers = [pool.submit(read_on, consumer) for consumer in consumers]
        try:
            while not (
                committed(served) == len(VALUES)
                and [len(each.assignment()) for each in consumers] == [PARTITIONS // 2] * 2
            ):
                assert time.monotonic() < deadline, [each.assignment() for each in consumers]
                assert not any(reader.done() for reader in readers)
                over.wait(0.05)
        finally:
            over.set()
        for reader in readers:
            reader.result()
    assert set(read) == set(VALUES)
    again = make()
    try:
        deadline = time.monotonic() + SECONDS
        while len(again.assignment()) < PARTITIONS:
            assert time.monotonic() < deadline
            assert not again.poll(timeout_ms=POLL_MS), "what was committed is not read again"
    finally:
        again.close()
