"""A run of consumers on real brokers, and its replay."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final

from fencepost.coordinator.classic.states import ClassicGroupState
from fencepost.coordinator.protocol.classic import HeartbeatResponse, JoinGroupRequest
from fencepost.coordinator.protocol.consumer import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    LeaveGroupRequest,
)
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.outcome import Outcome, Request, Response
from fencepost.coordinator.protocol.records import GroupMetadataKey
from fencepost.coordinator.protocol.regular_expressions import matching
from fencepost.coordinator.protocol.slices import at_once
from fencepost.simulation.faults.draw import FaultKind
from fencepost.simulation.kafka.member import ALIVE
from fencepost.simulation.kafka.nemesis import GroupNemesis
from fencepost.simulation.kernel.observers import Observer, StepEvent
from fencepost.simulation.kernel.world import RunCounts
from fencepost.simulation.lab.chaos.admin import OFFSETS_TOPIC
from fencepost.simulation.lab.chaos.classic_messages import CLASSIC_REQUESTS, CLASSIC_RESPONSES
from fencepost.simulation.lab.chaos.events import HeartbeatSeen
from fencepost.simulation.lab.chaos.foreign_members import ForeignMembers
from fencepost.simulation.lab.chaos.merge import RunClock
from fencepost.simulation.lab.chaos.observed import ObservedCoordinator
from fencepost.simulation.lab.chaos.played import Arrival
from fencepost.simulation.lab.chaos.processes import RunContext
from fencepost.simulation.lab.chaos.replayed import ReplayedWorld
from fencepost.simulation.lab.chaos.result import Skipped
from fencepost.simulation.lab.chaos.staging import LossWatch, Staging
from fencepost.simulation.lab.chaos.world import RealWorld
from fencepost.simulation.lab.proxy.observer import ProxyObserver
from fencepost.simulation.trace.groups import GroupTraceWriter
from fencepost.simulation.trace.rows import TraceRows
from fencepost.simulation.trace.schema import RowKind

_PREPARING: Final = str(ClassicGroupState.PREPARING_REBALANCE)
_UNDER_WAY: Final = ErrorCode.REBALANCE_IN_PROGRESS
_UNSEEN: Final = frozenset({"commit-before-release"})
"""Invariants that can't be judged for members that do not report their requests."""
_OF_COORDINATOR: Final = frozenset(
    {"one-claimant", "progress", "quiet", "gone-members", "reply-equals-state"}
)
"""Invariants that can't be judged for a group whose coordinator shows no log."""


class RealStage(Staging[RealWorld, ReplayedWorld]):
    """One run of a scenario of consumers."""

    _at_least_once = "at-least-once"

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

    # -- afterwards ---------------------------------------------------------------------------------------

    def _replay(self, observers: Iterable[Observer], recorder: TraceRows) -> ReplayedWorld:
        self._trace_writer = RealTraceWriter(recorder, self._scenario.group.members)
        return ReplayedWorld(
            self._scenario,
            self._config,
            self.observed,
            self._arrivals,
            client=self._client,
            members=[(host.name, host.instance_id) for host in self._world.members.values()],
            brokers=self.brokers.brokers,
            observers=[self._trace_writer, *self._checkers(), *observers],
            sequence=lambda: recorder.seq,
        )

    def _checkers(self) -> Sequence[Observer]:
        """Return the checkers that can judge what is visible."""
        from fencepost.simulation.checkers import real_checkers

        checkers = real_checkers(self._scenario.protocols)
        for checker in checkers:
            if self._client != "fencepost":
                checker.left_out |= _UNSEEN
            if self.observed is None:
                checker.left_out |= _OF_COORDINATOR
        return checkers

    def _judge(self, replayed: ReplayedWorld) -> None:
        if self.observed is None and not replayed.settled:
            replayed.report("progress", f"members stand at {replayed.standing}")

    def counts(self, replayed: ReplayedWorld) -> RunCounts:
        """Return the counts of the run."""
        return RunCounts(self._trace_writer.heartbeats, self._trace_writer.rebalances)


class RealTraceWriter(GroupTraceWriter):
    """The trace of a real run: heartbeats are written when members get responses, all else as in simulation.

    The log of a classic group shows only the end of a round. A round begins when a member sends what begins
    one. It also begins when a member learns of a round that no process has caused: a session has ended.
    """

    def on_coordinator_step(self, host: str, event: StepEvent, outcome: Outcome, now_us: int) -> None:
        """Write an outcome of the log. Between a round's beginning and its record, a classic group only
        commits."""
        active = self.world.active
        is_classic = active is not None and self.world.group_id in active.classic.groups
        if not is_classic or any(isinstance(each.key, GroupMetadataKey) for each in outcome.records):
            super().on_coordinator_step(host, event, outcome, now_us)

    def on_member_request(self, host: str, request: Request, now_us: int) -> None:
        """Begin a round if the member joins or leaves."""
        if isinstance(request, LeaveGroupRequest):
            self._round(host, "leave", now_us)
        elif isinstance(request, JoinGroupRequest) and request.member_id and request.instance_id is None:
            self._round(host, "join", now_us)

    def _round(self, host: str, cause: str, now_us: int) -> None:
        active = self.world.active
        found = None if active is None else active.kinds.find(self.world.group_id)
        if active is None or (found is not None and found[0] is not active.classic):
            return
        generation = 0 if found is None else found[1].generation
        if generation < self._group_epoch or (found is None and cause == "leave"):
            return  # it has begun already
        self._group_epoch = generation + 1
        before, self._group_state = self._group_state, _PREPARING
        self._add(now_us, host, RowKind.GROUP_EPOCH, state_to=_PREPARING, detail=cause)
        self._add(now_us, host, RowKind.GROUP_STATE, state_from=before, state_to=_PREPARING)
        self._raise(_PREPARING)

    def on_member_response(
        self, host: str, request: Request, response: Response | Exception, now_us: int
    ) -> None:
        """Write the response to a heartbeat."""
        if isinstance(request, ConsumerGroupHeartbeatRequest) and isinstance(
            response, ConsumerGroupHeartbeatResponse
        ):
            super()._heartbeat(request, Outcome(reply=response), now_us)
        elif isinstance(request, CLASSIC_REQUESTS) and isinstance(response, CLASSIC_RESPONSES):
            if isinstance(response, HeartbeatResponse) and response.error_code is _UNDER_WAY:
                self._round(host, "timeout", now_us)
            self._answered(request, response, now_us)

    def _heartbeat(self, event: ConsumerGroupHeartbeatRequest, outcome: Outcome, now_us: int) -> None:
        """Do nothing on the coordinator's side: the row of a heartbeat is written when the member gets the
        response."""


class _HeartbeatWatch(LossWatch):
    """Records heartbeats as well, of members that do not report them."""

    def on_response(self, member: str, broker: str, request: object, response: object, t_us: int) -> None:
        """A response was handed to the member's socket."""
        if isinstance(request, ConsumerGroupHeartbeatRequest) and isinstance(
            response, ConsumerGroupHeartbeatResponse
        ):
            self._happenings.add(self._time.now_us, member, HeartbeatSeen(request, response))
