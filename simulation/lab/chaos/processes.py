"""A world of processes, whatever program they run: they are started, ended by signals, and listened to."""

from __future__ import annotations

import abc
import os
import random
import signal
from collections.abc import Callable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from fencepost.coordinator.protocol.errors import EnvironmentLacks
from fencepost.simulation.faults.stage import DisturbedNetwork
from fencepost.simulation.kernel.rng import Draws
from fencepost.simulation.kernel.rules import NetworkRule
from fencepost.simulation.kernel.supervisor import ALIVE, ProcessStatus, Supervisor
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
    """A member's program ended unexpectedly. The text is its traceback."""


class ProcessHost:
    """One host. Each start is a new process."""

    def __init__(self, name: str, world: RunProcesses[Any, Any]) -> None:
        self.name = name
        self.status = ProcessStatus.STOPPED
        self.wanted = False
        self.protocol = "consumer"
        self.strategies: tuple[str, ...] = ()
        self._world = world
        self._life: _Life | None = None
        self.generation = 0
        """Number of processes that have ended."""
        self._processes = 0

    @property
    def ready(self) -> bool:
        """True if it is not meant to run, or its process has its consumer."""
        return not self.wanted or (self._life is not None and self._life.up)

    # -- the process --------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start a new process, if none runs."""
        self.wanted = True
        if self.status in ALIVE:
            return
        self._processes += 1
        self.status = ProcessStatus.RUNNING
        life = self._life = _Life(self, self._world)
        terms = self._world.terms(self, self._processes)
        life.process = self._world.nursery.start(terms, life.heard, life.ended)

    def restart_later(self) -> None:
        """Start the next process after the time that a restart takes."""
        self._world.supervisor.restart_later(self)

    def stop(self, *, come_back: bool) -> None:
        """End the process gracefully; a frozen process learns of it when it resumes."""
        self.wanted = come_back
        if self.status in (ProcessStatus.RUNNING, ProcessStatus.FROZEN):
            self._order(self._farewell(come_back=come_back))

    def _farewell(self, *, come_back: bool) -> m.Stop:
        return m.Stop(forever=False)

    def crash(self) -> None:
        """SIGKILL."""
        if self.status in ALIVE and self._life is not None:
            self.status = ProcessStatus.CRASHED
            self.generation += 1
            self._life.kill()
            self._life = None

    def freeze_process(self) -> None:
        """SIGSTOP."""
        if self.status is ProcessStatus.RUNNING and self._life is not None:
            self.status = ProcessStatus.FROZEN
            self._world.note(self.name, "freeze", self._world.now_us)
            self._life.process.send(signal.SIGSTOP)

    def thaw_process(self) -> None:
        """SIGCONT."""
        if self.status is ProcessStatus.FROZEN and self._life is not None:
            self.status = ProcessStatus.RUNNING
            self._world.note(self.name, "thaw", self._world.now_us)
            self._life.process.send(signal.SIGCONT)

    def _order(self, order: m.Order) -> None:
        if self._life is not None:
            self._life.process.order(order)

    # -- the life of its processes ------------------------------------------------------------------------

    def stopping(self, life: _Life) -> None:
        """Note that a process is ending gracefully."""
        if life is self._life:
            self.status = ProcessStatus.STOPPING

    def stopped(self, life: _Life) -> None:
        """Note that a process has ended gracefully."""
        if life is self._life:
            self._life = None
            self.generation += 1
            self.status = ProcessStatus.STOPPED
            if self.wanted:
                self.restart_later()


class _Life:
    """One process of a host, from its start until it has ended and all its events were read."""

    process: ForkedProcess

    def __init__(self, host: ProcessHost, world: RunProcesses[Any, Any]) -> None:
        self._host = host
        self._world = world
        self.up = False
        """True if it has its consumer."""
        self._closed = False
        self._killed_us: int | None = None
        self._last_us = 0

    def kill(self) -> None:
        """End it abruptly."""
        self._killed_us = self._world.now_us
        self.process.send(signal.SIGKILL)

    def heard(self, event: m.Event) -> None:
        """Handle an event of the process."""
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
        """Handle the end of the process."""
        if self._killed_us is not None:
            # Its last event came before it died, whenever the signal reached it.
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
    return f"was ended by {name}, which was not of this run: by the system, by a library, or manually"


