"""Quotas of clients, set by a test or over the wire, as real clients meet them (KIP-13, KIP-219, KIP-546)."""

from __future__ import annotations

import datetime
import socket
import sys
import time
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from confluent_kafka import Consumer, Producer
from kio.index import load_request_schema

from fencepost import EmbeddedKafka
from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.coordinator.protocol.quotas import QuotaChange
from fencepost.coordinator.quotas import PRODUCER_BYTE_RATE, REQUEST_PERCENTAGE, ClientQuotas
from tests.unit.simulation.test_embedded_fault_rules import produced
from tests.unit.simulation.test_embedded_refusals import Client, sample
from tests.unit.simulation.test_embedded_rights import plain
from tests.waiting import until

pytestmark = pytest.mark.real
FETCH = 1


def of_fetch(kind: str) -> Any:
    """A struct of kio's Fetch request, version 12."""
    return getattr(sys.modules[load_request_schema(FETCH, 12).__module__], kind)


def change(*entity: tuple[str, str | None], value: float = 1_000) -> QuotaChange:
    return QuotaChange(entity=entity, ops=((PRODUCER_BYTE_RATE, value, False),))


def test_the_closest_quota_applies():
    quotas = ClientQuotas()
    levels = [
        (("client-id", None),),
        (("client-id", "c"),),
        (("user", None),),
        (("user", None), ("client-id", None)),
        (("user", None), ("client-id", "c")),
        (("user", "u"),),
        (("user", "u"), ("client-id", None)),
        (("user", "u"), ("client-id", "c")),
    ]
    for rate, entity in enumerate(levels, 1):
        quotas.alter(change(*entity, value=rate))
        # 100 bytes in ten seconds are 10 per second.
        used_ms = quotas.throttle_ms(PRODUCER_BYTE_RATE, "u", "c", 100, rate * 100_000)
        assert used_ms == round((10 / rate - 1) * 10_000)
    assert quotas.throttle_ms("consumer_byte_rate", "u", "c", 10**9, 0) == 0


def test_what_was_used_is_forgotten_after_the_windows():
    quotas = ClientQuotas()
    quotas.alter(change(("user", "u"), value=10))
    assert quotas.throttle_ms(PRODUCER_BYTE_RATE, "u", "a", 100, 0) == 0
    assert quotas.throttle_ms(PRODUCER_BYTE_RATE, "u", "b", 100, 500) == 9_500, "its clients share it"
    assert quotas.throttle_ms(PRODUCER_BYTE_RATE, "other", "a", 100, 500) == 0
    assert quotas.throttle_ms(PRODUCER_BYTE_RATE, "u", "a", 0, 12_000) == 0


@pytest.mark.parametrize(
    ("value", "throttled_ms"), [(float("inf"), 0), (float("nan"), 0), (1e-320, 2**31 - 1)]
)
def test_a_percentage_may_be_no_usual_number(value: float, throttled_ms: int):
    quotas = ClientQuotas()
    quotas.alter(QuotaChange(entity=(("user", None),), ops=((REQUEST_PERCENTAGE, value, False),)))
    assert quotas.throttle_ms(REQUEST_PERCENTAGE, "u", "c", 1.0, 0) == throttled_ms


def test_a_changed_quota_does_not_forget_what_clients_have_used():
    quotas = ClientQuotas()
    quotas.alter(change(("client-id", "c"), value=20))
    assert quotas.throttle_ms(PRODUCER_BYTE_RATE, "u", "c", 100, 0) == 0
    quotas.alter(change(("client-id", "other"), value=5))
    assert quotas.throttle_ms(PRODUCER_BYTE_RATE, "u", "c", 200, 0) == 5_000
    quotas.alter(change(("client-id", "c"), value=15))
    assert quotas.throttle_ms(PRODUCER_BYTE_RATE, "u", "c", 0, 0) == 10_000


def test_the_last_name_of_an_entity_type_counts():
    quotas = ClientQuotas()
    quotas.alter(change(("user", None), ("user", "a")))
    (found,) = quotas.find([], strict=False)
    assert found.entity == (("user", "a"),)


def test_clients_that_change_their_ids_leave_nothing_behind():
    quotas = ClientQuotas()
    quotas.alter(change(("client-id", None), value=10))
    for number in range(5_000):
        quotas.throttle_ms(PRODUCER_BYTE_RATE, "u", f"c{number}", 1, number * 100)
    assert len(quotas._used) <= 1_000
    assert quotas.throttle_ms(PRODUCER_BYTE_RATE, "u", "c4999", 1_000, 500_000) > 0


