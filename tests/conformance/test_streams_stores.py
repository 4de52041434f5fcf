"""Stores follow their partitions: what a client that was killed had counted, another one goes on from."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fencepost import EmbeddedKafka, StreamClientState, StreamsApp
from tests.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]

PARTITIONS, KEYS = 4, 5
GROUP, TOPIC = "billing", "orders"
CHANGELOG = "billing-orders-changelog"
FAST = {
    "group.streams.initial.rebalance.delay.ms": 0,
    "group.streams.min.session.timeout.ms": 100,
    "group.streams.session.timeout.ms": 6_000,
    "group.streams.min.heartbeat.interval.ms": 100,
    "group.streams.heartbeat.interval.ms": 500,
    "group.consumer.min.session.timeout.ms": 100,
    "group.consumer.session.timeout.ms": 6_000,
    "group.consumer.min.heartbeat.interval.ms": 100,
    "group.consumer.heartbeat.interval.ms": 500,
    "group.min.session.timeout.ms": 100,
}

VICTIM = """
import asyncio, sys
from fencepost import StreamsApp
async def count(partition, records, store):
    for record in records:
        key = record.value.decode()
        store.put(key, (store.get(key) or 0) + 1)
async def main():
    settings = {"session_timeout_ms": 6000, "heartbeat_interval_ms": 500} if sys.argv[2] == "classic" else {}
    app = StreamsApp(
        count, topics=["orders"], group_id="billing", threads=2, commit_interval_ms=100,
        bootstrap_servers=sys.argv[1], group_protocol=sys.argv[2], state_dir=sys.argv[3], **settings,
    )
    await app.start()
    await app.wait_ended()
asyncio.run(main())
"""


class Counting:
    """Counts each value in the store of its partition, and keeps what the stores say."""

    def __init__(self) -> None:
        self.counts: dict[tuple[int, str], int] = {}

    async def __call__(self, partition: Any, records: Sequence[Any], store: Any) -> None:
        for record in records:
            key = record.value.decode()
            store.put(key, (store.get(key) or 0) + 1)
            self.counts[partition.partition, key] = store.get(key)


def committed(kafka: Any) -> int:
    return sum(kafka.group(GROUP).offsets().values())


@pytest.mark.processes
@pytest.mark.parametrize(
    "protocol", ["streams", *(pytest.param(each, marks=pytest.mark.long) for each in ("classic", "consumer"))]
)
async def test_the_counts_of_a_client_that_was_killed_go_on_elsewhere(protocol: str, tmp_path: Path) -> None:
    expected: Counter[tuple[int, str]] = Counter()

    def produce(numbers: range) -> None:
        for number in numbers:
            place, key = number % PARTITIONS, f"k{number % KEYS}"
            kafka.produce(TOPIC, key, partition=place)
            expected[place, key] += 1

    async with EmbeddedKafka(topics={TOPIC: PARTITIONS}, config=FAST) as kafka:
        produce(range(100))
        words = (VICTIM, kafka.bootstrap_servers, protocol, str(tmp_path / "victim"))
        victim = await asyncio.create_subprocess_exec(sys.executable, "-c", *words)
        try:
            await until(lambda: victim.returncode is None and committed(kafka) == 100)
        finally:
            victim.kill()
            await victim.wait()
        counting = Counting()
        classic = {"session_timeout_ms": 6_000, "heartbeat_interval_ms": 500} if protocol == "classic" else {}
        app = StreamsApp(
            counting,
            topics=[TOPIC],
            group_id=GROUP,
            threads=2,
            commit_interval_ms=100,
            bootstrap_servers=kafka.bootstrap_servers,
            group_protocol=protocol,
            state_dir=tmp_path / "heir",
            **classic,  # type: ignore[arg-type]
        )
        async with app:
            await until(lambda: app.state is StreamClientState.RUNNING)
            produce(range(100, 200))
            await until(lambda: committed(kafka) == 200)
        assert counting.counts == {place: expected[place] for place in counting.counts}
        assert len(counting.counts) == PARTITIONS * KEYS

        # The first client's directory is behind: what is missing there is read, and only that.
        again = Counting()
        app = StreamsApp(
            again,
            topics=[TOPIC],
            group_id=GROUP,
            bootstrap_servers=kafka.bootstrap_servers,
            group_protocol=protocol,
            state_dir=tmp_path / "victim",
            **classic,  # type: ignore[arg-type]
        )
        async with app:
            await until(lambda: app.state is StreamClientState.RUNNING)
            produce(range(200, 220))
            await until(lambda: sum(again.counts.values()) > 0 and len(again.counts) == PARTITIONS * KEYS)
        assert again.counts == dict(expected)
