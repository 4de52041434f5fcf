"""Real records at the scenario's rates: numbered, and remembered once the cluster has acknowledged them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from fencepost.coordinator.protocol.ids import TopicPartition

_GIVE_UP_MS = 60_000
_AFTER_ERROR_S = 0.2
_CLOSE_S = 2.0


class Producer:
    """Sends to partitions one after the other, evenly over time, with acks=all and without duplicates.

    `on_acknowledged` gets the number of each record and its place.
    """

    def __init__(
        self, bootstrap_servers: str, on_acknowledged: Callable[[int, TopicPartition, int], None]
    ) -> None:
        self._servers = bootstrap_servers
        self._on_acknowledged = on_acknowledged
        self._producer: AIOKafkaProducer | None = None
        self._streams: dict[str, list[asyncio.Task[None]]] = {}
        self._waiting: set[asyncio.Future[Any]] = set()
        self.sent = 0
        """Number of records, acknowledged or not: the number of the last one."""

    async def begin(self) -> None:
        """Connect."""
        self._producer = self._make()
        await self._producer.start()

    def _make(self) -> AIOKafkaProducer:
        return AIOKafkaProducer(
            bootstrap_servers=self._servers,
            client_id="fencepost-records",
            enable_idempotence=True,
            linger_ms=5,
            request_timeout_ms=_GIVE_UP_MS,
            retry_backoff_ms=50,
            metadata_max_age_ms=10_000,
        )

    def produce(self, topic: str, partitions: range, records_per_second: float) -> None:
        """Send to these partitions at that rate over all of them, from now on."""
        if records_per_second:
            task = asyncio.ensure_future(self._stream(topic, partitions, records_per_second))
            self._streams.setdefault(topic, []).append(task)

    async def stop(self, topic: str) -> None:
        """Send no more to a topic, and wait for what was sent."""
        for task in self._streams.pop(topic, ()):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await self.flush()

    async def finish(self) -> None:
        """Send no more, and wait for what was sent."""
        for topic in tuple(self._streams):
            await self.stop(topic)

    async def close(self) -> None:
        """Stop at once."""
        for tasks in self._streams.values():
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        producer, self._producer = self._producer, None
        for future in self._waiting:
            future.cancel()
        if producer is not None:
            with contextlib.suppress(KafkaError, TimeoutError):
                async with asyncio.timeout(_CLOSE_S):
                    await producer.stop()
            # With brokers away that was cut off before it ended anything: requests end with connections.
            with contextlib.suppress(KafkaError, TimeoutError):
                async with asyncio.timeout(_CLOSE_S):
                    await asyncio.gather(producer._sender.close(), producer.client.close())
            await producer.client.close()  # opened meanwhile

    async def flush(self) -> None:
        """Wait until everything that was sent is acknowledged, or given up."""
        while self._waiting:
            await asyncio.wait(tuple(self._waiting))

    async def _stream(self, topic: str, partitions: range, records_per_second: float) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        index = 0
        while True:
            await self._send(TopicPartition(topic, partitions[index % len(partitions)]))
            index += 1
            due += 1 / records_per_second
            if (left := due - loop.time()) > 0:
                await asyncio.sleep(left)

    async def _send(self, partition: TopicPartition) -> None:
        assert self._producer is not None
        self.sent += 1
        number = self.sent
        try:
            future = await self._producer.send(
                partition.topic, str(number).encode(), partition=partition.partition
            )
        except (KafkaError, AssertionError):  # the topic is not known, or brokers are away
            await asyncio.sleep(_AFTER_ERROR_S)
            return
        self._waiting.add(future)

        def done(future: asyncio.Future[Any]) -> None:
            self._waiting.discard(future)
            if not future.cancelled() and future.exception() is None:
                self._on_acknowledged(number, partition, future.result().offset)

        future.add_done_callback(done)
