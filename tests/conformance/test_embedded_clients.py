"""Real clients in the hands of an embedded Kafka: each verb does to them what it says."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiokafka
import aiokafka.errors
import pytest
from confluent_kafka import Consumer, KafkaException, Producer

from fencepost import AsyncEmbeddedKafka, EmbeddedKafka, KIP848Consumer
from fencepost.simulation.trace.schema import RowKind
from tests.conformance.polled import QUIET, Polled, polled, until

with warnings.catch_warnings():
    # It reads its schemas through an API that Python 3.11 deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka as kafka_python
    from kafka.errors import CommitFailedError, RebalanceInProgressError

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]


def views_of(kafka: EmbeddedKafka) -> dict[str, int]:
    """Compare the views of a cluster's trace with plain Python; return the number of rows of each."""
    pytest.importorskip("pyarrow", reason="needs pyarrow, which not every environment of tests has")
    from tests.unit.simulation.analyses.compared_views import compare_views, table_of

    return compare_views(table_of(kafka.events()))


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders": 12}) as running:
        yield running


@pytest.fixture
def three() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(brokers=3, topics={"orders": 12}) as running:
        yield running


CONSUMER = {"group.protocol": "consumer"}
EAGER = {"heartbeat.interval.ms": 100}
COOPERATIVE = {**EAGER, "partition.assignment.strategy": "cooperative-sticky"}
PROTOCOLS = pytest.mark.parametrize(
    "protocol", [CONSUMER, COOPERATIVE, EAGER], ids=["consumer", "cooperative", "eager"]
)


def read_everywhere(kafka: EmbeddedKafka, members: list[Polled]) -> None:
    """Send a record to each partition of the topic, and wait until somebody has read it.

    librdkafka (2.16) asks once for the offsets to begin at. Where the coordinator has just moved, or its
    connection breaks, it never asks again and reads nothing (confluentinc/librdkafka#5586).
    """
    sent = {record.value for record in kafka.produce("orders", *(f"first {n}" for n in range(12)))}
    assert len(sent) == 12
    until(lambda: {value for member in members for value in member.values} == sent)


@PROTOCOLS
def test_members_share_and_the_group_is_stable(kafka, protocol):
    with polled(kafka, "one", "two", **protocol) as members:
        found = kafka.group("g").wait_stable(members=2, timeout=60)
        assert sorted(len(each.owned) for each in found) == [6, 6]
        assert {each.client_id for each in found} == {"one", "two"}
        assert {each.protocol for each in found} == {"consumer" if protocol is CONSUMER else "classic"}
        kafka.produce("orders", *(str(number) for number in range(100)))
        until(lambda: len({value for member in members for value in member.values}) == 100)
        members[0].end()
        kafka.group("g").wait_stable(members=1, timeout=60)  # in a round, a commit of the last one is refused
    assert kafka.group("g").wait_stable(members=0, timeout=60) == []
    assert sum(kafka.group("g").offsets().values()) == 100
    assert kafka.check() == []


@PROTOCOLS
def test_a_fenced_client_loses_everything_and_joins_anew(kafka, protocol):
    with polled(kafka, "one", "two", **protocol) as (one, two):
        group = kafka.group("g")
        before = {each.client_id: each.epoch for each in group.wait_stable(members=2, timeout=60)}
        group.fence("one")
        until(lambda: one.lost)
        after = {each.client_id: each.epoch for each in group.wait_stable(members=2, timeout=60)}
        assert one.lost == [6]
        assert two.lost == []
        assert after["one"] > before["one"]
    assert kafka.check() == []


