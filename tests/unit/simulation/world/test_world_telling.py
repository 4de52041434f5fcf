"""A report tells what held an event loop, why a session ended, and what tasks wait for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fencepost
from fencepost import SimulatedWorld, SimulationFailed
from fencepost.simulation.world.failure import explain
from fencepost.simulation.world.run import run_world
from fencepost.simulation.world.telling import _concerns
from tests.unit.simulation.world import own_programs
from tests.unit.simulation.world.programs_of_users import consumer

HERE = "test_world_telling.py"


async def reads(world: SimulatedWorld, work: Callable[[int], object]) -> None:
    async with consumer("orders", group_id="shop", session_timeout_ms=10_000) as reading:
        async for record in reading:
            work(record.offset)
            world.done(record)
            await reading.commit()


def told(test: Any, folder: Path, **settings: Any) -> str:
    made = fencepost.simulated(**{"topics": {"orders": 1}, "faults": (), **settings})(test).simulated
    result = run_world(made.function, made.settings, 1, keep_rows=True)
    assert result.failed
    return explain(test, made.settings, result, command="pytest", folder=folder).text


def line_of(function: Any, nth: int) -> str:
    return f"{HERE}:{function.__code__.co_firstlineno + nth} in {function.__qualname__}"


def sleeps_once(offset: int) -> None:
    if offset == 3:
        for _ in range(3):
            time.sleep(5)


def test_line_that_held_a_loop_is_told_and_so_is_the_end_of_its_session(tmp_path: Path) -> None:
    async def test(world: SimulatedWorld) -> None:
        world.process("worker", reads, world, sleeps_once)
        await world.produce("orders", [str(number) for number in range(5)])
        await world.settled()

    text = told(test, tmp_path, claims=["no-crash"])
    held, session = text.partition("Callbacks held event loops:\n")[2].split("\n\nSessions of running")[:2]
    assert "worker: its event loop stood still from " in held
    assert " for 15.0 s: " in held
    assert line_of(sleeps_once, 3) in held
    assert "  worker in shop at " in session
    assert line_of(sleeps_once, 3) in session
    assert "no-crash: worker ended by CommitFailedError: " in text


def test_session_that_ends_in_a_freeze_says_so(tmp_path: Path) -> None:
    async def test(world: SimulatedWorld) -> None:
        worker = world.process("worker", reads, world, lambda offset: None)
        await world.produce("orders", "a")
        await asyncio.sleep(20)
        worker.freeze(30)
        await asyncio.sleep(60)
        pytest.fail("enough")

    assert "its event loop" not in (text := told(test, tmp_path))
    assert "worker in shop at " in text
    assert "it was frozen at 20.0 s" in text


def test_function_in_an_executor_holds_no_loop(tmp_path: Path) -> None:
    async def threads() -> None:
        await asyncio.to_thread(time.sleep, 20)

    async def test(world: SimulatedWorld) -> None:
        await world.process("worker", threads).ended()
        raise ValueError

    assert "Callbacks held" not in told(test, tmp_path)


async def locks(first: asyncio.Lock, second: asyncio.Lock) -> None:
    async with first:
        await asyncio.sleep(1)
        async with second:
            """Never."""


async def waits_for_itself() -> None:
    one, other = asyncio.Lock(), asyncio.Lock()
    await asyncio.gather(locks(one, other), locks(other, one))


def test_stacks_of_tasks_that_wait_for_each_other_are_told(tmp_path: Path) -> None:
    async def test(world: SimulatedWorld) -> None:
        world.eventually(lambda: not program.is_running, "over")
        program = world.process("worker", waits_for_itself)
        await program.ended()

    waits = told(test, tmp_path).partition("Programs waited when the run failed:\nworker waits:\n")[2]
    lines = waits.splitlines()[:3]
    assert lines[0].startswith("  worker: ")
    assert line_of(waits_for_itself, 2) in lines[0]
    assert all(line_of(locks, 3) in line for line in lines[1:])


# -- runs of their own -------------------------------------------------------------------------------

_seen: list[int] = []


@fencepost.simulated(seeds=6, topics={"orders": 1}, faults=(), processes=1)
async def finds_no_state_of_other_seeds(world: SimulatedWorld) -> None:
    assert _seen == []
    _seen.append(1)


@fencepost.simulated(seeds=1, topics={"orders": 1}, faults=())
async def fails_at_its_first_run_in_a_process(world: SimulatedWorld) -> None:
    _seen.append(1)
    assert len(_seen) > 1


@fencepost.simulated(seeds=1, topics={"orders": 1}, faults=())
async def follows_addresses(world: SimulatedWorld) -> None:
    await world.process("worker", own_programs.sends_in_the_order_of_addresses).ended()
    pytest.fail("it is over")


@pytest.mark.processes
def test_each_seed_begins_with_untouched_modules() -> None:
    assert len(finds_no_state_of_other_seeds.simulated.check().digests) == 6


@pytest.mark.processes
def test_failing_seed_is_repeated_from_untouched_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SimulationFailed) as failed:
        fails_at_its_first_run_in_a_process.simulated.check()
    assert "Without any fault" in str(failed.value)


@pytest.mark.processes
def test_repeat_has_other_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SimulationFailed) as failed:
        follows_addresses.simulated.check()
    text = str(failed.value)
    assert "This program is not repeatable: 5 runs of the seed gave 5 different digests" in text
    assert "The first difference: at " in text
    assert f"{own_programs.__name__}.Thing" in text


def test_fault_of_a_program_is_not_one_of_a_longer_name() -> None:
    assert _concerns("partition worker-1, kafka-2", "worker-1")
    assert not _concerns("partition worker-10, kafka-2", "worker-1")
    assert _concerns("broker-crash kafka-1", "worker-1")
