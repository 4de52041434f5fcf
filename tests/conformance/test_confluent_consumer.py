"""librdkafka's consumer with group.protocol=consumer against our coordinator (KIP-848)."""

from __future__ import annotations

import contextlib
import pathlib
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from fencepost.coordinator.protocol.ids import TopicPartition as OurPartition

pytestmark = pytest.mark.real

MEMBER = pathlib.Path(__file__).with_name("confluent_member.py")


@contextlib.contextmanager
def consumers(served, *, topics: tuple[str, ...] = ("orders",)) -> Iterator[Callable[..., Consumer]]:
    """Makes consumers and closes them at the end."""
    made: list[Consumer] = []

    def make(group_id: str = "g", *, subscribe: tuple[str, ...] = topics, **settings: object) -> Consumer:
        consumer = Consumer(
            {
                "bootstrap.servers": served.bootstrap_servers,
                "group.id": group_id,
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "log_level": 0,
                **settings,
            }
        )
        consumer.subscribe(list(subscribe))
        made.append(consumer)
        return consumer

    try:
        yield make
    finally:
        for consumer in made:
            with contextlib.suppress(RuntimeError):  # closed by the test already
                consumer.close()


def produce(served, topic: str, values: list[bytes], **settings: object) -> None:
    producer = Producer({"bootstrap.servers": served.bootstrap_servers, "log_level": 0, **settings})
    failed = []
    for number, value in enumerate(values):
        producer.produce(
            topic,
            value,
            key=b"%d" % number,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
    assert producer.flush(60) == 0
    assert failed == []


def consume(consumer: Consumer, count: int, seconds: float = 60) -> list[bytes]:
    values: list[bytes] = []
    deadline = time.monotonic() + seconds
    while len(values) < count and time.monotonic() < deadline:
        for message in consumer.consume(500, 0.1):
            assert message.error() is None
            values.append(message.value())
    return values


def partitions_of(consumer: Consumer) -> list[tuple[str, int]]:
    return sorted((one.topic, one.partition) for one in consumer.assignment())


def wait_until(condition: Callable[[], bool], *members: Consumer, seconds: float = 60) -> None:
    """Poll the members until the condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, [partitions_of(member) for member in members]
        for member in members:
            member.poll(0.02)


def balanced(members: list[Consumer], total: int) -> Callable[[], bool]:
    """Disjoint, complete, and nobody has more than one partition more than another."""

    def condition() -> bool:
        owned = [partitions_of(member) for member in members]
        each = Counter(one for part in owned for one in part)
        sizes = sorted(map(len, owned))
        return len(each) == total == sum(sizes) and sizes[-1] - sizes[0] <= 1

    return condition


def test_it_joins_consumes_commits_and_another_goes_on(served):
    values = [b"value %d" % number for number in range(1000)]
    produce(served, "orders", values)
    with consumers(served) as make:
        first = make()
        assert sorted(consume(first, 1000)) == sorted(values)
        assert len(partitions_of(first)) == 12
        committed = first.commit(asynchronous=False)
        assert sum(one.offset for one in committed) == 1000
        first.close()
        produce(served, "orders", [b"later"])
        second = make()
        assert consume(second, 1) == [b"later"]
        assert consume(second, 1, seconds=0.3) == [], "nothing twice"


def test_a_second_and_a_third_consumer_share(served):
    with consumers(served) as make:
        members = [make()]
        wait_until(balanced(members, 12), *members)
        for _ in range(2):
            members.append(make())
            wait_until(balanced(members, 12), *members)
        group = served.look(lambda broker: broker.coordinator.groups["g"])
        assert group.state.value == "Stable"
        members.pop().close()
        wait_until(balanced(members, 12), *members)


@pytest.mark.processes
@pytest.mark.parametrize("session_ms", [2_000])
def test_a_killed_consumer_is_replaced_after_its_session(served):
    with consumers(served) as make:
        survivor = make()
        wait_until(balanced([survivor], 12), survivor)
        command = [sys.executable, str(MEMBER), served.bootstrap_servers, "g", "orders"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as victim:
            try:
                wait_until(lambda: len(partitions_of(survivor)) == 6, survivor)
            finally:
                killed = time.monotonic()
                victim.send_signal(signal.SIGKILL)
        wait_until(balanced([survivor], 12), survivor)
        assert time.monotonic() - killed > 1, "two seconds is the session's length"


def test_a_static_member_comes_back_to_its_partitions(served):
    with consumers(served) as make:
        first, second = make(**{"group.instance.id": "one"}), make(**{"group.instance.id": "two"})
        wait_until(balanced([first, second], 12), first, second)
        before, others = partitions_of(first), partitions_of(second)
        epoch = served.look(lambda broker: broker.coordinator.groups["g"].group_epoch)
        first.close()
        second.poll(0.4)
        assert partitions_of(second) == others, "it may come back any moment"
        again = make(**{"group.instance.id": "one"})
        wait_until(lambda: partitions_of(again) == before, again, second)
        assert partitions_of(second) == others
        assert served.look(lambda broker: broker.coordinator.groups["g"].group_epoch) == epoch


def test_a_regular_expression_finds_its_topics(served):
    admin = AdminClient({"bootstrap.servers": served.bootstrap_servers, "log_level": 0})

    admin.create_topics([NewTopic("invoice-2024", 2, 1)])["invoice-2024"].result(60)
    with consumers(served) as make:
        consumer = make(subscribe=("^invoice-.*",))
        wait_until(lambda: partitions_of(consumer) == [("invoice-2024", 0), ("invoice-2024", 1)], consumer)
        (member,) = served.look(lambda broker: list(broker.coordinator.groups["g"].members.values()))
        assert member.subscribed_topic_regex == "(^invoice-.*)"


def test_an_unreadable_expression_is_fatal_to_the_client(served):
    with consumers(served) as make:
        consumer = make(subscribe=(r"^(a)\1",))
        message = consumer.poll(60)
        assert message is not None
        assert "The regular expression is not valid" in message.error().str()


def test_partitions_that_are_added_are_assigned(served):
    admin = AdminClient({"bootstrap.servers": served.bootstrap_servers, "log_level": 0})
    with consumers(served) as make:
        members = [make(), make()]
        wait_until(balanced(members, 12), *members)
        admin.create_partitions([NewPartitions("orders", 15)])["orders"].result(60)
        wait_until(balanced(members, 15), *members)


def test_the_second_group_reads_everything_again(served):
    produce(served, "single", [b"a", b"b", b"c"])
    with consumers(served, topics=("single",)) as make:
        for group_id in ("one", "two"):
            consumer = make(group_id)
            assert consume(consumer, 3) == [b"a", b"b", b"c"]
            consumer.commit(asynchronous=False)
            (position,) = consumer.committed([TopicPartition("single", 0)], 60)
            assert position.offset == 3


def test_automatic_commits_on_close(served):
    produce(served, "single", [b"a", b"b"])
    with consumers(served, topics=("single",)) as make:
        consumer = make(**{"enable.auto.commit": True})
        assert consume(consumer, 2) == [b"a", b"b"]
        consumer.close()
        assert (
            served.look(lambda broker: broker.coordinator.offsets.get("g", OurPartition("single", 0))).offset
            == 2
        )


def test_the_coordinator_is_asked_for_behind_the_question_for_brokers(served, monkeypatch):
    """The answer to that question waits for the next one: were there none, each join would take a minute."""
    monkeypatch.setattr("fencepost.coordinator.server.connection._QUERY_FOLLOWS_S", 60)
    began = time.monotonic()
    for number in range(5):
        with consumers(served) as make:
            consumer = make(f"g{number}")
            wait_until(balanced([consumer], 12), consumer, seconds=50)
    assert time.monotonic() - began < 60