def test_a_producer_is_throttled_by_a_quota():
    throttled: list[int] = []

    def seen(event: Any) -> None:
        throttled.append(round(event.throttle_time * 1000))

    with EmbeddedKafka(topics=["orders"]) as kafka:
        kafka.set_quota(client_id="slow", producer_byte_rate=5_000)
        config = plain(kafka) | {"client.id": "slow", "throttle_cb": seen, "linger.ms": 0}
        producer = Producer(config)
        producer.produce("orders", b"x" * 51_000)
        while not throttled:
            producer.poll(0.1)
        assert 100 <= throttled[0] <= 400
        kafka.remove_quota(client_id="slow")
        assert kafka.quotas() == []
        producer.flush(20)


async def test_a_throttled_producer_that_disconnects_loses_no_record(kafka):
    kafka.set_quota(client_id="m", producer_byte_rate=10_000)
    values = [b"x" * 101_000, *(b"%d" % number for number in range(5))]
    with socket.create_connection(("127.0.0.1", kafka.endpoint.brokers.ports[0])) as sending:
        sending.sendall(b"".join(map(produced, values)))
    await until(lambda: [each.value for each in kafka.records("orders")] == values)


async def test_a_throttled_producer_that_is_gone_does_not_delay_the_end() -> None:
    with EmbeddedKafka(topics=["orders"]) as kafka:
        kafka.add_fault("throttle", "Produce", seconds=60)
        with socket.create_connection(("127.0.0.1", kafka.endpoint.brokers.ports[0])) as sending:
            sending.sendall(produced(b"first") + produced(b"second"))
        await until(lambda: kafka.records("orders"))
        began = time.monotonic()
    assert time.monotonic() - began < 20


async def test_a_consumer_is_throttled_and_has_its_records():
    with EmbeddedKafka(topics=["orders"]) as kafka:
        kafka.produce("orders", b"x" * 51_000)
        kafka.set_quota(user="<default>", consumer_byte_rate=5_000)
        consumer = AIOKafkaConsumer(bootstrap_servers=kafka.bootstrap_servers, auto_offset_reset="earliest")
        await consumer.start()
        consumer.assign([TopicPartition("orders", 0)])
        assert len((await consumer.getone()).value) == 51_000
        await consumer.stop()


def test_a_consumer_of_librdkafka_is_throttled_and_has_its_records():
    throttled: list[int] = []
    with EmbeddedKafka(topics=["orders"]) as kafka:
        kafka.produce("orders", *(b"%d" % number + b"x" * 10_000 for number in range(12)))
        kafka.set_quota(client_id="slow", consumer_byte_rate=10_000)
        config = plain(kafka) | {"client.id": "slow", "group.id": "g", "auto.offset.reset": "earliest"}
        config |= {"throttle_cb": lambda event: throttled.append(round(event.throttle_time * 1000))}
        consumer = Consumer(config | {"fetch.message.max.bytes": 60_000})
        consumer.subscribe(["orders"])
        read: list[bytes] = []
        while len(read) < 12:
            read += [message.value() or b"" for message in consumer.consume(12, 1)]
            if throttled and kafka.quotas():
                kafka.remove_quota(client_id="slow")
        consumer.close()
    assert [each.split(b"x")[0] for each in read] == [b"%d" % number for number in range(12)]
    assert throttled
    assert 100 <= throttled[0] <= 11_000


def fetch(client: Client, session: tuple[int, int], *, offset: int | None = 0, **fields: Any) -> Any:
    """The answer to a fetch of a session, by its id and epoch; without an offset it names no partition."""
    whole = {"partition": 0, "partition_max_bytes": 50_000_000, "current_leader_epoch": -1}
    one = sample(of_fetch("FetchPartition"), fetch_offset=offset or 0, last_fetched_epoch=-1, **whole)
    partitions = [] if offset is None else [one]
    topics = tuple(sample(of_fetch("FetchTopic"), topic="orders", partitions=(each,)) for each in partitions)
    given = {"max_bytes": 50_000_000, "min_bytes": 1, "max_wait": datetime.timedelta(), "topics": topics}
    given |= {
        "session_id": session[0],
        "session_epoch": session[1],
        "forgotten_topics_data": (),
        "rack_id": "",
    }
    return client.ask(FETCH, 12, **{**given, **fields})


def size_of(reply: Any) -> int:
    return sum(len(one.records or b"") for topic in reply.responses for one in topic.partitions)