@PROTOCOLS
def test_an_expired_client_loses_everything_and_joins_anew(kafka, protocol):
    with polled(kafka, "one", "two", **protocol) as (one, two):
        group = kafka.group("g")
        group.wait_stable(members=2, timeout=60)
        group.expire("two")
        until(lambda: two.lost)
        group.wait_stable(members=2, timeout=60)
        assert (one.lost, two.lost) == ([], [6])
        reasons = [row.detail for row in kafka.events() if row.kind == RowKind.MEMBER_REMOVED]
        assert "session" in reasons
    assert kafka.check() == []
    found = views_of(kafka)
    assert min(found[view] for view in ("rebalance", "fencing", "owning", "transition")) > 0


@PROTOCOLS
def test_a_rebalance_on_demand(kafka, protocol):
    with polled(kafka, "one", "two", **protocol) as members:
        group = kafka.group("g")
        before = group.wait_stable(members=2, timeout=60)
        group.rebalance()
        after = group.wait_stable(members=2, timeout=60)
        assert {each.epoch for each in after} == {before[0].epoch + 1}
        assert [each.member_id for each in after] == [each.member_id for each in before]
        assert not any(member.lost for member in members)
    assert kafka.check() == []


def test_a_lost_join_response_makes_no_second_member(kafka):
    kafka.lose_next_response("ConsumerGroupHeartbeat")
    with polled(kafka, "one", **CONSUMER):
        (member,) = kafka.group("g").wait_stable(members=1, timeout=60)
        assert len(member.owned) == 12
    rows = kafka.events()
    assert [row.kind for row in rows if row.kind == RowKind.RESPONSE_LOST] == [RowKind.RESPONSE_LOST]
    assert len([row for row in rows if row.kind == RowKind.HEARTBEAT and row.detail.startswith("join")]) == 2
    assert kafka.check() == []


def committing(kafka: EmbeddedKafka, **settings: Any) -> KIP848Consumer:
    """A consumer that commits when it is told to."""
    return KIP848Consumer(
        "orders",
        bootstrap_servers=kafka.bootstrap_servers,
        group_id="g",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        **settings,
    )


async def test_a_lost_commit_response_is_a_commit_all_the_same():
    async with EmbeddedKafka(topics={"orders": 12}) as kafka:
        kafka.produce("orders", "a", partition=3)
        async with committing(kafka, retry_backoff_ms=20) as consumer:
            await consumer.getone()
            kafka.lose_next_response("OffsetCommit")
            await consumer.commit()
        rows = [row.kind for row in kafka.events() if row.kind in (RowKind.COMMIT, RowKind.RESPONSE_LOST)]
        assert rows == [RowKind.RESPONSE_LOST, RowKind.COMMIT, RowKind.COMMIT]
        assert sum(kafka.group("g").offsets().values()) == 1
        assert kafka.check() == []


async def test_a_commit_asks_the_coordinator_though_nothing_changed():
    async with EmbeddedKafka(topics={"orders": 1}) as kafka:
        kafka.produce("orders", "a")
        async with committing(kafka) as consumer:
            await consumer.getone()
            await consumer.commit()
            await consumer.commit()
            assert [row.kind for row in kafka.events()].count(RowKind.COMMIT) == 2
            kafka.fail_next("OffsetCommit", "STALE_MEMBER_EPOCH")
            with pytest.raises(aiokafka.errors.CommitFailedError):
                await consumer.commit()
        assert kafka.group("g").offsets() == {("orders", 0): 1}
        assert kafka.check() == []


def test_a_commit_that_fails_is_told_to_the_application(kafka):
    with polled(kafka, "one", **CONSUMER, **{"enable.auto.commit": False}) as (one,):
        kafka.group("g").wait_stable(members=1, timeout=60)
        kafka.produce("orders", "a")
        until(lambda: one.values)
        kafka.fail_next("OffsetCommit", "GROUP_AUTHORIZATION_FAILED", "one")
        with pytest.raises(KafkaException) as refused:
            one.commit()
        assert refused.value.args[0].name() == "GROUP_AUTHORIZATION_FAILED"
        assert kafka.group("g").offsets() == {}
        one.commit()
        assert list(kafka.group("g").offsets().values()) == [1]


