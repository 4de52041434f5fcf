"""Programs that keep virtual time from moving: the run ends, and names the program and its line."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import linecache
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer

from fencepost import KIP848Consumer, SimulatedWorld, WorldResult, run_simulated
from fencepost.simulation.world import run

Program = Callable[[], Coroutine[Any, Any, object]]


async def _spins_on_an_event() -> None:
    event = asyncio.Event()
    while not event.is_set():  # noqa: ASYNC110  # the mistake
        await asyncio.sleep(0)  # here


async def _polls_without_a_timeout() -> None:
    async with AIOKafkaConsumer("orders", bootstrap_servers="kafka:9092", group_id="g") as consumer:
        while True:
            await consumer.getmany()  # here


async def _polls_kip848_without_a_timeout() -> None:
    async with KIP848Consumer("orders", bootstrap_servers="kafka:9092", group_id="g") as consumer:
        while True:
            await consumer.getmany()  # here


async def _awaits_nothing() -> None:
    for _ in itertools.count():
        pass  # here


async def _reads_the_clock() -> None:
    while True:
        time.monotonic()  # here


async def _calls_itself() -> None:
    def again() -> None:  # here
        asyncio.get_running_loop().call_soon(again)

    again()
    await asyncio.sleep(1_000)


async def _computes_in_a_protocol() -> None:
    class Server(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            while data:
                pass  # here

    await asyncio.get_running_loop().create_server(Server, "127.0.0.1", 80)
    _, writer = await asyncio.open_connection("127.0.0.1", 80)
    writer.write(b"x")
    await asyncio.sleep(1_000)


async def _swallows_all() -> None:
    while True:
        with contextlib.suppress(BaseException):
            time.monotonic_ns()  # here


def play(program: Program | None, test: Callable[[], None] | None = None) -> WorldResult:
    """Run a program beside one that waits."""

    async def quiet() -> None:
        await asyncio.Event().wait()

    async def on_world(world: SimulatedWorld) -> None:
        world.process("quiet", quiet)
        if program is not None:
            world.process("spinner", program)
        if test is not None:
            world.always(lambda: test() is None)
        await asyncio.sleep(1_000)

    return run_simulated(on_world, topics=["orders"], brokers=1, faults=())


@pytest.fixture(scope="module", autouse=True)
def loaded() -> None:
    """Run a world once: the first one imports much, which takes CPU time."""

    async def test(world: SimulatedWorld) -> None:
        async with AIOKafkaConsumer("orders", bootstrap_servers="kafka:9092"):
            pass
        async with KIP848Consumer("orders", bootstrap_servers="kafka:9092", group_id="g"):
            pass

    assert run_simulated(test, topics=["orders"], brokers=1, faults=()).violations == []


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch, loaded: None) -> None:
    monkeypatch.setattr(run, "LIMIT_CPU_S", 0.6)


def told(result: WorldResult) -> str:
    """The message of a run that stood still."""
    (violation,) = result.violations
    assert violation.invariant == "raised StandsStill"
    assert "s of CPU time now: " in violation.message
    assert "asyncio.sleep() of more than 0 s" in violation.message
    assert violation.message in result.trouble
    return violation.message


@pytest.mark.parametrize(
    "program",
    [
        _spins_on_an_event,
        _polls_kip848_without_a_timeout,
        _awaits_nothing,
        *(
            pytest.param(each, marks=pytest.mark.long)
            for each in (
                _polls_without_a_timeout,
                _reads_the_clock,
                _calls_itself,
                _computes_in_a_protocol,
                _swallows_all,
            )
        ),
    ],
)
def test_run_that_stands_still_names_program_file_and_line(program: Program) -> None:
    message = told(play(program))
    found = re.search(
        r": spinner (runs|does not return from) \S*test_world_standstill\.py:(\d+) in ", message
    )
    assert found is not None, message
    line = int(found[2])
    # An exception interrupts a loop between any two of its lines.
    near = [linecache.getline(__file__, each) for each in range(line - 1, line + 2)]
    assert any("# here" in each for each in near), message
    if ", by the library " in message:
        assert program is _polls_without_a_timeout
        assert "aiokafka (aiokafka/" in message


@pytest.mark.processes
@pytest.mark.parametrize("program", ["quiet", "spins"])
def test_functions_can_be_traced_after_a_run(tmp_path: Path, program: str) -> None:
    (tmp_path / "traced.py").write_text(_TRACED.replace("PROGRAM", program))
    done = subprocess.run(
        [sys.executable, "traced.py"], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "traced\n"


_TRACED = """
import sys
from fencepost import run_simulated
from fencepost.simulation.world import run
run.LIMIT_CPU_S = 0.6

async def quiet():
    pass

async def spins():
    while True:
        pass

async def on_world(world):
    world.process("program", PROGRAM)

run_simulated(on_world, brokers=1, faults=())
sys.settrace(lambda *_: None)
(lambda: print("traced"))()
"""


def test_invariant_that_computes_forever_is_named() -> None:
    def endless() -> None:
        while True:
            pass

    message = told(play(None, endless))
    assert ": the test does not return from " in message
    assert "test_invariant_that_computes_forever_is_named.<locals>.endless" in message


def test_run_in_another_thread_is_watched_too() -> None:
    messages: list[str] = []
    thread = threading.Thread(target=lambda: messages.append(told(play(_awaits_nothing))))
    thread.start()
    thread.join()
    assert "in _awaits_nothing" in messages[0]


def test_long_computing_of_programs_whose_time_moves_is_no_standstill() -> None:
    async def busy() -> None:
        for _ in range(6):
            end = time.process_time() + 0.2
            while _cpu_s() < end:
                pass
            await asyncio.sleep(0.02)

    real = time.process_time
    _cpu_s = lambda: real()  # noqa: E731, PLW0108  # the machine's, also in a run
    assert play(busy).violations == []


def test_too_many_events_name_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "MAX_EVENTS", 3_000)

    async def creeps() -> None:
        while True:  # noqa: ASYNC110  # the mistake
            await asyncio.sleep(0.000_001)

    (violation,) = play(creeps).violations
    assert violation.invariant == "raised TooManyEvents"
    assert "3000 events were not enough" in violation.message
