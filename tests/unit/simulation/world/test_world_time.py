"""Programs that compute times with floats: no timer is early, so no deadline is waited for again forever."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from typing import Any

import anyio
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fencepost.simulation.kernel.loop import VirtualLoop, first_us
from fencepost.simulation.world.loop import WorldLoop

LOOPS = (VirtualLoop, WorldLoop)


def play(loop: VirtualLoop, main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run a coroutine function on a loop."""
    try:
        return loop.run_until_complete(main())
    finally:
        loop.close()


_moments = st.floats(-1e301, 1e301) | st.floats(0, 4_000)
_delays = st.floats(max_value=1e15, allow_nan=False) | st.floats(0, 100)


@given(when=_moments)
@example(0.005_000_000_5)
@example(0.1 + 0.2)
@example(1.767e9 + 0.000_000_3)
@example(math.ulp(0.0))
@example(1e301)
def test_first_microsecond_is_not_before_a_moment_and_the_one_before_it_is(when: float) -> None:
    first = first_us(when)
    assert first / 1_000_000 >= when
    if abs(when) < 2**32:  # else neighbouring microseconds are one float
        assert (first - 1) / 1_000_000 < when


@given(sleeps=st.lists(_delays, max_size=4), when=_moments, delay=_delays)
@example(sleeps=[], when=0.005_000_000_5, delay=0.1)
@example(sleeps=[0.2], when=0.1 + 0.2, delay=0.1)
def test_no_timer_is_early(sleeps: list[float], when: float, delay: float) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        for seconds in sleeps:
            begin = loop.time()
            await asyncio.sleep(seconds)
            assert loop.time() >= begin + seconds
        at, later = loop.create_future(), loop.create_future()
        after = loop.time() + delay
        loop.call_at(when, lambda: at.set_result(loop.time()))
        loop.call_later(delay, lambda: later.set_result(loop.time()))
        assert await at >= when
        assert await later >= after

    for kind in LOOPS:
        play(kind(), main)


@pytest.mark.parametrize("kind", LOOPS)
def test_infinite_timers_never_fire_and_no_number_is_refused(kind: type[VirtualLoop]) -> None:
    async def main() -> list[str]:
        loop = asyncio.get_running_loop()
        told: list[str] = []
        loop.call_at(math.inf, told.append, "never").cancel()
        loop.call_later(math.inf, told.append, "never")
        loop.call_at(-math.inf, told.append, "at once")
        with pytest.raises(ValueError, match="NaN"):
            loop.call_at(math.nan, told.append, "no number")
        await asyncio.sleep(1_000)
        return told

    assert play(kind(), main) == ["at once"]


@given(seconds=st.lists(st.floats(0, 100), min_size=1))
@example([0.000_000_4])
def test_blocking_sleep_lasts_at_least_as_long_as_was_asked(seconds: list[float]) -> None:
    loop = WorldLoop()
    for each in seconds:
        begin = loop.time()
        loop.sleep_blocking(each)
        assert loop.time() >= begin + each
    loop.close()


@given(seconds=st.floats(0.000_001, 100))
@example(seconds=0.005_000_000_5)
def test_deadline_of_anyio_is_reached(seconds: float) -> None:
    async def main() -> float:
        deadline = anyio.current_time() + seconds
        with anyio.move_on_after(seconds):
            await anyio.sleep(math.inf)
        return anyio.current_time() - deadline

    for kind in LOOPS:
        assert 0 <= play(kind(max_events=1_000), main) <= 0.000_002
