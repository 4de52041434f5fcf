from __future__ import annotations

import asyncio
import hashlib
import os
import random
import subprocess
import sys
import threading
import time

import anyio
import pytest

from fencepost.simulation.kernel.loop import Deadlock, OutsideWorld, TooManyEvents, VirtualLoop


async def test_an_hour_passes_at_once():
    loop = asyncio.get_running_loop()
    started = time.perf_counter()
    await asyncio.sleep(3600)
    assert loop.time() == 3600.0
    assert time.perf_counter() - started < 1


async def test_equal_times_keep_their_order():
    loop = asyncio.get_running_loop()
    order = []
    for i in range(8):
        loop.call_at(1.0, order.append, i)
    await asyncio.sleep(2)
    assert order == list(range(8))


async def test_asyncio_timers_and_scheduled_actions_share_one_order():
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    order = []
    loop.call_at(1.0, order.append, "a")
    loop.schedule(1_000_000, order.append, "b")
    loop.timer(1_000_000, order.append, "c")
    loop.call_at(1.0, order.append, "d")
    await asyncio.sleep(1)
    assert order == ["a", "b", "c", "d"]


async def test_a_cancelled_timer_does_not_run():
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    order = []
    loop.timer(10, order.append, "timer").cancel()
    loop.call_later(0.1, order.append, "handle").cancel()
    await asyncio.sleep(1)
    assert order == []


def test_cancelled_timers_do_not_pile_up():
    loop = VirtualLoop()
    for i in range(100_000):
        loop.timer(10_000_000 + 100 * i, print, i).cancel()
    assert loop.pending() < 10_000
    loop.close()


def test_what_is_scheduled_runs_in_the_order_of_time_and_of_insertion():
    loop = VirtualLoop()
    rng = random.Random(5)
    moments = [rng.randrange(3_000_000) for _ in range(300)] + [131_071, 131_072, 131_073, 262_144] * 3
    ran: list[tuple[int, int, int]] = []

    def run(entry: tuple[int, int]) -> None:
        ran.append((loop.now_us, *entry))
        if entry[1] % 3 == 0:  # what happens at once, soon, and much later
            for delay in (0, 50, 400_000):
                loop.schedule(loop.now_us + delay, after.append, (loop.now_us + delay, len(after)))

    after: list[tuple[int, int]] = []
    for number, moment in enumerate(moments):
        loop.schedule(moment, run, (moment, number))
    loop.run_until(10_000_000)
    assert ran == sorted((moment, moment, number) for number, moment in enumerate(moments))
    assert len(after) == 3 * len(range(0, len(moments), 3))
    assert [moment for moment, _ in after] == sorted(moment for moment, _ in after)
    loop.close()


async def test_timeouts_and_task_groups_work():
    async def slow() -> str:
        await asyncio.sleep(100)
        return "done"

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(5):
            await slow()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(slow()) for _ in range(3)]
    assert [t.result() for t in tasks] == ["done"] * 3
    assert asyncio.get_running_loop().time() == 105


def test_anyio_runs_on_it():
    async def body() -> float:
        with anyio.move_on_after(30):
            await anyio.sleep(1000)
        return anyio.current_time()

    assert anyio.run(body, backend="asyncio", backend_options={"loop_factory": VirtualLoop}) == 30


def test_a_deadlock_is_told():
    loop = VirtualLoop()
    with pytest.raises(Deadlock, match="1 tasks wait: stuck"):
        loop.run_until_complete(loop.create_task(_forever(loop), name="stuck"))
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until(1)
    loop.close()


async def _forever(loop: asyncio.AbstractEventLoop) -> None:
    await loop.create_future()


def test_spinning_is_bounded():
    loop = VirtualLoop(max_events=1000)

    def spin() -> None:
        loop.call_soon(spin)

    loop.call_soon(spin)
    with pytest.raises(TooManyEvents):
        loop.run_forever()
    loop.close()


def test_run_until_stops_at_that_moment():
    loop = VirtualLoop()
    seen = []
    loop.schedule(5, seen.append, 5)
    loop.schedule(15, seen.append, 15)
    loop.run_until(10)
    assert (seen, loop.now_us) == ([5], 10)
    loop.run_until(20)
    assert (seen, loop.now_us) == ([5, 15], 20)
    loop.close()


def test_an_exception_of_a_scheduled_action_ends_the_run():
    loop = VirtualLoop()
    loop.schedule(5, lambda _: 1 / 0, None)
    with pytest.raises(ZeroDivisionError):
        loop.run_until(10)
    loop.close()


async def test_the_outside_world_is_refused():
    loop = asyncio.get_running_loop()
    with pytest.raises(OutsideWorld, match="thread"):
        await asyncio.to_thread(print)
    with pytest.raises(OutsideWorld, match="socket"):
        await asyncio.open_connection("127.0.0.1", 1)
    with pytest.raises(OutsideWorld, match="socket"):
        await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
    with pytest.raises(OutsideWorld, match="process"):
        await asyncio.create_subprocess_exec("true")
    with pytest.raises(OutsideWorld, match="signal"):
        loop.add_signal_handler(10, print)
    refused = []

    def from_thread() -> None:
        try:
            loop.call_soon_threadsafe(print)
        except OutsideWorld as error:
            refused.append(str(error))

    thread = threading.Thread(target=from_thread)
    thread.start()
    thread.join()
    assert refused == ["a call from another thread has no place in virtual time"]


_SETS = """
import asyncio
from fencepost.simulation.kernel.loop import VirtualLoop

async def body():
    loop = asyncio.get_running_loop()
    junk = [object() for _ in range(JUNK)]
    async def work(i):
        await asyncio.sleep(i % 3)
        return i
    tasks = [asyncio.ensure_future(work(i)) for i in range(40)]
    futures = [loop.create_future() for _ in range(10)]
    for i, future in enumerate(futures):
        loop.call_later(1, future.set_result, 100 + i)
    out = []
    pending = {*tasks, *futures}
    while pending:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        out += [t.result() for t in done]
    print(out)

loop = VirtualLoop()
loop.run_until_complete(body())
"""


@pytest.mark.processes
def test_sets_of_tasks_and_futures_iterate_alike_in_every_process():
    outputs = {
        hashlib.sha256(
            subprocess.run(
                [sys.executable, "-c", _SETS.replace("JUNK", str(hash_seed * 777))],
                env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
                capture_output=True,
                check=True,
            ).stdout
        ).hexdigest()
        for hash_seed in (0, 1, 2)
    }
    assert len(outputs) == 1


@pytest.mark.real
async def test_real_tests_have_a_real_loop():
    assert not isinstance(asyncio.get_running_loop(), VirtualLoop)
