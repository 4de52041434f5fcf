"""Ships orders in a simulated world: crashes, freezes, deploys and lost responses, from twenty seeds."""

from shipping import ship_orders

import fencepost


@fencepost.simulated(seeds=20, always=[4], topics={"orders": 4}, brokers=3)
async def test_no_order_is_lost(world: fencepost.SimulatedWorld) -> None:
    for number in range(3):
        world.process(f"worker-{number}", ship_orders, world.done)
    orders = [f"order {number}" for number in range(100)]
    await world.produce("orders", orders, over=40)
    await world.settled()
    assert world.processed == orders
