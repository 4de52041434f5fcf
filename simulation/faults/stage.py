"""What a nemesis needs of a world, simulated or real: time, members, brokers, a network with rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from fencepost.simulation.kafka.member import MemberStatus
from fencepost.simulation.kernel.rng import Streams
from fencepost.simulation.kernel.rules import NetworkRule
from fencepost.simulation.kernel.supervisor import RunSchedule
from fencepost.simulation.scenarios.scenario import Scenario


class HasProcess(Protocol):
    """Where processes run, one after the other."""

    @property
    def name(self) -> str:
        """The host's name."""

    @property
    def generation(self) -> int:
        """How many have ended; what befalls a process ends with it."""


class DisturbedHost(HasProcess, Protocol):
    """The host of a member or of a client, and what can befall its process."""

    def restart_later(self) -> None:
        """Start the next process after the time that a restart takes, if there is to be one."""

    def crash(self) -> None:
        """End the process without a word to anybody."""

    def freeze_process(self) -> None:
        """Let it stand still."""

    def thaw_process(self) -> None:
        """Let it go on, unless it is gone."""


class DisturbedProcess(DisturbedHost, Protocol):
    """The host of a member or of a client that people start and stop."""

    wanted: bool

    def start(self) -> None:
        """Start a process if none runs."""

    def stop(self, *, come_back: bool) -> None:
        """End the process in good order."""

    def slow_callback(self, lasts_us: int) -> None:
        """The process's next callback takes so much longer."""


class DisturbedMember(DisturbedProcess, Protocol):
    """A member's host, and what can befall it."""

    protocol: str
    strategies: tuple[str, ...]
    """The assignors of the next process, if it speaks the classic protocol."""
    topics: tuple[str, ...] | None
    pattern: str | None

    @property
    def status(self) -> MemberStatus:
        """What it is doing."""

    def fail_callback(self) -> None:
        """The process's next callback raises."""

    def stall(self, until_us: int) -> None:
        """The application is busy until then."""

    def resubscribe(self) -> None:
        """Subscribe to `topics` and `pattern`."""


class DisturbedBroker(HasProcess, Protocol):
    """A broker's host, and what can befall it."""

    @property
    def running(self) -> bool:
        """Whether it lives and is not paused."""

    def kill(self) -> None:
        """End the process without a word; another broker takes its partitions over."""

    def revive(self) -> None:
        """Start it again."""

    def pause(self) -> None:
        """Let it stand still: connections stay open and nothing is answered."""

    def resume(self) -> None:
        """Let it go on."""


class Movable(Protocol):
    """What a coordinator runs on."""

    def move(self) -> None:
        """Move it to another broker or node in good order."""


class DisturbedCluster(Movable, Protocol):
    """The brokers together, and their topics."""

    @property
    def brokers(self) -> Mapping[str, DisturbedBroker]:
        """All of them by name."""

    @property
    def leader(self) -> DisturbedBroker | None:
        """Who coordinates the group, if anybody does."""

    def unavailable(self, lasts_us: int) -> None:
        """Leave the group without a coordinator for so long."""

    def fail_appends(self) -> None:
        """The coordinator's log takes no records, until `mend_appends` was called as often."""

    def mend_appends(self) -> None:
        """It takes them again."""

    def take_producer_over(self, transactional_id: str, timeout_ms: int) -> None:
        """Another producer begins under that id."""

    def has_topic(self, name: str) -> bool:
        """Whether there is such a topic."""

    def create_topic(self, name: str, partitions: int, records_per_second: float) -> None:
        """A topic appears."""

    def grow_topic(self, name: str, partitions: int) -> None:
        """It gets more partitions; nothing happens if it has as many."""

    def delete_topic(self, name: str) -> None:
        """It disappears, and its records with it."""


class DisturbedNetwork(Protocol):
    """What is between members and brokers."""

    rules: list[NetworkRule]

    def cut_all(self, name: str) -> object:
        """Break all connections of a member's host."""


class DisturbedWorld(Protocol):
    """A world of any kind that a nemesis can disturb."""

    streams: Streams

    @property
    def loop(self) -> RunSchedule:
        """Its time."""

    @property
    def cluster(self) -> Movable:
        """Its brokers or nodes."""

    def tell(self, hook: str, *arguments: object) -> None:
        """Tell observers what happened now."""

    def calm(self) -> None:
        """Nothing disturbs the world from here on: no rule of the network is left, and who is to run runs."""


class AnyStage(DisturbedWorld, Protocol):
    """A world with Kafka brokers."""

    @property
    def cluster(self) -> DisturbedCluster:
        """Its brokers."""

    @property
    def network(self) -> DisturbedNetwork:
        """What members reach them over."""


class Stage(AnyStage, Protocol):
    """A world of one group's members."""

    scenario: Scenario

    @property
    def members(self) -> Mapping[str, DisturbedMember]:
        """All members' hosts by name."""

    def operate(self, request: str, topics: Sequence[str], share: float) -> None:
        """Let people send a request about the group to its coordinator."""
