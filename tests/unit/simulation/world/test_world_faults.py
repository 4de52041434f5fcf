"""Each fault of a world does to programs what its word says."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener
from aiokafka.errors import KafkaError, ProducerFenced

from fencepost import KIP848Consumer, SimulatedWorld, WorldResult, run_simulated
from fencepost.simulation.world.mix import DEFAULT_MIX
from tests.unit.simulation.world.programs_of_users import BOOTSTRAP

SETTINGS: dict[str, Any] = {
    "bootstrap_servers": BOOTSTRAP,
    "group_id": "billing",
    "auto_offset_reset": "earliest",
    "max_poll_interval_ms": 5_000,
}
CONSUMERS = pytest.mark.parametrize("consumer_class", [AIOKafkaConsumer, KIP848Consumer])


def play(test: Callable[[SimulatedWorld], Any], word: str, **settings: Any) -> WorldResult:
    """Run a test with one fault, that of the word."""
    others: dict[str, Any] = {str(each.__struct_config__.tag): None for each in DEFAULT_MIX}
    faults = {**others, word: settings}
    for seed in range(1, 20):  # each run leaves out about half of the faults
        result = run_simulated(
            test, seed, topics={"orders": 4}, faults=faults, deploys=False, duration=40, claims=()
        )
        assert not result.trouble, result.trouble
        if result.plan.entries:
            assert {entry.kind for entry in result.plan.entries} == {word}
            return result
    raise AssertionError("no seed drew the fault")


class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self) -> None:
        self.assigned: list[tuple[float, int]] = []

    async def on_partitions_assigned(self, partitions: Any) -> None:
        self.assigned.append((time.monotonic(), len(partitions)))

    async def on_partitions_revoked(self, partitions: Any) -> None:
        """Nothing to do."""


@CONSUMERS
def test_poll_timeout_keeps_a_program_from_polling(consumer_class: Any) -> None:
    polls: list[float] = []

    async def program() -> None:
        consumer = consumer_class("orders", **SETTINGS)
        async with consumer:
            while True:
                await consumer.getmany(timeout_ms=500)
                polls.append(time.monotonic())

    members: list[int] = []

    async def test(world: SimulatedWorld) -> None:
        polls.clear()
        members.clear()
        world.process("worker", program)
        for _ in range(70):
            await asyncio.sleep(0.5)
            members.append(len(world.group("billing").members()))
        world.programs["worker"].kill()

    play(test, "poll-timeout", at="10s", lasts="15s")
    gaps = [after - before for before, after in itertools.pairwise(polls)]
    assert 14 < max(gaps) < 20  # a client of the classic protocol joins again before it reads on
    assert members[15] == 1
    assert members[40] == 0  # at 20 s: its poll interval is over
    assert members[-1] == 1


@CONSUMERS
def test_slow_callback_delays_the_next_rebalance_callback(consumer_class: Any) -> None:
    listener = Listener()
    stable: list[float] = []

    async def program() -> None:
        consumer = consumer_class(**SETTINGS)
        consumer.subscribe(["orders"], listener=listener)
        async with consumer:
            while True:
                await consumer.getmany(timeout_ms=500)

    async def test(world: SimulatedWorld) -> None:
        listener.assigned.clear()
        stable.clear()
        world.process("worker", program)
        await asyncio.sleep(12)
        before = len(listener.assigned)
        world.create_topic("more")
        world.process("second", program)
        await asyncio.sleep(25)
        assert len(listener.assigned) > before
        for each in world.programs.values():
            each.kill()
        stable.append(min(at for at, _ in listener.assigned if at > 12))

    play(test, "slow-callback", at="5s", lasts="4s")
    assert stable[0] >= 16


def test_failed_callback_is_raised_by_the_next_poll() -> None:
    errors: list[str] = []

    async def program() -> None:
        consumer = KIP848Consumer(**SETTINGS)
        consumer.subscribe(["orders"], listener=Listener())
        async with consumer:
            try:
                while True:
                    await consumer.getmany(timeout_ms=500)
            except Exception as error:
                errors.append(repr(error.__cause__))
                raise

    async def test(world: SimulatedWorld) -> None:
        errors.clear()
        world.process("worker", program)
        await asyncio.sleep(10)
        world.process("second", program)
        await asyncio.sleep(40)
        for each in world.programs.values():
            each.kill()

    play(test, "callback-error", at="5s")
    assert errors == ["RuntimeError('the fault callback-error lets this rebalance callback fail')"]


def test_append_failure_refuses_records_until_it_is_over() -> None:
    sent: list[float] = []

    async def program() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=BOOTSTRAP, retry_backoff_ms=100)
        async with producer:
            while True:
                await producer.send_and_wait("orders", b"order")
                sent.append(time.monotonic())
                await asyncio.sleep(0.2)

    async def test(world: SimulatedWorld) -> None:
        sent.clear()
        world.process("shop", program)
        await asyncio.sleep(45)
        world.programs["shop"].kill()

    play(test, "append-failure", at="10s", lasts="5s")
    assert max(after - before for before, after in itertools.pairwise(sent)) == pytest.approx(5, abs=0.5)


def test_takeover_fences_a_transactional_producer() -> None:
    errors: list[KafkaError] = []

    async def program() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=BOOTSTRAP, transactional_id="shop")
        async with producer:
            while True:
                async with producer.transaction():
                    await producer.send("orders", b"order")
                await asyncio.sleep(0.3)

    async def observed() -> None:
        try:
            await program()
        except KafkaError as error:
            errors.append(error)
            raise

    async def test(world: SimulatedWorld) -> None:
        errors.clear()
        world.process("shop", observed)
        await asyncio.sleep(45)
        assert world.programs["shop"].is_running  # it was started again
        world.programs["shop"].kill()

    play(test, "producer-takeover", at="10s")
    assert [type(each) for each in errors] == [ProducerFenced]


def test_faults_before_the_first_program_disturb_nobody() -> None:
    async def test(world: SimulatedWorld) -> None:
        await world.faults_over.wait()

    drawn: set[str] = set()
    for seed in range(1, 13):
        result = run_simulated(test, seed, topics={"orders": 4})
        assert not result.trouble, result.trouble
        drawn |= {entry.kind for entry in result.plan.entries}
    assert drawn >= {str(each.__struct_config__.tag) for each in DEFAULT_MIX}
