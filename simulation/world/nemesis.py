"""The nemesis of users' programs, with the verbs of that of simulated groups."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, cast

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.coordinator.protocol.transactions import InitProducerIdRequest
from fencepost.simulation.embedded.endpoint import EmbeddedEndpoint
from fencepost.simulation.embedded.fault_rules import FaultAction, FaultRule
from fencepost.simulation.embedded.settings import Api, Error, api_of, error_of
from fencepost.simulation.faults.plan import FaultKind, FaultPlan, PlannedEvent
from fencepost.simulation.kafka.nemesis import GroupNemesis
from fencepost.simulation.kernel.rng import Draws
from fencepost.simulation.kernel.supervisor import ProcessStatus
from fencepost.simulation.scenarios.scenario import Scenario
from fencepost.simulation.world.http_stub import HttpStub
from fencepost.simulation.world.loop import WorldLoop
from fencepost.simulation.world.network import VirtualNetwork
from fencepost.simulation.world.processes import WorldHost, outside
from fencepost.simulation.world.programs import Program

_EPOCH_APIS = ("ConsumerGroupHeartbeat", "JoinGroup", "SyncGroup")
"""Requests whose responses carry another epoch, or a generation and its assignment."""
_APPENDS: tuple[tuple[Api, Error], ...] = (
    ("Produce", "NOT_ENOUGH_REPLICAS"),
    ("OffsetCommit", "COORDINATOR_NOT_AVAILABLE"),
    ("TxnOffsetCommit", "COORDINATOR_NOT_AVAILABLE"),
    ("SyncGroup", "COORDINATOR_NOT_AVAILABLE"),
    ("AddPartitionsToTxn", "COORDINATOR_NOT_AVAILABLE"),
    ("AddOffsetsToTxn", "COORDINATOR_NOT_AVAILABLE"),
    ("EndTxn", "COORDINATOR_NOT_AVAILABLE"),
)
"""Requests that append to a log, and the error of a broker that can't append."""
_ALL = {
    FaultKind.COORDINATOR_MOVE: "all groups",
    FaultKind.COORDINATOR_UNAVAILABLE: "all groups",
    FaultKind.APPEND_FAILURE: "all brokers",
}
"""The targets of faults that are about no single program or broker."""
_OF_PROGRAMS = frozenset({FaultKind.PARTITION, FaultKind.SLOW_LINK, FaultKind.LOSS})
_NOBODY = ("", " |")
"""The begin of the target of a network fault while no program has been started."""
_TAKEOVER_MS = 60_000
"""The transaction timeout of a producer that takes an id over."""


class WorldBroker:
    """One broker's host, as a nemesis disturbs it."""

    def __init__(self, cluster: WorldCluster, node_id: int, host: WorldHost) -> None:
        self._cluster = cluster
        self.node_id = node_id
        self.host = host
        self.name = host.name
        self.generation = 0
        self._dead = False
        self._paused = False

    @property
    def running(self) -> bool:
        """True if the broker runs and is not paused."""
        return not self._dead and not self._paused

    def kill(self) -> None:
        """End it: its connections break, and after the failover other brokers lead what it led."""
        self._dead = True
        self.host.is_down = True
        self._cluster.network.cut_all(self.name)
        loop = self._cluster.loop
        loop.schedule(loop.now_us + self._cluster.failover.draw(), self._fail_over, self.generation)

    def _fail_over(self, generation: int) -> None:
        brokers = self._cluster.endpoint.brokers
        others = [node.node_id for node in brokers.cluster.running if node.node_id != self.node_id]
        if self._dead and generation == self.generation and others:
            self._cluster.do(brokers.stop_broker(self.node_id))

    def revive(self) -> None:
        """Start it again."""
        if not self._dead:
            return
        self._dead = self.host.is_down = False
        self.generation += 1
        brokers = self._cluster.endpoint.brokers
        if self.node_id in brokers.cluster.stopped:
            self._cluster.do(brokers.start_broker(self.node_id))

    def pause(self) -> None:
        """Freeze it: connections stay open, and no request is answered."""
        self._paused = True
        self.host.freeze()

    def resume(self) -> None:
        """Resume it."""
        if self._paused:
            self._paused = False
            self.host.thaw()


