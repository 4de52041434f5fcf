"""Bytes that no client would send: nothing crashes, and nobody else notices."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import mmap
import random
import struct
import sys
import time
from collections import Counter
from pathlib import Path
from types import ModuleType

import confluent_kafka
import pytest
import structlog
from aiokafka.record.util import calc_crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from fencepost.coordinator.codec.context import RequestContext
from fencepost.coordinator.codec.framing import FrameBuffer, MalformedFrame, read_header
from fencepost.coordinator.codec.registry import REGISTRY, codec_of
from fencepost.coordinator.server.brokers import Broker
from tests import batches
from tests.waiting import until

pytestmark = pytest.mark.real

API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 7, -1)
HEARTBEAT_JOIN = (
    bytes.fromhex("0044000100000001000274650002670200000000000000000003e8000000") + b"\x00\x00\x01\x00"
)


async def speaks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    writer.write(API_VERSIONS)
    (size,) = struct.unpack(">i", await asyncio.wait_for(reader.readexactly(4), 5))
    answer = await asyncio.wait_for(reader.readexactly(size), 5)
    return answer[:6] == struct.pack(">ih", 7, 0)


async def closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


async def until_nobody_is_connected(broker: Broker) -> None:
    await until(lambda: not broker.connections)


async def throw(broker: Broker, data: bytes) -> bytes:
    """What the broker answers to these bytes before it closes, or before nothing more comes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
    try:
        writer.write(data)
        writer.write_eof()
        return await asyncio.wait_for(reader.read(), 60)
    except ConnectionError:
        return b""
    finally:
        await closed(writer)


def headers(rng: random.Random) -> bytes:
    """A header that is right, so that the body is looked at."""
    api = rng.choice(list(REGISTRY.values()))
    version = rng.randrange(api.min_version, api.max_version + 1)
    codec = codec_of(int(api.key), version)
    tags = b"\0" if codec is not None and codec.flexible else b""
    return struct.pack(">hhih", api.key, version, rng.randrange(1000), -1) + tags


def body(rng: random.Random) -> bytes:
    return bytes(
        rng.choice((0, 0, 0, 1, 1, 2, 3, 127, 128, 255, rng.randrange(256))) for _ in range(rng.randrange(80))
    )


