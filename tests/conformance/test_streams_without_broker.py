"""StreamsApp when its only broker dies: what it says of its connection, and how long it takes to close."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from fencepost import EmbeddedKafka, StreamsApp
from fencepost import StreamClientState as S
from tests.conformance.brokers import World
from tests.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]

NO_DELAY = {"group.streams.initial.rebalance.delay.ms": 0}


class Place:
    """A broker of either make with one topic, and a way to end it."""

    def __init__(self, servers: str, topic: str, die: Callable[[], Awaitable[None]]) -> None:
        self.servers = servers
        self.topic = topic
        self.die = die

    async def produce(self) -> None:
        producer = AIOKafkaProducer(bootstrap_servers=self.servers)
        await producer.start()
        await producer.send_and_wait(self.topic, b"x")
        await producer.stop()

    def app(self, process: Any, **settings: Any) -> StreamsApp:
        settings = {"group_id": f"closing-{uuid.uuid4().hex[:8]}", "topics": [self.topic], **settings}
        return StreamsApp(process, bootstrap_servers=self.servers, **settings)


Makes = Callable[[], contextlib.AbstractAsyncContextManager[Place]]


@pytest.fixture(params=["fencepost", pytest.param("kafka", marks=pytest.mark.processes)])
def a_place(request: pytest.FixtureRequest) -> Makes:
    if request.param == "fencepost":
        return _ours
    mortal: World = request.getfixturevalue("mortal")
    return lambda: _theirs(mortal)


@contextlib.asynccontextmanager
async def _ours() -> AsyncIterator[Place]:
    async with contextlib.AsyncExitStack() as stack:
        kafka = await stack.enter_async_context(EmbeddedKafka(topics={"orders": 1}, config=NO_DELAY))
        yield Place(kafka.bootstrap_servers, "orders", stack.aclose)


@contextlib.asynccontextmanager
async def _theirs(mortal: World) -> AsyncIterator[Place]:
    cluster: Any = mortal.broker
    topic = await asyncio.to_thread(mortal.topic, 1)
    try:
        yield Place(mortal.servers, topic, lambda: cluster.kill(1))
    finally:
        await cluster.restart(1)


@pytest.mark.long
@pytest.mark.parametrize("protocol", ["streams", "consumer", "classic"])
async def test_it_is_disconnected_while_process_runs(a_place: Makes, protocol: str) -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def process(partition: Any, records: Sequence[Any]) -> None:
        begun.set()
        await may_end.wait()

    async with a_place() as place, place.app(process, group_protocol=protocol) as app:
        await until(lambda: app.state is S.RUNNING)
        await place.produce()
        await asyncio.wait_for(begun.wait(), 60)
        assert app.is_connected
        await place.die()
        await until(lambda: app.state is S.DISCONNECTED)
        assert not app.is_connected
        may_end.set()
        assert await app.close(5)


@pytest.mark.parametrize("limit_s", [pytest.param(None, marks=pytest.mark.long), 5.0])
async def test_it_closes_in_time_with_few_log_lines_and_says_what_is_not_committed(
    a_place: Makes, limit_s: float | None, caplog: pytest.LogCaptureFixture
) -> None:
    done = asyncio.Event()

    async def process(partition: Any, records: Sequence[Any]) -> None:
        done.set()

    async with a_place() as place:
        app = place.app(process)
        await app.start()
        await until(lambda: app.state is S.RUNNING)
        await place.produce()
        await asyncio.wait_for(done.wait(), 60)
        await place.die()
        caplog.set_level(logging.WARNING)
        caplog.clear()
        began = time.monotonic()
        assert await app.close(limit_s)
        took = time.monotonic() - began
        assert app.state is S.NOT_RUNNING
        assert took < (limit_s or 25)
        assert caplog.text.count("offsets were not committed") == 1
        assert len(caplog.records) < 6 * took + 20, "a broker that is gone is tried about once a second"
