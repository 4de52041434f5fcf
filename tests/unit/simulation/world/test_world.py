"""A world with users' programs: unmodified clients, faults, judges, and what a failure tells."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import linecache
import re
import signal
import socket
import time
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from faststream import FastStream
from faststream.kafka import KafkaBroker

import fencepost
from fencepost import KIP848Consumer, SimulatedWorld, WorldResult, run_simulated
from fencepost.coordinator.host import CoordinatorHost
from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.coordinator.server.connection import KafkaServerConnection
from fencepost.coordinator.server.listener import Listener
from fencepost.simulation.world.failure import explain
from fencepost.simulation.world.mix import DEFAULT_MIX
from fencepost.simulation.world.run import run_world
from tests.unit.simulation.world.programs_of_users import (
    BOOTSTRAP,
    commit_after,
    commit_before,
    consumer,
    produce_orders,
)

TOPICS = {"orders": 6}
FAULT_WORDS = [str(each.__struct_config__.tag) for each in DEFAULT_MIX]


def play(function: Any, seed: int = 1, **settings: Any) -> WorldResult:
    """Run a test without faults, unless it says which."""
    result = run_simulated(function, seed, **{"topics": TOPICS, "faults": (), **settings})
    assert not result.trouble, result.trouble
    return result


def test_aiokafka_consumers_and_producers_run_unmodified() -> None:
    async def test(world: SimulatedWorld) -> None:
        for number in range(3):
            world.process(f"worker-{number}", commit_after, world.done)
        await world.process("shop", produce_orders, 60, 20.0).ended()
        await world.settled()
        await world.group("orders-service").wait_stable(members=3)
        assert sum(len(each) for each in world.record_judge.done.values()) == 60
        assert sum(world.group("orders-service").offsets().values()) == 60

    assert play(test).violations == []


def test_kip848_consumer_runs_unmodified() -> None:
    async def read(world: SimulatedWorld) -> None:
        async with consumer("orders", made=KIP848Consumer, enable_auto_commit=True) as reading:
            async for record in reading:
                world.done(record)

    async def test(world: SimulatedWorld) -> None:
        for number in range(2):
            world.process(f"worker-{number}", read, world)
        orders = [f"order {number}" for number in range(40)]
        await world.produce("orders", orders, over=20)
        await world.settled()
        assert world.processed == orders

    assert play(test).violations == []


def test_faststream_application_runs_unmodified() -> None:
    async def serve(world: SimulatedWorld) -> None:
        broker = KafkaBroker("localhost:9092")
        out = broker.publisher("invoices")

        @broker.subscriber("orders", group_id="billing", auto_offset_reset="earliest")
        async def bill(order: str) -> None:
            await out.publish(f"invoice for {order}")

        await FastStream(broker).run()

    async def test(world: SimulatedWorld) -> None:
        app = world.process("billing", serve, world)
        await world.produce("orders", [f"order {number}" for number in range(10)], over=5)
        await world.settled()
        await app.stop()
        assert app.error is None
        assert sorted(record.value or b"" for record in await world.records("invoices")) == [
            f"invoice for order {number}".encode() for number in range(10)
        ]

    assert play(test, topics={"orders": 3, "invoices": 1}).violations == []


def test_a_time_that_no_record_can_have_is_refused_at_once() -> None:
    async def test(world: SimulatedWorld) -> None:
        for values in ([], ["order"]):
            with pytest.raises(FencepostError, match="timestamp_ms=-1: expected a whole number"):
                await world.produce("orders", values, over=5, timestamp_ms=-1)
        assert world.loop.time() == 0
        assert await world.records("orders") == []

    play(test)


def test_transactions_write_each_result_once() -> None:
    async def transform() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=BOOTSTRAP, transactional_id="t")
        async with consumer("orders", isolation_level="read_committed") as reading, producer:
            while True:
                batch = await reading.getmany(timeout_ms=500)
                if not batch:
                    continue
                async with producer.transaction():
                    offsets = {}
                    for partition, records in batch.items():
                        for record in records:
                            await producer.send("results", record.value)
                        offsets[partition] = records[-1].offset + 1
                    await producer.send_offsets_to_transaction(offsets, "billing")

    async def test(world: SimulatedWorld) -> None:
        program = world.process("worker", transform)
        await world.produce("orders", [str(number) for number in range(30)], over=10)
        await world.settled()
        program.kill()
        values = [record.value for record in await world.records("results")]
        assert len(values) == len(set(values)) == 30

    assert play(test, topics={"orders": 3, "results": 1}).violations == []


def test_http_services_talk_to_each_other() -> None:
    async def price(request: web.Request) -> web.Response:
        return web.json_response({"price": len(request.match_info["order"])})

    async def serve() -> None:
        app = web.Application()
        app.router.add_get("/price/{order}", price)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "0.0.0.0", 8080).start()
        await asyncio.Event().wait()

    async def ask(found: list[int]) -> None:
        async with (
            aiohttp.ClientSession() as session,
            session.get("http://prices:8080/price/abc") as response,
        ):
            found.append((await response.json())["price"])

    async def test(world: SimulatedWorld) -> None:
        world.process("prices", serve)
        await asyncio.sleep(1)
        found: list[int] = []
        await world.process("shop", ask, found).ended()
        assert found == [3]
        world.programs["prices"].kill()

    assert play(test).violations == []


# -- programs --------------------------------------------------------------------------------------


def test_kill_runs_no_finally_and_stop_runs_it() -> None:
    told: list[str] = []

    async def program(name: str) -> None:
        try:
            await asyncio.sleep(1_000)
        finally:
            told.append(f"{name} begins its end")
            await asyncio.sleep(1)
            told.append(f"{name} ends")

    async def test(world: SimulatedWorld) -> None:
        killed, stopped = world.process("a", program, "a"), world.process("b", program, "b")
        await asyncio.sleep(1)
        killed.kill()
        await stopped.stop()
        await asyncio.sleep(5)
        assert told == ["b begins its end", "b ends"]
        told.append("over")

    play(test)
    assert told[:3] == ["b begins its end", "b ends", "over"]


def test_stop_calls_the_handler_of_sigterm() -> None:
    told: list[float] = []

    async def program() -> None:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        loop.add_signal_handler(signal.SIGTERM, stop.set)
        await stop.wait()
        await asyncio.sleep(2)
        told.append(loop.time())

    async def test(world: SimulatedWorld) -> None:
        stopped = world.process("a", program)
        await asyncio.sleep(1)
        await stopped.stop()

    play(test)
    assert told == [pytest.approx(3.0)]


def test_program_that_does_not_stop_is_killed_after_the_grace() -> None:
    async def program() -> None:
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(1_000)

    async def test(world: SimulatedWorld) -> None:
        stubborn = world.process("a", program)
        await asyncio.sleep(1)
        begin = time.monotonic()
        await stubborn.stop(grace=7)
        assert time.monotonic() - begin == pytest.approx(7)

    play(test)


def test_frozen_program_stands_still_and_goes_on() -> None:
    ticks: list[float] = []

    async def program() -> None:
        while True:
            await asyncio.sleep(1)
            ticks.append(time.monotonic())

    async def test(world: SimulatedWorld) -> None:
        ticking = world.process("a", program)
        await asyncio.sleep(2.5)
        ticking.freeze(10)
        await asyncio.sleep(11.5)
        ticking.kill()
        assert ticks == [pytest.approx(each, abs=0.01) for each in (1, 2, 12.5, 13.5)]

    play(test, config={})


def test_blocking_sleep_stops_its_own_program_only() -> None:
    ticks: dict[str, list[float]] = {"blocked": [], "other": []}

    async def tick(name: str) -> None:
        while True:
            await asyncio.sleep(1)
            ticks[name].append(round(time.monotonic()))

    async def program() -> None:
        ticking = asyncio.create_task(tick("blocked"))
        await asyncio.sleep(1.5)
        time.sleep(5)  # noqa: ASYNC251  # that it blocks is what the test is about
        assert round(time.monotonic(), 3) == 6.5
        await asyncio.sleep(1)
        ticking.cancel()

    async def test(world: SimulatedWorld) -> None:
        world.process("a", program)
        world.process("b", tick, "other")
        await asyncio.sleep(8.5)
        world.programs["b"].kill()

    play(test)
    assert ticks["other"] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert ticks["blocked"][:2] == [1, 6]


def test_failed_program_is_started_again() -> None:
    starts: list[float] = []

    async def program() -> None:
        starts.append(time.monotonic())
        if len(starts) < 3:
            raise ConnectionError("no luck")
        await asyncio.Event().wait()

    async def test(world: SimulatedWorld) -> None:
        program_of_it = world.process("a", program)
        await asyncio.sleep(60)
        assert program_of_it.is_running
        program_of_it.kill()

    play(test, faults={"loss": {"at": "59s"}}, deploys=False)
    assert len(starts) == 3


def test_program_that_something_cancels_is_started_again() -> None:
    starts: list[float] = []

    async def program() -> None:
        starts.append(time.monotonic())
        if len(starts) == 1:
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_later(1, waiting.cancel)
            await waiting
        await asyncio.Event().wait()

    async def test(world: SimulatedWorld) -> None:
        cancelled = world.process("a", program)
        await asyncio.sleep(30)
        assert cancelled.is_running
        assert len(starts) == 2
        await cancelled.stop()
        await asyncio.sleep(30)
        assert not cancelled.is_running

    assert play(test).violations == []


def test_consumer_that_is_about_to_join_is_waited_for() -> None:
    async def test(world: SimulatedWorld) -> None:
        await world.produce("orders", "order")
        world.fail_next("FindCoordinator", "COORDINATOR_NOT_AVAILABLE", times=100)
        world.process("worker", commit_after, world.done)
        await world.settled()
        assert world.processed == ["order"]
        assert world.loop.time() > 10

    assert play(test).violations == []


def test_kill_closes_connections_and_loses_the_session() -> None:
    async def test(world: SimulatedWorld) -> None:
        programs = [world.process(f"worker-{n}", commit_after, world.done) for n in range(2)]
        group = world.group("orders-service")
        await group.wait_stable(members=2)
        begin = time.monotonic()
        programs[0].kill()
        await group.wait_stable(members=1)
        assert 5 < time.monotonic() - begin < 16  # aiokafka's session timeout is 10 s
        await programs[0].restart()
        await group.wait_stable(members=2)

    assert play(test).violations == []


def test_client_starts_while_the_first_broker_is_down() -> None:
    orders: set[tuple[str, ...]] = set()

    async def look_up() -> None:
        for _ in range(20):
            found = await asyncio.get_running_loop().getaddrinfo("kafka", 9092, type=socket.SOCK_STREAM)
            orders.add(tuple(str(address[0]) for *_, address in found))

    async def test(world: SimulatedWorld) -> None:
        await world.stop_broker(1)
        world.process("worker", commit_after, world.done)
        await world.group("orders-service").wait_stable(members=1)
        await world.process("resolver", look_up).ended()
        assert world.programs["worker"].generation == 0
        world.programs["worker"].kill()

    assert play(test).violations == []
    assert len(orders) == 6  # all orders of three addresses
    assert {frozenset(each) for each in orders} == {frozenset(min(orders))}


# -- the code is that which serves -----------------------------------------------------------------


def test_served_objects_are_those_behind_real_sockets() -> None:
    async def test(world: SimulatedWorld) -> None:
        program = world.process("worker", commit_after, world.done)
        await world.group("orders-service").wait_stable(members=1)
        brokers = world.endpoint.brokers
        connections = brokers.connections
        assert connections
        assert {type(each) for each in connections} == {KafkaServerConnection}
        served = [each.socket for of_broker in brokers._listeners.values() for each in of_broker]
        assert {type(each) for each in served} == {Listener}
        assert {type(shard.host) for shard in brokers.groups.shards} == {CoordinatorHost}
        program.kill()

    play(test)


# -- seeds -----------------------------------------------------------------------------------------


async def _workload(world: SimulatedWorld) -> None:
    for number in range(3):
        world.process(f"worker-{number}", commit_after, world.done)
    orders = [f"order {number}" for number in range(100)]
    await world.produce("orders", orders, over=30)
    await world.settled()
    assert world.processed == orders


def test_seed_has_one_digest() -> None:
    first = run_simulated(_workload, 3, topics=TOPICS, duration=30)
    again = run_simulated(_workload, 3, topics=TOPICS, duration=30)
    other = run_simulated(_workload, 4, topics=TOPICS, duration=30)
    assert first.violations == []
    assert first.digest == again.digest != other.digest
    assert first.plan.entries


def test_what_the_caller_has_frozen_stays_frozen() -> None:
    """Or else each garbage collection after a run looks through it."""
    gc.freeze()
    frozen = gc.get_freeze_count()
    run_simulated(_workload, 3, topics=TOPICS, duration=30)
    assert gc.get_freeze_count() > frozen * 0.9  # some of them may be gone by themselves


@pytest.mark.processes
@fencepost.simulated(seeds=2, topics=TOPICS, processes=2)
async def test_right_program_passes_under_faults(world: SimulatedWorld) -> None:
    await _workload(world)


@fencepost.simulated(seeds=6, topics=TOPICS, claims=["at-least-once"], processes=2, duration=20)
async def wrong_program(world: SimulatedWorld) -> None:
    for number in range(3):
        world.process(f"worker-{number}", commit_before, world.done)
    await world.produce("orders", [f"order {number}" for number in range(100)], over=15)
    await world.settled()


@pytest.mark.processes
def test_failure_tells_seed_faults_timeline_and_commands(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(fencepost.SimulationFailed) as failed:
        wrong_program()
    text = str(failed.value)
    seed = int(text.split()[1])
    assert text.startswith(f"seed {seed} fails: record-processed: ")
    faults = [line for line in text.splitlines() if line.startswith("  ") and ": " in line]
    assert 1 <= len([line for line in faults if " s: " in line]) <= 3
    assert f"always=[{seed}]" in text
    assert f"PYTHONHASHSEED=0 FENCEPOST_SEED={seed} " in text
    (page,) = tmp_path.glob(f"world-failures/*-{seed}.html")
    assert "record-processed" in page.read_text()
    (document,) = tmp_path.glob(f"world-failures/*-{seed}.json")
    monkeypatch.setenv("FENCEPOST_FAILURE", str(document))
    with pytest.raises(fencepost.SimulationFailed, match=f"seed {seed} fails: record-processed") as again:
        wrong_program()
    listed = [re.sub(r" \(\d+ runs\)", "", line) for line in text.splitlines()]
    assert [line for line in str(again.value).splitlines() if line not in listed] == []


@pytest.mark.long
def test_report_and_timeline_call_programs_by_their_names(tmp_path: Any) -> None:
    async def test(world: SimulatedWorld) -> None:
        for number in range(2):
            world.process(f"worker-{number}", commit_after, world.done)
        await world.produce("orders", *map(str, range(40)), over=20)
        await asyncio.sleep(20)
        assert not any(each.host.frozen for each in world.programs.values())

    freeze = {"member-freeze": {"at": "10s", "lasts": "60s"}}
    only = {**dict.fromkeys(FAULT_WORDS), **freeze}
    function = fencepost.simulated(seeds=1, topics=TOPICS, faults=only, deploys=False, duration=60)(test)
    settings = function.simulated.settings
    result = next(found for seed in range(1, 9) if (found := function.simulated.run(seed)).failed)
    text = explain(test, settings, result, command="pytest", folder=tmp_path).text
    assert re.search(r"^  [\d.]+ s: member-freeze worker-[01] for 60\.0 s$", text, re.MULTILINE), text
    (page,) = tmp_path.glob("*.html")
    assert "A failed test in a simulated world" in page.read_text()
    members = run_world(test, settings, result.seed, keep_rows=True).names.values()
    assert {member.split()[0] for member in members} == {"worker-0", "worker-1"}


def test_report_has_the_traceback_of_the_program_that_fails_without_faults(tmp_path: Any) -> None:
    async def misconfigured() -> None:
        raise KeyError("DATABASE_URL")

    async def test(world: SimulatedWorld) -> None:
        world.process("worker", misconfigured)
        await world.settled(timeout=80)

    result = run_simulated(test, topics=TOPICS, faults=())
    assert result.invariant == "program-runs"
    assert result.trouble.startswith("worker ended by:\n")
    assert 'raise KeyError("DATABASE_URL")' in result.trouble


async def _without_world() -> None:
    """Stand for a test that forgets its parameter."""


class _Tests:
    async def method(self, world: SimulatedWorld) -> None:
        """Stand for a test in a class."""


def test_wrong_use_of_the_decorator_is_told() -> None:
    decorate: Any = fencepost.simulated
    with pytest.raises(FencepostError, match=r"expected @fencepost\.simulated\(\)"):
        decorate(_without_world)
    for wrong in (_without_world, _Tests.method):
        with pytest.raises(FencepostError, match="expected an async function that takes a world"):
            decorate()(wrong)


def test_plain_assert_is_told_by_its_line_of_code() -> None:
    code = "async def test(world):\n    assert 1 > 2\n"
    names: dict[str, Any] = {}
    linecache.cache["plain.py"] = (len(code), None, code.splitlines(keepends=True), "plain.py")
    exec(compile(code, "plain.py", "exec"), names)  # pytest does not rewrite it
    (violation,) = run_simulated(names["test"], faults=()).violations
    assert violation.message == "assert 1 > 2"


def test_invariants_of_the_test_are_judged() -> None:
    async def test(world: SimulatedWorld) -> None:
        world.always(lambda: time.monotonic() < 2, "early")
        world.eventually(lambda: False, "never")
        await asyncio.sleep(3)
        await world.settled()

    assert {each.invariant for each in play(test).violations} == {"early", "never"}


def test_manual_assignment_reads_what_was_produced() -> None:
    async def test(world: SimulatedWorld) -> None:
        await world.produce("orders", "a", "b", partition=2)
        consumer = AIOKafkaConsumer(bootstrap_servers=world.bootstrap_servers)
        await consumer.start()
        consumer.assign([TopicPartition("orders", 2)])
        await consumer.seek_to_beginning()
        assert [(await consumer.getone()).value for _ in range(2)] == [b"a", b"b"]
        await consumer.stop()

    play(test)