@pytest.mark.parametrize("error", ["NOT_LEADER_OR_FOLLOWER", "REQUEST_TIMED_OUT"])
def test_a_producer_tries_again(kafka, error):
    kafka.fail_next("Produce", error)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "retry.backoff.ms": 10, **QUIET})
    delivered = []
    producer.produce("orders", b"once", on_delivery=lambda error, message: delivered.append(error))
    assert producer.flush(30) == 0
    assert delivered == [None]
    assert [record.value for record in kafka.records("orders")] == [b"once"]


def test_a_lost_produce_response_duplicates_nothing_with_idempotence(kafka):
    kafka.lose_next_response("Produce")
    producer = Producer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "enable.idempotence": True,
            "retry.backoff.ms": 10,
            **QUIET,
        }
    )
    producer.produce("orders", b"once")
    assert producer.flush(30) == 0
    assert [record.value for record in kafka.records("orders")] == [b"once"]


def test_a_slow_broker_makes_a_slow_producer(kafka):
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, **QUIET})
    producer.produce("orders", b"fast")
    assert producer.flush(30) == 0
    kafka.delay("Produce", 0.5)
    began = time.monotonic()
    producer.produce("orders", b"slow")
    assert producer.flush(30) == 0
    assert time.monotonic() - began >= 0.5


@PROTOCOLS
def test_a_client_whose_connection_breaks_goes_on(kafka, protocol):
    with polled(kafka, "one", **protocol) as (one,):
        group = kafka.group("g")
        (before,) = group.wait_stable(members=1, timeout=60)
        kafka.disconnect(before)
        kafka.produce("orders", "after")
        until(lambda: one.values)
        (after,) = group.wait_stable(members=1, timeout=60)
        assert after.epoch == before.epoch
        assert one.lost == []


@PROTOCOLS
def test_clients_follow_a_coordinator_that_moves(three, protocol):
    with polled(three, "one", "two", **protocol) as members:
        group = three.group("g")
        before = group.wait_stable(members=2, timeout=60)
        read_everywhere(three, members)
        for _ in range(3):
            three.move_coordinator("g")
            after = group.wait_stable(members=2, timeout=60)
            assert after == before
        three.produce("orders", *(str(number) for number in range(24)))
        until(lambda: len({value for member in members for value in member.values}) == 12 + 24)
        assert not any(member.lost for member in members)
    hosts = {
        row.actor for row in three.events() if row.kind == RowKind.COORDINATOR and row.detail == "resign"
    }
    assert hosts == {"broker-1", "broker-2", "broker-3"}
    assert three.check() == []
    found = views_of(three)
    assert min(found[view] for view in ("rebalance", "owning", "transition")) > 0


@PROTOCOLS
def test_clients_outlive_a_restart(kafka, protocol):
    with polled(kafka, "one", "two", **protocol) as members:
        group = kafka.group("g")
        before = group.wait_stable(members=2, timeout=60)
        read_everywhere(kafka, members)
        kafka.restart()
        kafka.produce("orders", "after")
        until(lambda: any(b"after" in member.values for member in members))
        assert group.wait_stable(members=2, timeout=60) == before
        assert not any(member.lost for member in members)
    assert kafka.check() == []


