"""The service over HTTP, with a Kafka in the test process that rebalances, fences and fails."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

import httpx
import pytest
from orders_api import Settings, create_app

from fencepost import AsyncEmbeddedKafka

pytestmark = pytest.mark.kafka(topics={"orders": 6})

GROUP = "order-totals"
CUSTOMERS = {f"customer {number}": 100 + number for number in range(12)}


@contextlib.asynccontextmanager
async def instance(kafka: AsyncEmbeddedKafka, name: str) -> AsyncGenerator[httpx.AsyncClient]:
    """Run an instance of the service, and yield an HTTP client for it."""
    # With these intervals the client learns of a rebalance in a tenth of a second.
    settings = Settings(kafka.bootstrap_servers, name, heartbeat_interval_ms=100, retry_backoff_ms=20)
    app = create_app(settings)
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://orders") as http,
    ):
        yield http


async def order(http: httpx.AsyncClient, customer: str, cents: int) -> None:
    response = await http.post("/orders", json={"customer": customer, "cents": cents})
    assert response.status_code == 202, response.text


async def wait_for_totals(expected: dict[str, int], *instances: httpx.AsyncClient) -> None:
    """Wait until all instances together know exactly these totals, each of them in one instance."""
    found: dict[str, list[int]] = {}
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(20):
            while found != {customer: [cents] for customer, cents in expected.items()}:
                await asyncio.sleep(0.02)
                found = {customer: [] for customer in expected}
                for http in instances:
                    for customer, totals in found.items():
                        response = await http.get(f"/totals/{customer}")
                        if response.status_code == 200:
                            totals.append(response.json()["cents"])
    assert found == {customer: [cents] for customer, cents in expected.items()}


@pytest.mark.asyncio
async def test_orders_are_added_up(kafka: AsyncEmbeddedKafka) -> None:
    async with instance(kafka, "one") as http:
        await order(http, "ada", 1_000)
        await order(http, "ada", 250)
        await order(http, "grace", 5)
        await wait_for_totals({"ada": 1_250, "grace": 5}, http)
        assert (await http.get("/totals/alan")).status_code == 404
        assert (await http.get("/ready")).json() == {"partitions": [0, 1, 2, 3, 4, 5]}
    assert kafka.check() == []


@pytest.mark.asyncio
@pytest.mark.parametrize("wrong", [{"customer": "", "cents": 1}, {"customer": "ada", "cents": 0}, {}])
async def test_a_wrong_order_is_refused_and_not_written(
    kafka: AsyncEmbeddedKafka, wrong: dict[str, object]
) -> None:
    async with instance(kafka, "one") as http:
        assert (await http.post("/orders", json=wrong)).status_code == 422
    assert kafka.records("orders") == []


@pytest.mark.asyncio
async def test_a_fenced_consumer_counts_no_order_twice(kafka: AsyncEmbeddedKafka) -> None:
    async with instance(kafka, "one") as http:
        for customer, cents in CUSTOMERS.items():
            await order(http, customer, cents)
        await wait_for_totals(CUSTOMERS, http)

        group = kafka.group(GROUP)
        (before,) = await group.wait_stable(members=1)
        group.fence("one")
        async with asyncio.timeout(20):
            while not (now := group.members()) or now[0].epoch <= before.epoch:
                await asyncio.sleep(0.02)
        await group.wait_stable(members=1)
        await order(http, "ada", 7)
        await wait_for_totals(CUSTOMERS | {"ada": 7}, http)
    assert kafka.check() == []


@pytest.mark.asyncio
async def test_two_instances_share_the_customers_and_one_takes_over(kafka: AsyncEmbeddedKafka) -> None:
    async with instance(kafka, "one") as one:
        for customer, cents in CUSTOMERS.items():
            await order(one, customer, cents)
        await wait_for_totals(CUSTOMERS, one)

        async with instance(kafka, "two") as two:
            members = await kafka.group(GROUP).wait_stable(members=2)
            assert [len(member.assignment) for member in members] == [3, 3]
            await wait_for_totals(CUSTOMERS, one, two)

        await kafka.group(GROUP).wait_stable(members=1)
        await wait_for_totals(CUSTOMERS, one)
    assert kafka.check() == []


@pytest.mark.asyncio
async def test_an_order_whose_response_is_lost_is_written_once(kafka: AsyncEmbeddedKafka) -> None:
    async with instance(kafka, "one") as http:
        await order(http, "ada", 1)  # opens the producer's connection: the rule below needs one
        kafka.lose_next_response("Produce")
        await order(http, "ada", 2)
        await wait_for_totals({"ada": 3}, http)
    assert kafka.unmet() == []
    assert len(kafka.records("orders")) == 2
