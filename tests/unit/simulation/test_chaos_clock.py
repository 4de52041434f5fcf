"""Real time of a run on real brokers: what is asked for in turn, and what is given up at the end."""

from __future__ import annotations

import asyncio
import gc

from fencepost.simulation.lab.chaos.clock import RealTime, RunQueue


async def test_turns_follow_one_another() -> None:
    time, done = RealTime(), list[str]()
    turns = RunQueue(time)

    async def write(text: str, pauses: int) -> None:
        for _ in range(pauses):
            await asyncio.sleep(0)
        done.append(text)

    turns.add(write, "slow", 5)
    turns.add(write, "quick", 0)
    await turns.settled()
    assert done == ["slow", "quick"]
    await time.close()


async def test_turns_that_have_not_come_are_given_up_without_a_word() -> None:
    time, began = RealTime(), list[int]()
    turns = RunQueue(time)

    async def never_ends(number: int) -> None:
        began.append(number)
        await asyncio.Event().wait()

    turns.add(never_ends, 1)
    turns.add(never_ends, 2)
    await asyncio.sleep(0)
    turns.add(never_ends, 3)
    await time.close()
    gc.collect()  # what was made and not awaited is told of now
    assert began == [1]
