"""An HTTP service that writes orders to Kafka and sums up what each customer has spent.

Several instances share the work as one consumer group. Each instance holds the totals of the partitions that
it owns, in memory. It reads a partition from the beginning whenever it gets it, so a rebalance must not count
an order twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections import Counter
from collections.abc import AsyncGenerator, Collection
from dataclasses import dataclass

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, Field


class Order(BaseModel):
    """One order of a customer."""

    customer: str = Field(min_length=1)
    cents: int = Field(gt=0)


@dataclass(frozen=True)
class Settings:
    """What differs between production and tests."""

    bootstrap_servers: str = "127.0.0.1:9092"
    instance: str = "orders-api"
    heartbeat_interval_ms: int = 3_000
    retry_backoff_ms: int = 100


class Totals(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no type hints
    """The totals of all customers in the partitions that this instance owns."""

    def __init__(self, consumer: AIOKafkaConsumer) -> None:
        self._consumer = consumer
        self._by_partition: dict[TopicPartition, Counter[str]] = {}

    async def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        """Forget partitions that another instance may own from now on."""
        for partition in revoked:
            self._by_partition.pop(partition, None)

    async def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        """Read the new partitions from the beginning."""
        for partition in assigned:
            self._by_partition[partition] = Counter()
        if assigned:
            await self._consumer.seek_to_beginning(*assigned)

    async def follow(self) -> None:
        """Add up the orders until the task is cancelled."""
        async for record in self._consumer:
            totals = self._by_partition.get(TopicPartition(record.topic, record.partition))
            if totals is not None and record.key is not None and record.value is not None:
                totals[record.key.decode()] += json.loads(record.value)["cents"]

    def of(self, customer: str) -> int | None:
        """Return the total of a customer, or None if this instance has no order of that customer."""
        return next((each[customer] for each in self._by_partition.values() if customer in each), None)

    @property
    def partitions(self) -> list[int]:
        """The numbers of the partitions that this instance owns."""
        return sorted(partition.partition for partition in self._by_partition)


def create_app(settings: Settings) -> FastAPI:
    """Return the application. Its producer and consumer run as long as its lifespan."""

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
        producer = AIOKafkaProducer(
            bootstrap_servers=settings.bootstrap_servers,
            enable_idempotence=True,
            retry_backoff_ms=settings.retry_backoff_ms,
        )
        consumer = AIOKafkaConsumer(
            bootstrap_servers=settings.bootstrap_servers,
            group_id="order-totals",
            client_id=settings.instance,
            enable_auto_commit=False,
            heartbeat_interval_ms=settings.heartbeat_interval_ms,
            retry_backoff_ms=settings.retry_backoff_ms,
        )
        async with contextlib.AsyncExitStack() as stack:
            await producer.start()
            stack.push_async_callback(producer.stop)
            totals = Totals(consumer)
            consumer.subscribe(["orders"], listener=totals)
            await consumer.start()
            stack.push_async_callback(consumer.stop)
            following = asyncio.create_task(totals.follow())
            stack.callback(following.cancel)
            app.state.producer, app.state.totals = producer, totals
            yield

    app = FastAPI(lifespan=lifespan)

    @app.post("/orders", status_code=202)
    async def take(order: Order) -> dict[str, int]:
        value = json.dumps({"cents": order.cents}).encode()
        written = await app.state.producer.send_and_wait("orders", value, key=order.customer.encode())
        return {"partition": written.partition, "offset": written.offset}

    @app.get("/totals/{customer}")
    async def total(customer: str) -> dict[str, int]:
        cents = app.state.totals.of(customer)
        if cents is None:
            raise HTTPException(404, f"no order of {customer} in the partitions of this instance")
        return {"cents": cents}

    @app.get("/ready")
    async def ready() -> dict[str, list[int]]:
        partitions = app.state.totals.partitions
        if not partitions:
            raise HTTPException(503, "this instance owns no partitions yet")
        return {"partitions": partitions}

    return app


def app() -> FastAPI:
    """Return the application of production. The environment has its settings."""
    return create_app(Settings(os.environ.get("KAFKA_SERVERS", Settings.bootstrap_servers)))
