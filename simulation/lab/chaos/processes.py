"""A world of processes, whatever runs in them: they are started, ended by signals, and heard."""

from __future__ import annotations

import abc
import os
import random
import signal
from collections.abc import Callable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from fencepost.coordinator.protocol.errors import EnvironmentLacks
from fencepost.simulation.faults.stage import DisturbedNetwork
from fencepost.simulation.kafka.member import ALIVE, MemberStatus
from fencepost.simulation.kernel.rng import Streams
from fencepost.simulation.kernel.rules import NetworkRule
from fencepost.simulation.kernel.supervisor import Supervisor
from fencepost.simulation.lab.chaos import messages as m
from fencepost.simulation.lab.chaos.brokers import RealBrokers
from fencepost.simulation.lab.chaos.clock import RealTime
from fencepost.simulation.lab.chaos.events import HostNoted, MemberEvent, RunEvents
from fencepost.simulation.lab.chaos.fork_server import ForkedProcess, ForkServer
from fencepost.simulation.lab.chaos.topics import RecordCount
from fencepost.simulation.scenarios.scenario import Scenario
from fencepost.simulation.scenarios.streams import StreamsScenario

H = TypeVar("H", bound="ProcessHost")
S = TypeVar("S", bound=Scenario | StreamsScenario)
T = TypeVar("T", bound=m.AnyTerms)


class MemberFailed(Exception):
    """A member's program ended as no program should. The text is its traceback."""


class ProcessHost:
    """One host. Each start is a new process."""

    def __init__(self, name: str, world: ProcessWorld[Any, Any]) -> None:
        self.name = name
        self.status = MemberStatus.STOPPED
        self.wanted = False
        self.protocol = "consumer"
        self.strategies: tuple[str, ...] = ()
        self._world = world
        self._life: _Life | None = None
        self.generation = 0
        """How many processes have ended."""
        self._processes = 0

    @property
    def ready(self) -> bool:
        """Whether it is not meant to run, or its process has its consumer."""
        return not self.wanted or (self._life is not None and self._life.up)

    # -- the process --------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start a new process, if none runs."""
        self.wanted = True
        if self.status in ALIVE:
            return
        self._processes += 1
        self.status = MemberStatus.RUNNING
        life = self._life = _Life(self, self._world)
        terms = self._world.terms(self, self._processes)
        life.process = self._world.nursery.start(terms, life.heard, life.ended)

    def restart_later(self) -> None:
        """Start the next process after the time that a restart takes."""
        self._world.supervisor.restart_later(self)

    def stop(self, *, come_back: bool) -> None:
        """End the process in good order; one that stands still learns of it when it goes on."""
        self.wanted = come_back
        if self.status in (MemberStatus.RUNNING, MemberStatus.FROZEN):
            self._order(self._farewell(come_back=come_back))

    def _farewell(self, *, come_back: bool) -> m.Stop:
        return m.Stop(forever=False)

    def crash(self) -> None:
        """SIGKILL."""
        if self.status in ALIVE and self._life is not None:
            self.status = MemberStatus.CRASHED
            self.generation += 1
            self._life.kill()
            self._life = None

    def freeze_process(self) -> None:
        """SIGSTOP."""
        if self.status is MemberStatus.RUNNING and self._life is not None:
            self.status = MemberStatus.FROZEN
            self._world.note(self.name, "freeze", self._world.now_us)
            self._life.process.send(signal.SIGSTOP)

    def thaw_process(self) -> None:
        """SIGCONT."""
        if self.status is MemberStatus.FROZEN and self._life is not None:
            self.status = MemberStatus.RUNNING
            self._world.note(self.name, "thaw", self._world.now_us)
            self._life.process.send(signal.SIGCONT)

    def _order(self, order: m.Order) -> None:
        if self._life is not None:
            self._life.process.order(order)

    # -- what becomes of it -------------------------------------------------------------------------------

    def stopping(self, life: _Life) -> None:
        """A process ends in good order."""
        if life is self._life:
            self.status = MemberStatus.STOPPING

    def stopped(self, life: _Life) -> None:
        """A process has ended in good order."""
        if life is self._life:
            self._life = None
            self.generation += 1
            self.status = MemberStatus.STOPPED
            if self.wanted:
                self.restart_later()


