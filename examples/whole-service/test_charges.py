"""Two instances of the service, as they are deployed, with a stub for the payments that it makes."""

from __future__ import annotations

import asyncio
from collections import defaultdict

from fencepost import HttpRequest, SimulatedWorld, simulated

ORDERS = [f"order {number}" for number in range(40)]


@simulated(seeds=20, topics={"orders": 4, "invoices": 2}, duration=30.0)
async def test_each_order_is_charged_once(world: SimulatedWorld) -> None:
    keys: defaultdict[str, set[str]] = defaultdict(set)

    async def payments(request: HttpRequest) -> dict[str, bool]:
        body = request.json()
        keys[body["order"]].add(body["key"])
        await asyncio.sleep(0.5)
        return {"charged": True}

    world.http("payments", payments)
    world.outputs("invoices", of="orders", key=lambda record: record.value)
    for number in range(2):
        world.process(f"billing-{number}", "charges:app")
    await world.produce("orders", ORDERS, over=20)
    await world.settled()
    assert {order: found for order, found in keys.items() if len(found) > 1} == {}