class WorldCluster:
    """The brokers together, as a nemesis disturbs them."""

    def __init__(
        self,
        loop: WorldLoop,
        draws: Draws,
        network: VirtualNetwork,
        endpoint: EmbeddedEndpoint,
        scenario: Scenario,
    ) -> None:
        self.loop = loop
        self.network = network
        self.endpoint = endpoint
        self.failover = draws.samples("failover", scenario.cluster.failover.quantiles)
        self._loads = draws.samples("loads", scenario.cluster.load.quantiles)
        names = [f"kafka-{node_id}" for node_id in endpoint.brokers.groups.node_ids]
        self.brokers = {
            name: WorldBroker(self, number, network.hosts[name]) for number, name in enumerate(names, 1)
        }
        self._doing: asyncio.Task[None] | None = None
        self._failing: list[list[FaultRule]] = []

    def do(self, work: Coroutine[Any, Any, None]) -> None:
        """Run an action on brokers; actions run one after the other."""

        async def in_turn(before: asyncio.Task[None] | None) -> None:
            if before is not None:
                await before
            with contextlib.suppress(FencepostError):  # it is already stopped, or already runs
                await work

        self._doing = outside().run(self.loop.create_task, in_turn(self._doing))

    @property
    def leader(self) -> WorldBroker | None:
        """The broker that coordinates the first group there is, if it runs."""
        for shard in self.endpoint.brokers.groups.shards:
            coordinator = shard.coordinator
            if coordinator is not None and next(iter(coordinator.kinds.group_ids()), None) is not None:
                found = self.brokers[f"kafka-{shard.node_id}"]
                return found if found.running else None
        return None

    def move(self) -> None:
        """Move the coordinators to other brokers gracefully."""
        self.endpoint.move_coordinator(None, None, self._loads.draw() / 1e6)

    def unavailable(self, lasts_us: int) -> None:
        """Leave the groups without a coordinator for that time."""
        self.endpoint.move_coordinator(None, None, lasts_us / 1e6)

    def fail_appends(self) -> None:
        """Refuse appends to logs, like brokers with too few replicas in sync."""
        rules = [FaultRule(api=api_of(api), error=error_of(error), times=None) for api, error in _APPENDS]
        self._failing.append(rules)
        for rule in rules:
            self.endpoint.faults.add(rule)

    def mend_appends(self) -> None:
        """Append again, once it was called as often as `fail_appends`."""
        if self._failing:
            self.endpoint.faults.remove(self._failing.pop(0))

    def take_producer_over(self, transactional_id: str, timeout_ms: int) -> None:
        """Begin as another producer with that id, which fences the present one."""
        transactions = self.endpoint.brokers.transactions
        request = InitProducerIdRequest(transactional_id=transactional_id, timeout_ms=timeout_ms)
        transactions.ask(request, transactions.leader_id(transactional_id))

    def _none(self, *_: object) -> None:
        raise FencepostError("a world's brokers can't do this: mix.WorldFault has what can happen")

    create_topic = grow_topic = delete_topic = _none

    def has_topic(self, name: str) -> bool:
        """Return true if the topic exists."""
        return name in self.endpoint.brokers.cluster.image.by_name


@dataclasses.dataclass(kw_only=True, eq=False)
class DisturbedPrograms:
    """The stage of the nemesis: the user's programs are the members."""

    scenario: Scenario
    loop: WorldLoop
    draws: Draws
    network: VirtualNetwork
    members: Mapping[str, Program]
    endpoint: EmbeddedEndpoint
    stubs: Mapping[str, HttpStub]
    tell_fault: Callable[[str, str, str], None]
    on_calm: Callable[[], None]

    def __post_init__(self) -> None:
        self.cluster = WorldCluster(self.loop, self.draws, self.network, self.endpoint, self.scenario)

    def tell(self, hook: str, *arguments: Any) -> None:
        """Observe a fault."""
        if hook == "on_fault":
            self.tell_fault(*arguments)

    def calm(self) -> None:
        """End all disturbance of the world."""
        self.network.rules.clear()
        self.endpoint.faults.clear()
        for stub in self.stubs.values():
            stub.calm()
        for broker in self.cluster.brokers.values():
            broker.resume()
            broker.revive()
        for program in self.members.values():
            program.thaw_process()
            program.host.slow(0)
            if program.wanted:
                program.start()
        self.on_calm()

    def operate(self, request: str, topics: Sequence[str], share: float) -> None:
        """Do nothing: only the test operates groups here."""


