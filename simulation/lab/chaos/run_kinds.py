"""The two kinds of runs on real brokers: of consumers, and of Streams applications."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import msgspec

from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.protocol.classic import HeartbeatResponse, JoinGroupResponse
from fencepost.coordinator.protocol.consumer import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.regular_expressions import matching
from fencepost.coordinator.protocol.slices import at_once
from fencepost.coordinator.protocol.streams import StreamsGroupHeartbeatResponse
from fencepost.coordinator.protocol.topics import OFFSETS_TOPIC
from fencepost.member.streams.application.changelog import changelog_topic
from fencepost.simulation.faults.plan import FaultKind
from fencepost.simulation.kafka.nemesis import GroupNemesis
from fencepost.simulation.kernel.supervisor import ALIVE
from fencepost.simulation.kernel.world import host_names
from fencepost.simulation.lab.chaos.events import HeartbeatSeen, StreamsMemberHeard
from fencepost.simulation.lab.chaos.foreign_members import ForeignMembers
from fencepost.simulation.lab.chaos.merge import RunClock
from fencepost.simulation.lab.chaos.observed import ObservedCoordinator
from fencepost.simulation.lab.chaos.played import Arrival
from fencepost.simulation.lab.chaos.processes import RunContext
from fencepost.simulation.lab.chaos.real_run import LossWatch, RealRun
from fencepost.simulation.lab.chaos.result import Skipped
from fencepost.simulation.lab.chaos.world import ConsumerProcesses, RealApplication, classic_interval_ms
from fencepost.simulation.lab.proxy.observer import ProxyObserver
from fencepost.simulation.scenarios.streams import StreamsScenario
from fencepost.simulation.scenarios.timing import SLACK_US
from fencepost.simulation.scenarios.values import Duration
from fencepost.simulation.streams.nemesis import StreamsNemesis

_LOOKS: Final = 3
_BETWEEN_LOOKS_US: Final = 1_000_000
"""Time between two looks: a busy machine may leave a process without the processor just at a look."""
_MOST_THREADS: Final = 200
"""Highest number of a thread of one client; each thread is a client of the brokers under its own name."""


class RealConsumerRun(RealRun[ConsumerProcesses]):
    """One run of a scenario of consumers."""

    _nemesis = GroupNemesis

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self._program = self._client
        self._always_proxied = self._client != "fencepost"  # its heartbeats are seen on their way
        self._subscriptions: set[tuple[tuple[str, ...], str | None]] = set()
        self._arrivals: list[Arrival] = []
        self.observed: ObservedCoordinator | None = None
        """The coordinator as its log shows it, if the cluster has one."""

    def _make_world(self, around: RunContext, stack: AsyncExitStack) -> ConsumerProcesses:
        return ConsumerProcesses(
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


class RealApplicationRun(RealRun[RealApplication]):
    """One run of a scenario of Streams applications."""

    _program = "streams"
    _nemesis = StreamsNemesis
    _always_proxied = True  # responses to members are seen on their way

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self._session_ms = self._config.group_streams_session_timeout_ms
        interval_ms = self._config.group_streams_heartbeat_interval_ms
        self._is_classic = self._scenario.group.protocol == "classic"
        if self._is_classic:
            self._session_ms, interval_ms = _classic_timeouts_ms(self._config)
        rebalance_us = self._scenario.group.rebalance_timeout.us
        self.bound_us = 1_000 * (self._session_ms + 3 * interval_ms) + rebalance_us + SLACK_US
        """Maximum time until a request to shut the application down reaches every client, in microseconds."""

    @classmethod
    def topics_of(cls, scenario: StreamsScenario) -> Iterable[str]:
        """Return the topics that a run makes, changelogs included."""
        return (*super().topics_of(scenario), *_changelogs(scenario))

    def _make_world(self, around: RunContext, stack: AsyncExitStack) -> RealApplication:
        directory = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="fencepost-chaos-", ignore_cleanup_errors=True)
        )
        return RealApplication(
            self._scenario,
            self._seed,
            around,
            session_ms=self._session_ms,
            state_dir=Path(directory),
            flaw=self._flaw,
        )

    def _names(self) -> list[str]:
        return host_names("client", self._scenario.group.members)

    def _named(self) -> dict[str, str]:
        return {
            f"{client}-StreamThread-{number}": client
            for client in self._names()
            for number in range(1, _MOST_THREADS + 1)
        }

    def _wire(self) -> ProxyObserver:
        return _MemberWatch(self.happenings, self._time)

    async def _watch(self) -> None:
        """Note changelogs for deletion. Members are watched on the wire, and clients check themselves."""
        self._topics.made.update(dict.fromkeys(_changelogs(self._scenario)))

    async def _conclude(self) -> None:
        """Judge what has settled; start an application again that was shut down, to process the rest."""
        group = self._scenario.group
        for _ in range(_LOOKS):
            found = await self._admin.group(group.id, group.protocol)
            self._tell("on_look", [member.client_id for member in found.members])
            await self._time.until(self._time.now_us + _BETWEEN_LOOKS_US)
        self._tell("on_end")
        if self._world.asked:
            self._world.begin_again()
        await self._time.wait(self._drain(self._session_ms, self._is_source))
        self.missing = self.ledger.missing(self._is_source)

    @property
    def _roster(self) -> ForeignMembers:
        return ForeignMembers(self._named(), [topic.name for topic in self._scenario.topics])

    def _is_source(self, topic: str) -> bool:
        """Return true if threads read the topic; the global thread reads its own again with each start."""
        return any(each.name == topic for each in self._scenario.topics)

    def _given(self) -> dict[str, Any]:
        timeout_us = self._scenario.network.request_timeout.us if self._is_classic else None
        return {
            "members": [(name, None) for name in self._names()],
            "shutdown_us": self.bound_us,
            "request_timeout_us": timeout_us,
        }


def _classic_timeouts_ms(config: GroupCoordinatorConfig) -> tuple[int, int]:
    """Return the session timeout and the heartbeat interval of members of the classic protocol."""
    session_ms = max(config.group_streams_session_timeout_ms, config.group_min_session_timeout_ms)
    return session_ms, classic_interval_ms(session_ms)


def as_played(scenario: StreamsScenario, config: GroupCoordinatorConfig) -> StreamsScenario:
    """Return a scenario of the classic protocol with the timeouts that its members have on such brokers."""
    session_ms, interval_ms = _classic_timeouts_ms(config)
    group = msgspec.structs.replace(
        scenario.group,
        session_timeout=Duration(session_ms * 1_000),
        heartbeat_interval=Duration(interval_ms * 1_000),
    )
    return msgspec.structs.replace(scenario, group=group)


def _changelogs(scenario: StreamsScenario) -> list[str]:
    """Return the topics that the brokers create for the application's stores."""
    if not scenario.application.changelogs:
        return []
    return [changelog_topic(scenario.group.id, topic.name) for topic in scenario.topics]


class _MemberWatch(LossWatch):
    """Records what members receive about their group."""

    def on_response(self, member: str, broker: str, request: object, response: object, t_us: int) -> None:
        """A response was handed to the member's socket."""
        match response:
            case StreamsGroupHeartbeatResponse(error_code=ErrorCode.NONE, member_epoch=epoch):
                self._heard(member, max(epoch, 0), heartbeat=True)
            case JoinGroupResponse(error_code=ErrorCode.NONE, generation=epoch):
                self._heard(member, epoch, heartbeat=False)
            case HeartbeatResponse(error_code=ErrorCode.NONE):
                self._heard(member, 0, heartbeat=True)

    def _heard(self, member: str, epoch: int, *, heartbeat: bool) -> None:
        self._happenings.add(self._time.now_us, member, StreamsMemberHeard(epoch, heartbeat))
