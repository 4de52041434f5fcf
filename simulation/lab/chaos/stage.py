"""A run of consumers on real brokers, its world of processes, and the same run replayed."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AsyncExitStack
from typing import Any, Final

from fencepost.coordinator.protocol.consumer import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.regular_expressions import matching
from fencepost.coordinator.protocol.slices import at_once
from fencepost.simulation.faults.draw import FaultKind
from fencepost.simulation.faults.nemesis import Nemesis
from fencepost.simulation.kafka.member import ALIVE
from fencepost.simulation.kernel.observers import Observer
from fencepost.simulation.lab.chaos import messages as m
from fencepost.simulation.lab.chaos.admin import OFFSETS_TOPIC
from fencepost.simulation.lab.chaos.events import HeartbeatSeen
from fencepost.simulation.lab.chaos.foreign_members import ForeignMembers
from fencepost.simulation.lab.chaos.hosts import RealHost
from fencepost.simulation.lab.chaos.merge import RunClock
from fencepost.simulation.lab.chaos.observed import Arrival, ObservedCoordinator
from fencepost.simulation.lab.chaos.processes import ProcessWorld, RunContext
from fencepost.simulation.lab.chaos.replayed import ReplayedWorld
from fencepost.simulation.lab.chaos.result import Skipped
from fencepost.simulation.lab.chaos.staging import LossWatch, Staging
from fencepost.simulation.lab.proxy.observer import ProxyObserver
from fencepost.simulation.scenarios.check import named_topics
from fencepost.simulation.scenarios.scenario import Scenario
from fencepost.simulation.trace.rows import TraceRows
from fencepost.simulation.trace.schema import RowKind as Row


class RealWorld(ProcessWorld[RealHost]):
    """One run's world of consumers."""

    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        around: RunContext,
        *,
        members: int,
        client: m.ClientName,
        flaw: str,
    ) -> None:
        super().__init__(seed, around, start=scenario.group.start, restart=scenario.application.restart)
        self.scenario = scenario
        self._client: m.ClientName = client
        self._flaw = flaw
        self._owned: dict[str, set[TopicPartition]] = {}
        width = len(str(members))
        static = scenario.group.static
        names = [f"member-{number:0{width}}" for number in range(1, members + 1)]
        self.members: dict[str, RealHost] = {
            name: RealHost(name, self, scenario, name if static else None) for name in names
        }
        self.hosts = self.members

    def begin(self) -> None:
        """Let the members start."""
        self.supervisor.start_soon(list(self.members.values())[: self.scenario.group.members])

    def hear(self, host: str, event: m.Event) -> None:
        """A member's process told something. Records count as processed while they are owned."""
        self._around.happenings.add(event.t_us, host, event)
        match event:
            case m.Up():
                self._owned[host] = set()
            case m.CalledBack(_, "assigned", "begin", partitions):
                self._owned.setdefault(host, set()).update(partitions)
            case m.CalledBack(_, "lost", "begin", partitions) | m.CalledBack(_, "revoked", "end", partitions):
                self._owned.setdefault(host, set()).difference_update(partitions)
            case m.Processed(_, partition, _, _, numbers) if partition in self._owned.get(host, ()):
                self._around.ledger.process(numbers)

    def terms(self, host: RealHost, process: int) -> m.Terms:
        """What the host's next process has to know."""
        group, application = self.scenario.group, self.scenario.application
        timeout_ms = self.scenario.network.request_timeout.ms
        topics, pattern = host.subscription
        callback, processing = application.callback, application.processing
        return m.Terms(
            client=self._client,
            name=host.name,
            process=process,
            seed=self.streams.seed,
            began_us=self.loop.began_us,
            bootstrap_servers=self._bootstrap(f"{host.name}/{process}"),
            group_id=group.id,
            instance_id=host.instance_id,
            assignor=group.assignor,
            topics=topics,
            pattern=pattern,
            max_poll_interval_ms=group.rebalance_timeout.ms,
            request_timeout_ms=timeout_ms,
            commit=application.commit,
            auto_commit_interval_ms=application.auto_commit_interval.ms,
            gather_ms=min(application.poll.ms, timeout_ms // 2),
            max_poll_records=application.max_poll_records,
            callback=(callback.kind, callback.low, callback.high),
            processing=(processing.kind, processing.low, processing.high),
            flaw=self._flaw,
        )


_SHOWN: Final = 5


class RealStage(Staging[RealWorld]):
    """One run of a scenario of consumers."""

    def __init__(self, *given: Any, client: m.ClientName, flaw: str, **more: Any) -> None:
        super().__init__(*given, **more)
        self._client: m.ClientName = client
        self._program = client
        self._always_proxied = client != "fencepost"  # its heartbeats are seen on their way
        self._flaw = flaw
        self._subscriptions: set[tuple[tuple[str, ...], str | None]] = set()
        self._arrivals: list[Arrival] = []
        self.observed: ObservedCoordinator | None = None
        """What the coordinator's log tells, if the cluster has one."""

    def _make_world(self, around: RunContext, stack: AsyncExitStack) -> RealWorld:
        return RealWorld(
            self._scenario,
            self._seed,
            around,
            members=self._plan.members,
            client=self._client,
            flaw=self._flaw,
        )

    def _cannot(self, kind: FaultKind) -> str | None:
        if kind is FaultKind.CALLBACK_ERROR and self._client == "confluent":
            return "what its callbacks raise comes out of poll, and nothing else becomes of it"
        return super()._cannot(kind)

    def _wire(self) -> ProxyObserver:
        if self._client == "fencepost":
            return LossWatch(self.happenings, self._time)
        return _HeartbeatWatch(self.happenings, self._time)

    def _begin(self) -> None:
        self._world.begin()
        Nemesis(self._world, self._plan).begin()

    async def _watch(self) -> None:
        """Follow the coordinator's log, if the cluster shows one."""
        if not await self._admin.partitions(OFFSETS_TOPIC):
            reason = (
                f"the cluster shows no {OFFSETS_TOPIC}: each member is checked, but neither the coordinator's"
                " state nor whether two members own a partition"
            )
            self.skipped.append(Skipped(kind="coordinator's log", times=1, reason=reason))
            return
        observed = ObservedCoordinator(
            self._scenario.group.id,
            self._servers,
            clock=RunClock(began_us=self._time.began_us),
            config=self._config,
            arrive=self._arrivals.append,
        )
        self.observed = await self._stack.enter_async_context(observed)

    async def _conclude(self) -> None:
        await self._time.wait(self._process_the_rest())
        if self.observed is not None:
            await self._time.wait(self.observed.caught_up())
        self._tell("on_end")
        self.missing = self.ledger.missing(self._subscribed)

    async def _process_the_rest(self) -> None:
        self._subscriptions = {
            host.subscription for host in self._world.members.values() if host.wanted or host.status in ALIVE
        }
        await self._drain(self._config.group_consumer_session_timeout_ms, self._subscribed)

    @property
    def _roster(self) -> ForeignMembers:
        return ForeignMembers(self._world.members, named_topics(self._scenario))

    def _subscribed(self, topic: str) -> bool:
        """Whether anybody who runs at the end subscribes to the topic."""
        return any(
            topic in names or (pattern is not None and bool(at_once(matching(pattern, (topic,)))))
            for names, pattern in self._subscriptions
        )

    # -- afterwards ---------------------------------------------------------------------------------------

    def retell(self, observers: Iterable[Observer], recorder: TraceRows) -> ReplayedWorld:
        """Tell observers all that happened, in one order."""
        replayed = ReplayedWorld(
            self._scenario,
            self._config,
            self.observed,
            client=self._client,
            members=[(host.name, host.instance_id) for host in self._world.members.values()],
            brokers=self.brokers.brokers,
            observers=observers,
            sequence=lambda: recorder.seq,
        )
        run = f"{self._scenario.name} {self._seed} {self._scenario.group.members}"
        recorder.add(0, "", Row.RUN_START.value, detail=run)
        replayed.tell_all(self.happenings, self._arrivals, self.ended_us)
        if self.observed is None and not replayed.settled:
            replayed.report("progress", f"members stand at {replayed.standing}")
        for number in self.missing[:_SHOWN]:
            partition, offset = self.ledger.acknowledged[number]
            replayed.report(
                "at-least-once",
                f"record {number}, {partition.topic}-{partition.partition} at {offset}, was acknowledged and"
                " nobody processed it",
            )
        recorder.add(self.ended_us, "", Row.RUN_END.value)
        return replayed


class _HeartbeatWatch(LossWatch):
    """Takes down heartbeats as well, of members that do not tell of them."""

    def on_response(self, member: str, broker: str, request: object, response: object, t_us: int) -> None:
        """A response was handed to the member's socket."""
        if isinstance(request, ConsumerGroupHeartbeatRequest) and isinstance(
            response, ConsumerGroupHeartbeatResponse
        ):
            self._happenings.add(self._time.now_us, member, HeartbeatSeen(request, response))
