"""What a nemesis of applications needs of a world, simulated or real."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from fencepost.simulation.faults.stage import DisturbedCluster, DisturbedNetwork, Schedule
from fencepost.simulation.scenarios.streams import StreamsScenario
from fencepost.simulation.streams.failures import Injected
from fencepost.simulation.world.rng import Streams


class DisturbedClient(Protocol):
    """A client's host, and what can befall it."""

    name: str

    @property
    def ended(self) -> bool:
        """Whether no process runs."""

    @property
    def frozen(self) -> bool:
        """Whether the process stands still."""

    def inject(self, injected: Injected) -> None:
        """Let a thread fail that gets there."""

    def wake(self) -> None:
        """Let all threads look whether anything waits for them."""

    def add_thread(self) -> None:
        """Start one more thread, if the client runs."""

    def remove_thread(self) -> None:
        """Let one thread end."""

    def close(self) -> None:
        """Close the client in good order."""

    def crash(self) -> None:
        """End the process without a word to anybody."""

    def freeze_process(self) -> None:
        """Let the process stand still."""

    def thaw_process(self) -> None:
        """Let it go on, unless it is gone."""

    def restart_later(self) -> None:
        """Start the next process after a while, unless the application was shut down."""


class ApplicationStage(Protocol):
    """A world that a nemesis can disturb."""

    scenario: StreamsScenario
    streams: Streams

    @property
    def loop(self) -> Schedule:
        """Its time."""

    @property
    def clients(self) -> Mapping[str, DisturbedClient]:
        """All clients' hosts by name."""

    @property
    def cluster(self) -> DisturbedCluster:
        """Its brokers."""

    @property
    def network(self) -> DisturbedNetwork:
        """What clients reach them over."""

    def tell(self, hook: str, *arguments: object) -> None:
        """Tell what befalls the application now: `on_fault`, or `cut_off`."""

    def calm(self) -> None:
        """Nothing disturbs the application from here on."""
