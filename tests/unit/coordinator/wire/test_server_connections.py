"""Connections of the endpoint: the order of answers, refusals, limits, ends. Real sockets on a real loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from typing import Any

import pytest
import structlog

from fencepost.coordinator.codec.registry import REGISTRY
from fencepost.coordinator.server.brokers import Broker
from tests.unit.coordinator.wire.raw_client import (
    Wire,
    fetch_fields,
    produce_fields,
)
from tests.waiting import until

pytestmark = pytest.mark.real


async def test_answers_come_in_the_order_of_their_requests(broker, wire):
    wire.send(18, 0)
    wire.send(1, 17, **fetch_fields(broker, max_wait=10_000))
    wire.send(3, 12, topics=None)
    wire.send(18, 0)
    assert len((await wire.receive()).api_keys) == len(REGISTRY)
    other = await Wire.to(broker)
    assert len((await other.ask(3, 12, topics=None)).topics) == 1, "a waiting fetch holds up nobody else"
    assert (await other.ask(0, 9, **produce_fields(b"value"))).responses[0].partition_responses[
        0
    ].base_offset == 0
    (topic,) = (await wire.receive()).responses
    assert b"value" in topic.partitions[0].records
    assert [topic.name for topic in (await wire.receive()).topics] == ["orders"]
    assert len((await wire.receive()).api_keys) == len(REGISTRY)


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (b"", "a header has at least 10"),
        (struct.pack(">hhih", 18, 3, 1, -1) + b"\0", "API_VERSIONS version 3 can't be read"),
        (struct.pack(">hhih", 3, 12, 1, -1) + b"\0\xff\xff\xff\xff\x07", "METADATA version 12 can't be read"),
        (struct.pack(">hhih", 7, 2, 1, -1) + b"\0", "API 7 version 2 is not spoken here"),
        (struct.pack(">hhih", 3, 99, 1, -1) + b"\0", "Metadata version 99 is not spoken here"),
        (struct.pack(">hhih", -5, 0, 1, -1) + b"\0", "API -5 version 0 is not spoken here"),
    ],
)
async def test_what_is_no_request_closes_its_connection_only(broker, wire, frame, reason):
    other = await Wire.to(broker)
    await other.ask(18, 0)
    with structlog.testing.capture_logs() as logs:
        wire.send(18, 0)
        wire.raw(frame)
        wire.send(18, 0)
        assert (await wire.receive()).error_code == 0, "what came before is answered"
        assert await wire.ended()
    (line,) = logs
    assert line["event"] == "connection_closed"
    assert reason in line["reason"]
    assert (await other.ask(18, 0)).error_code == 0


async def test_a_frame_beyond_the_limit_closes_the_connection():
    async with Broker(max_frame_bytes=1000) as broker:
        wire = await Wire.to(broker)
        wire.writer.write(struct.pack(">i", 1001))
        assert await wire.ended()
        wire = await Wire.to(broker)
        wire.writer.write(struct.pack(">i", -1))
        assert await wire.ended()


async def test_connections_beyond_the_limit_are_closed():
    async with Broker(max_connections=2) as broker:
        first, second = await Wire.to(broker), await Wire.to(broker)
        await first.ask(18, 0)
        await second.ask(18, 0)
        assert await (await Wire.to(broker)).ended()
        await first.close()
        await until(lambda: len(broker.connections) < 2)
        third = await Wire.to(broker)
        assert (await third.ask(18, 0)).error_code == 0


async def test_a_client_that_does_not_read_is_not_read_from():
    async with Broker({"orders": 5_000}) as broker:
        wire = await Wire.to(broker)
        wire.writer.transport.pause_reading()  # type: ignore[attr-defined]
        for _ in range(150):
            wire.send(3, 12, topics=None)
        other = await Wire.to(broker)
        await other.ask(18, 0)
        await until(lambda: any(one._write_blocked for one in broker.connections))
        (greedy,) = (one for one in broker.connections if one._write_blocked)
        assert greedy._transport.get_write_buffer_size() < 2_000_000
        wire.writer.transport.resume_reading()  # type: ignore[attr-defined]
        for number in range(1, 151):
            assert (await wire.frame())[:4] == struct.pack(">i", number)


async def test_a_broker_closes_although_clients_wait(broker):
    wire, idle = await Wire.to(broker), await Wire.to(broker)
    wire.send(1, 17, **fetch_fields(broker, max_wait=60_000))
    await idle.ask(18, 0)
    await broker.close()
    assert await wire.ended()
    assert await idle.ended()


@pytest.mark.parametrize("turns", range(5))
async def test_who_comes_while_the_broker_closes_is_sent_away(turns):
    """The connection is accepted some turns of the loop before, which takes more turns to be complete."""
    loop = asyncio.get_running_loop()
    async with Broker() as broker:
        wire = await Wire.to(broker)
        await wire.ask(18, 0)
        late = socket.create_connection(("127.0.0.1", broker.port))
        for _ in range(turns):
            await asyncio.sleep(0)
    with late:
        late.setblocking(False)
        with contextlib.suppress(ConnectionResetError):  # where it was never accepted
            assert await asyncio.wait_for(loop.sock_recv(late, 1), 10) == b""
    assert not broker.connections


async def test_a_refused_batch_without_acknowledgement_closes_the_connection(wire):
    wire.send(0, 9, **produce_fields(b"fine", acks=0))
    assert (await wire_after(wire)).error_code == 0
    wire.send(0, 9, **produce_fields(None, acks=0))
    assert await wire.ended()


async def wire_after(wire: Wire) -> Any:
    """The answer to a request behind one that has none."""
    wire.expected.clear()
    return await wire.ask(18, 0)


@pytest.mark.parametrize(
    ("software", "is_held"),
    [("librdkafka", True), ("confluent-kafka-python", True), ("apache-kafka-java", False)],
)
async def test_librdkafka_does_not_hear_of_brokers_before_it_asks_for_its_coordinator(software, is_held):
    async with Broker({}) as broker:
        wire = await Wire.to(broker)
        await wire.ask(18, 3, client_software_name=software, client_software_version="1")
        clock = asyncio.get_running_loop().time
        alone, followed = [], []
        for _ in range(20):
            began = clock()
            await wire.ask(3, 12, topics=())
            alone.append(clock() - began)
            began = clock()
            wire.send(3, 12, topics=())
            wire.send(10, 4, coordinator_keys=("g",))
            assert (await wire.receive()).brokers
            assert (await wire.receive()).coordinators[0].port == broker.port
            followed.append(clock() - began)
        assert (min(alone) >= 0.002) == is_held
        assert min(followed) < 0.002


@pytest.mark.parametrize(("software", "apart"), [("librdkafka", True), ("apache-kafka-java", False)])
async def test_librdkafka_hears_of_its_coordinator_once_at_a_time(broker, wire, monkeypatch, software, apart):
    monkeypatch.setattr("fencepost.coordinator.server.connection._COORDINATOR_TOLD_S", 60)
    await wire.ask(18, 3, client_software_name=software, client_software_version="1")
    for _ in range(2):
        wire.send(10, 4, coordinator_keys=("g",))
    (found,) = (await wire.receive()).coordinators
    assert found.error_code == 0
    with pytest.raises(TimeoutError) if apart else contextlib.nullcontext():
        async with asyncio.timeout(0.1):
            await wire.receive()
