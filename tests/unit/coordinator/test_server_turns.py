"""How the server's time is divided among clients. A clock that stands still but for the work counts it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from fencepost.coordinator.protocol.slices import LARGE, MEDIUM, Sliced
from fencepost.coordinator.server import turns
from fencepost.coordinator.server.turns import FairTurns, Share, WorkQueue


class Worked:
    """A clock that only work moves, and the names of those who worked."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.names: list[str] = []

    def piece(self, name: str, seconds: float) -> Callable[[], None]:
        def run() -> None:
            self.names.append(name)
            self.now_s += seconds

        return run


@pytest.fixture
def worked() -> Worked:
    return Worked()


@pytest.fixture
def fair(worked: Worked) -> FairTurns:
    fair = FairTurns()
    fair._clock = fair._cpu_clock = lambda: worked.now_s
    return fair


async def a_turn() -> None:
    """Let the loop read, and run a turn."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def test_work_runs_at_once_until_a_turn_is_over(fair: FairTurns, worked: Worked) -> None:
    for _ in range(200):
        fair.run(Share(), worked.piece("x", turns.TURN_S / 50))
    assert 50 <= len(worked.names) <= 51
    await a_turn()
    assert 100 <= len(worked.names) <= 102


async def test_time_in_which_other_programs_ran_does_not_end_a_turn(fair: FairTurns, worked: Worked) -> None:
    cpu_s = 0.0
    fair._cpu_clock = lambda: cpu_s

    def preempted() -> None:
        nonlocal cpu_s
        worked.piece("x", turns.TURN_S)()
        cpu_s += turns.TURN_S / 10

    for _ in range(20):
        fair.run(Share(), preempted)
    assert 10 <= len(worked.names) <= 11


async def test_time_in_which_other_programs_ran_is_not_charged(fair: FairTurns, worked: Worked) -> None:
    cpu_s = 0.0
    fair._cpu_clock = lambda: cpu_s
    share = Share()
    fair.run(share, worked.piece("x", 10.0))
    assert share.due_s == 0.0


async def test_the_loop_reads_after_a_long_turn_before_the_next_one(fair: FairTurns, worked: Worked) -> None:
    heavy = Share()
    heavy.due_s = 1.0
    fair.run(Share(), worked.piece("long", turns.TURN_S))
    fair.run(heavy, worked.piece("heavy", turns.TURN_S))
    asyncio.get_running_loop().call_soon(fair.run, Share(), worked.piece("read", 0.0))
    while len(worked.names) < 3:
        await a_turn()
    assert worked.names == ["long", "read", "heavy"]


async def test_a_light_client_does_not_wait_for_all_that_heavy_ones_want(
    fair: FairTurns, worked: Worked
) -> None:
    heavy = [Share() for _ in range(50)]

    def again(share: Share) -> Callable[[], None]:
        def run() -> None:
            worked.piece("heavy", 0.01)()
            fair.run(share, run)

        return run

    for share in heavy:
        fair.run(share, again(share))
    for _ in range(50):  # all of them had a few pieces
        await a_turn()
    fair.run(Share(), worked.piece("light", 0.0001))
    before = len(worked.names)
    while "light" not in worked.names:
        await a_turn()
        assert len(worked.names) - before < 60, "a light client waits for more than one round"
    assert worked.names.index("light") - before <= 2


async def in_a_crowd(fair: FairTurns, worked: Worked, share: Share, clients: int, seconds: float) -> int:
    """Return the number of pieces of a crowd of new clients that run before one of that client."""
    crowd = [Share() for _ in range(clients)]
    fair.run(Share(), worked.piece("first", turns.TURN_S))
    for each in crowd:
        fair.run(each, worked.piece("crowd", seconds))
    fair.run(share, worked.piece("one", 0.0001))
    while "one" not in worked.names:
        await a_turn()
    return worked.names.index("one") - 1


async def test_a_client_with_short_work_does_not_wait_for_a_crowd(fair: FairTurns, worked: Worked) -> None:
    known = Share()
    fair.run(known, worked.piece("known", 0.0001))
    worked.names.clear()
    assert await in_a_crowd(fair, worked, known, 1_000, 0.002) <= 1
    # Neither does it when it used more time than each of them.
    for _ in range(50):
        worked.names.clear()
        fair.run(known, worked.piece("one", 0.0001))
        while "one" not in worked.names:
            await a_turn()
        assert worked.names.index("one") <= 1


async def test_a_client_with_long_work_waits_for_its_part_while_a_crowd_does_short_work(
    fair: FairTurns, worked: Worked
) -> None:
    def again(share: Share) -> Callable[[], None]:
        def run() -> None:
            worked.piece("crowd", 0.0001)()
            asyncio.get_running_loop().call_soon(fair.run, share, run)

        return run

    long = Share()
    for share in [Share() for _ in range(2_000)]:
        fair.run(share, again(share))
    for _ in range(20):
        await a_turn()
    fair.run(long, worked.piece("long", 0.01))
    before_s = worked.now_s
    while "long" not in worked.names:
        await a_turn()
    assert worked.now_s - before_s <= 2 * turns.TURN_S


async def rounds_until(fair: FairTurns, worked: Worked, *seconds: float) -> list[float]:
    """Return how many rounds of 2,000 clients that always want more a client's pieces wait, one after
    the other."""

    def again(share: Share) -> Callable[[], None]:
        def run() -> None:
            worked.piece("crowd", 0.0001)()
            fair.run(share, run)

        return run

    one = Share()
    fair.run(one, worked.piece("known", 0.0))
    for share in [Share() for _ in range(2_000)]:
        fair.run(share, again(share))
    rounds = []
    for each in seconds:
        while worked.names[-1] != "crowd":
            await a_turn()
        before = len(worked.names)
        fair.run(one, worked.piece("one", each))
        while "one" not in worked.names[before:]:
            await a_turn()
        rounds.append((worked.names.index("one", before) - before) / 2_000)
    return rounds


async def test_a_client_with_long_work_waits_one_round_of_a_crowd_for_its_next_piece(
    fair: FairTurns, worked: Worked
) -> None:
    rounds = await rounds_until(fair, worked, *[0.0001] * 20, 0.0009, 0.0009, 0.0001)
    assert max(rounds[:20]) < 0.3
    assert max(rounds) < 1.3 + 9  # it had nine times the time of others


async def test_one_piece_that_takes_longer_by_chance_does_not_make_a_client_one_of_the_crowd(
    fair: FairTurns, worked: Worked
) -> None:
    rounds = await rounds_until(fair, worked, *[0.00005, 0.00005, 0.0009] * 5)
    assert max(rounds) < 0.3


async def test_time_that_no_other_client_wanted_is_no_debt(fair: FairTurns, worked: Worked) -> None:
    alone = Share()
    for _ in range(10):
        fair.run(alone, worked.piece("alone", 0.003))
        await a_turn()
    fair.run(Share(), worked.piece("first", turns.TURN_S))
    fair.run(alone, worked.piece("alone", 0.003))
    fair.run(Share(), worked.piece("new", 0.003))
    worked.names.clear()
    while len(worked.names) < 2:
        await a_turn()
    assert worked.names == ["alone", "new"]


async def test_the_more_clients_wait_the_shorter_is_a_piece(fair: FairTurns, worked: Worked) -> None:
    seconds = 0.0

    def is_long_after() -> None:
        began_s = worked.now_s
        while not fair.is_long:
            worked.now_s += 0.00001
        nonlocal seconds
        seconds = worked.now_s - began_s

    fair.run(Share(), is_long_after)
    assert seconds == pytest.approx(turns.PIECE_S, abs=0.00002)
    fair.run(Share(), worked.piece("first", turns.TURN_S))
    fair.run(Share(), is_long_after)
    for _ in range(2_000):
        fair.run(Share(), worked.piece("x", 0.0))
    await a_turn()
    assert seconds == pytest.approx(0.0001, abs=0.00002)


async def test_heavy_clients_share_the_time_that_light_ones_leave(fair: FairTurns, worked: Worked) -> None:
    def again(share: Share, name: str, seconds: float) -> Callable[[], None]:
        def run() -> None:
            worked.piece(name, seconds)()
            fair.run(share, run)

        return run

    for name, seconds in (("a", 0.09), ("b", 0.09), ("c", 0.0005)):
        share = Share()
        fair.run(share, again(share, name, seconds))
    for _ in range(2_000):
        await a_turn()
    counts = {name: worked.names.count(name) for name in "abc"}
    assert abs(counts["a"] - counts["b"]) <= 1
    assert counts["a"] > 10
    assert 150 <= counts["c"] / counts["a"] <= 200, "each has the same time"


async def test_a_piece_that_fails_does_not_stop_the_others(fair: FairTurns, worked: Worked) -> None:
    def fail() -> None:
        worked.now_s += turns.TURN_S
        raise ZeroDivisionError

    errors: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context["exception"]))
    with pytest.raises(ZeroDivisionError):
        fair.run(Share(), fail)
    fair.run(Share(), fail)
    fair.run(Share(), worked.piece("x", 0.0))
    await a_turn()
    await a_turn()
    assert worked.names == ["x"]
    assert len(errors) == 1


def work(name: str, done: list[str], *sizes: int | None) -> Sliced[str]:
    for size in sizes:
        yield size
        done.append(name)
    return name


async def test_medium_work_does_not_wait_for_large_work() -> None:
    queue, done = WorkQueue(), list[str]()
    bombs = [queue.run(work(f"bomb {n}", done, MEDIUM, LARGE, *[None] * 100), Share()) for n in range(20)]
    small = queue.run(work("small", done, MEDIUM, None, None), Share())
    assert isinstance(small, asyncio.Future)
    assert await small == "small"
    assert done.count("bomb 0") <= 60
    assert sum(1 for each in done if each.startswith("bomb")) <= 100
    queue.close()
    assert all(isinstance(bomb, asyncio.Future) for bomb in bombs)


def always(fair: FairTurns, worked: Worked, share: Share, seconds: float) -> Callable[[], None]:
    """Return a client's piece of work that has another one behind it."""

    def run() -> None:
        worked.piece("heavy", seconds)()
        fair.run(share, run)

    return run


