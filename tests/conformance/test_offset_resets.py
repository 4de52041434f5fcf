"""Where reading starts by `by_duration` (KIP-1106): as Java's consumer does, on Kafka and on our endpoint."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import aiokafka
import pytest

from fencepost import StreamsApp
from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.member.base.config import ConsumerConfig

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]

HOUR_MS = 3_600_000
AGES_H = {
    0: (5, 3, 0.5, 0.1),
    1: (5, 3),
    2: (5, 0.5, 3, 0.1),  # a producer's times need not rise
    3: (),
    4: (0.5, 5),
}
"""Hours that the records of each partition are old."""

RESETS = ("earliest", "latest", "none", "middle", "by_duration", "by_duration:", "BY_DURATION:P1D")
DURATIONS = (
    *("P3D", "PT1H30M", "PT0.5S", "PT0S", "P0D", "pt1h", "P1DT2H3M4.000000001S", "PT1,5S", "PT1.S"),
    *("3600", "PT.5S", "PT0.0000000001S", "P", "PT", "P1DT", "P1H", "P1W", "P1M", "P1Y", "PT1M1H"),
    *("PT1H1", "PT1.5H", "PT1-S", "P1DT-1H", "-P1D", "-P-1D", "+P+1D", "PT-1S", "PT-0.5S", "-PT-0.5S"),
    *("PT1H-61M", "-PT0S", "P106751991167300D", "P106751991167301D", "P106751991167300DT24H"),
    *("PT9223372036854775807S", "PT9223372036854775808S", "-PT-9223372036854775808S"),
)

Judge = Callable[..., Any]


@pytest.fixture
def judge(java_programs, java_process) -> Judge:
    command = java_programs.command("ConsumerJudge")
    return lambda *arguments: java_process([*command, *arguments])


def as_read_here(reset: str) -> int | str:
    try:
        duration_ms = ConsumerConfig(auto_offset_reset=reset).offset_reset_duration_ms
    except FencepostError:
        return "refused"
    return "plain" if duration_ms is None else duration_ms


def as_read_by_java(line: str) -> int | str:
    """Milliseconds, the part of one that is left counted as one, or the word for what has none."""
    seconds, _, nanoseconds = line.partition(" ")
    return int(seconds) * 1_000 - (-int(nanoseconds) // 1_000_000) if nanoseconds else seconds


def test_settings_are_read_as_by_java(judge):
    resets = (*RESETS, *(f"by_duration:{duration}" for duration in DURATIONS))
    java = judge("read-resets", "", *resets)
    java.wait(lambda line: line == "CLOSED")
    theirs = dict(zip(resets, map(as_read_by_java, java.said[:-1]), strict=True))
    assert {reset: as_read_here(reset) for reset in resets} == theirs
    assert theirs["by_duration:P3D"] == 3 * 24 * HOUR_MS


async def aged(world) -> str:
    """A topic with old records."""
    topic, now_ms = world.topic(len(AGES_H)), time.time_ns() // 1_000_000
    async with aiokafka.AIOKafkaProducer(bootstrap_servers=world.servers) as producer:
        for partition, ages_h in AGES_H.items():
            for age_h in ages_h:
                timestamp_ms = now_ms - int(age_h * HOUR_MS)
                value = b"%d: %g h" % (partition, age_h)
                await producer.send_and_wait(topic, value, partition=partition, timestamp_ms=timestamp_ms)
    return topic


async def starts(world, topic: str, reset: str) -> dict[int, int]:
    """Where our consumer starts."""
    world.group += "-again"
    async with asyncio.timeout(60), world.consumer(topic, auto_offset_reset=reset) as consumer:
        while len(consumer.assignment()) < len(AGES_H):  # noqa: ASYNC110 - a new topic may not be known yet
            await asyncio.sleep(0.02)
        return {partition: await consumer.position((topic, partition)) for partition in AGES_H}


def starts_of_java(java, partitions: set[int]) -> dict[int, int]:
    """Where the judge starts in these."""
    found: dict[int, int] = {}
    while found.keys() != partitions:
        _, partition, offset = java.wait(lambda line: line.startswith("START")).split()
        found[int(partition)] = int(offset)
    return found


@pytest.mark.parametrize(
    ("duration", "expected"),
    [
        ("PT1H", {0: 2, 2: 1, 4: 0}),
        pytest.param("PT12M", {0: 3, 2: 3}, marks=pytest.mark.long),
        pytest.param("-PT-4H", {0: 1, 1: 1, 2: 1, 4: 0}, marks=pytest.mark.long),
        pytest.param("P3D", {0: 0, 1: 0, 2: 0, 4: 0}, marks=pytest.mark.long),
    ],
)
async def test_reading_starts_at_the_first_record_that_is_young_enough(world, judge, duration, expected):
    """Where none is, the judge waits for one, and it is where we start: at the end."""
    topic, reset = await aged(world), f"by_duration:{duration}"
    java = judge("start", world.servers, world.group, topic, reset)
    theirs = await asyncio.to_thread(starts_of_java, java, expected.keys())
    assert theirs == expected
    ours = await starts(world, topic, reset)
    assert {partition: ours[partition] for partition in theirs} == theirs
    others = AGES_H.keys() - expected.keys()
    for partition in others:  # of all before there is one: where it starts is told only once
        await asyncio.to_thread(java.wait, lambda line, partition=partition: line == f"NOWHERE {partition}")
    for partition in others:
        await world.produce(topic, ["new"], partition)
    theirs |= await asyncio.to_thread(starts_of_java, java, others)
    java.close()
    assert ours == theirs


async def test_a_duration_that_goes_back_before_1970_takes_all(world):
    assert set((await starts(world, await aged(world), "by_duration:P30000D")).values()) == {0}


async def test_a_position_outside_of_the_log_is_reset_and_told_in_callbacks(world):
    """Where nothing is committed, a callback is told where reading will start."""
    topic = await aged(world)
    told: dict[int, int] = {}

    class Listener:
        async def on_partitions_assigned(self, partitions):
            told.update({each.partition: await consumer.position(each) for each in partitions})

        def on_partitions_revoked(self, partitions):
            pass

    consumer = world.consumer(topic, auto_offset_reset="by_duration:PT1H", listener=Listener())
    async with asyncio.timeout(60), consumer:
        while len(told) < len(AGES_H):
            await consumer.getmany(timeout_ms=100)
        assert told == {0: 2, 1: 2, 2: 1, 3: 0, 4: 0}
        consumer.pause(*((topic, partition) for partition in AGES_H if partition != 2))
        consumer.seek((topic, 2), 1_000)
        assert (await consumer.getone()).value == b"2: 0.5 h"


@pytest.mark.parametrize(
    "protocol", ["streams", *(pytest.param(each, marks=pytest.mark.long) for each in ("consumer", "classic"))]
)
async def test_an_application_starts_where_those_of_kafka_streams_do(
    ours, streams_application, tmp_path, protocol
):
    topic, output, reset = await aged(ours), ours.topic(1), "by_duration:PT1H"
    young = {"0: 0.5 h", "0: 0.1 h", "2: 0.5 h", "2: 3 h", "2: 0.1 h", "4: 0.5 h", "4: 5 h"}
    theirs = streams_application(
        ours.servers, "theirs", "classic", "copy", topic, output, f"auto.offset.reset={reset}"
    )
    seen: set[str] = set()

    async def process(partition, records):
        seen.update(record.value.decode() for record in records)

    app = StreamsApp(
        process,
        topics=[topic],
        group_id="ours",
        bootstrap_servers=ours.servers,
        group_protocol=protocol,
        auto_offset_reset=reset,
        state_dir=tmp_path / "ours",
    )
    async with asyncio.timeout(90), app:
        while not seen >= young:  # noqa: ASYNC110 - the broker is in another thread
            await asyncio.sleep(0.02)
        for partition in AGES_H:
            await ours.produce(topic, [f"{partition}: new"], partition)
        while not seen >= {f"{partition}: new" for partition in AGES_H}:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert seen == young | {f"{partition}: new" for partition in AGES_H}
    # It may have looked for the ends of the others only after their new records came.
    missing = young | {"0: new", "2: new", "4: new"}
    while missing:
        line = await asyncio.to_thread(theirs.wait, lambda line: line.startswith("RECORD"))
        read = line.removeprefix("RECORD ")
        assert read in seen
        missing.discard(read)
