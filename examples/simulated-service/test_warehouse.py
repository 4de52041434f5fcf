"""Ships orders in a simulated world: crashes, freezes, deploys and lost responses, from twenty seeds."""

from warehouse import ship_orders

from fencepost import SimulatedWorld, simulated


@simulated(seeds=20, always=[5], topics={"orders": 4}, brokers=3)
async def test_no_order_is_lost(world: SimulatedWorld) -> None:
    for number in range(3):
        world.process(f"worker-{number}", ship_orders, world.done)
    orders = [f"order {number}" for number in range(100)]
    await world.produce("orders", orders, over=40)
    await world.settled()
    assert world.processed == orders
