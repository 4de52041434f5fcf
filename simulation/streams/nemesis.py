"""The nemesis of a Streams application, simulated or real, and what it needs of its world."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Protocol

from fencepost.simulation.faults.nemesis import KafkaNemesis
from fencepost.simulation.faults.plan import FaultKind, FaultPlan, PlannedEvent
from fencepost.simulation.faults.stage import AnyStage, DisturbedBroker, DisturbedHost
from fencepost.simulation.kernel.rules import Matching, dropping
from fencepost.simulation.scenarios.streams import StreamsScenario
from fencepost.simulation.streams.failures import Injected


class DisturbedClient(DisturbedHost, Protocol):
    """A client's host, and the faults that it can have. It is not restarted once the application was shut
    down."""

    @property
    def ended(self) -> bool:
        """True if no process runs."""

    @property
    def frozen(self) -> bool:
        """True if the process is frozen."""

    def inject(self, injected: Injected) -> None:
        """Let the next thread that gets to the place fail."""

    def wake(self) -> None:
        """Wake all threads, so that they look for what waits for them."""

    def add_thread(self) -> None:
        """Start one more thread, if the client runs."""

    def remove_thread(self) -> None:
        """Let one thread end."""

    def close(self) -> None:
        """Close the client gracefully."""


class ApplicationStage(AnyStage, Protocol):
    """A world of one application's clients."""

    scenario: StreamsScenario

    @property
    def clients(self) -> Mapping[str, DisturbedClient]:
        """All clients' hosts by name."""


class StreamsNemesis(KafkaNemesis[ApplicationStage]):
    """The nemesis that disturbs the clients of an application, their threads, and the coordinator."""

    def __init__(self, world: ApplicationStage, plan: FaultPlan) -> None:
        super().__init__(world, plan)
        self._actions = {
            FaultKind.THREAD_EXCEPTION: self._upon(self._victim, self._exception),
            FaultKind.THREAD_CHANGE: self._upon(self._victim, self._change),
            FaultKind.CLIENT_CLOSE: self._upon(self._victim, self._close),
            FaultKind.MEMBER_CRASH: self._upon(self._victim, self._crash),
            FaultKind.MEMBER_FREEZE: self._upon(self._victim, self._freeze),
            FaultKind.CONNECTION_LOSS: self._upon(self._victim, self.cut),
            FaultKind.LOST_REQUEST: self._upon(self._victim, self.lose),
            FaultKind.LOST_RESPONSE: self._upon(self._victim, self.lose),
            FaultKind.PARTITION: self._partition,
            FaultKind.COORDINATOR_MOVE: self.move,
            FaultKind.COORDINATOR_CRASH: self._coordinator_crash,
            FaultKind.APPEND_FAILURE: self.fail_appends,
        }

    def _victim(self, entry: PlannedEvent) -> DisturbedClient | None:
        return self._chosen(entry, (host for host in self._world.clients.values() if not host.ended))

    # -- threads and clients --------------------------------------------------------------------------------

    def _exception(self, entry: PlannedEvent, host: DisturbedClient) -> None:
        response, _, where = entry.name.partition(" ")
        rng = random.Random(self._rng.getrandbits(64))
        for _ in range(entry.partitions):
            injected = Injected.draw(response, where, rng)
            host.inject(injected)
            self._tell(entry.kind, "begin", f"{host.name} {injected.answer} {injected.where}")
        host.wake()

    def _change(self, entry: PlannedEvent, host: DisturbedClient) -> None:
        adds = entry.share < 0.5
        self._tell(entry.kind, "begin", f"{host.name} {'adds' if adds else 'removes'} a thread")
        if adds:
            host.add_thread()
        else:
            host.remove_thread()

    def _close(self, entry: PlannedEvent, host: DisturbedClient) -> None:
        self.instant(entry, host.name, host.close)

    def _crash(self, entry: PlannedEvent, host: DisturbedClient) -> None:
        self._tell(entry.kind, "begin", host.name)
        host.crash()
        host.restart_later()

    def _freeze(self, entry: PlannedEvent, host: DisturbedClient) -> None:
        if not host.frozen:
            host.freeze_process()
            world = self._world
            ends = world.loop.now_us + entry.lasts_us
            # A request that it sends then may time out and be sent again.
            world.tell("cut_off", host.name, ends + world.scenario.network.request_timeout.us)
            self._befallen(entry, host, host.thaw_process)

    # -- the network ----------------------------------------------------------------------------------------

    def _partition(self, entry: PlannedEvent) -> None:
        world = self._world
        names = list(world.clients)
        chosen = self._some(entry.share, names)
        rule = Matching(dropping, members=chosen)
        world.network.rules.append(rule)
        self._tell(entry.kind, "begin", ", ".join(chosen))
        ends = world.loop.now_us + entry.lasts_us
        # A client that was cut off surely reaches the group only after a request has timed out and was sent
        # again.
        later = ends + world.scenario.network.request_timeout.us
        for name in chosen:
            world.tell("cut_off", name, later)
        world.loop.schedule(ends, self._mend, rule)

    def _mend(self, rule: Matching) -> None:
        if rule in self._world.network.rules:
            self._world.network.rules.remove(rule)
            self._tell(FaultKind.PARTITION, "end", "")

    # -- the coordinator ------------------------------------------------------------------------------------

    def _coordinator_crash(self, entry: PlannedEvent) -> None:
        leader = self._world.cluster.leader
        if leader is not None and leader.running:
            self._tell(entry.kind, "begin", leader.name)
            leader.kill()
            self._world.loop.schedule(self._world.loop.now_us + entry.lasts_us, self._revive, leader)

    def _revive(self, broker: DisturbedBroker) -> None:
        if not broker.running:
            broker.revive()
