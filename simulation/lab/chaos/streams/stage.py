"""A run of an application on real brokers, and the same run told again."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

from fencepost.coordinator.protocol.classic import HeartbeatResponse, JoinGroupResponse
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.streams import StreamsGroupHeartbeatResponse
from fencepost.member.streams.application.changelog import changelog_topic
from fencepost.simulation.lab.chaos.events import StreamsMemberHeard
from fencepost.simulation.lab.chaos.foreign_members import ForeignMembers
from fencepost.simulation.lab.chaos.processes import RunContext
from fencepost.simulation.lab.chaos.staging import LossWatch, Staging
from fencepost.simulation.lab.chaos.streams.replayed import ReplayedApplication
from fencepost.simulation.lab.chaos.streams.world import RealApplication
from fencepost.simulation.lab.proxy.observer import ProxyObserver
from fencepost.simulation.scenarios.scenario import ScenarioTopic
from fencepost.simulation.scenarios.timing import SLACK_US
from fencepost.simulation.streams.nemesis import StreamsNemesis
from fencepost.simulation.trace.rows import TraceRows
from fencepost.simulation.trace.schema import RowKind as Row

_SHOWN: Final = 5
_LOOKS: Final = 3
_BETWEEN_LOOKS_US: Final = 1_000_000
"""A busy machine may leave a process without the processor just when one looks."""
_MOST_THREADS: Final = 200
"""Of one client, by their numbers: each is a client of the brokers under its own name."""


class RealApplicationStage(Staging[RealApplication]):
    """One run of a scenario of Streams applications."""

    _program = "streams"
    _always_proxied = True  # what members hear is seen on its way

    def __init__(self, *given: Any, flaw: str, **more: Any) -> None:
        super().__init__(*given, **more)
        self._flaw = flaw
        self._session_ms = self._config.group_streams_session_timeout_ms
        interval_ms = self._config.group_streams_heartbeat_interval_ms
        self._is_classic = self._scenario.group.protocol == "classic"
        if self._is_classic:
            least = self._config.group_min_session_timeout_ms
            self._session_ms = max(self._session_ms, least)
            interval_ms = self._session_ms // 6
        rebalance_us = self._scenario.group.rebalance_timeout.us
        self.bound_us = 1_000 * (self._session_ms + 3 * interval_ms) + rebalance_us + SLACK_US
        """How long a request to shut the application down may take to reach every client."""

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

    def _names(self) -> Iterator[str]:
        width = len(str(self._scenario.group.members))
        return (f"client-{number:0{width}}" for number in range(1, self._scenario.group.members + 1))

    def _named(self) -> dict[str, str]:
        return {
            f"{client}-StreamThread-{number}": client
            for client in self._names()
            for number in range(1, _MOST_THREADS + 1)
        }

    def _wire(self) -> ProxyObserver:
        return _MemberWatch(self.happenings, self._time)

    def _begin(self) -> None:
        self._world.begin()
        StreamsNemesis(self._world, self._plan).begin()

    async def _watch(self) -> None:
        """Members are watched on the wire, and clients by themselves. Their changelogs go with the topics."""
        if self._scenario.application.changelogs:
            for topic in self._scenario.topics:
                self._topics.made[changelog_topic(self._scenario.group.id, topic.name)] = None

    async def _conclude(self) -> None:
        """Judge what has settled; an application that was shut down is started again, to process the rest."""
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
        """Whether the threads read it; what the global thread reads it reads anew with each start."""
        return any(each.name == topic for each in self._scenario.topics)

    def _all_topics(self) -> Iterable[ScenarioTopic]:
        read_globally = self._scenario.global_topic
        return (*self._scenario.topics, *(() if read_globally is None else (read_globally,)))

    # -- afterwards ---------------------------------------------------------------------------------------

    def retell(self, recorder: TraceRows) -> ReplayedApplication:
        """Write down all that happened, in one order, and judge it."""
        request_timeout_us = self._scenario.network.request_timeout.us if self._is_classic else None
        replayed = ReplayedApplication(
            self._names(), recorder, self.bound_us, request_timeout_us=request_timeout_us
        )
        run = f"{self._scenario.name} {self._seed} {self._scenario.group.members}"
        recorder.add(0, "", Row.RUN_START.value, detail=run)
        replayed.tell_all(self.happenings, self.ended_us)
        for number in self.missing[:_SHOWN]:
            partition, offset = self.ledger.acknowledged[number]
            replayed.application.report(
                "streams-at-least-once",
                f"record {number}, {partition.topic}-{partition.partition} at {offset}, was acknowledged and"
                " nobody processed it",
            )
        recorder.add(self.ended_us, "", Row.RUN_END.value)
        return replayed


class _MemberWatch(LossWatch):
    """Takes down what members hear of their group."""

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