async def test_work_that_a_lighter_client_waits_for_has_its_priority_and_is_charged_to_its_own_client(
    fair: FairTurns, worked: Worked
) -> None:
    queue = WorkQueue(fair)

    def slow(name: str, slices: int) -> Sliced[None]:
        for _ in range(slices):
            yield MEDIUM if not worked.names.count(name) else None
            worked.piece(name, 0.01)()

    for _ in range(20):
        share = Share()
        fair.run(share, always(fair, worked, share, 0.09))
    greedy, light = Share(), Share()
    fair.run(greedy, worked.piece("greedy", 1.0))
    queue.run(slow("greedy", 5), greedy)
    while worked.names.count("greedy") < 2:  # its work is under way
        await a_turn()
    before, at_s, now_s = len(worked.names), greedy.due_s, fair._now_s
    last = queue.run(slow("light", 1), light)
    assert isinstance(last, asyncio.Future)
    while not last.done():
        await a_turn()
    names = worked.names[before:]
    assert names.count("heavy") <= 2
    assert names.count("greedy") == 5 - 1
    assert greedy.due_s == pytest.approx(at_s + 4 * 0.01)
    assert now_s < light.due_s <= fair._now_s + 0.01
    queue.close()


async def test_large_work_is_behind_clients_that_used_little_more_time(
    fair: FairTurns, worked: Worked
) -> None:
    queue, done = WorkQueue(fair), list[str]()
    slightly_ahead = Share()
    slightly_ahead.due_s = 0.005
    fair.run(Share(), worked.piece("x", turns.TURN_S))
    large = queue.run(work("large", done, LARGE), Share())
    fair.run(slightly_ahead, lambda: done.append("small"))
    assert isinstance(large, asyncio.Future)
    await large
    assert done == ["small", "large"]


