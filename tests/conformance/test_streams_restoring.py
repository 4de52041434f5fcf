"""How long stores take to be restored: as long as their changelogs are, and not as they are many."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer

from fencepost import EmbeddedKafka
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.member.kafka.changelog import KafkaChangelog
from fencepost.member.streams.application.store import StateDirectory

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]

PARTITIONS = 30


@pytest.mark.parametrize("records", [0, 3])
async def test_many_short_changelogs_are_read_at_once(
    records: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    polled_at: list[int] = []
    poll: Any = AIOKafkaConsumer.getmany

    async def noted(self: AIOKafkaConsumer, *places: Any, **options: Any) -> Any:
        polled_at.extend([await self.position(each) for each in places])
        return await poll(self, *places, **options)

    monkeypatch.setattr(AIOKafkaConsumer, "getmany", noted)
    places = [TopicPartition("orders", number) for number in range(PARTITIONS)]
    directory = StateDirectory(tmp_path, "billing")
    directory.lock()
    async with EmbeddedKafka(topics={"orders": PARTITIONS}) as kafka:
        kafka.create_topic("billing-orders-changelog", PARTITIONS)
        changelog = KafkaChangelog("billing", {"bootstrap_servers": kafka.bootstrap_servers}, creates=False)
        for place in places:
            for number in range(records):
                await changelog.write(place, {f"k{number}": place.partition})
        try:
            for place in places:
                await changelog.restore(place, directory.store(place))
        finally:
            await changelog.close()
        assert bool(polled_at) == bool(records)
        assert all(position < records for position in polled_at), "a poll at the end of a log waits in vain"
        for place in places:
            wanted = [(f"k{number}", place.partition) for number in range(records)]
            assert list(directory.store(place).items()) == wanted
    directory.close()
