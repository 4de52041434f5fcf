from __future__ import annotations

import asyncio

import pytest

from fencepost.simulation.kernel.host import Host, HostClock
from fencepost.simulation.kernel.loop import VirtualLoop


@pytest.fixture
async def host() -> Host:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return Host("member-1", loop)


async def test_a_timer_runs_at_its_time(host):
    clock = HostClock(host, offset_us=5_000)
    at = []
    clock.call_at(clock.now_ms() + 250, lambda: at.append(host.loop.now_us))
    await asyncio.sleep(1)
    assert at == [250_000]


@pytest.mark.parametrize("drift", [-100_000, -333, 0, 7, 50_000])
@pytest.mark.parametrize("offset", [0, 123_456_789])
async def test_a_drifting_clock_shows_the_time_that_a_timer_asked_for(host, drift, offset):
    clock = HostClock(host, drift_ppm=drift, offset_us=offset)
    await asyncio.sleep(1234.567)
    start = clock.now_ms()
    shown = []
    for delay in (1, 17, 5_000, 3_600_000):
        clock.call_at(start + delay, lambda asked=start + delay: shown.append(clock.now_ms() - asked))
    await asyncio.sleep(5000)
    assert len(shown) == 4
    assert set(shown) <= {0, 1}


async def test_a_clock_that_runs_fast_runs_fast(host):
    clock = HostClock(host, drift_ppm=100_000)
    await asyncio.sleep(100)
    assert clock.now_ms() == 110_000


async def test_a_frozen_host_does_nothing_until_it_thaws_and_then_in_order(host):
    clock = HostClock(host)
    done = []
    clock.call_at(100, done.append, "timer 100")
    clock.call_at(50, done.append, "timer 50")
    host.freeze()
    await asyncio.sleep(0.07)
    host.run(done.append, "delivery")
    await asyncio.sleep(1)
    assert done == []
    host.thaw()
    assert done == ["timer 50", "delivery", "timer 100"]


async def test_freezing_again_while_thawing_keeps_the_rest(host):
    done = []
    host.freeze()
    host.run(lambda _: host.freeze(), None)
    host.run(done.append, "later")
    host.thaw()
    assert done == []
    host.thaw()
    assert done == ["later"]


async def test_the_end_of_a_process_takes_its_timers_along(host):
    clock = HostClock(host)
    done = []
    clock.call_at(100, done.append, "old")
    host.freeze()
    host.run(done.append, "waiting")
    host.end()
    clock.call_at(200, done.append, "new")
    await asyncio.sleep(1)
    assert done == ["new"]


async def test_a_cancelled_timer_keeps_still_even_if_it_waits_for_a_thaw(host):
    clock = HostClock(host)
    done = []
    timer = clock.call_at(10, done.append, "x")
    host.freeze()
    await asyncio.sleep(1)
    timer.cancel()
    host.thaw()
    assert done == []


async def test_a_process_that_ends_while_it_thaws_does_no_more(host):
    done = []
    host.freeze()
    host.run(lambda _: host.end(), None)
    host.run(done.append, "of the old process")
    host.thaw()
    assert done == []
