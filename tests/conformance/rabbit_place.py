"""A node with streams of either make, and clients of rstream at it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import rstream
from rstream.recovery import BackOffRecoveryStrategy

from fencepost import AsyncEmbeddedRabbitStream
from tests.waiting import until

RABBIT_SECONDS = 60
"""How long a client may take for anything."""


async def closed(client: Any, *pools: Any) -> None:
    """Close a client, and what rstream leaves open of connections that broke."""
    connections = [each._conn for pool in pools for clients in pool._clients.values() for each in clients]
    await client.close()
    for connection in connections:
        if connection is not None:
            connection._writer.close()


class RabbitPlace:
    """A node of either make, with clients that are closed in the end, all at once."""

    def __init__(self, host: str, port: int, ours: AsyncEmbeddedRabbitStream | None = None) -> None:
        self.ours = ours
        self._closings: list[Callable[[], Awaitable[None]]] = []
        self.settings: dict[str, Any] = {
            "host": host,
            "port": port,
            "username": "guest",
            "password": "guest",
            "recovery_strategy": BackOffRecoveryStrategy(False),
        }

    @staticmethod
    async def until(condition: Callable[[], object]) -> None:
        """Wait until something is so."""
        await until(condition, RABBIT_SECONDS)

    def name(self) -> str:
        return f"s-{uuid.uuid4().hex[:8]}"

    async def producer(self, **settings: Any) -> rstream.Producer:
        producer = rstream.Producer(**{**self.settings, **settings})
        await producer.start()
        self._closings.append(lambda: closed(producer, producer._pool))
        return producer

    async def stream(self) -> str:
        """A new stream."""
        name = self.name()
        await (await self.producer()).create_stream(name)
        return name

    async def super_stream(self, partitions: int) -> str:
        """A new super stream."""
        name = self.name()
        made = rstream.SuperStreamConsumer(**self.settings, super_stream=name)
        await made.create_super_stream(name, partitions)
        await made.close()
        return name

    def consumer(self, **settings: Any) -> rstream.Consumer:
        consumer = rstream.Consumer(**{**self.settings, **settings})
        self._closings.append(lambda: closed(consumer, consumer._pool))
        return consumer

    def super_consumer(self, super_stream: str, **settings: Any) -> rstream.SuperStreamConsumer:
        consumer = rstream.SuperStreamConsumer(**self.settings, super_stream=super_stream, **settings)
        self._closings.append(lambda: closed(consumer, consumer._pool, consumer._consumer._pool))
        return consumer

    async def aclose(self) -> None:
        """Close all clients."""
        await asyncio.gather(*(close() for close in self._closings))

    async def read(self, stream: str, count: int, **subscription: Any) -> list[tuple[int, bytes]]:
        """What a consumer of its own reads first, with offsets."""
        got: list[tuple[int, bytes]] = []
        consumer = self.consumer()
        await consumer.subscribe(
            stream, lambda message, context: got.append((context.offset, bytes(message))), **subscription
        )
        await self.until(lambda: len(got) >= count)
        return got
