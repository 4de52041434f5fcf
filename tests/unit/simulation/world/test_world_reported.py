"""Bugs of aiokafka: three that users reported, and one found here.

The first is found from a seed, and brought down to one fault. The last two are mended in aiokafka 0.14, and
put back.

The first report: https://github.com/aio-libs/aiokafka/issues/1017

A broker is away for longer than `request_timeout_ms`. From then on each `send_and_wait` of an idempotent
producer raises OutOfOrderSequenceNumber, until its process is restarted. The cause is in aiokafka: while a
partition has no leader, it gives up a batch that has expired. That batch takes its sequence numbers with it,
so the next one leaves a gap.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaError, OutOfOrderSequenceNumber

from fencepost import KIP848Consumer, SimulatedWorld, SimulationFailed, run_simulated, simulated
from tests.unit.simulation.world.programs_of_users import reads
from tests.unit.simulation.world.reported_programs import GROUP_ID, TRANSACTIONAL_ID

HERE = "tests.unit.simulation.world.reported_programs"
SEED = 24
SETTINGS: dict[str, Any] = {
    "topics": {"orders": 2},
    "config": {"default.replication.factor": 1},
    "seeds": 1,
    "always": [SEED],
}
SENT = "sent"
Outcomes = dict[int, list[str]]
"""What became of each order, by partition: `SENT`, or the name of the error."""


async def send_orders(outcomes: Outcomes, *, restarts: bool) -> None:
    """Send an order to each partition in turn. After a failure go on with the next order.

    With `restarts` begin with a new producer after OutOfOrderSequenceNumber, as the reporters did.
    """
    numbers = itertools.count()
    while True:
        producer = AIOKafkaProducer(
            bootstrap_servers="kafka:9092", enable_idempotence=True, request_timeout_ms=10_000
        )
        async with producer:
            for number in numbers:
                outcome = outcomes.setdefault(number % 2, [])
                try:
                    await producer.send_and_wait("orders", b"%d" % number, partition=number % 2)
                    outcome.append(SENT)
                except KafkaError as error:
                    outcome.append(type(error).__name__)
                    if restarts and isinstance(error, OutOfOrderSequenceNumber):
                        break
                await asyncio.sleep(0.5)


async def send_until_all_is_well(world: SimulatedWorld, *, restarts: bool) -> None:
    """Once the brokers are well, orders can be sent to each partition."""
    outcomes: Outcomes = {}
    world.process("shop", send_orders, outcomes, restarts=restarts)
    await world.faults_over.wait()
    await asyncio.sleep(20)
    for outcome in outcomes.values():
        story = [f"{len(list(group))} {name}" for name, group in itertools.groupby(outcome)]
        assert set(outcome[-10:]) == {SENT}, ", ".join(story)


@simulated(**SETTINGS)
async def orders_are_sent(world: SimulatedWorld) -> None:
    await send_until_all_is_well(world, restarts=False)


@simulated(**SETTINGS)
async def orders_are_sent_by_new_producers(world: SimulatedWorld) -> None:
    await send_until_all_is_well(world, restarts=True)


@pytest.mark.processes
def test_idempotent_producer_never_recovers_from_a_batch_that_expired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SimulationFailed) as failed:
        orders_are_sent()
    text = str(failed.value)
    first = text.splitlines()[0]
    assert first.startswith(f"seed {SEED} fails: raised AssertionError: ")
    sent, lost, refused = first.rpartition(": ")[2].split(", ")
    assert sent.endswith(f" {SENT}")
    assert lost == "1 LeaderNotAvailableError"
    number, name = refused.split()
    assert name == "OutOfOrderSequenceNumber"
    assert int(number) >= 20  # all that were sent to this partition in twenty seconds without faults
    assert re.findall(r"^  [\d.]+ m?s: (\S+)", text, re.MULTILINE) == ["broker-crash"]


def test_new_producer_recovers() -> None:
    for seed in (SEED, 1):
        assert orders_are_sent_by_new_producers.simulated.run(seed).violations == []


@pytest.mark.parametrize(("consumer_class", "times"), [(AIOKafkaConsumer, 2), (KIP848Consumer, 1)])
def test_refused_request_for_offsets_counts_as_no_offsets(consumer_class: Any, times: int) -> None:
    """A coordinator that has just moved refuses OffsetFetch. aiokafka then starts at `auto_offset_reset`."""
    done: list[int] = []

    async def test(world: SimulatedWorld) -> None:
        await world.produce("orders", "a", "b", "c")
        worker = world.process("worker", reads, world.done, made=consumer_class)
        await world.settled()
        world.fail_next("OffsetFetch", "NOT_COORDINATOR")
        await worker.restart()
        await asyncio.sleep(30)
        done.extend(len(each) for offsets in world.record_judge.done.values() for each in offsets.values())
        worker.kill()

    assert run_simulated(test, topics={"orders": 1}, faults=()).violations == []
    assert done == [times] * 3


@pytest.mark.processes
@pytest.mark.parametrize(
    ("bug", "written", "crash"),
    [
        ("", 6, ""),
        # https://github.com/aio-libs/aiokafka/issues/1134, in 0.12
        ("keep-dead-coordinators", 3, ""),
        # https://github.com/aio-libs/aiokafka/issues/1151, in 0.13; one record is of an aborted transaction
        ("forget-shared-coordinators", 7, "KafkaError: Unexpected error during batch delivery"),
    ],
)
def test_pipeline_whose_coordinator_goes_away(bug: str, written: int, crash: str) -> None:
    """The broker that coordinates the group and the transactions stops, and never comes back."""

    async def test(world: SimulatedWorld) -> None:
        brokers = world.endpoint.brokers
        world.process("pipeline", f"{HERE}:forwards", bug)
        for number in range(3):
            await world.produce("orders", f"order {number}")
            await asyncio.sleep(2)
        node_id = brokers.transactions.leader_id(TRANSACTIONAL_ID)
        assert brokers.groups.shard_of(GROUP_ID).node_id == node_id
        await world.stop_broker(node_id)
        for number in range(3, 6):
            await world.produce("orders", f"order {number}")
            await asyncio.sleep(20)
        assert len(world.records("invoices")) == written

    result = run_simulated(test, topics={"orders": 1, "invoices": 1}, faults=())
    assert result.violations == []
    assert [f"{each.error}: {each.message}" for each in result.crashes] == (
        [f"KafkaError: {crash}"] if crash else []
    )
