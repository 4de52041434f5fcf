"""One seed has one digest: in each repeat, in each process, whatever Python's hash seed."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import aiohttp
import anyio
import pytest
from aiohttp import web

from fencepost import SimulatedWorld, run_simulated, simulated
from fencepost.simulation.world.spread import HASH_SEED
from tests.unit.simulation.world.programs_of_users import commit_after, produce_orders

TOPICS = {"orders": 4}
REPEATS = 10


@simulated(seeds=3, topics=TOPICS, duration=15, processes=2)
async def orders_are_done(world: SimulatedWorld) -> None:
    for number in range(3):
        world.process(f"worker-{number}", commit_after, world.done)
    world.process("shop", produce_orders, 40, 12.0)
    await world.settled()


@simulated(seeds=3, topics=TOPICS, duration=15, processes=1)
async def orders_are_done_in_one_process(world: SimulatedWorld) -> None:
    await orders_are_done.simulated.function(world)


@pytest.mark.processes
def test_digests_are_equal_whatever_the_processes_and_their_hash_seeds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    digests = []
    for hash_seed in ("1", "random"):
        monkeypatch.setenv("PYTHONHASHSEED", hash_seed)
        digests.append(orders_are_done.simulated.check().digests)
    digests.append(orders_are_done_in_one_process.simulated.check().digests)
    assert digests[0].keys() == {1, 2, 3}
    assert len(set(digests[0].values())) == 3
    assert all(each == digests[0] for each in digests)


_REPEATED = """
import sys
from tests.unit.simulation.world.test_world_determinism import orders_are_done
run = orders_are_done.simulated.run
for _ in range(int(sys.argv[1])):
    print(run(3).digest, flush=True)
"""


@pytest.mark.processes
@pytest.mark.parametrize("repeats", [3, pytest.param(REPEATS, marks=pytest.mark.long)])
@pytest.mark.timeout(600)
def test_repeats_in_one_process_have_the_same_digest(repeats: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _REPEATED, str(repeats)],
        env={**os.environ, "PYTHONHASHSEED": HASH_SEED, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    digests = done.stdout.split()
    assert len(digests) == repeats
    assert len(set(digests)) == 1


async def _cancel_scopes(order: list[object]) -> None:
    """Tasks of anyio are cancelled together."""

    async def wait(number: int) -> None:
        with anyio.CancelScope():
            try:
                await anyio.sleep(1_000)
            finally:
                order.append(number)

    async with anyio.create_task_group() as group:
        for number in range(12):
            group.start_soon(wait, number)
        await anyio.sleep(1)
        group.cancel_scope.cancel()


async def _close_connections(order: list[object]) -> None:
    """A session of aiohttp is closed with requests under way."""

    async def wait(request: web.Request) -> web.Response:
        try:
            await asyncio.sleep(1_000)
        finally:
            order.append(request.path)
        return web.Response()

    async def get(number: int) -> None:
        async with session.get(f"http://localhost:8080/{number}"):
            pass

    app = web.Application()
    app.router.add_get("/{number}", wait)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "0.0.0.0", 8080).start()
    session = aiohttp.ClientSession()
    requests = [asyncio.create_task(get(number)) for number in range(12)]
    await asyncio.sleep(1)
    await session.close()
    await asyncio.gather(*requests, return_exceptions=True)
    await asyncio.sleep(1)


async def _name_tasks(order: list[object]) -> None:
    """asyncio numbers tasks."""
    order += [asyncio.create_task(asyncio.sleep(0)).get_name() for _ in range(12)]


@pytest.mark.parametrize("program", [_cancel_scopes, _close_connections, _name_tasks])
def test_order_does_not_depend_on_what_ran_before(program: Callable[[list[object]], Any]) -> None:
    orders: list[list[object]] = []
    kept = []

    async def test(world: SimulatedWorld) -> None:
        orders.append([])
        await world.process("program", program, orders[-1]).ended()

    for size in range(4):
        kept.append([bytearray(100 + size * 13 + number) for number in range(size * 331)])
        run_simulated(test, 1, topics=TOPICS, faults=())
    assert len(orders[0]) == 12
    assert all(each == orders[0] for each in orders), orders


def test_run_before_leaves_nothing_behind() -> None:
    async def other(world: SimulatedWorld) -> None:
        world.process("shop", produce_orders, 5, 1.0)
        await world.faults_over.wait()

    run = orders_are_done.simulated.run
    first = run(2).digest
    run_simulated(other, 9, topics=TOPICS, duration=5)
    assert run(2).digest == first
