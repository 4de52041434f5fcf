"""What a nemesis of applications needs of a world, simulated or real."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from fencepost.simulation.faults.stage import AnyStage, DisturbedHost
from fencepost.simulation.scenarios.streams import StreamsScenario
from fencepost.simulation.streams.failures import Injected


class DisturbedClient(DisturbedHost, Protocol):
    """A client's host, and what can befall it. It is not started again once the application was shut down."""

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


class ApplicationStage(AnyStage, Protocol):
    """A world of one application's clients."""

    scenario: StreamsScenario

    @property
    def clients(self) -> Mapping[str, DisturbedClient]:
        """All clients' hosts by name."""
