"""A broker, and a connection to it."""

from __future__ import annotations

import pytest

from fencepost.coordinator.server.brokers import Broker
from tests.unit.coordinator.wire.raw_client import OPEN, Wire


@pytest.fixture(autouse=True)
async def everything_closed():
    yield
    while OPEN:
        await OPEN.pop().close()


@pytest.fixture
async def broker():
    async with Broker({"orders": 2}) as served:
        yield served


@pytest.fixture
async def wire(broker):
    return await Wire.to(broker)