async def test_large_work_with_several_parts_lets_others_in_between(fair: FairTurns) -> None:
    queue, done = WorkQueue(fair), list[str]()
    many = queue.run(work("many", done, *[LARGE] * 50), Share())
    one = queue.run(work("one", done, LARGE), Share())
    assert isinstance(one, asyncio.Future)
    await one
    assert done.count("many") <= 2
    assert isinstance(many, asyncio.Future)
    queue.close()


async def test_large_work_does_not_become_medium_work(fair: FairTurns) -> None:
    queue, done = WorkQueue(fair), list[str]()
    shrinking = queue.run(work("shrinking", done, LARGE, MEDIUM, *[None] * 50), Share())
    while len(done) < 5:
        await a_turn()
    medium = queue.run(work("medium", done, MEDIUM), Share())
    assert isinstance(medium, asyncio.Future)
    await medium
    assert done.count("shrinking") <= 10
    assert isinstance(shrinking, asyncio.Future)
    queue.close()


async def test_only_one_work_of_a_size_holds_memory() -> None:
    queue, held = WorkQueue(), 0

    def holding() -> Sliced[None]:
        nonlocal held
        yield LARGE
        held += 1
        for _ in range(5):
            assert held == 1
            yield
        held -= 1

    works = [queue.run(holding(), Share()) for _ in range(10)]
    await asyncio.gather(*(each for each in works if each is not None))
    assert queue.is_idle


async def test_work_of_clients_that_used_less_time_is_first(fair: FairTurns, worked: Worked) -> None:
    queue, done = WorkQueue(fair), list[str]()
    greedy, modest = Share(), Share()
    fair.run(greedy, worked.piece("x", 0.05))
    running = queue.run(work("running", done, LARGE, None), Share())
    queue.run(work("greedy", done, LARGE), greedy)
    last = queue.run(work("modest", done, LARGE), modest)
    assert isinstance(running, asyncio.Future)
    assert isinstance(last, asyncio.Future)
    await last
    assert done == ["running", "running", "modest"]
    queue.close()
