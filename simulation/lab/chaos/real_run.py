"""One run on real brokers, from its topics to the end of its last process, whatever processes run."""

from __future__ import annotations

import abc
import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeAlias, TypeVar

import msgspec
import structlog

from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.protocol.errors import EnvironmentLacks
from fencepost.simulation.faults.nemesis import Nemesis
from fencepost.simulation.faults.plan import FaultKind, FaultPlan
from fencepost.simulation.faults.stage import DisturbedNetwork
from fencepost.simulation.kernel.rng import Draws
from fencepost.simulation.kernel.rules import Direction
from fencepost.simulation.lab.chaos import messages as m
from fencepost.simulation.lab.chaos.admin import Admin
from fencepost.simulation.lab.chaos.brokers import RealBrokers
from fencepost.simulation.lab.chaos.clock import RealTime
from fencepost.simulation.lab.chaos.events import MemberEvent, MessageLost, RunEvents
from fencepost.simulation.lab.chaos.foreign_members import ForeignMembers
from fencepost.simulation.lab.chaos.fork_server import ForkServer
from fencepost.simulation.lab.chaos.kept import AnyRun, KeptRun, LostRecord
from fencepost.simulation.lab.chaos.processes import OpenNetwork, RunContext, RunProcesses
from fencepost.simulation.lab.chaos.producer import Producer
from fencepost.simulation.lab.chaos.result import Skipped
from fencepost.simulation.lab.chaos.time_scale import TimeScale
from fencepost.simulation.lab.chaos.topics import RealTopics, RecordCount
from fencepost.simulation.lab.clusters.cluster import RealCluster
from fencepost.simulation.lab.proxy.observer import ProxyObserver
from fencepost.simulation.lab.proxy.proxy import Proxy

log = structlog.get_logger(__name__)

DRAIN_S: Final = 60.0
"""Maximum time for the remaining records once no more are sent, in seconds."""
STUCK_S: Final = 5.0
"""Time without progress after which remaining records are lost, beyond a session and a rebalance, in seconds.
"""
_START_S: Final = 30.0
"""Maximum time that the last processes take to start, in seconds."""
_CLOSE_S: Final = 10.0
"""Maximum time that members take to close, in seconds."""
LOOK_S: Final = 0.1
_STRANGERS_S: Final = 1.0
"""Interval at which the run looks for other members in the group, in seconds."""
OF_NETWORK: Final = frozenset(
    {
        FaultKind.PARTITION,
        FaultKind.SLOW_LINK,
        FaultKind.LOSS,
        FaultKind.CONNECTION_LOSS,
        FaultKind.LOST_REQUEST,
        FaultKind.LOST_RESPONSE,
    }
)

Progress: TypeAlias = Callable[[float], None]
"""Receives the share of the run that is done, 0 to 1."""

W = TypeVar("W", bound=RunProcesses[Any, Any])


