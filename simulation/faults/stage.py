"""The interface of a world, simulated or real, that a nemesis needs: time, members, brokers, a network with
rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from fencepost.simulation.kernel.rng import Draws
from fencepost.simulation.kernel.rules import NetworkRule
from fencepost.simulation.kernel.supervisor import ProcessStatus, RunSchedule
from fencepost.simulation.scenarios.scenario import Scenario


class HasProcess(Protocol):
    """A host on which processes run, one after the other."""

    @property
    def name(self) -> str:
        """The host's name."""

    @property
    def generation(self) -> int:
        """Number of its processes that have ended. A disturbance of a process ends with that process."""


class DisturbedHost(HasProcess, Protocol):
    """The host of a member or of a client, with the disturbances of its process."""

    def restart_later(self) -> None:
        """Start the next process after the restart time, if there is to be one."""

    def crash(self) -> None:
        """Kill the process."""

    def freeze_process(self) -> None:
        """Freeze the process."""

    def thaw_process(self) -> None:
        """Let the process continue, unless it has ended."""


class DisturbedProcess(DisturbedHost, Protocol):
    """The host of a member or of a client that operators start and stop."""

    wanted: bool

    def start(self) -> None:
        """Start a process if none runs."""

    def stop(self, *, come_back: bool) -> None:
        """End the process cleanly."""

    def slow_callback(self, lasts_us: int) -> None:
        """Make the process's next callback take that much longer."""


class DisturbedMember(DisturbedProcess, Protocol):
    """A member's host, with its disturbances."""

    protocol: str
    strategies: tuple[str, ...]
    """The assignors of the next process, if it speaks the classic protocol."""
    topics: tuple[str, ...] | None
    pattern: str | None

    @property
    def status(self) -> ProcessStatus:
        """The status of the member."""

    def fail_callback(self) -> None:
        """Make the process's next callback raise."""

    def stall(self, until_us: int) -> None:
        """Keep the application busy until that time."""

    def resubscribe(self) -> None:
        """Subscribe to `topics` and `pattern`."""


class DisturbedBroker(HasProcess, Protocol):
    """A broker's host, with its disturbances."""

    @property
    def running(self) -> bool:
        """True if it lives and is not paused."""

    def kill(self) -> None:
        """Kill the process; another broker takes over its partitions."""

    def revive(self) -> None:
        """Start it again."""

    def pause(self) -> None:
        """Freeze it: connections stay open, and it sends no responses."""

    def resume(self) -> None:
        """Let it continue."""


class Movable(Protocol):
    """A cluster whose coordinator can move."""

    def move(self) -> None:
        """Move it to another broker or node cleanly."""


class DisturbedCluster(Movable, Protocol):
    """The brokers together, and their topics."""

    @property
    def brokers(self) -> Mapping[str, DisturbedBroker]:
        """All of them by name."""

    @property
    def leader(self) -> DisturbedBroker | None:
        """The broker that coordinates the group, if there is one."""

    def unavailable(self, lasts_us: int) -> None:
        """Leave the group without a coordinator for that time."""

    def fail_appends(self) -> None:
        """Make the coordinator's log refuse records until `mend_appends` was called as often."""

    def mend_appends(self) -> None:
        """Undo one call of `fail_appends`."""

    def take_producer_over(self, transactional_id: str, timeout_ms: int) -> None:
        """Start another producer with that transactional id."""

    def has_topic(self, name: str) -> bool:
        """Return true if there is such a topic."""

    def create_topic(self, name: str, partitions: int, records_per_second: float) -> None:
        """Create a topic."""

    def grow_topic(self, name: str, partitions: int) -> None:
        """Raise its number of partitions to this; do nothing if it has as many."""

    def delete_topic(self, name: str) -> None:
        """Delete the topic and its records."""


class DisturbedNetwork(Protocol):
    """The network between members and brokers."""

    rules: list[NetworkRule]

    def cut_all(self, name: str) -> object:
        """Break all connections of a member's host."""


class Disturbed(Protocol):
    """A world of any kind that a nemesis can disturb."""

    draws: Draws

    @property
    def loop(self) -> RunSchedule:
        """Its time."""

    @property
    def cluster(self) -> Movable:
        """Its brokers or nodes."""

    def tell(self, hook: str, *arguments: object) -> None:
        """Notify observers by this hook."""

    def calm(self) -> None:
        """End all disturbances: remove the rules of the network, and run every process that is meant to
        run."""


class AnyStage(Disturbed, Protocol):
    """A world with Kafka brokers."""

    @property
    def cluster(self) -> DisturbedCluster:
        """Its brokers."""

    @property
    def network(self) -> DisturbedNetwork:
        """The network between clients and brokers."""


class Stage(AnyStage, Protocol):
    """A world of one group's members."""

    scenario: Scenario

    @property
    def members(self) -> Mapping[str, DisturbedMember]:
        """All members' hosts by name."""

    def operate(self, request: str, topics: Sequence[str], share: float) -> None:
        """Let an operator send a request about the group to its coordinator."""
