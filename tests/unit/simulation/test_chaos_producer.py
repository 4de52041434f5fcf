"""The producer of a run's records, with brokers that go away."""

from __future__ import annotations

import asyncio

import pytest

from fencepost.coordinator.server.brokers import Broker
from fencepost.simulation.lab.chaos import producer as records
from fencepost.simulation.lab.chaos.producer import Producer
from tests.waiting import until

pytestmark = pytest.mark.real


async def test_nothing_of_it_goes_on_when_it_is_closed_with_no_broker_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(records, "_CLOSE_S", 0.05)
    acknowledged = asyncio.Event()
    async with Broker({"orders": 1}) as broker:
        producer = Producer(broker.bootstrap_servers, lambda number, partition, offset: acknowledged.set())
        await producer.begin()
        producer.produce("orders", range(1), 1_000)
        await asyncio.wait_for(acknowledged.wait(), 20)
    client, sender = producer._producer.client, producer._producer._sender.sender_task
    before = producer.sent
    await until(lambda: producer.sent > before)
    await producer.close()
    assert sender.done()
    assert client._sync_task is None
    assert not any(each.connected() for each in client._conns.values())
