"""The wall clock of brokers and the monotonic one of members, as one time."""

from __future__ import annotations

import pytest

from fencepost.simulation.lab.chaos import merge
from fencepost.simulation.lab.chaos.merge import RunClock

MILLISECOND = 1_000_000
START_WALL = 1_700_000_000 * 1_000 * MILLISECOND


class HeldUp:
    """Clocks of a process that is held up for 30 ms, in any readings but one."""

    def __init__(self, free: int) -> None:
        self._free = free
        self._now = 0
        self._readings = 0

    def monotonic_ns(self) -> int:
        self._now += 100
        return self._now

    def time_ns(self) -> int:
        """After the hold-up, which is between the readings of both clocks."""
        self._readings += 1
        if self._readings != self._free:
            self._now += 30 * MILLISECOND
        return START_WALL + self._now


@pytest.mark.parametrize("free", [1, 2, 40])
def test_a_process_that_is_held_up_knows_the_time_all_the_same(
    monkeypatch: pytest.MonkeyPatch, free: int
) -> None:
    monkeypatch.setattr(merge, "time", HeldUp(free))
    clock = RunClock(began_us=0)
    later = 5_000
    at_us = clock.of_wall((START_WALL + later * MILLISECOND) // MILLISECOND)
    assert abs(at_us - (later * 1_000 + 999)) <= 1
