"""A `SingleActiveConsumer` with a node, a clock and a listener that a test plays."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from fencepost.member.base.transport import Disconnected
from fencepost.member.sac.consumer import SingleActiveConsumer
from fencepost.member.sac.listener import SacListener, SacMachineObserver
from fencepost.member.sac.offsets import FIRST, OffsetSpecification
from fencepost.member.sac.transport import (
    ConnectionListener,
    SacSubscription,
    SubscriptionRefused,
)

SUBSCRIPTION = SacSubscription(stream="orders", name="app", offset=FIRST)


class Handle:
    cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Clock:
    def __init__(self) -> None:
        self.ms = 0
        self.timers: list[tuple[int, Handle, Any]] = []

    def now_ms(self) -> int:
        return self.ms

    def call_at(self, when_ms: int, callback: Any, *args: Any) -> Handle:
        handle = Handle()
        self.timers.append((when_ms, handle, callback))
        return handle

    def advance(self) -> None:
        """To the next timer."""
        self.timers = [timer for timer in self.timers if not timer[1].cancelled]
        timer = min(self.timers, key=lambda timer: timer[0])
        self.timers.remove(timer)
        self.ms = timer[0]
        timer[2]()


class Connection:
    def __init__(self, node: Node, listener: ConnectionListener) -> None:
        self.node, self.listener = node, listener
        self.answers: list[tuple[int, OffsetSpecification]] = []
        self.credits: list[int] = []
        self.closed = False

    def subscribe(self, subscription: SacSubscription) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.node.refusing:
            future.set_exception(SubscriptionRefused("another partition index"))
        else:
            future.set_result(None)
        return future

    def answer(self, correlation_id: int, offset: OffsetSpecification) -> None:
        self.answers.append((correlation_id, offset))

    def credit(self, chunks: int) -> None:
        self.credits.append(chunks)

    def store_offset(self, subscription: SacSubscription, offset: int) -> None:
        self.node.stored = offset

    def query_offset(self, subscription: SacSubscription) -> asyncio.Future[int | None]:
        future: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        future.set_result(self.node.stored)
        return future

    def close(self) -> None:
        self.closed = True

    async def wait_closed(self) -> None:
        pass


class Node:
    """A transport whose far end is the test."""

    def __init__(self) -> None:
        self.connections: list[Connection] = []
        self.stored: int | None = None
        self.refusing = False
        self.down = False

    def connect(self, listener: ConnectionListener) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self.down:
            future.set_exception(Disconnected("nobody listens"))
        else:
            self.connections.append(Connection(self, listener))
            future.set_result(self.connections[-1])
        return future

    @property
    def last(self) -> Connection:
        return self.connections[-1]


class Listener(SacListener):
    def __init__(self) -> None:
        self.told: list[str] = []
        self.release = asyncio.Event()
        self.release.set()
        self.offset: OffsetSpecification | None = None

    async def on_activated(self, consumer: SingleActiveConsumer) -> OffsetSpecification | None:
        self.told.append("activated")
        await self.release.wait()
        return self.offset

    async def on_stepping_down(self, consumer: SingleActiveConsumer) -> None:
        self.told.append("stepping down")
        await self.release.wait()

    def on_lost(self, consumer: SingleActiveConsumer) -> None:
        self.told.append("lost")


class Scene:
    def __init__(
        self, subscription: SacSubscription = SUBSCRIPTION, *, observer: SacMachineObserver | None = None
    ) -> None:
        self.node, self.clock, self.listener = Node(), Clock(), Listener()
        self.consumer = SingleActiveConsumer(
            subscription,
            self.node,
            listener=self.listener,
            clock=self.clock,
            rng=random.Random(1),
            observer=observer,
        )

    async def active(self) -> None:
        await self.consumer.start()
        self.node.last.listener.consumer_update(1, True)
        await settled()
        assert self.consumer.is_active

    def deliver(self, first: int, *messages: bytes) -> None:
        self.node.last.listener.delivered(first, messages)


async def settled() -> None:
    """Let everything happen that can without time."""
    for _ in range(20):
        await asyncio.sleep(0)