def test_a_fetch_above_the_quota_has_no_records_and_leaves_its_session_unchanged(kafka):
    client = Client(kafka.bootstrap_servers)
    kafka.produce("orders", b"x" * 9_000, partition=0)
    kafka.set_quota(client_id="me", consumer_byte_rate=800)
    reply = fetch(client, (0, 0))
    assert (reply.session_id, reply.responses) == (0, ()), "no session begins"
    assert reply.throttle_time >= datetime.timedelta(seconds=1)
    kafka.remove_quota(client_id="me")
    begun = fetch(client, (0, 0), offset=1)
    assert begun.session_id > 0
    kafka.produce("orders", b"x" * 9_000, partition=0)
    kafka.set_quota(client_id="me", consumer_byte_rate=740)  # the batch is more than twelve seconds of it
    reply = fetch(client, (begun.session_id, 1), offset=None)
    assert (reply.session_id, reply.responses) == (begun.session_id, ())
    assert reply.throttle_time >= datetime.timedelta(seconds=1)
    kafka.remove_quota(client_id="me")
    reply = fetch(client, (begun.session_id, 2), offset=None)
    assert size_of(reply) > 9_000
    assert [one.high_watermark for topic in reply.responses for one in topic.partitions] == [2]
    client.close()


def test_a_fetch_asks_for_no_more_than_can_be_had_at_once(kafka):
    client = Client(kafka.bootstrap_servers)
    for _ in range(3):
        kafka.produce("orders", b"x" * 9_000, partition=0)
    kafka.set_quota(client_id="me", consumer_byte_rate=2_000)
    reply = fetch(client, (0, -1))
    assert 18_000 < size_of(reply) < 20_000
    assert reply.throttle_time == datetime.timedelta()
    reply = fetch(client, (0, -1))
    assert reply.responses == ()
    assert datetime.timedelta(seconds=7) < reply.throttle_time < datetime.timedelta(seconds=9)
    client.close()


def test_each_response_says_for_how_long(kafka):
    kafka.set_quota(client_id="me", producer_byte_rate=1, request_percentage=0.0001)
    client = Client(kafka.bootstrap_servers)
    reply = client.ask(3, 12)
    assert datetime.timedelta() < reply.throttle_time <= datetime.timedelta(seconds=1), "at most a window"
    kafka.remove_quota(client_id="me")
    assert client.ask(3, 12).throttle_time == datetime.timedelta()
    client.close()


def test_a_quota_that_can_not_be_says_why(kafka):
    for arguments, words in (
        ({"producer_byte_rate": 5}, "needs a user or a client_id"),
        ({"user": "a", "producer_byte_rate": 0}, "Quota producer_byte_rate must be greater than 0"),
        ({"user": "a", "producer_byte_rate": 1.5}, "producer_byte_rate cannot be a fractional value"),
        ({"user": " ", "producer_byte_rate": 1}, "user ' ': expected a name"),
        ({"user": "a", "producer_byte_rate": "x"}, "producer_byte_rate='x': expected a number above 0"),
        ({"user": "a", "producer_byte_rate": True}, "producer_byte_rate=True: expected a number above 0"),
        ({"user": "a", "request_percentage": 10**400}, "request_percentage=10+: expected a number"),
        ({"user": "a"}, "set_quota: needs one of producer_byte_rate, .*; remove_quota removes quotas"),
    ):
        with pytest.raises(FencepostError, match=words):
            kafka.set_quota(**arguments)
    assert kafka.quotas() == []


def test_a_quota_stays_until_it_is_removed(kafka):
    kafka.set_quota(user="u", client_id="c", producer_byte_rate=10)
    kafka.set_quota(user="u", client_id="c", consumer_byte_rate=20)
    kafka.set_quota(client_id="<default>", request_percentage=30)
    both, rest = sorted(kafka.quotas(), key=lambda each: -len(each.values))
    assert both.values == {"consumer_byte_rate": 20, "producer_byte_rate": 10}
    kafka.remove_quota(user="u", client_id="c", key="producer_byte_rate")
    assert [each.values for each in kafka.quotas() if each.user] == [{"consumer_byte_rate": 20}]
    for arguments, words in (
        ({"user": "u"}, "user u has no quota; it has none"),
        ({}, "needs a user or a client_id"),
        (
            {"user": "u", "client_id": "c", "key": "producer_byte_rate"},
            "user u with client-id c has no quota 'producer_byte_rate'; it has consumer_byte_rate",
        ),
    ):
        with pytest.raises(FencepostError, match=f"remove_quota: {words}"):
            kafka.remove_quota(**arguments)
    kafka.remove_quota(user="u", client_id="c")
    assert kafka.quotas() == [rest]
    kafka.remove_quota(client_id="<default>")
    assert kafka.quotas() == []


def test_a_quota_that_is_no_number_lets_a_consumer_read_batch_by_batch(kafka):
    client = Client(kafka.bootstrap_servers)
    for _ in range(2):
        kafka.produce("orders", b"x" * 1_000, partition=0)
    kafka.set_quota(client_id="me", consumer_byte_rate=float("nan"))
    reply = fetch(client, (0, -1))
    assert 1_000 < size_of(reply) < 2_000
    assert reply.throttle_time == datetime.timedelta()
    client.close()