def framed(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def mutated(rng: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randrange(1, 5)):
        match rng.randrange(3):
            case 0:
                changed[rng.randrange(len(changed))] = rng.randrange(256)
            case 1:
                del changed[rng.randrange(len(changed)) :][:1]
            case 2:
                changed.insert(rng.randrange(len(changed)), rng.choice((0, 1, 255)))
    return bytes(changed)


@pytest.mark.timeout(300)
async def test_thousands_of_wrong_requests_disturb_nobody():
    rng = random.Random(20_848)
    async with Broker({"orders": 3}) as broker:
        witness = await asyncio.open_connection("127.0.0.1", broker.port)
        assert await speaks(*witness)
        with structlog.testing.capture_logs() as logs:
            for round_ in range(25):
                thrown = [rng.randbytes(rng.randrange(200)) for _ in range(5)]
                thrown += [framed(headers(rng) + body(rng)) for _ in range(60)]
                thrown += [mutated(rng, framed(HEARTBEAT_JOIN)) for _ in range(10)]
                await asyncio.gather(*(throw(broker, data) for data in thrown))
                assert await speaks(*witness), f"round {round_}"
        assert {line["event"] for line in logs} <= {"connection_closed", "member_fenced"}, [
            line for line in logs if line["event"] not in {"connection_closed", "member_fenced"}
        ][:1]
        assert len(logs) > 400, "most of them are refused"
        await closed(witness[1])
        await until_nobody_is_connected(broker)


def record_batch(compression: int) -> bytes:
    records = ((1_000 + number, b"k", b"v" * 20, [("h", b"1")]) for number in range(5))
    return batches.batch_of(records, compression=compression)


def sealed(batch: bytes) -> bytes:
    """With the checksum that belongs to it, so that what stands behind it is looked at."""
    return batch[:17] + struct.pack(">I", calc_crc32c(batch[21:])) + batch[21:]


def produce(number: int, topic: bytes, batch: bytes) -> bytes:
    """Produce, version 8, to partition 0."""
    ask = struct.pack(">hhihhhii", 0, 8, number, -1, -1, -1, 1_000, 1)
    ask += struct.pack(">h", len(topic)) + topic + struct.pack(">iii", 1, 0, len(batch)) + batch
    return framed(ask)


def read_with_librdkafka(bootstrap_servers: str, last: bytes) -> int:
    """How many records there are up to the last one."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "g"})
    consumer.assign([confluent_kafka.TopicPartition("orders", 0, 0)])
    found, deadline = 0, time.monotonic() + 60
    try:
        while time.monotonic() < deadline:
            message = consumer.poll(1)
            if message is not None:
                assert message.error() is None, message.error()
                found += 1
                if message.value() == last:
                    return found
    finally:
        consumer.close()
    raise AssertionError(f"only {found} records, and not the last one")


@pytest.mark.timeout(120)
async def test_wrong_records_with_a_right_checksum_block_no_consumer():
    rng = random.Random(20_848)
    codes = Counter()
    async with Broker({"orders": 1}) as broker:
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)

        async def code_of(batch: bytes) -> int:
            writer.write(produce(7, b"orders", batch))
            (size,) = struct.unpack(">i", await asyncio.wait_for(reader.readexactly(4), 60))
            answer = await reader.readexactly(size)
            return struct.unpack_from(">h", answer, 4 + 4 + 2 + len(b"orders") + 4 + 4)[0]

        try:
            originals = [record_batch(compression) for compression in range(5)]
            for _ in range(1_000):
                changed = bytearray(rng.choice(originals))
                for _ in range(rng.randrange(1, 4)):
                    byte = rng.choice((0, 1, 2, 127, 128, 255, rng.randrange(256)))
                    changed[rng.randrange(21, len(changed))] = byte
                codes[await code_of(sealed(bytes(changed)))] += 1
            assert await code_of(originals[0][:-1] + b"!") == 2, "without its checksum"
            assert await code_of(batches.batch(b"the end")) == 0
        finally:
            await closed(writer)
        stored = broker.cluster.log(broker.cluster.image.by_name["orders"], 0).high_watermark
        assert await asyncio.to_thread(read_with_librdkafka, broker.bootstrap_servers, b"the end") == stored
    assert codes[0] > 50, "some changes do no harm"
    assert codes[87] > 200, "records that can't be read"
    assert codes[-1] > 100, "compression that is none"


async def test_a_frame_that_comes_byte_by_byte_is_answered():
    async with Broker() as broker:
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
        for byte in API_VERSIONS:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0)
        (size,) = struct.unpack(">i", await asyncio.wait_for(reader.readexactly(4), 5))
        assert len(await reader.readexactly(size)) == size
        await closed(writer)


async def test_a_connection_that_breaks_off_within_a_frame_leaves_nothing_behind():
    async with Broker() as broker:
        for length in range(len(API_VERSIONS)):
            assert await throw(broker, API_VERSIONS[:length]) == b""
        await until_nobody_is_connected(broker)


@pytest.fixture
def thrower() -> ModuleType:
    """The benchmark that throws a million frames."""
    path = Path(__file__).parents[3] / "benchmarks" / "fuzz.py"
    spec = importlib.util.spec_from_file_location("fuzz", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


linux = pytest.mark.skipif(sys.platform != "linux", reason="reads memory from /proc")


@linux
@pytest.mark.long
@pytest.mark.timeout(240)
def test_twenty_thousand_frames_break_nothing_and_leave_nothing_behind(thrower: ModuleType) -> None:
    found = thrower.run(20_000, seed=20_848)
    assert found["answered"] > 2_000
    assert found["closed"] > 2_000
    assert found["grown_mb"] < 50


@linux
def test_memory_that_grows_is_seen(thrower: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = []

    def keep(client: object) -> None:
        # From the system itself: the heap may have room from earlier tests, which is no growth.
        kept.append(mmap.mmap(-1, 100_000))
        kept[-1].write(bytes(100_000))

    monkeypatch.setattr(thrower.Client, "hang_up", keep)
    assert thrower.run(1_500, seed=1)["grown_mb"] > 50


APIS = [
    (int(api.key), version)
    for api in REGISTRY.values()
    for version in range(api.min_version, api.max_version + 1)
]


@settings(max_examples=20 * settings().max_examples)
@given(st.sampled_from(APIS), st.binary(max_size=300))
def test_any_bytes_are_a_request_or_malformed(api: tuple[int, int], data: bytes) -> None:
    codec = codec_of(*api)
    assert codec is not None
    with contextlib.suppress(MalformedFrame):
        codec.decode(data, 0, RequestContext(api[1], "fuzz", "/127.0.0.1"))


@settings(max_examples=6 * settings().max_examples)
@given(st.lists(st.binary(max_size=60), max_size=8))
def test_any_stream_is_cut_into_frames_or_refused(pieces: list[bytes]) -> None:
    buffer, taken = FrameBuffer(1_000), 0
    with contextlib.suppress(MalformedFrame):
        for piece in pieces:
            buffer.feed(piece)
            while (frame := buffer.next_frame()) is not None:
                taken += 4 + len(frame)
                with contextlib.suppress(MalformedFrame):
                    read_header(frame)
        assert taken + buffer.buffered == sum(map(len, pieces))
