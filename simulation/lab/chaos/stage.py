"""A run of consumers on real brokers, and its replay."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

from fencepost.coordinator.protocol.consumer import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from fencepost.coordinator.protocol.regular_expressions import matching
from fencepost.coordinator.protocol.slices import at_once
from fencepost.coordinator.protocol.topics import OFFSETS_TOPIC
from fencepost.simulation.faults.draw import FaultKind
from fencepost.simulation.kafka.member import ALIVE
from fencepost.simulation.kafka.nemesis import GroupNemesis
from fencepost.simulation.lab.chaos.events import HeartbeatSeen
from fencepost.simulation.lab.chaos.foreign_members import ForeignMembers
from fencepost.simulation.lab.chaos.merge import RunClock
from fencepost.simulation.lab.chaos.observed import ObservedCoordinator
from fencepost.simulation.lab.chaos.played import Arrival
from fencepost.simulation.lab.chaos.processes import RunContext
from fencepost.simulation.lab.chaos.result import Skipped
from fencepost.simulation.lab.chaos.staging import LossWatch, Staging
from fencepost.simulation.lab.chaos.world import RealWorld
from fencepost.simulation.lab.proxy.observer import ProxyObserver


class RealStage(Staging[RealWorld]):
    """One run of a scenario of consumers."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self._program = self._client
        self._always_proxied = self._client != "fencepost"  # its heartbeats are seen on their way
        self._subscriptions: set[tuple[tuple[str, ...], str | None]] = set()
        self._arrivals: list[Arrival] = []
        self.observed: ObservedCoordinator | None = None
        """The coordinator as its log shows it, if the cluster has one."""

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
            return "an exception of its callbacks comes out of poll, and has no other effect"
        return super()._cannot(kind)

    def _wire(self) -> ProxyObserver:
        if self._client == "fencepost":
            return LossWatch(self.happenings, self._time)
        return _HeartbeatWatch(self.happenings, self._time)

    def _begin(self) -> None:
        self._world.begin()
        GroupNemesis(self._world, self._plan).begin()

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
        return ForeignMembers(self._world.members, self._scenario.named_topics)

    def _subscribed(self, topic: str) -> bool:
        """Return true if any host that runs at the end subscribes to the topic."""
        return any(
            topic in names or (pattern is not None and bool(at_once(matching(pattern, (topic,)))))
            for names, pattern in self._subscriptions
        )

    def _given(self) -> dict[str, Any]:
        return {
            "members": [(host.name, host.instance_id) for host in self._world.members.values()],
            "arrivals": None if self.observed is None else self._arrivals,
            "leader_epoch": -1 if self.observed is None else self.observed.leader_epoch,
        }


class _HeartbeatWatch(LossWatch):
    """Records heartbeats as well, of members that do not report them."""

    def on_response(self, member: str, broker: str, request: object, response: object, t_us: int) -> None:
        """A response was handed to the member's socket."""
        if isinstance(request, ConsumerGroupHeartbeatRequest) and isinstance(
            response, ConsumerGroupHeartbeatResponse
        ):
            self._happenings.add(self._time.now_us, member, HeartbeatSeen(request, response))
