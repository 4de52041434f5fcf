"""Ten planted bugs of services that run as they are deployed are found; their correct twins are clean."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import fencepost
from fencepost import HttpRequest, SimulatedWorld, WorldResult
from fencepost.simulation.world.entry import SimulatedFunction

pytestmark = [pytest.mark.processes, pytest.mark.long]
HERE = "tests.unit.simulation.world.planted_services"
ORDERS = 40


class Ledger:
    """Books each order of a customer once for each key."""

    def __init__(self) -> None:
        self.booked: dict[str, set[str]] = {}
        self.totals: dict[str, int] = {}
        self._of: dict[str, int] = {}

    def __call__(self, request: HttpRequest) -> Any:
        body = request.json()
        order, customer = body["order"], body["customer"]
        self.booked.setdefault(order, set()).add(body["key"])
        if order not in self.totals:
            self._of[customer] = self.totals[order] = self._of.get(customer, 0) + 1
        return {"total": self.totals[order]}


def booked_once(_: SimulatedWorld, ledger: Ledger) -> None:
    twice = {order: keys for order, keys in ledger.booked.items() if len(keys) > 1}
    assert not twice, f"orders that the ledger has booked twice: {twice}"


def numbered_once(world: SimulatedWorld, _: Ledger) -> None:
    orders: dict[Any, set[Any]] = {}
    for each in world.records("invoices"):
        orders.setdefault(each.value, set()).add(each.key)
    twice = {number: keys for number, keys in orders.items() if len(keys) > 1}
    assert not twice, f"numbers of several invoices: {twice}"


def adds_up(world: SimulatedWorld, ledger: Ledger) -> None:
    for each in world.records("invoices"):
        assert each.key is not None
        assert each.value is not None
        assert int(each.value) == ledger.totals[each.key.decode()], each


PLANTED: dict[str, tuple[int, Callable[[SimulatedWorld, Ledger], None] | None, int]] = {
    "makes_keys": (2, booked_once, 5),
    "collects": (2, None, 5),
    "counts": (2, numbered_once, 1),
    "adds_up": (2, adds_up, 1),
    "sends_and_forgets": (2, None, 5),
    "works_in_a_thread": (2, None, 3),
    "tries_again": (2, booked_once, 5),
    "stops_at_once": (2, None, 1),
    "remembers_in_sqlite": (1, None, 1),
    "counts_in_threads": (2, numbered_once, 3),
}
"""Services: the number of instances, what must hold in addition, and the first seed that shows the bug."""


def test_of(name: str, *, right: bool) -> SimulatedFunction:
    """Return the test of a service."""
    workers, check, _ = PLANTED[name]

    @fencepost.simulated(seeds=1, topics={"orders": 4, "invoices": 2}, duration=30.0)
    async def test(world: SimulatedWorld) -> None:
        ledger = Ledger()
        world.http("ledger", ledger)
        world.outputs("invoices", of="orders")
        for number in range(workers):
            world.process(f"worker-{number}", f"{HERE}:{name}", right)
        for number in range(ORDERS):
            await world.produce("orders", f"customer {number % 5}", key=f"order {number}")
            await asyncio.sleep(0.7)
        await world.settled()
        if check is not None:
            check(world, ledger)

    return test


test_of.__test__ = False  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", PLANTED)
def test_bug_is_found_and_its_twin_is_clean(name: str) -> None:
    seed = PLANTED[name][2]
    wrong: WorldResult = test_of(name, right=False).simulated.run(seed)
    assert wrong.invariant in ("output-written", "raised AssertionError"), wrong.violations
    right: WorldResult = test_of(name, right=True).simulated.run(seed)
    assert right.violations == [], right.trouble