class RealRun(abc.ABC, Generic[W]):
    """One run: on entry it gets all that it needs, and on exit nothing of it is left.

    `own` is the cluster if it may be disturbed.
    """

    _program: m.ProgramName
    _nemesis: Callable[[Any, FaultPlan], Nemesis[Any]]
    """Makes what disturbs the world."""
    _always_proxied: bool
    """True if a proxy stands before the brokers even without disturbances of the network."""

    def __init__(
        self,
        played: TimeScale[Any],
        seed: int,
        admin: Admin,
        bootstrap_servers: str,
        *,
        config: GroupCoordinatorConfig,
        own: RealCluster | None,
        client: m.ClientName,
        flaw: str,
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
        self.happenings = RunEvents()
        self.ledger = RecordCount()
        self.skipped: list[Skipped] = []
        self.missing: list[int] = []
        """Records that were acknowledged and that no member processed."""
        self.ended_us = 0
        """Length of the run, in microseconds."""

    @property
    def factor(self) -> float:
        """Factor by which each time of the scenario was multiplied."""
        return self._played.factor

    async def __aenter__(self) -> Self:
        """Connect to the brokers, create the topics, and get ready to start members."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._leave_no_trace)
            self._producer = Producer(self._servers, self.ledger.acknowledge)
            stack.push_async_callback(self._producer.close)
            await self._producer.begin()
            self._topics = RealTopics(self._admin, self._producer, self.ledger, self.happenings, self._time)
            nursery = await stack.enter_async_context(ForkServer(self._program))
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
            self._world = self._make_world(
                RunContext(
                    time=self._time,
                    happenings=self.happenings,
                    ledger=self.ledger,
                    nursery=nursery,
                    brokers=self.brokers,
                    network=network,
                    bootstrap_servers=servers,
                ),
                stack,
            )
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End everything that was started."""
        await self._stack.aclose()

    # -- what differs -------------------------------------------------------------------------------------

    @abc.abstractmethod
    def _make_world(self, around: RunContext, stack: AsyncExitStack) -> W:
        """Return the world that is to be disturbed."""

    @abc.abstractmethod
    def _wire(self) -> ProxyObserver:
        """Return the observer of the proxy."""

    @abc.abstractmethod
    async def _watch(self) -> None:
        """Begin to watch the coordinator."""

    @property
    @abc.abstractmethod
    def _roster(self) -> ForeignMembers:
        """Return the members that may be in the group."""

    @abc.abstractmethod
    async def _conclude(self) -> None:
        """Conclude the run after the quiet phase: let records be processed, and report the end."""

    @abc.abstractmethod
    def _given(self) -> dict[str, Any]:
        """Return what the judge gets of this kind of run."""

    @classmethod
    def topics_of(cls, scenario: Any) -> Iterable[str]:
        """Return the topics that a run of the scenario makes."""
        return tuple(scenario.named_topics)

    def _cannot(self, kind: FaultKind) -> str | None:
        """Return why that can't happen here; None if it can."""
        return self.brokers.cannot(kind)

    # -- the stage ----------------------------------------------------------------------------------------

    def _possible(self, plan: FaultPlan) -> FaultPlan:
        """Return the plan without what can't be played here, and note what that is."""
        reasons = {entry.kind: self._cannot(entry.kind) for entry in plan.entries}
        times = Counter(entry.kind for entry in plan.entries)
        self.skipped = [
            Skipped(kind=kind.value, times=times[kind], reason=reason)
            for kind, reason in reasons.items()
            if reason is not None
        ]
        left = tuple(entry for entry in plan.entries if reasons[entry.kind] is None)
        return msgspec.structs.replace(plan, entries=left)

    async def _network(self, stack: AsyncExitStack) -> tuple[DisturbedNetwork, str]:
        """Return the network between members and brokers, with its address: a proxy if it has something to
        do."""
        if not self._always_proxied and not any(entry.kind in OF_NETWORK for entry in self._plan.entries):
            return OpenNetwork(), self._servers
        proxy = Proxy(
            await self._admin.nodes(),
            rng=Draws(self._seed).random("proxy"),
            observer=self._wire(),
            members=self._named(),
        )
        await stack.enter_async_context(proxy)
        return proxy, proxy.bootstrap_servers

    def _named(self) -> dict[str, str] | None:
        """Return hosts by client id, if those differ from the hosts' names."""
        return None

    def _tell(self, hook: str, *arguments: object) -> None:
        self.happenings.add(self._time.now_us, "", MemberEvent(hook, arguments))

    # -- the run ------------------------------------------------------------------------------------------

    async def play(self, progress: Progress | None = None) -> None:
        """Play from the first start of a member until all records are processed, and the last member has
        left.

        :raises MemberFailed: if a member's program fails.
        :raises EnvironmentLacks: if the brokers do not come back, another program ends a process, or has a
            member in the group.
        """
        for topic in self._scenario.all_topics:
            self._topics.create(topic.name, topic.partitions, topic.records_per_second)
        await self._time.wait(self._topics.changes.settled())
        self._time.begin()
        await self._watch()
        self._world.on_calm = self._calmed
        self._world.begin()
        self._nemesis(self._world, self._plan).begin()
        self._time.spawn(self._look_for_strangers())
        if progress is not None:
            self._time.spawn(self._show(progress, self._plan.end_us))
        await self._time.wait(self._calm.wait())
        await self._time.until(self._calm_us + self._played.quiet_us)
        await self._conclude()
        self.ended_us = self._time.now_us
        self._world.stop_all()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await until(lambda: not self._world.alive)

    async def _look_for_strangers(self) -> None:
        group = self._scenario.group
        while True:
            await asyncio.sleep(_STRANGERS_S)
            try:
                found = await self._admin.group(group.id, group.protocol)
            except EnvironmentLacks:
                continue  # brokers die and freeze: code that needs them complains
            if (stranger := self._roster.stranger(found)) is not None:
                await asyncio.sleep(2 * _STRANGERS_S)  # another run must see the members of this one, too
                raise EnvironmentLacks(
                    f"the group {group.id} has a member of another client, {stranger}: choose another"
                    " group.id for the scenario"
                )

    async def _show(self, progress: Progress, end_us: int) -> None:
        while True:
            progress(min(1.0, self._time.now_us / end_us))
            await asyncio.sleep(LOOK_S)

    def _calmed(self) -> None:
        self._time.spawn(self._bring_back())

    async def _bring_back(self) -> None:
        """Begin the quiet phase once all brokers serve again, and all processes run that should."""
        await self.brokers.calm()
        await self._topics.changes.settled()
        self._world.bring_back()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_START_S):
                await until(lambda: self._world.ready)
        self._tell("on_faults_end")
        self._calm_us = self._time.now_us
        self._calm.set()

    async def _drain(self, session_ms: int, subscribed: Callable[[str], bool]) -> None:
        """Send no more records; wait until the existing ones have been processed."""
        await self._producer.finish()
        began_us = moved_us = self._time.now_us
        stuck_us = STUCK_S * 1_000_000 + 1_000 * session_ms + self._scenario.group.rebalance_timeout.us
        processed = -1
        while self.ledger.missing(subscribed):
            now_us = self._time.now_us
            if self.ledger.processed != processed:
                processed, moved_us = self.ledger.processed, now_us
            if now_us > moved_us + stuck_us or now_us > began_us + stuck_us + DRAIN_S * 1_000_000:
                return
            await asyncio.sleep(LOOK_S)

    def kept(self) -> AnyRun:
        """Return all that the judge gets."""
        return KeptRun(
            scenario=self._scenario,
            seed=self._seed,
            client=self._client,
            config=self._config,
            brokers=list(self.brokers.brokers),
            happenings=self.happenings.all,
            lost=[LostRecord(number, *self.ledger.acknowledged[number]) for number in self.missing],
            ended_us=self.ended_us,
            **self._given(),
        )

    async def _leave_no_trace(self) -> None:
        """Delete the run's topics and its group, each as far as the cluster lets us.

        A cluster of ours stays as it is after a failure: its brokers may be down, and the caller that started
        it ends it.
        """
        if self._own is not None and not self.ended_us:
            return
        deleting = [self._topics.clean_up(name) for name in self._topics.made]
        *_, group_stays = reasons = await asyncio.gather(*map(_why_left, [*deleting, self._delete_group()]))
        if any(reasons):
            left: dict[str, object] = {"topics": list(self._topics.made)} if self._topics.made else {}
            if group_stays:
                left["group"] = self._scenario.group.id
            log.error("left_on_the_cluster", **left, reason="; ".join(dict.fromkeys(filter(None, reasons))))

    async def _delete_group(self) -> None:
        if self._time.began_us:  # until then a group of that id is another run's
            group = self._scenario.group
            await self._admin.delete_group(group.id, group.protocol, self._roster)


async def _why_left(deleting: Coroutine[Any, Any, None]) -> str | None:
    """Return why something can't be deleted; None once it is deleted."""
    try:
        async with asyncio.timeout(_CLOSE_S):
            await deleting
    except EnvironmentLacks as error:
        return str(error)
    except TimeoutError:
        return f"it took longer than {_CLOSE_S:g} s"
    return None


async def until(holds: Callable[[], bool]) -> None:
    """Wait for a condition that something else fulfils."""
    while True:
        if holds():
            return
        await asyncio.sleep(LOOK_S)


class LossWatch(ProxyObserver):
    """Records what the proxy lost."""

    def __init__(self, happenings: RunEvents, time: RealTime) -> None:
        self._happenings = happenings
        self._time = time

    def on_loss(self, member: str, broker: str, direction: Direction, request: object, t_us: int) -> None:
        """Record that a request did not reach the broker, or a response the member."""
        lost = MessageLost(member, broker, str(direction), type(request).__name__)
        self._happenings.add(self._time.now_us, "", lost)
