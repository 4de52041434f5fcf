"""A run reports failures at the end of a test, programs that keep failing, and each group by itself."""

from __future__ import annotations

import asyncio
import re
import time
from functools import partial
from types import SimpleNamespace

import pytest

from fencepost import SimulatedWorld, WorldResult
from tests.unit.simulation.world import programs_of_users
from tests.unit.simulation.world.programs_of_users import reads

play = partial(programs_of_users.play, topics={"orders": 1})


def invariants(result: WorldResult) -> list[str]:
    return [each.invariant for each in result.violations]


async def idle() -> None:
    await asyncio.Event().wait()


def test_cancelled_test_fails() -> None:
    async def test(world: SimulatedWorld) -> None:
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.cancel()
        await waiting

    (violation,) = play(test).violations
    assert violation.invariant == "raised CancelledError"
    assert violation.message.startswith("the test was cancelled")


def test_test_whose_loop_is_stopped_fails() -> None:
    async def test(world: SimulatedWorld) -> None:
        asyncio.get_running_loop().stop()
        await asyncio.sleep(1)

    (violation,) = play(test).violations
    assert violation.message == "the loop was stopped before the test was over"


def test_what_is_to_hold_eventually_is_judged_without_programs() -> None:
    async def test(world: SimulatedWorld) -> None:
        world.eventually(lambda: False, "never")
        await world.process("a", asyncio.sleep, 1).ended()

    assert invariants(play(test)) == ["never"]


def test_end_is_judged_while_a_fault_has_a_program_down() -> None:
    async def test(world: SimulatedWorld) -> None:
        world.eventually(lambda: False, "never")
        crashed = world.process("a", idle)
        await asyncio.sleep(3)
        assert not crashed.is_running

    faults = {"member-crash": {"at": "2s", "lasts": "10s"}}
    others = dict.fromkeys(["member-freeze", "partition", "loss", "broker-crash"])
    result = play(test, faults={**faults, **others}, deploys=False)
    assert invariants(result) == ["never"]


def test_what_must_always_hold_is_judged_at_the_last_moment() -> None:
    state = {"is_right": True}

    async def test(world: SimulatedWorld) -> None:
        world.always(lambda: state["is_right"], "right")
        await asyncio.sleep(1.05)
        state["is_right"] = False

    assert invariants(play(test)) == ["right"]


def test_records_that_come_after_the_world_has_settled_are_judged() -> None:
    async def program(world: SimulatedWorld) -> None:
        world.done(SimpleNamespace(topic="orders", partition=0, offset=0, key=None))
        await idle()

    async def test(world: SimulatedWorld) -> None:
        await world.produce("orders", "first")
        world.process("a", program, world)
        await world.settled()
        await world.produce("orders", "second")

    assert invariants(play(test)) == ["record-processed"]


def test_program_that_fails_again_and_again_is_told() -> None:
    async def program() -> None:
        await asyncio.sleep(3)
        raise ConnectionError("no luck")

    async def test(world: SimulatedWorld) -> None:
        world.process("a", program)
        await world.settled()

    assert "program-runs" in invariants(play(test))


def test_program_that_fails_once_settles() -> None:
    starts: list[float] = []

    async def program() -> None:
        starts.append(time.monotonic())
        if len(starts) == 1:
            raise ConnectionError("no luck")
        await idle()

    async def test(world: SimulatedWorld) -> None:
        world.process("a", program)
        await world.settled()
        assert world.loop.time() < 40

    assert play(test).violations == []


@pytest.mark.parametrize("verb", ["always", "eventually"])
def test_asynchronous_function_is_no_invariant(verb: str) -> None:
    async def holds() -> bool:
        return False

    async def test(world: SimulatedWorld) -> None:
        getattr(world, verb)(holds)

    (violation,) = play(test).violations
    assert "expected a function without arguments that returns a bool" in violation.message


# -- several groups on a topic ---------------------------------------------------------------------


async def read(world: SimulatedWorld, group: str, *, skips: int = -1) -> None:
    await reads(lambda record: None if record.offset == skips else world.done(record), group_id=group)


def test_record_that_one_of_two_groups_leaves_out_is_told() -> None:
    async def test(world: SimulatedWorld) -> None:
        world.process("billing", read, world, "billing")
        world.process("shipping", read, world, "shipping", skips=7)
        await world.produce("orders", [str(number) for number in range(20)], over=10)
        await world.settled()

    by_invariant = {
        each.invariant: re.sub(r"\d\.\d{3} s \(.*\)", "T", each.message) for each in play(test).violations
    }
    assert by_invariant == {
        "commit-after-processing": "group shipping committed orders-0 at offset 8 by shipping at T, "
        "and none of its programs had done offset 7",
        "record-processed": "group shipping has never done 1 records of orders-0 that another group did, "
        "such as offset 7",
    }


def test_record_that_each_of_two_groups_does_is_done_once() -> None:
    async def test(world: SimulatedWorld) -> None:
        for group in ("billing", "shipping"):
            world.process(group, read, world, group)
        await world.produce("orders", [str(number) for number in range(20)], over=10)
        await world.settled()

    assert play(test, claims=["exactly-once", "at-least-once"]).violations == []