@pytest.mark.processes
@pytest.mark.parametrize("brokers", [1, 3])
def test_time_expires_a_client_that_died_and_no_other(brokers):
    with (
        EmbeddedKafka(brokers=brokers, topics={"orders": 12}) as kafka,
        polled(kafka, "alive", **CONSUMER) as (one,),
    ):
        script = Path(__file__).with_name("confluent_member.py")
        command = [sys.executable, str(script), kafka.bootstrap_servers, "g", "orders"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            group = kafka.group("g")
            dead = next(
                each for each in group.wait_stable(members=2, timeout=60) if each.client_id != "alive"
            )
            process.send_signal(signal.SIGKILL)
        until(lambda: not connected(kafka, dead.member_id))
        assert len(group.members()) == 2, "its session goes on"
        kafka.clock.advance(46)
        (alive,) = group.wait_stable(members=1, timeout=60)
        assert (alive.client_id, len(alive.owned)) == ("alive", 12)
        assert one.lost == []
        assert kafka.check() == []


def connected(kafka: EmbeddedKafka, member_id: str) -> bool:
    return member_id in kafka.endpoint.faults.connected


def test_kafka_python_joins_and_is_fenced(kafka):
    kafka.produce("orders", *(str(number) for number in range(24)))
    consumer = kafka_python.KafkaConsumer(
        bootstrap_servers=kafka.bootstrap_servers,
        group_id="g",
        auto_offset_reset="earliest",
        heartbeat_interval_ms=50,
        metadata_max_age_ms=500,
        enable_auto_commit=False,
    )
    try:
        # A leader that learns of partitions after joining joins again, and may send no heartbeats any more.
        consumer.subscribe(["orders"])
        until(lambda: consumer.partitions_for_topic("orders"))
        got = []

        def poll() -> int:
            # A poll that ends as an answer comes makes its member join again.
            for messages in consumer.poll(timeout_ms=500).values():
                got.extend(message.value for message in messages)
            return len(set(got))

        until(lambda: poll() == 24)
        (before,) = kafka.group("g").wait_stable(members=1, timeout=60)
        kafka.group("g").fence(before)

        def is_back() -> bool:
            poll()
            return any(member.member_id != before.member_id for member in kafka.group("g").members())

        until(is_back)
        # It begins anew, since nothing was committed; or goes on, if it was about to join again anyway.
        kafka.produce("orders", *(str(number) for number in range(24, 48)))
        until(lambda: poll() == 48)

        def committed() -> bool:
            """A client that a busy machine leaves without heartbeats for long joins once more before."""
            poll()
            try:
                consumer.commit()
            except (CommitFailedError, RebalanceInProgressError):
                return False
            return True

        until(committed)
        assert sum(kafka.group("g").offsets().values()) == 48
    finally:
        consumer.close()
    assert kafka.check() == []


async def test_a_kip848_consumer_and_confluent_share_a_group(kafka):
    with polled(kafka, "confluent", **CONSUMER):
        consumer = KIP848Consumer(
            "orders", bootstrap_servers=kafka.bootstrap_servers, group_id="g", client_id="ours"
        )
        await consumer.start()
        try:
            reading = asyncio.ensure_future(consumer.getone())
            group = kafka.group("g")
            found = await asyncio.to_thread(group.wait_stable, members=2, timeout=60)
            assert sorted(len(each.owned) for each in found) == [6, 6]
            group.fence("ours")
            kafka.lose_next_response("ConsumerGroupHeartbeat", "ours")
            found = await asyncio.to_thread(group.wait_stable, members=2, timeout=60)
            assert sorted(len(each.owned) for each in found) == [6, 6]
            assert len(consumer.assignment()) == 6
            reading.cancel()
        finally:
            await consumer.stop()
    assert kafka.check() == []


async def test_a_kip848_consumer_in_async_with():
    async with EmbeddedKafka(brokers=3, topics={"orders": 12}) as kafka:
        assert isinstance(kafka, AsyncEmbeddedKafka)
        kafka.produce("orders", *(str(number) for number in range(24)))
        consumer = KIP848Consumer(
            "orders",
            bootstrap_servers=kafka.bootstrap_servers,
            group_id="g",
            auto_offset_reset="earliest",
            retry_backoff_ms=20,
        )
        await consumer.start()
        try:
            group = kafka.group("g")
            (before,) = await group.wait_stable(members=1, timeout=60)
            for _ in range(3):
                kafka.move_coordinator("g")
                (after,) = await group.wait_stable(timeout=60)
                assert after.epoch == before.epoch
            got = [(await consumer.getone()).value for _ in range(24)]
            assert sorted(map(int, got)) == list(range(24))
            await consumer.commit()
            assert sum(group.offsets().values()) == 24
        finally:
            await consumer.stop()
        assert kafka.check() == []


async def test_aiokafka_in_async_with():
    async with EmbeddedKafka(topics={"orders": 12}) as kafka:
        async with aiokafka.AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers) as producer:
            for number in range(24):
                await producer.send_and_wait("orders", str(number).encode())
        consumer = aiokafka.AIOKafkaConsumer(
            "orders",
            bootstrap_servers=kafka.bootstrap_servers,
            group_id="g",
            auto_offset_reset="earliest",
            heartbeat_interval_ms=50,
            retry_backoff_ms=20,
        )
        await consumer.start()
        try:
            group = kafka.group("g")
            (before,) = await group.wait_stable(members=1, timeout=60)
            assert before.protocol == "classic"
            got = [(await consumer.getone()).value for _ in range(24)]
            assert sorted(map(int, got)) == list(range(24))
            group.rebalance()
            (after,) = await group.wait_stable(members=1, timeout=60)
            assert after.epoch == before.epoch + 1
            with pytest.raises(TimeoutError, match="2 expected"):
                await group.wait_stable(members=2, timeout=0.05)
            await consumer.commit()
            assert sum(group.offsets().values()) == 24
        finally:
            await consumer.stop()
        assert await group.wait_stable(members=0, timeout=60) == []
        assert kafka.check() == []


