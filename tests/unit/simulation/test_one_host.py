"""The coordinator that serves and the one that is simulated run in the same object, and take equal steps."""

from __future__ import annotations

from typing import Any

from fencepost import EmbeddedKafka
from fencepost.coordinator.coordinator import GroupCoordinator
from fencepost.coordinator.host import CoordinatorHost, ManualClock
from fencepost.coordinator.journal.memory import MemoryJournal
from fencepost.simulation.kernel.observers import Observer
from fencepost.simulation.run import run
from fencepost.simulation.scenarios.load import load


class Steps(Observer):
    """An observer of a simulated world that keeps each step of its coordinators, until one is loaded anew."""

    def __init__(self) -> None:
        self.steps: list[tuple[Any, Any, int]] = []
        self.hosts: list[CoordinatorHost[GroupCoordinator]] = []
        self.world: Any = None

    def attach(self, world: Any, report: Any) -> None:
        self.world = world

    def on_coordinator_state(self, name: str, what: str, now_us: int) -> None:
        if what == "active":
            self.steps.clear()
            self.hosts.append(self.world.coordinators[name].coordinator_host)

    def on_coordinator_step(self, name: str, event: Any, outcome: Any, now_us: int) -> None:
        self.steps.append((event, outcome, now_us))

    on_steady_step = on_coordinator_step  # type: ignore[assignment]


def test_a_simulated_and_a_served_coordinator_have_the_same_kind_of_host() -> None:
    seen = Steps()
    run(load("steady", duration="1m"), seed=3, judges=[seen])
    assert [type(host) for host in seen.hosts] == [CoordinatorHost]
    with EmbeddedKafka(topics={"orders": 1}) as kafka:
        served = [shard.host for shard in kafka.endpoint.brokers.groups.shards]
        transactions = kafka.endpoint.brokers.transactions._host
    assert {type(host) for host in (*served, transactions)} == {CoordinatorHost}


def test_what_was_simulated_happens_again_in_a_host_of_its_own() -> None:
    """All that a simulated host did follows from its events and their times; the world adds nothing."""
    seen = Steps()
    scenario = load("steady", duration="2m")
    run(scenario, seed=5, judges=[seen])
    clock = ManualClock()
    again = CoordinatorHost(GroupCoordinator(seen.hosts[0].coordinator.config), MemoryJournal(), clock)
    assert len(seen.steps) > 50
    for event, outcome, now_us in seen.steps:
        clock.time_ms = now_us // 1_000
        assert again.process(event) == outcome