class _Life:
    """One process of a host, from its start until it is gone and all that it said is heard."""

    process: ForkedProcess

    def __init__(self, host: ProcessHost, world: ProcessWorld[Any, Any]) -> None:
        self._host = host
        self._world = world
        self.up = False
        """Whether it has its consumer."""
        self._closed = False
        self._killed_us: int | None = None
        self._last_us = 0

    def kill(self) -> None:
        """End it without a word."""
        self._killed_us = self._world.now_us
        self.process.send(signal.SIGKILL)

    def heard(self, event: m.Event) -> None:
        """It told something."""
        self._last_us = event.t_us
        match event:
            case m.Failed():
                self._world.fail(MemberFailed(f"{self._host.name}: {event.trace}"))
            case m.Up():
                self.up = True
            case m.Stopping():
                self._host.stopping(self)
            case m.Stopped():
                self._closed = True
        self._world.hear(self._host.name, event)

    def ended(self) -> None:
        """It is gone."""
        if self._killed_us is not None:
            # What it said last it said before it died, whenever the signal reached it.
            if self.up:
                self._world.note(self._host.name, "crash", max(self._killed_us, self._last_us))
        elif self._closed:
            self._host.stopped(self)
        else:
            how = _how_it_ended(os.waitstatus_to_exitcode(self.process.status))
            self._world.fail(EnvironmentLacks(f"{self._host.name}: its process {how}"))


def _how_it_ended(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}, without a word"
    name = signal.Signals(-code).name
    return f"was ended by {name}, which was not of this run: by the system, by a library, or by hand"


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


class ProcessWorld(abc.ABC, Generic[H, S]):
    """One run's processes. Their hosts are there from the beginning, as in a simulated world."""

    hosts: Mapping[str, H]

    def __init__(self, scenario: S, seed: int, around: RunContext, flaw: str) -> None:
        self.scenario = scenario
        self.streams = Streams(seed)
        self.loop = around.time
        self.cluster = around.brokers
        self.network = around.network
        self.nursery = around.nursery
        self._around = around
        self._flaw = flaw
        self.supervisor = Supervisor(
            self.loop,
            self.streams,
            start=scenario.group.start.quantiles,
            restart=scenario.application.restart.quantiles,
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

    def _terms(self, kind: type[T], host: H, process: int, topics: tuple[str, ...], **more: Any) -> T:
        """What a process has to know, with `more` that its kind of program asks for."""
        group, application = self.scenario.group, self.scenario.application
        timeout_ms = self.scenario.network.request_timeout.ms
        callback, processing = application.callback, application.processing
        return kind(
            name=host.name,
            process=process,
            seed=self.streams.seed,
            began_us=self.loop.began_us,
            bootstrap_servers=self._bootstrap(f"{host.name}/{process}"),
            group_id=group.id,
            topics=topics,
            max_poll_interval_ms=group.rebalance_timeout.ms,
            request_timeout_ms=timeout_ms,
            gather_ms=min(application.poll.ms, timeout_ms // 2),
            max_poll_records=application.max_poll_records,
            callback=(callback.kind, callback.low, callback.high),
            processing=(processing.kind, processing.low, processing.high),
            flaw=self._flaw,
            **more,
        )

    def _bootstrap(self, name: str) -> str:
        """All brokers, another one first for each process."""
        servers = self._around.bootstrap_servers.split(",")
        random.Random(self.streams.number(f"bootstrap/{name}")).shuffle(servers)
        return ",".join(servers)


def _nothing() -> None:
    """Until somebody wants to know."""
