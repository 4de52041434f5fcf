"""A FastStream service that charges orders and writes invoices.

An order is committed after its invoice is written. If the payment fails, the order is read again. If the
service is fenced in the middle of an order, the order is read again too. Therefore a payment has the order's
id as its idempotency key. An order that can't be read goes to the topic `rejected`, as it would fail again.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable

from faststream import AckPolicy, FastStream
from faststream.kafka import KafkaBroker
from faststream.kafka.annotations import KafkaMessage
from pydantic import BaseModel, Field, ValidationError

Charge = Callable[[str, int], Awaitable[str]]
"""Charges an order, by its id and its cents, and returns the number of the receipt."""


class Order(BaseModel):
    """A record of the topic `orders`."""

    id: str = Field(min_length=1)
    cents: int = Field(gt=0)


class Invoice(BaseModel):
    """A record of the topic `invoices`."""

    order_id: str
    cents: int
    receipt: str


def create_broker(
    bootstrap_servers: str,
    charge: Charge,
    *,
    client_id: str = "invoicing",
    heartbeat_interval_ms: int = 3_000,
    retry_backoff_ms: int = 100,
) -> KafkaBroker:
    """Return a broker whose subscriber turns orders into invoices."""
    broker = KafkaBroker(bootstrap_servers, client_id=client_id, retry_backoff_ms=retry_backoff_ms)
    invoices = broker.publisher("invoices")
    rejected = broker.publisher("rejected")

    @broker.subscriber(
        "orders",
        group_id="invoicing",
        auto_offset_reset="earliest",
        heartbeat_interval_ms=heartbeat_interval_ms,
        ack_policy=AckPolicy.NACK_ON_ERROR,
    )
    async def invoice(message: KafkaMessage) -> None:
        try:
            order = Order.model_validate_json(message.body)
        except ValidationError as error:
            await rejected.publish(message.body, headers={"reason": str(error.errors()[0]["msg"])})
            return
        receipt = await charge(order.id, order.cents)
        written = Invoice(order_id=order.id, cents=order.cents, receipt=receipt)
        await invoices.publish(written, key=order.id.encode())

    return broker


async def print_receipt(order_id: str, cents: int) -> str:
    """Stand in for a payment service when the program is tried out."""
    print(f"charged {cents} cents for {order_id}", flush=True)
    return f"receipt of {order_id}"


app = FastStream(create_broker(os.environ.get("KAFKA_SERVERS", "127.0.0.1:9092"), print_receipt))
