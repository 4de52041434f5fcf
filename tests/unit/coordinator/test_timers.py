"""The queue of deadlines."""

from __future__ import annotations

import random

from fencepost.coordinator.timers import Timers


def drain(timers: Timers[str], now_ms: int) -> list[str]:
    found = []
    while (key := timers.pop_due(now_ms)) is not None:
        found.append(key)
    return found


def test_equal_deadlines_run_in_the_order_in_which_they_were_set() -> None:
    timers: Timers[str] = Timers()
    for key in "cab":
        timers.set(key, 5)
    timers.set("c", 5)
    assert drain(timers, 5) == ["a", "b", "c"]


def test_nothing_runs_early() -> None:
    timers: Timers[str] = Timers()
    assert timers.next_deadline() is None
    timers.set("a", 10)
    assert (timers.next_deadline(), drain(timers, 9)) == (10, [])
    assert drain(timers, 10) == ["a"]
    assert timers.next_deadline() is None


def test_a_timer_may_be_moved_both_ways() -> None:
    timers: Timers[str] = Timers()
    timers.set("a", 10)
    timers.set("b", 20)
    timers.set("a", 30)
    assert (timers.next_deadline(), timers.deadline_of("a")) == (20, 30)
    timers.set("a", 15)
    assert timers.next_deadline() == 15
    assert drain(timers, 100) == ["a", "b"]


def test_a_cancelled_timer_leaves_nothing() -> None:
    timers: Timers[str] = Timers()
    timers.set("a", 10)
    timers.cancel("a")
    timers.cancel("a")
    assert (len(timers), "a" in timers, timers.next_deadline()) == (0, False, None)
    timers.set("a", 12)
    assert drain(timers, 11) == []
    assert drain(timers, 12) == ["a"]


def test_it_agrees_with_a_plain_table() -> None:
    rng = random.Random(7)
    timers: Timers[int] = Timers()
    table: dict[int, tuple[int, int]] = {}
    now = 0
    for number in range(5_000):
        key = rng.randrange(40)
        if rng.random() < 0.7:
            table[key] = now + rng.randrange(50), number
            timers.set(key, table[key][0])
        else:
            table.pop(key, None)
            timers.cancel(key)
        assert timers.next_deadline() == min((at for at, _ in table.values()), default=None)
        if number % 7 == 0:
            now += rng.randrange(30)
            due = sorted((at, order, k) for k, (at, order) in table.items() if at <= now)
            found = []
            while (popped := timers.pop_due(now)) is not None:
                found.append(popped)
            assert found == [k for _, _, k in due]
            for k in found:
                del table[k]
    assert set(timers) == set(table)
