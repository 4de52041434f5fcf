"""Who starts the processes of a world, and starts them again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fencepost.simulation.kernel.rng import Draws, quantiles
from fencepost.simulation.kernel.supervisor import Supervisor


class Time:
    """What is due, run by a test."""

    def __init__(self) -> None:
        self.now_us = 0
        self.due: list[tuple[int, Callable[[Any], Any], object]] = []

    def schedule(self, when_us: int, action: Callable[[Any], Any], argument: object) -> None:
        self.due.append((when_us, action, argument))

    def pass_by(self) -> None:
        due, self.due = sorted(self.due, key=lambda each: each[0]), []
        for self.now_us, action, argument in due:
            action(argument)


class Host:
    def __init__(self) -> None:
        self.wanted = False
        self.generation = 0
        self.starts = 0

    def start(self) -> None:
        self.starts += 1


class Scene:
    def __init__(self) -> None:
        self.time, self.host, self.goes_on = Time(), Host(), True
        self.supervisor = Supervisor(
            self.time,
            Draws(1),
            start=quantiles(lambda share: 10),
            restart=quantiles(lambda share: 500),
            goes_on=lambda: self.goes_on,
        )


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_processes_start_in_their_time(scene: Scene) -> None:
    scene.supervisor.start_soon([scene.host])
    assert (scene.host.wanted, scene.host.starts) == (True, 0)
    scene.time.pass_by()
    assert (scene.time.now_us, scene.host.starts) == (10, 1)
    scene.supervisor.restart_later(scene.host)
    scene.time.pass_by()
    assert (scene.time.now_us, scene.host.starts) == (510, 2)


def test_one_that_is_not_wanted_any_more_stays_down(scene: Scene) -> None:
    scene.supervisor.start_soon([scene.host])
    scene.supervisor.restart_later(scene.host)
    scene.host.wanted = False
    scene.time.pass_by()
    assert scene.host.starts == 0


def test_one_that_had_a_process_by_then_is_not_started_again(scene: Scene) -> None:
    scene.supervisor.restart_later(scene.host)
    scene.host.generation += 1
    scene.time.pass_by()
    assert scene.host.starts == 0


def test_where_nothing_goes_on_nothing_is_started(scene: Scene) -> None:
    scene.supervisor.start_soon([scene.host])
    scene.goes_on = False
    scene.time.pass_by()
    scene.supervisor.restart_later(scene.host)
    assert (scene.host.starts, scene.time.due) == (0, [])
