"""A service that charges orders: FastAPI, FastStream, httpx and SQLAlchemy, as it is deployed.

An order is committed after its invoice is written. A crash before that charges it again, so a payment has the
order as its idempotency key.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import httpx
from fastapi import FastAPI
from faststream import AckPolicy
from faststream.kafka import KafkaBroker
from faststream.kafka.annotations import KafkaMessage
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

broker = KafkaBroker("kafka:9092")
engine = create_async_engine("sqlite+aiosqlite:///charges.db")


@broker.subscriber(
    "orders", group_id="billing", auto_offset_reset="earliest", ack_policy=AckPolicy.NACK_ON_ERROR
)
async def charge(message: KafkaMessage) -> None:
    """Charge an order, note it in the database, and write its invoice."""
    order = message.body.decode()
    async with httpx.AsyncClient(timeout=5) as client:
        response = await client.post("https://payments/charge", json={"order": order, "key": order})
        response.raise_for_status()
    async with engine.begin() as connection:
        await connection.execute(text("INSERT OR IGNORE INTO charged VALUES (:order)"), {"order": order})
    await broker.publish(order, "invoices")


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
    """Consume orders while the web application runs."""
    async with engine.begin() as connection:
        await connection.execute(text("CREATE TABLE IF NOT EXISTS charged (number TEXT PRIMARY KEY)"))
    await broker.start()
    yield
    await broker.stop()
    await engine.dispose()


app = FastAPI(lifespan=lifespan)


@app.get("/charged")
async def charged() -> list[str]:
    """Return the orders that this instance has charged."""
    async with engine.connect() as connection:
        return list((await connection.execute(text("SELECT number FROM charged"))).scalars())
