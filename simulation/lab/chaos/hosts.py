"""Members' hosts in the real world: their processes are the system's, ended and stopped by signals."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any, Protocol

from fencepost.coordinator.protocol.errors import EnvironmentLacks
from fencepost.simulation.kafka.member import ALIVE, MemberStatus
from fencepost.simulation.kernel.supervisor import Supervisor
from fencepost.simulation.lab.chaos import messages as m

if TYPE_CHECKING:
    from fencepost.simulation.lab.chaos.fork_server import ForkedProcess, ForkServer
    from fencepost.simulation.scenarios.scenario import Scenario


class MemberFailed(Exception):
    """A member's program ended as no program should. The text is its traceback."""


class HostContext(Protocol):
    """The world as a host sees it."""

    nursery: ForkServer
    supervisor: Supervisor

    def terms(self, host: Any, process: int) -> m.AnyTerms:
        """What the host's next process has to know."""

    def hear(self, host: str, event: m.Event) -> None:
        """Its process told something."""

    def note(self, host: str, what: str, at_us: int) -> None:
        """Something befell the host."""

    def fail(self, error: Exception) -> None:
        """End the run."""

    @property
    def now_us(self) -> int:
        """Microseconds since the start of the run."""


class ProcessHost:
    """One host. Each start is a new process."""

    def __init__(self, name: str, world: HostContext) -> None:
        self.name = name
        self.status = MemberStatus.STOPPED
        self.wanted = False
        self.protocol = "consumer"
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


class RealHost(ProcessHost):
    """A consumer's host. Each process is a new member; a static one keeps its instance id."""

    def __init__(self, name: str, world: HostContext, scenario: Scenario, instance_id: str | None) -> None:
        super().__init__(name, world)
        self.instance_id = instance_id
        self.topics = scenario.group.topics
        self.pattern = scenario.group.pattern
        self._all_topics = tuple(topic.name for topic in scenario.topics)

    @property
    def subscription(self) -> tuple[tuple[str, ...], str | None]:
        """What it subscribes to: all topics of the file if the scenario does not say."""
        if self.topics is None and self.pattern is None:
            return self._all_topics, None
        return self.topics or (), self.pattern

    def _farewell(self, *, come_back: bool) -> m.Stop:
        return m.Stop(forever=self.instance_id is not None and not come_back)

    def slow_callback(self, lasts_us: int) -> None:
        """The process's next callback takes so much longer."""
        self._order(m.SlowCallbackOrder(lasts_us))

    def fail_callback(self) -> None:
        """The process's next callback raises."""
        self._order(m.FailCallback())

    def stall(self, until_us: int) -> None:
        """The application is busy until then."""
        self._order(m.Stall(until_us))

    def resubscribe(self) -> None:
        """Subscribe to `topics` and `pattern`."""
        self._order(m.SubscribeOrder(*self.subscription))


class _Life:
    """One process of a host, from its start until it is gone and all that it said is heard."""

    process: ForkedProcess

    def __init__(self, host: ProcessHost, world: HostContext) -> None:
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