class ProgramNemesis(GroupNemesis):
    """The nemesis of users' programs, of brokers and of the network between them."""

    _world: Any

    def __init__(self, stage: DisturbedPrograms, plan: FaultPlan) -> None:
        super().__init__(stage, plan)  # type: ignore[arg-type]  # programs are stopped by another name
        self._actions = {
            **self._actions,
            FaultKind.RESTART: self._deploy,
            FaultKind.LOST_RESPONSE: self._upon(self._program, self._lost_response_of),
            FaultKind.REQUEST_ERROR: self._request_error,
            FaultKind.HTTP_FAULT: self._http_fault,
            FaultKind.POLL_TIMEOUT: self._upon(self._program, self._long_batch),
            FaultKind.PRODUCER_TAKEOVER: self._upon(self._program, self._take_over),
        }
        self.hits: dict[int, str] = {}
        """The target of each fault that had one, by the fault's number in the plan."""
        self._numbers = {id(entry): number for number, entry in enumerate(plan.entries)}
        self._acting: PlannedEvent | None = None

    def _act(self, entry: PlannedEvent) -> None:
        self._acting = entry
        super()._act(entry)
        self._acting = None

    def _tell(self, fault: str, phase: str, detail: str) -> None:
        super()._tell(fault, phase, detail)
        entry = self._acting
        if (
            phase == "begin"
            and entry is not None
            and not (entry.kind in _OF_PROGRAMS and detail[:2] in _NOBODY)
        ):
            self.hits[self._numbers[id(entry)]] = detail or _ALL.get(entry.kind, entry.name)

    def _some(self, share: float, names: list[str]) -> list[str]:
        """Draw that share of the names; no name while no program has been started."""
        return super()._some(share, names) if names else []

    def _deploy(self, entry: PlannedEvent) -> None:
        """Restart the program of that number gracefully, if it runs."""
        programs = list(self._world.members.values())
        if entry.member >= len(programs):
            return
        program = programs[entry.member]
        if program.status is not ProcessStatus.RUNNING:
            return
        self._tell(entry.kind, "begin", program.name)
        program.stop_process(come_back=True)

    def _program(self, entry: PlannedEvent) -> Program | None:
        """Return the program that an entry means, of those that run."""
        programs: Iterable[Program] = self._world.members.values()
        return self._chosen(entry, (each for each in programs if each.status is ProcessStatus.RUNNING))

    def _lost_response_of(self, entry: PlannedEvent, host: Program) -> None:
        """Carry out a program's next request that moves an epoch, or any, and lose the response."""
        apis = _EPOCH_APIS if entry.epoch_moved else ("OffsetCommit", "Fetch", "Produce")
        endpoint: EmbeddedEndpoint = self._world.endpoint
        address = f"/{host.host.address}"
        for name in apis:
            rule = FaultRule(
                action=FaultAction.LOSE_RESPONSE, api=api_of(cast("Api", name)), client_host=address
            )
            endpoint.faults.add(rule)
        self._tell(entry.kind, "begin", host.name)

    def _long_batch(self, entry: PlannedEvent, program: Program) -> None:
        """Let a program work on one batch for that long; its own settings limit how long it may."""
        self.instant(
            entry,
            program.name,
            lambda: program.stall(entry.at_us + self._before_quiet(entry, entry.lasts_us)),
        )

    def _take_over(self, entry: PlannedEvent, program: Program) -> None:
        cluster: WorldCluster = self._world.cluster
        names = () if program.process is None else tuple(program.process.transactional_ids)
        for name in names:
            self.instant(entry, program.name, partial(cluster.take_producer_over, name, _TAKEOVER_MS))

    def _request_error(self, entry: PlannedEvent) -> None:
        api, _, error = entry.name.partition(" ")
        rule = FaultRule(api=api_of(cast("Api", api)), error=error_of(cast("Error", error)))
        self.instant(entry, entry.name, lambda: self._world.endpoint.faults.add(rule))

    def _http_fault(self, entry: PlannedEvent) -> None:
        stubs: list[HttpStub] = list(self._world.stubs.values())
        if stubs:
            stub = stubs[entry.member % len(stubs)]
            lasts_us = self._before_quiet(entry, entry.lasts_us)
            self.instant(entry, f"{stub.name} {entry.name}", lambda: stub.disturb(entry.name, lasts_us))
