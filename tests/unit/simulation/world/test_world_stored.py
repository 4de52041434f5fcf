"""A batch that a broker acknowledges is in the log, and it is there once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from fencepost import SimulatedWorld, WorldResult, run_simulated
from fencepost.coordinator.server.logs import PartitionLog
from tests.unit.simulation.world.programs_of_users import BOOTSTRAP, commit_after

ORDERS = [f"order {number}" for number in range(10)]
Append = Callable[..., int]


async def produces(world: SimulatedWorld) -> None:
    """The test itself produces."""
    world.process("worker", commit_after, world.done)
    await world.produce("orders", ORDERS, over=5)
    await world.settled()


async def shop(*, idempotent: bool) -> None:
    async with AIOKafkaProducer(bootstrap_servers=BOOTSTRAP, enable_idempotence=idempotent) as producer:
        for order in ORDERS:
            await producer.send_and_wait("orders", order.encode())


async def program_produces(world: SimulatedWorld) -> None:
    await world.process("shop", shop, idempotent=True).ended()
    await produces(world)


def play(test: Any, **settings: Any) -> WorldResult:
    return run_simulated(test, 1, **{"topics": {"orders": 1}, "faults": (), "brokers": 1, **settings})


def invariants(result: WorldResult) -> dict[str, str]:
    return {each.invariant: each.message for each in result.violations}


def fourth_time(change: Callable[[Append, PartitionLog, Any, Any], int]) -> Append:
    """Return an `append_checked` that does something else at its fourth call."""
    original = PartitionLog.append_checked
    calls = []

    def append(self: PartitionLog, checked: Any, now_ms: int | None = None) -> int:
        calls.append(1)
        if len(calls) == 4:
            return change(original, self, checked, now_ms)
        return original(self, checked, now_ms)

    return append


def twice(append: Append, log: PartitionLog, checked: Any, now_ms: Any) -> int:
    offset = append(log, checked, now_ms)
    known, log.producers = log.producers, type(log.producers)()
    append(log, checked, now_ms)
    log.producers = known
    return offset


def never(append: Append, log: PartitionLog, checked: Any, now_ms: Any) -> int:
    return log.high_watermark


def over_another(append: Append, log: PartitionLog, checked: Any, now_ms: Any) -> int:
    return log.high_watermark - 1


@pytest.mark.parametrize("test", [produces, program_produces])
def test_batch_that_a_broker_stores_twice_is_told(test: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PartitionLog, "append_checked", fourth_time(twice))
    message = invariants(play(test))["record-stored"]
    assert message.startswith("orders-0 holds a record 2 times, at offsets 3, 4; one request has sent them")
    assert message.endswith("idempotent") == (test is program_produces)


@pytest.mark.parametrize("test", [produces, program_produces])
@pytest.mark.parametrize("change", [never, over_another])
def test_acknowledged_batch_that_a_broker_loses_is_told(
    test: Any, change: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PartitionLog, "append_checked", fourth_time(change))
    message = invariants(play(test))["record-stored"]
    offset = 3 if change is never else 2
    assert message == (f"orders-0 has lost a record that a broker has acknowledged with offset {offset}")


def test_two_requests_that_are_acknowledged_with_one_offset_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(world: SimulatedWorld) -> None:
        await world.produce("orders", "a", timestamp_ms=5)
        await world.produce("orders", "a", timestamp_ms=5)

    originals = PartitionLog.append_checked
    monkeypatch.setattr(
        PartitionLog,
        "append_checked",
        lambda log, *checked: 0 if log.high_watermark else originals(log, *checked),
    )
    assert "acknowledged two requests with that offset" in invariants(play(test))["record-stored"]


def test_copy_counts_as_the_same_record(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []

    async def test(world: SimulatedWorld) -> None:
        await produces(world)
        seen.extend(world.processed)

    monkeypatch.setattr(PartitionLog, "append_checked", fourth_time(twice))
    found = invariants(play(test, claims=["at-least-once", "exactly-once"]))
    assert seen == [*ORDERS[:4], *ORDERS[3:]]
    assert found["record-once"].startswith(
        "orders-0 offset 3 (the log holds it again at offset 4) was done twice: by worker at "
    )


@pytest.mark.parametrize("idempotent", [True, False])
def test_batch_that_a_producer_sends_again_is_no_violation_of_a_broker(*, idempotent: bool) -> None:
    """The first response is lost. Without idempotence the record is then in the log twice."""
    offsets: list[int] = []

    async def test(world: SimulatedWorld) -> None:
        world.lose_next_response("Produce")
        await world.process("shop", shop, idempotent=idempotent).ended()
        offsets.extend(each.offset for each in world.records("orders"))

    assert play(test).violations == []
    assert len(offsets) == len(ORDERS) + (not idempotent)


def test_transactions_and_deleted_records_are_no_violation() -> None:
    async def pay() -> None:
        async with AIOKafkaProducer(bootstrap_servers=BOOTSTRAP, transactional_id="pay") as producer:
            for number in range(4):
                await producer.begin_transaction()
                await producer.send("orders", b"%d" % number)
                if number % 2:
                    await producer.abort_transaction()
                else:
                    await producer.commit_transaction()

    async def read() -> None:
        async with AIOKafkaConsumer("orders", bootstrap_servers=BOOTSTRAP) as consumer:
            await consumer.getone()

    async def test(world: SimulatedWorld) -> None:
        await world.process("pay", pay).ended()
        await world.produce("orders", "a")
        topic = world.endpoint.brokers.cluster.image.by_name["orders"]
        world.endpoint.brokers.cluster.log(topic, 0).delete_records(3)
        await world.produce("orders", "b")
        world.process("reader", read)

    assert play(test).violations == []
