"""PyPI's rstream at our node, and at a real RabbitMQ where one is up."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest
import rstream
from rstream.exceptions import AuthenticationFailure, StreamAlreadyExists

pytestmark = pytest.mark.real

FIRST = rstream.OffsetType.FIRST


# -- publishers and consumers ---------------------------------------------------------------------------


async def test_what_is_published_is_consumed(place: Any) -> None:
    stream = await place.stream()
    producer = await place.producer()
    for number in range(3):
        await producer.send_wait(stream, b"%d" % number)
    assert await place.read(stream, 3) == [(0, b"0"), (1, b"1"), (2, b"2")]

    specification = rstream.ConsumerOffsetSpecification
    last = specification(rstream.OffsetType.LAST)
    assert (await place.read(stream, 1, offset_specification=last))[-1] == (2, b"2")
    behind = specification(rstream.OffsetType.OFFSET, 1)
    assert await place.read(stream, 2, offset_specification=behind) == [(1, b"1"), (2, b"2")]
    long_ago = specification(rstream.OffsetType.TIMESTAMP, 1_000_000_000_000)
    assert (await place.read(stream, 3, offset_specification=long_ago))[0] == (0, b"0")


async def test_batches_are_unpacked(place: Any) -> None:
    stream = await place.stream()
    producer = await place.producer()
    confirmed: list[int] = []
    for kind in (rstream.CompressionType.No, rstream.CompressionType.Gzip):
        await producer.send_sub_entry(
            stream,
            [b"a", b"b"],
            compression_type=kind,
            on_publish_confirm=lambda status: confirmed.append(status.message_id),
        )
    await place.until(lambda: len(confirmed) == 2)
    assert [value for _, value in await place.read(stream, 4)] == [b"a", b"b", b"a", b"b"]


async def test_duplicates_are_confirmed_and_kept_once(place: Any) -> None:
    stream = await place.stream()
    producer = await place.producer()
    for first in (1, 3):
        for number in range(first, first + 4):
            message = rstream.RawMessage(b"%d" % number, publishing_id=number)
            await producer.send_wait(stream, message, publisher_name="till-7")
    await producer.close()
    again = await place.producer()
    await again.send_wait(stream, b"7", publisher_name="till-7")
    await again.send_wait(stream, b"end")
    numbers = [value for _, value in await place.read(stream, 8)]
    assert numbers == [b"1", b"2", b"3", b"4", b"5", b"6", b"7", b"end"]


async def test_offsets_are_stored(place: Any) -> None:
    stream = await place.stream()
    consumer = place.consumer()
    await consumer.start()
    with pytest.raises(rstream.OffsetNotFound):
        await consumer.query_offset(stream, "billing")
    await consumer.store_offset(stream, "billing", 41)
    await consumer.store_offset(stream, "billing", 42)
    assert await consumer.query_offset(stream, "billing") == 42
    if place.ours is not None:
        assert place.ours.offsets(stream) == {"billing": 42}


async def test_chunks_are_filtered(place: Any) -> None:
    stream = await place.stream()

    async def colour(message: rstream.AMQPMessage) -> str:
        return str(message.application_properties["colour"])

    producer = await place.producer(filter_value_extractor=colour)
    for name in ("red", "blue"):
        message = rstream.AMQPMessage(body=name.encode(), application_properties={"colour": name})
        await producer.send_wait(stream, message)
    got: list[bytes] = []
    consumer = place.consumer()
    await consumer.subscribe(
        stream,
        lambda message, context: got.append(message.body),
        decoder=rstream.amqp_decoder,
        filter_input=rstream.FilterConfiguration(values_to_filter=["blue"]),
        offset_specification=rstream.ConsumerOffsetSpecification(FIRST),
    )
    await place.until(lambda: b"blue" in got)
    assert got == [b"blue"]


async def test_streams_come_and_go(place: Any) -> None:
    stream = await place.stream()
    gone: list[str] = []
    reader = place.consumer(on_close_handler=lambda information: gone.extend(information.streams))
    await reader.subscribe(stream, lambda message, context: None)
    producer = await place.producer()
    with pytest.raises(StreamAlreadyExists):
        await producer.create_stream(stream)
    await producer.delete_stream(stream)
    await place.until(lambda: gone)
    assert gone == [stream]
    assert not await producer.stream_exists(stream)
    with pytest.raises(rstream.StreamDoesNotExist):
        await producer.send_wait(stream, b"x")


async def test_keys_lead_to_partitions(place: Any) -> None:
    name = await place.super_stream(3)

    async def key(message: rstream.AMQPMessage) -> str:
        return str(message.application_properties["key"])

    settings = {name: value for name, value in place.settings.items() if name != "recovery_strategy"}
    producer = rstream.SuperStreamProducer(
        **settings, super_stream=name, routing_extractor=key, routing=rstream.RouteType.Key
    )
    async with producer:
        message = rstream.AMQPMessage(body=b"x", application_properties={"key": "2"})
        await producer.send(message)
    assert len(await place.read(f"{name}-2", 1)) == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_wrong_password_is_refused(place: Any) -> None:
    with pytest.raises(AuthenticationFailure):
        await place.producer(password="wrong")
    gc.collect()  # rstream forgets a socket that it has not closed


# -- single active consumers ----------------------------------------------------------------------------


class Crew:
    """Single active consumers of a super stream, each with an ear for all partitions.

    One that is activated starts behind the offset that is stored. `said` is what happened, in order.
    """

    def __init__(self, place: Any, stream: str) -> None:
        self.place = place
        self.stream = stream
        self.said: list[tuple[str, str, str]] = []
        """Who, to which stream, and `active`, `steps down` or `let go`."""
        self.active: dict[str, str] = {}
        """Who has answered last that it is active, by stream."""
        self.got: dict[str, list[tuple[str, bytes]]] = {}
        """Messages with who read them, by stream."""
        self.may_let_go: dict[str, asyncio.Event] = {}
        """Consumers that are slow to step down."""
        self.members: dict[str, rstream.SuperStreamConsumer] = {}

    async def join(self, name: str) -> None:
        """One more consumer."""
        memory = self.place.consumer()
        await memory.start()

        async def told(is_active: bool, context: rstream.EventContext) -> rstream.OffsetSpecification:
            stream = context.stream
            if is_active:
                self.said.append((name, stream, "active"))
                assert stream not in self.active, f"{self.active[stream]} and {name} are active"
                self.active[stream] = name
                try:
                    stored = await memory.query_offset(stream, "crew")
                except rstream.OffsetNotFound:
                    return rstream.OffsetSpecification(FIRST, 0)
                return rstream.OffsetSpecification(rstream.OffsetType.OFFSET, stored + 1)
            self.said.append((name, stream, "steps down"))
            if name in self.may_let_go:
                await self.may_let_go[name].wait()
            self.said.append((name, stream, "let go"))
            del self.active[stream]
            return rstream.OffsetSpecification(rstream.OffsetType.NEXT, 0)

        async def read(message: bytes, context: rstream.MessageContext) -> None:
            await memory.store_offset(context.stream, "crew", context.offset)
            self.got.setdefault(context.stream, []).append((name, bytes(message)))

        member = self.place.super_consumer(self.stream, connection_name=name)
        await member.start()
        properties = {"single-active-consumer": "true", "name": "crew", "super-stream": self.stream}
        await member.subscribe(read, properties=properties, consumer_update_listener=told)
        self.members[name] = member

    async def kill(self, name: str) -> None:
        """Its connection breaks, and it does not come back."""
        for client in set(self.members[name]._consumer._clients.values()):
            client._conn._writer.transport.abort()
        for stream in [stream for stream, who in self.active.items() if who == name]:
            del self.active[stream]

    def partitions(self) -> list[str]:
        """Who is active in each partition, in their order; empty where nobody is."""
        return [self.active.get(f"{self.stream}-{number}", "") for number in range(3)]

    def values(self, number: int) -> list[bytes]:
        """What was read of a partition, by anybody."""
        return [value for _, value in self.got.get(f"{self.stream}-{number}", [])]


async def test_three_consumers_of_three_partitions_one_slow_and_one_killed(place: Any) -> None:
    name = await place.super_stream(3)
    producers = [await place.producer() for _ in range(3)]
    crew = Crew(place, name)
    sent: list[bytes] = []

    async def send() -> None:
        sent.append(b"%d" % len(sent))
        for number, producer in enumerate(producers):
            await producer.send_wait(f"{name}-{number}", sent[-1])
        await place.until(lambda: all(crew.values(number) == sent for number in range(3)))

    await crew.join("a")
    await place.until(lambda: crew.partitions() == ["a", "a", "a"])
    await send()

    crew.may_let_go["a"] = asyncio.Event()
    joining = asyncio.ensure_future(crew.join("b"))
    middle = f"{name}-1"
    await place.until(lambda: ("a", middle, "steps down") in crew.said)
    if place.ours is not None:
        states = [each.state for each in place.ours.group(middle, "crew").consumers()]
        assert states == ["deactivating (connected)", "waiting (connected)"]
    assert crew.partitions() == ["a", "a", "a"]
    crew.may_let_go.pop("a").set()
    await joining
    await place.until(lambda: crew.partitions() == ["a", "b", "a"])
    handover = [(who, what) for who, stream, what in crew.said if stream == middle]
    assert handover == [("a", "active"), ("a", "steps down"), ("a", "let go"), ("b", "active")]
    await send()

    await crew.join("c")
    await place.until(lambda: crew.partitions() == ["a", "b", "c"])
    await send()

    await crew.kill("a")
    await place.until(lambda: crew.partitions() == ["b", "c", "b"])
    await send()
    assert {who for who, _ in crew.got[f"{name}-0"]} == {"a", "b"}
    if place.ours is not None:
        for number, who in enumerate("bcb"):
            settled = await place.ours.group(f"{name}-{number}", "crew").wait_settled(consumers=2)
            assert [each.client_name for each in settled if each.is_active] == [who]


async def test_two_consumers_of_a_stream_one_after_the_other(place: Any) -> None:
    stream = await place.stream()
    producer = await place.producer()
    told: list[tuple[str, bool]] = []
    got: list[tuple[str, bytes]] = []

    async def join(name: str) -> rstream.Consumer:
        async def listener(is_active: bool, context: rstream.EventContext) -> rstream.OffsetSpecification:
            told.append((name, is_active))
            return rstream.OffsetSpecification(FIRST, 0)

        consumer = place.consumer(connection_name=name)
        await consumer.subscribe(
            stream,
            lambda message, context: got.append((name, bytes(message))),
            properties={"single-active-consumer": "true", "name": "pair"},
            consumer_update_listener=listener,
        )
        return consumer

    one = await join("one")
    await join("two")
    await producer.send_wait(stream, b"x")
    await place.until(lambda: got == [("one", b"x")])
    if place.ours is not None:
        group = place.ours.group(stream, "pair")
        settled = await group.wait_settled(consumers=2)
        states = [(each.client_name, each.state, each.is_active) for each in settled]
        assert states == [("one", "active (connected)", True), ("two", "waiting (connected)", False)]
        assert group.partition_index == -1
        place.ours.disconnect(settled[0])
    else:
        await one.close()
    await place.until(lambda: got == [("one", b"x"), ("two", b"x")])
    assert told == [("one", True), ("two", True)]