class OpenNetwork:
    """The network between members and brokers, if nothing is to be disturbed."""

    def __init__(self) -> None:
        self.rules: list[NetworkRule] = []

    def cut_all(self, name: str) -> None:
        """Do nothing: there is no connection that could be cut."""


class RunContext(NamedTuple):
    """The parts of a run that its world uses."""

    time: RealTime
    happenings: RunEvents
    ledger: RecordCount
    nursery: ForkServer
    brokers: RealBrokers
    network: DisturbedNetwork
    bootstrap_servers: str
    """The addresses that processes get."""


class RunProcesses(abc.ABC, Generic[H, S]):
    """One run's processes. Their hosts are there from the beginning, as in a simulated world."""

    hosts: Mapping[str, H]

    def __init__(self, scenario: S, seed: int, around: RunContext, flaw: str) -> None:
        self.scenario = scenario
        self.draws = Draws(seed)
        self.loop = around.time
        self.cluster = around.brokers
        self.network = around.network
        self.nursery = around.nursery
        self._around = around
        self._flaw = flaw
        self.supervisor = Supervisor(
            self.loop,
            self.draws,
            start=scenario.group.start.quantiles,
            restart=scenario.application.restart.quantiles,
            goes_on=lambda: self.goes_on,
        )
        self.on_calm: Callable[[], None] = _nothing
        """Called when the faults end; brokers may still have to come back."""

    @property
    def goes_on(self) -> bool:
        """True if processes are started at all."""
        return True

    @abc.abstractmethod
    def begin(self) -> None:
        """Let the processes start."""

    @abc.abstractmethod
    def hear(self, host: str, event: m.Event) -> None:
        """Handle an event of a process."""

    @abc.abstractmethod
    def terms(self, host: Any, process: int) -> m.AnyTerms:
        """Return the settings of the host's next process."""

    # -- what happens -------------------------------------------------------------------------------------

    def calm(self) -> None:
        """End all disturbance of the group."""
        self.network.rules.clear()
        self.on_calm()

    def bring_back(self) -> None:
        """Start or resume all hosts that should run."""
        for host in self.hosts.values():
            host.thaw_process()
            if host.wanted and host.status not in ALIVE:
                host.start()

    def stop_all(self) -> None:
        """End all processes gracefully: the run is over."""
        for host in self.hosts.values():
            host.thaw_process()
            host.stop(come_back=False)

    @property
    def alive(self) -> bool:
        """True if any process lives."""
        return any(host.status in ALIVE for host in self.hosts.values())

    @property
    def ready(self) -> bool:
        """True if all processes are up that should run."""
        return all(host.ready for host in self.hosts.values())

    # -- events -------------------------------------------------------------------------------------------

    @property
    def now_us(self) -> int:
        """Microseconds since the start of the run."""
        return self.loop.now_us

    def tell(self, hook: str, *arguments: object) -> None:
        """Record an event of the world."""
        self._around.happenings.add(self.now_us, "", MemberEvent(hook, arguments))

    def note(self, host: str, what: str, at_us: int) -> None:
        """Record an event of a host."""
        self._around.happenings.add(at_us, host, HostNoted(what))

    def fail(self, error: Exception) -> None:
        """End the run with this error."""
        self.loop.fail(error)

    def _terms(self, kind: type[T], host: H, process: int, topics: tuple[str, ...], **more: Any) -> T:
        """Return the settings of a process, with `more` that its kind of program needs."""
        group, application = self.scenario.group, self.scenario.application
        timeout_ms = self.scenario.network.request_timeout.ms
        callback, processing = application.callback, application.processing
        return kind(
            name=host.name,
            process=process,
            seed=self.draws.seed,
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
        """Return all brokers, with another one first for each process."""
        servers = self._around.bootstrap_servers.split(",")
        random.Random(self.draws.number(f"bootstrap/{name}")).shuffle(servers)
        return ",".join(servers)


def _nothing() -> None:
    """Do nothing, until another callback is set."""
