"""A world of processes, whatever runs in them: they are started, ended, and heard."""

from __future__ import annotations

import abc
import random
from collections.abc import Callable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from fencepost.simulation.faults.stage import DisturbedNetwork
from fencepost.simulation.kafka.member import ALIVE
from fencepost.simulation.kernel.rng import Streams
from fencepost.simulation.kernel.rules import NetworkRule
from fencepost.simulation.kernel.supervisor import Supervisor
from fencepost.simulation.lab.chaos import messages as m
from fencepost.simulation.lab.chaos.brokers import RealBrokers
from fencepost.simulation.lab.chaos.clock import RealTime
from fencepost.simulation.lab.chaos.events import HostNoted, MemberEvent, RunEvents
from fencepost.simulation.lab.chaos.fork_server import ForkServer
from fencepost.simulation.lab.chaos.hosts import ProcessHost
from fencepost.simulation.lab.chaos.topics import RecordCount
from fencepost.simulation.scenarios.values import Span

H = TypeVar("H", bound=ProcessHost)


class OpenNetwork:
    """What is between members and brokers where nothing is to be disturbed."""

    def __init__(self) -> None:
        self.rules: list[NetworkRule] = []

    def cut_all(self, name: str) -> None:
        """There is nothing that could be cut."""


class RunContext(NamedTuple):
    """What a run has, and its world makes use of."""

    time: RealTime
    happenings: RunEvents
    ledger: RecordCount
    nursery: ForkServer
    brokers: RealBrokers
    network: DisturbedNetwork
    bootstrap_servers: str
    """As processes are to be told."""


class ProcessWorld(abc.ABC, Generic[H]):
    """One run's processes. Their hosts are there from the beginning, as in a simulated world."""

    hosts: Mapping[str, H]

    def __init__(self, seed: int, around: RunContext, *, start: Span, restart: Span) -> None:
        self.streams = Streams(seed)
        self.loop = around.time
        self.cluster = around.brokers
        self.network = around.network
        self.nursery = around.nursery
        self._around = around
        self.supervisor = Supervisor(
            self.loop,
            self.streams,
            start=start.quantiles,
            restart=restart.quantiles,
            goes_on=lambda: self.goes_on,
        )
        self.on_calm: Callable[[], None] = _nothing
        """Called when the faults end; brokers may still have to come back."""

    @property
    def goes_on(self) -> bool:
        """Whether processes are started at all."""
        return True

    @abc.abstractmethod
    def hear(self, host: str, event: m.Event) -> None:
        """A process told something."""

    @abc.abstractmethod
    def terms(self, host: Any, process: int) -> m.AnyTerms:
        """What the host's next process has to know."""

    # -- what happens -------------------------------------------------------------------------------------

    def calm(self) -> None:
        """Nothing disturbs the group from here on."""
        self.network.rules.clear()
        self.on_calm()

    def bring_back(self) -> None:
        """Who is to run runs."""
        for host in self.hosts.values():
            host.thaw_process()
            if host.wanted and host.status not in ALIVE:
                host.start()

    def stop_all(self) -> None:
        """The run is over: processes end in good order."""
        for host in self.hosts.values():
            host.thaw_process()
            host.stop(come_back=False)

    @property
    def alive(self) -> bool:
        """Whether any process lives."""
        return any(host.status in ALIVE for host in self.hosts.values())

    @property
    def ready(self) -> bool:
        """Whether all processes are up that are to run."""
        return all(host.ready for host in self.hosts.values())

    # -- what is heard ------------------------------------------------------------------------------------

    @property
    def now_us(self) -> int:
        """Microseconds since the start of the run."""
        return self.loop.now_us

    def tell(self, hook: str, *arguments: object) -> None:
        """Something happened in the world."""
        self._around.happenings.add(self.now_us, "", MemberEvent(hook, arguments))

    def note(self, host: str, what: str, at_us: int) -> None:
        """Something befell a host."""
        self._around.happenings.add(at_us, host, HostNoted(what))

    def fail(self, error: Exception) -> None:
        """End the run."""
        self.loop.fail(error)

    def _bootstrap(self, name: str) -> str:
        """All brokers, another one first for each process."""
        servers = self._around.bootstrap_servers.split(",")
        random.Random(self.streams.number(f"bootstrap/{name}")).shuffle(servers)
        return ",".join(servers)


def _nothing() -> None:
    """Until somebody wants to know."""