def test_our_records_go_where_a_java_producer_would_send_them(three):
    """librdkafka's murmur2 is the Java client's."""
    producer = Producer(
        {"bootstrap.servers": three.bootstrap_servers, "partitioner": "murmur2_random", **QUIET}
    )
    keys = [f"key {number}" for number in range(50)]
    for key in keys:
        producer.produce("orders", key=key, value="theirs")
    assert producer.flush(30) == 0
    for key in keys:
        three.produce("orders", "ours", key=key)
    for key in keys:
        found = [record for record in three.records("orders") if record.key == key.encode()]
        assert len({record.partition for record in found}) == 1
        assert [record.value for record in found] == [b"theirs", b"ours"]


def test_transactions_over_several_brokers(three):
    three.create_topic("invoices", 6)
    three.produce("orders", *(str(number) for number in range(12)))
    settings = {"bootstrap.servers": three.bootstrap_servers, "group.id": "g", **QUIET, **CONSUMER}
    consumer = Consumer({**settings, "auto.offset.reset": "earliest", "enable.auto.commit": False})
    consumer.subscribe(["orders"])
    producer = Producer(
        {"bootstrap.servers": three.bootstrap_servers, "transactional.id": "billing", **QUIET}
    )
    producer.init_transactions(60)
    try:
        for commit in (False, True):
            producer.begin_transaction()
            got: list[bytes] = []
            while len(got) < 12:
                message = consumer.poll(0.1)
                if message is not None and message.error() is None:
                    got.append(message.value())
                    producer.produce("invoices", message.value())
            position = consumer.position(consumer.assignment())
            producer.send_offsets_to_transaction(position, consumer.consumer_group_metadata(), 60)
            if commit:
                producer.commit_transaction(60)
            else:
                producer.abort_transaction(60)
                for partition in consumer.assignment():
                    partition.offset = 0
                    consumer.seek(partition)
    finally:
        consumer.close()
    assert sum(three.group("g").offsets().values()) == 12
    reader = Consumer(
        {
            **settings,
            "group.id": "other",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    reader.subscribe(["invoices"])
    values: list[bytes] = []
    until(lambda: _read(reader, values) >= 12)
    reader.close()
    assert sorted(map(int, values)) == list(range(12))
    assert three.check() == []


def _read(consumer: Consumer, values: list[bytes]) -> int:
    message = consumer.poll(0.1)
    if message is not None and message.error() is None:
        values.append(message.value())
    return len(values)
