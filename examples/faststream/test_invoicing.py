"""The service with a Kafka in the test process: failed payments, a fence amid an order, bad records."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio
from invoicing import create_broker

from fencepost import AsyncEmbeddedKafka

pytestmark = pytest.mark.kafka(topics={"orders": 3, "invoices": 1, "rejected": 1})


class Payments:
    """A payment service that takes the same order once, and does as the test says."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.charged: dict[str, int] = {}
        self.failures = 0
        self.open = asyncio.Event()
        self.open.set()

    async def charge(self, order_id: str, cents: int) -> str:
        self.asked.append(order_id)
        await self.open.wait()
        if self.failures:
            self.failures -= 1
            raise ConnectionError("the payment service is down")
        self.charged.setdefault(order_id, cents)
        return f"receipt of {order_id}"


@pytest.fixture
def payments() -> Payments:
    return Payments()


@pytest_asyncio.fixture
async def service(kafka: AsyncEmbeddedKafka, payments: Payments) -> AsyncIterator[None]:
    broker = create_broker(
        kafka.bootstrap_servers,
        payments.charge,
        client_id="one",
        heartbeat_interval_ms=100,
        retry_backoff_ms=20,
    )
    async with broker:
        await broker.start()
        yield
        payments.open.set()


def order(kafka: AsyncEmbeddedKafka, order_id: str, cents: int) -> None:
    kafka.produce("orders", json.dumps({"id": order_id, "cents": cents}), key=order_id)


def invoiced(kafka: AsyncEmbeddedKafka) -> list[str]:
    return [json.loads(record.value or b"")["order_id"] for record in kafka.records("invoices")]


def committed(kafka: AsyncEmbeddedKafka) -> int:
    return sum(kafka.group("invoicing").offsets().values())


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.mark.asyncio
@pytest.mark.usefixtures("service")
async def test_each_order_becomes_an_invoice(kafka: AsyncEmbeddedKafka, payments: Payments) -> None:
    orders = {f"order {number}": 100 * (number + 1) for number in range(9)}
    for order_id, cents in orders.items():
        order(kafka, order_id, cents)
    await until(lambda: committed(kafka) == 9)
    assert sorted(invoiced(kafka)) == sorted(orders)
    assert payments.charged == orders
    assert kafka.check() == []


@pytest.mark.asyncio
@pytest.mark.usefixtures("service")
async def test_an_order_whose_payment_fails_is_read_again(
    kafka: AsyncEmbeddedKafka, payments: Payments
) -> None:
    payments.failures = 2
    order(kafka, "a", 100)
    await until(lambda: committed(kafka) == 1)
    assert payments.asked == ["a", "a", "a"]
    assert invoiced(kafka) == ["a"]
    assert kafka.check() == []


@pytest.mark.asyncio
@pytest.mark.usefixtures("service")
async def test_an_order_is_not_lost_if_the_service_is_fenced_in_the_middle_of_it(
    kafka: AsyncEmbeddedKafka, payments: Payments
) -> None:
    payments.open.clear()
    order(kafka, "a", 100)
    await until(lambda: payments.asked)

    group = kafka.group("invoicing")
    (before,) = group.members()
    group.expire("one")
    await until(lambda: group.members() and group.members()[0].member_id != before.member_id)
    await group.wait_stable(members=1)
    assert committed(kafka) == 0
    payments.open.set()

    await until(lambda: committed(kafka) == 1)
    assert payments.charged == {"a": 100}
    assert {*invoiced(kafka)} == {"a"}
    assert kafka.check() == []


@pytest.mark.asyncio
@pytest.mark.usefixtures("service")
async def test_an_order_that_cannot_be_read_is_put_aside(
    kafka: AsyncEmbeddedKafka, payments: Payments
) -> None:
    kafka.produce("orders", "no JSON", partition=0)
    kafka.produce("orders", '{"id": "b", "cents": 0}', partition=0)
    kafka.produce("orders", '{"id": "c", "cents": 1}', partition=0)
    await until(lambda: committed(kafka) == 3)
    assert [record.value for record in kafka.records("rejected")] == [b"no JSON", b'{"id": "b", "cents": 0}']
    assert invoiced(kafka) == ["c"]
    assert payments.asked == ["c"]
