"""`SingleActiveConsumer` at our node, and at a real RabbitMQ where one is up, with rstream beside it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
import rstream

from fencepost.member.rabbit.transport import RabbitTransport
from fencepost.member.sac.consumer import SingleActiveConsumer
from fencepost.member.sac.listener import SacListener
from fencepost.member.sac.machine import SacConfig
from fencepost.member.sac.offsets import FIRST
from fencepost.member.sac.transport import SacSubscription, SubscriptionRefused

pytestmark = pytest.mark.real


def subscription(stream: str, super_stream: str | None = None) -> SacSubscription:
    return SacSubscription(stream=stream, name="group", super_stream=super_stream, offset=FIRST)


def transport(place: Any, stream: str, name: str, **settings: Any) -> RabbitTransport:
    there = {each: place.settings[each] for each in ("host", "port", "username", "password")}
    return RabbitTransport(stream, client_name=name, **{**there, **settings})


class Reader:
    """An application: reads, stores each offset, and remembers."""

    def __init__(
        self, place: Any, name: str, wanted: SacSubscription, listener: SacListener | None = None
    ) -> None:
        self.consumer = SingleActiveConsumer(
            wanted,
            transport(place, wanted.stream, name),
            listener=listener,
            config=SacConfig(backoff_ms=20, backoff_max_ms=100),
        )
        self.got: list[bytes] = []
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> Reader:
        await self.consumer.start()
        self._task = asyncio.create_task(self._read())
        return self

    async def _read(self) -> None:
        async for message in self.consumer:
            self.got.append(message.value)
            self.consumer.store_offset(message.offset)

    async def close(self) -> None:
        await self.consumer.close()
        await self.ended()

    async def ended(self) -> None:
        if self._task is not None:
            await self._task


@contextlib.asynccontextmanager
async def reader(place: Any, name: str, wanted: SacSubscription, **more: Any) -> AsyncIterator[Reader]:
    made = await Reader(place, name, wanted, **more).start()
    try:
        yield made
    finally:
        await made.close()


async def test_it_takes_over_from_rstream_and_rstream_from_it(place: Any) -> None:
    stream = await place.stream()
    producer = await place.producer()
    theirs: list[bytes] = []
    memory = place.consumer()
    await memory.start()

    async def told(is_active: bool, context: rstream.EventContext) -> rstream.OffsetSpecification:
        stored = await memory.query_offset(stream, "group")
        return rstream.OffsetSpecification(rstream.OffsetType.OFFSET, stored + 1)

    async def read(message: bytes, context: rstream.MessageContext) -> None:
        await memory.store_offset(stream, "group", context.offset)
        theirs.append(bytes(message))

    async with reader(place, "first", subscription(stream)) as first:
        await producer.send_wait(stream, b"a")
        await place.until(lambda: first.got == [b"a"])
        other = place.consumer()
        properties = {"single-active-consumer": "true", "name": "group"}
        await other.subscribe(stream, read, properties=properties, consumer_update_listener=told)
        await producer.send_wait(stream, b"b")
        await place.until(lambda: first.got == [b"a", b"b"])
    await producer.send_wait(stream, b"c")
    await place.until(lambda: theirs == [b"c"])
    async with reader(place, "second", subscription(stream)) as second:
        await other.close()
        await producer.send_wait(stream, b"d")
        await place.until(lambda: second.got == [b"d"])
    assert theirs == [b"c"]


class Slow(SacListener):
    """Lets go when it may."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.may_let_go = asyncio.Event()

    async def on_stepping_down(self, consumer: SingleActiveConsumer) -> None:
        self.asked.set()
        await self.may_let_go.wait()


async def test_a_partition_goes_from_one_to_the_next_when_that_one_lets_go(place: Any) -> None:
    name = await place.super_stream(3)
    middle = f"{name}-1"
    producer = await place.producer()
    slow = Slow()
    wanted = subscription(middle, name)
    async with contextlib.AsyncExitStack() as stack:
        one = await stack.enter_async_context(reader(place, "one", wanted, listener=slow))
        await producer.send_wait(middle, b"a")
        await place.until(lambda: one.got == [b"a"])
        two = await stack.enter_async_context(reader(place, "two", wanted))
        await asyncio.wait_for(slow.asked.wait(), 60)
        await producer.send_wait(middle, b"b")
        assert not two.consumer.is_active
        slow.may_let_go.set()
        await place.until(lambda: two.got == [b"b"])
        assert one.got == [b"a"]
        two.consumer.abandon()
        await two.ended()
        await producer.send_wait(middle, b"c")
        await place.until(lambda: one.got == [b"a", b"c"])


