"""A service that never calls `done` is judged by what it writes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from fencepost import FencepostError, SimulatedWorld, WorldResult, run_simulated
from tests.unit.simulation.world.programs_of_users import BOOTSTRAP, consumer

TOPICS = {"orders": 1, "invoices": 1}
ORDERS = [f"order {number}" for number in range(6)]
CLAIMS = ["at-least-once", "exactly-once", "order"]
Write = Callable[[list[bytes]], list[bytes]]


async def invoices(write: Write) -> None:
    """Write an invoice for each order, except that `write` changes the list of them."""
    async with consumer("orders") as reading, AIOKafkaProducer(bootstrap_servers=BOOTSTRAP) as producer:
        orders = [(await reading.getone()).value for _ in ORDERS]
        for each in write(orders):
            await producer.send_and_wait("invoices", b"invoice of " + each)
        await reading.commit()


def numbers(record: Any) -> bytes:
    found: bytes = record.value.rpartition(b" ")[2]
    return found


def judged(write: Write, **options: Any) -> WorldResult:
    async def test(world: SimulatedWorld) -> None:
        world.outputs("invoices", of="orders", key=numbers, **{"claims": CLAIMS, **options})
        await world.produce("orders", ORDERS, key="customer")
        world.process("billing", invoices, write)
        await world.settled()

    return run_simulated(test, topics=TOPICS, faults=())


@pytest.mark.parametrize(
    ("write", "invariant", "message"),
    [
        (lambda orders: orders, None, ""),
        (
            lambda orders: orders[:2] + orders[3:],
            "output-written",
            "1 of 6 records of orders have no record in invoices: orders-0 offset 2",
        ),
        (
            lambda orders: [*orders, orders[1]],
            "output-once",
            "invoices has 2 records for orders-0 offset 1: invoices-0 offset 1 (written at ",
        ),
        (
            lambda orders: [orders[1], orders[0], *orders[2:]],
            "output-order",
            "orders-0 offset 1 has the same key as orders-0 offset 0, and its record in invoices is before "
            "the other's: invoices-0 offset 0 (written at ",
        ),
        (
            lambda orders: [*orders, b"order 99"],
            "output-known",
            "1 records of invoices belong to no record of orders: invoices-0 offset 6, (written at ",
        ),
    ],
)
def test_output_is_judged_against_its_input(write: Write, invariant: str | None, message: str) -> None:
    result = judged(write)
    assert result.invariant == invariant
    if invariant is not None:
        assert result.violations[0].message.startswith(message)
        assert message.endswith("offset 2") or "by billing)" in result.violations[0].message


def test_other_claims_are_not_judged() -> None:
    twice_and_out_of_order = judged(lambda orders: [*orders[::-1], orders[0]], claims="at-least-once")
    assert twice_and_out_of_order.violations == []


def test_world_settles_when_outputs_are_there() -> None:
    """A program without a group writes late: nothing else says that the world waits for it."""

    async def late() -> None:
        await asyncio.sleep(80)
        async with AIOKafkaProducer(bootstrap_servers=BOOTSTRAP) as producer:
            await producer.send_and_wait("invoices", b"invoice of order 0")
        await asyncio.Event().wait()

    async def test(world: SimulatedWorld) -> None:
        world.outputs("invoices", of="orders", key=numbers)
        await world.produce("orders", ORDERS[0])
        world.process("late", late)
        await world.settled()

    result = run_simulated(test, topics=TOPICS, faults=())
    assert result.violations == []
    assert result.virtual_seconds > 80


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "outputs(): orders-0 offset 0 has no key, so nothing says which records belong together"),
        (
            {"key": lambda record: [record.value]},
            "outputs(key=...): the function returns [b'order 0'] for orders-0",
        ),
    ],
)
def test_records_without_an_identity_are_refused(options: dict[str, Any], said: str) -> None:
    async def test(world: SimulatedWorld) -> None:
        world.outputs("invoices", of="orders", **options)
        await world.produce("orders", ORDERS[0])
        await world.settled()

    (violation,) = run_simulated(test, topics=TOPICS, faults=()).violations
    assert violation.invariant == "raised FencepostError"
    assert violation.message.startswith(said)


async def never_a_key(record: Any) -> None:
    """No function that returns an identity."""


def test_aborted_records_and_keys_of_inputs_are_known() -> None:
    async def writer() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=BOOTSTRAP, transactional_id="t")
        async with producer:
            for commits in (False, True):
                await producer.begin_transaction()
                await producer.send_and_wait("invoices", b"x", key=b"0")
                await (producer.commit_transaction() if commits else producer.abort_transaction())

    async def test(world: SimulatedWorld) -> None:
        world.outputs("invoices", of="orders", of_key=numbers, claims=CLAIMS)
        await world.produce("orders", ORDERS[0])
        await world.process("writer", writer).ended()
        await world.settled()

    assert run_simulated(test, topics=TOPICS, faults=()).violations == []


@pytest.mark.parametrize(
    ("topic", "options", "said"),
    [
        ("bills", {"of": "orders"}, "there is no topic 'bills'"),
        ("invoices", {"of": "order"}, "there is no topic 'order'"),
        ("invoices", {"of": "orders", "key": "id"}, r"outputs\(key='id'\): expected a function"),
        ("invoices", {"of": "orders", "of_key": never_a_key}, r"outputs\(of_key=.*\): expected a function"),
        (
            "invoices",
            {"of": "orders", "claims": ["once"]},
            "'once' is no claim, expected some of at-",
        ),
    ],
)
def test_wrong_rules_are_refused(topic: str, options: dict[str, Any], said: str) -> None:
    async def test(world: SimulatedWorld) -> None:
        with pytest.raises(FencepostError, match=said):
            world.outputs(topic, **options)

    made: Callable[[SimulatedWorld], Coroutine[Any, Any, object]] = test
    assert run_simulated(made, topics=TOPICS, faults=()).violations == []
