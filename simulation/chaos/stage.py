"""All of one run on real brokers, from its topics to the end of its last process; then it is told again."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Final, TypeAlias

import msgspec
import re2

from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.protocol.consumer import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from fencepost.coordinator.protocol.errors import EnvironmentLacks
from fencepost.simulation.chaos import messages as m
from fencepost.simulation.chaos.admin import OFFSETS_TOPIC, Admin
from fencepost.simulation.chaos.brokers import RealBrokers
from fencepost.simulation.chaos.clock import RealTime
from fencepost.simulation.chaos.happenings import Happenings, HeartbeatSeen, Told
from fencepost.simulation.chaos.ledger import Ledger
from fencepost.simulation.chaos.merge import RunClock
from fencepost.simulation.chaos.nursery import Nursery
from fencepost.simulation.chaos.observed import Arrival, ObservedCoordinator
from fencepost.simulation.chaos.producer import Producer
from fencepost.simulation.chaos.result import Skipped
from fencepost.simulation.chaos.retelling import Retelling
from fencepost.simulation.chaos.tempo import Tempo
from fencepost.simulation.chaos.topics import RealTopics
from fencepost.simulation.chaos.world import OpenNetwork, RealWorld
from fencepost.simulation.clusters.cluster import Cluster
from fencepost.simulation.faults.nemesis import Nemesis
from fencepost.simulation.faults.plan import Kind, Plan
from fencepost.simulation.faults.stage import DisturbedNetwork
from fencepost.simulation.nodes.member import ALIVE
from fencepost.simulation.proxy.observer import ProxyObserver
from fencepost.simulation.proxy.proxy import Proxy
from fencepost.simulation.trace.recorder import Recorder
from fencepost.simulation.trace.schema import Kind as Row
from fencepost.simulation.world.observers import Observer
from fencepost.simulation.world.rng import Streams
from fencepost.simulation.world.rules import Direction

_DRAIN_S: Final = 60.0
"""How long members may take for what is left when no more records come."""
_STUCK_S: Final = 5.0
"""When nothing has been processed for so long, and for a session and a rebalance, what is left is lost."""
_START_S: Final = 30.0
"""How long the last processes may take to start."""
_CLOSE_S: Final = 10.0
"""How long members may take to close."""
_LOOK_S: Final = 0.1
_SHOWN: Final = 5
_OF_NETWORK: Final = frozenset(
    {
        Kind.PARTITION,
        Kind.SLOW_LINK,
        Kind.LOSS,
        Kind.CONNECTION_LOSS,
        Kind.LOST_REQUEST,
        Kind.LOST_RESPONSE,
    }
)

Progress: TypeAlias = Callable[[float], None]
"""Takes how much of the run is done, 0 to 1."""


class RealStage:
    """One run: entered, it has all that it needs; left, nothing is left of it.

    `own` is the cluster if it may be disturbed.
    """

    def __init__(
        self,
        played: Tempo,
        seed: int,
        admin: Admin,
        bootstrap_servers: str,
        *,
        config: GroupCoordinatorConfig,
        own: Cluster | None,
        client: m.ClientName,
        flaw: str = "",
    ) -> None:
        self._played = played
        self._scenario = played.scenario
        self._seed = seed
        self._admin = admin
        self._servers = bootstrap_servers
        self._config = config
        self._own = own
        self._client: m.ClientName = client
        self._flaw = flaw
        self._time = RealTime()
        self._calm = asyncio.Event()
        self._calm_us = 0
        self._stack = AsyncExitStack()
        self._subscriptions: set[tuple[tuple[str, ...], str | None]] = set()
        self._arrivals: list[Arrival] = []
        self.observed: ObservedCoordinator | None = None
        """What the coordinator's log tells, if the cluster has one."""
        self.happenings = Happenings()
        self.ledger = Ledger()
        self.skipped: list[Skipped] = []
        self.missing: list[int] = []
        """Records that were acknowledged and that nobody processed."""
        self.ended_us = 0
        """How long the run was."""

    async def __aenter__(self) -> RealStage:
        """Meet the brokers, make the topics, and get ready to start members."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._leave_no_trace)
            self._producer = Producer(self._servers, self.ledger.acknowledge)
            stack.push_async_callback(self._producer.close)
            await self._producer.begin()
            self._topics = RealTopics(self._admin, self._producer, self.ledger, self.happenings, self._time)
            self._nursery = await stack.enter_async_context(Nursery(self._client))
            self.brokers = RealBrokers(
                self._admin,
                self._own,
                self._scenario.group.id,
                time=self._time,
                topics=self._topics,
                tell=self._tell,
            )
            await self.brokers.begin()
            self._plan = self._possible(self._played.plan)
            network, servers = await self._network(stack)
            stack.push_async_callback(self._time.close)
            self._world = RealWorld(
                self._scenario,
                self._seed,
                members=self._plan.members,
                client=self._client,
                bootstrap_servers=servers,
                time=self._time,
                happenings=self.happenings,
                ledger=self.ledger,
                nursery=self._nursery,
                brokers=self.brokers,
                network=network,
                flaw=self._flaw,
            )
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all that there is."""
        await self._stack.aclose()

    def _possible(self, plan: Plan) -> Plan:
        """The plan without what can't be played here, which is taken down."""
        reasons = {entry.kind: self._cannot(entry.kind) for entry in plan.entries}
        times = Counter(entry.kind for entry in plan.entries)
        self.skipped = [
            Skipped(kind=kind.value, times=times[kind], reason=reason)
            for kind, reason in reasons.items()
            if reason is not None
        ]
        left = tuple(entry for entry in plan.entries if reasons[entry.kind] is None)
        return msgspec.structs.replace(plan, entries=left)

    def _cannot(self, kind: Kind) -> str | None:
        if kind is Kind.CALLBACK_ERROR and self._client == "confluent":
            return "what its callbacks raise comes out of poll, and nothing else becomes of it"
        return self.brokers.cannot(kind)

    async def _network(self, stack: AsyncExitStack) -> tuple[DisturbedNetwork, str]:
        """What members reach the brokers over: a proxy if the plan has faults of the network.

        Or if members do not tell of their heartbeats, which then are seen on their way.
        """
        foreign = self._client != "fencepost"
        if not foreign and not any(entry.kind in _OF_NETWORK for entry in self._plan.entries):
            return OpenNetwork(), self._servers
        rng = Streams(self._seed).random("proxy")
        proxy = Proxy(
            await self._admin.nodes(),
            rng=rng,
            observer=_Wire(self.happenings, self._time, heartbeats=foreign),
        )
        await stack.enter_async_context(proxy)
        return proxy, proxy.bootstrap_servers

    def _tell(self, hook: str, *arguments: object) -> None:
        self.happenings.add(self._time.now_us, "", Told(hook, arguments))

    # -- the run ------------------------------------------------------------------------------------------

    async def play(self, progress: Progress | None = None) -> None:
        """From the first start of a member until all records are processed, and the last member has left.

        :raises MemberFailed: if a member's program fails.
        :raises EnvironmentLacks: if the brokers do not come back.
        """
        for topic in self._scenario.topics:
            self._topics.create(topic.name, topic.partitions, topic.records_per_second)
        await self._time.wait(self._topics.settled())
        self._time.begin()
        await self._observe()
        world, plan = self._world, self._plan
        world.on_calm = self._calmed
        world.begin()
        Nemesis(world, plan).begin()
        if progress is not None:
            self._time.spawn(self._show(progress, plan.end_us))
        await self._time.wait(self._calm.wait())
        await self._time.until(self._calm_us + self._played.quiet_us)
        await self._time.wait(self._drain())
        if self.observed is not None:
            await self._time.wait(self.observed.caught_up())
        self._tell("on_end")
        self.ended_us = self._time.now_us
        self.missing = self.ledger.missing(self._subscribed)
        world.stop_all()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await _until(lambda: not world.alive)

    async def _observe(self) -> None:
        """Follow the coordinator's log, if the cluster shows one."""
        if not await self._admin.partitions(OFFSETS_TOPIC):
            reason = (
                f"the cluster shows no {OFFSETS_TOPIC}: members are checked, the coordinator's state is not"
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

    async def _show(self, progress: Progress, end_us: int) -> None:
        while True:
            progress(min(1.0, self._time.now_us / end_us))
            await asyncio.sleep(_LOOK_S)

    def _calmed(self) -> None:
        self._time.spawn(self._bring_back())

    async def _bring_back(self) -> None:
        """The quiet phase begins when all brokers serve again, and all processes run that are to."""
        await self.brokers.calm()
        await self._topics.settled()
        self._world.bring_back()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_START_S):
                await _until(lambda: all(host.ready for host in self._world.members.values()))
        self._tell("on_faults_end")
        self._calm_us = self._time.now_us
        self._calm.set()

    async def _drain(self) -> None:
        """No more records; wait until those that there are have been processed."""
        await self._producer.finish()
        self._subscriptions = {
            host.subscription for host in self._world.members.values() if host.wanted or host.status in ALIVE
        }
        began_us = moved_us = self._time.now_us
        dead_us = 1_000 * self._config.group_consumer_session_timeout_ms
        stuck_us = _STUCK_S * 1_000_000 + dead_us + self._scenario.group.rebalance_timeout.us
        processed = -1
        while self.ledger.missing(self._subscribed):
            now_us = self._time.now_us
            if self.ledger.processed != processed:
                processed, moved_us = self.ledger.processed, now_us
            if now_us > moved_us + stuck_us or now_us > began_us + stuck_us + _DRAIN_S * 1_000_000:
                return
            await asyncio.sleep(_LOOK_S)

    def _subscribed(self, topic: str) -> bool:
        """Whether anybody who runs at the end subscribes to the topic."""
        return any(
            topic in names or (pattern is not None and re2.fullmatch(pattern, topic) is not None)
            for names, pattern in self._subscriptions
        )

    async def _leave_no_trace(self) -> None:
        """Delete the run's topics and its group, as far as the cluster lets us.

        Not on a cluster of ours after a failure: its brokers may be down, and whoever started it ends it.
        """
        if self._own is not None and not self.ended_us:
            return
        with contextlib.suppress(EnvironmentLacks, TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await self._topics.delete_all()
                await self._admin.delete_group(self._scenario.group.id)

    # -- afterwards ---------------------------------------------------------------------------------------

    def retell(self, observers: Iterable[Observer], recorder: Recorder) -> Retelling:
        """Tell observers all that happened, in one order."""
        retelling = Retelling(
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
        retelling.tell_all(self.happenings, self._arrivals, self.ended_us)
        if self.observed is None and not retelling.settled:
            retelling.report("progress", f"members stand at {retelling.standing}")
        for number in self.missing[:_SHOWN]:
            partition, offset = self.ledger.acknowledged[number]
            retelling.report(
                "at-least-once",
                f"record {number}, {partition.topic}-{partition.partition} at {offset}, was acknowledged and"
                " nobody processed it",
            )
        recorder.add(self.ended_us, "", Row.RUN_END.value)
        return retelling


async def _until(holds: Callable[[], bool]) -> None:
    while True:
        if holds():
            return
        await asyncio.sleep(_LOOK_S)


class _Wire(ProxyObserver):
    """Takes down what the proxy lost, and heartbeats if members do not tell of them."""

    def __init__(self, happenings: Happenings, time: RealTime, *, heartbeats: bool) -> None:
        self._happenings = happenings
        self._time = time
        self._heartbeats = heartbeats

    def on_response(self, member: str, broker: str, request: object, response: object, t_us: int) -> None:
        """A response was handed to the member's socket."""
        if (
            self._heartbeats
            and isinstance(request, ConsumerGroupHeartbeatRequest)
            and isinstance(response, ConsumerGroupHeartbeatResponse)
        ):
            self._happenings.add(self._time.now_us, member, HeartbeatSeen(request, response))

    def on_loss(self, member: str, broker: str, direction: Direction, request: object, t_us: int) -> None:
        """A request did not reach the broker, or no answer to it the member."""
        lost = Told("on_loss", (member, broker, str(direction), request))
        self._happenings.add(self._time.now_us, "", lost)