async def test_batches_are_read_compressed_or_not(place: Any) -> None:
    stream = await place.stream()
    producer = await place.producer()
    for kind in (rstream.CompressionType.No, rstream.CompressionType.Gzip):
        await producer.send_sub_entry(stream, [b"a", b"b"], compression_type=kind)
    async with reader(place, "one", subscription(stream)) as one:
        await place.until(lambda: one.got == [b"a", b"b", b"a", b"b"])


async def test_it_goes_on_in_the_middle_of_a_chunk(place: Any) -> None:
    stream = await place.stream()
    await (await place.producer()).send_sub_entry(stream, [b"a", b"b", b"c"])
    for expected in (b"a", b"b", b"c"):
        consumer = SingleActiveConsumer(subscription(stream), transport(place, stream, "one"))
        async with consumer:
            message = await asyncio.wait_for(consumer.getone(), 60)
            assert message.value == expected
            consumer.store_offset(message.offset)


async def test_a_connection_that_breaks_is_made_anew(place: Any) -> None:
    if place.ours is None:
        pytest.skip("only our node breaks connections when it is asked to")
    stream = await place.stream()
    async with reader(place, "one", subscription(stream)) as one:
        place.ours.publish(stream, "a")
        await place.until(lambda: one.got == [b"a"])
        place.ours.disconnect("one")
        place.ours.publish(stream, "b")
        await place.until(lambda: one.got == [b"a", b"b"])
        assert place.ours.offsets(stream) == {"group": 2}  # what was stored before has 1


@pytest.mark.parametrize(
    ("stream", "settings", "why"),
    [
        ("none", {}, "'none' can't be read: STREAM_DOES_NOT_EXIST"),
        ("none", {"password": "wrong"}, "'guest' can't log in: AUTHENTICATION_FAILURE"),
        ("none", {"virtual_host": "nowhere"}, "'nowhere' can't be opened: VIRTUAL_HOST_ACCESS_FAILURE"),
    ],
)
async def test_what_is_refused_is_told(place: Any, stream: str, settings: dict[str, str], why: str) -> None:
    consumer = SingleActiveConsumer(subscription(stream), transport(place, stream, "one", **settings))
    with pytest.raises(SubscriptionRefused, match=why):
        await consumer.start()


class Broken(SacListener):
    """Fails whenever it is activated."""

    def on_activated(self, consumer: SingleActiveConsumer) -> None:
        raise LookupError("no offset")


async def test_start_returns_although_each_activation_fails_at_once(place: Any) -> None:
    asyncio.get_running_loop().set_exception_handler(lambda _, context: None)
    stream = await place.stream()
    for _ in range(5):
        consumer = SingleActiveConsumer(
            subscription(stream), transport(place, stream, "one"), listener=Broken()
        )
        await asyncio.wait_for(consumer.start(), 30)
        await consumer.close()


@contextlib.asynccontextmanager
async def mapped_port(host: str, port: int) -> AsyncIterator[tuple[int, list[int]]]:
    """A port of this machine that leads to a node, as that of a container does; and who came that way."""
    came: list[int] = []
    tasks: set[asyncio.Task[None]] = set()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.append(writer.get_extra_info("peername")[1])
        there = await asyncio.open_connection(host, port)
        for one, other in ((reader, there[1]), (there[0], writer)):
            tasks.add(asyncio.create_task(copy(one, other)))

    server = await asyncio.start_server(forward, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], came
    finally:
        server.close()
        await asyncio.gather(*tasks)


async def test_it_stays_on_a_mapped_port_which_the_node_does_not_advertise(place: Any) -> None:
    stream = await place.stream()
    await (await place.producer()).send_wait(stream, b"a")
    async with mapped_port(place.settings["host"], place.settings["port"]) as (port, came):
        consumer = SingleActiveConsumer(
            subscription(stream), transport(place, stream, "one", host="127.0.0.1", port=port)
        )
        async with consumer:
            assert (await asyncio.wait_for(consumer.getone(), 60)).value == b"a"
            assert len(came) == 1, "the consumer's one connection goes through the port"
            if place.ours is not None:
                assert len(place.ours.group(stream, "group").consumers()) == 1


@pytest.mark.parametrize("in_super_stream", [False, True])
async def test_a_partition_index_is_refused(place: Any, in_super_stream: bool) -> None:
    name = await place.super_stream(2)
    wanted = SacSubscription(
        stream=f"{name}-1",
        name="group",
        super_stream=name if in_super_stream else None,
        partition_index=0,
        offset=FIRST,
    )
    consumer = SingleActiveConsumer(wanted, transport(place, f"{name}-1", "one"))
    with pytest.raises(
        SubscriptionRefused, match="partition_index is 0, and RabbitMQ's protocol has no field for it"
    ):
        await asyncio.wait_for(consumer.start(), 30)
    await consumer.close()
