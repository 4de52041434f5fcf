"""A thread's member in each protocol: of streams groups, and the classic one as Kafka Streams uses it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from fencepost.coordinator.protocol.consumer import ConsumerGroupHeartbeatRequest
from fencepost.coordinator.protocol.ids import TopicPartition, uuid_from_topic_id
from fencepost.coordinator.protocol.streams import Endpoint, StreamsGroupHeartbeatRequest
from fencepost.member.base.config import ConsumerConfig
from fencepost.member.base.leave import CloseOption
from fencepost.member.classic.assignors.streams import StreamsAssignor
from fencepost.member.classic.assignors.streams_metadata import AssignorError
from fencepost.member.classic.config import ClassicConfig
from fencepost.member.classic.driver import ClassicDriver
from fencepost.member.consumer.driver import ConsumerDriver
from fencepost.member.consumer.states import ConsumerMemberState
from fencepost.member.streams.application.changelog import changelog_topic
from fencepost.member.streams.application.port import ThreadEvents
from fencepost.member.streams.application.streams_transport import StreamsTransport
from fencepost.member.streams.heartbeats import StreamsHeartbeats
from fencepost.simulation.kafka.transport import SimulatedTransport
from fencepost.simulation.streams.member import SimulatedMember

if TYPE_CHECKING:
    from fencepost.simulation.streams.client import StreamsClientHost

_QUERY_PORT: Final = 8080
"""Port at which each client answers interactive queries, if it does."""


class _WatchedHeartbeats(StreamsHeartbeats):
    """Heartbeats of which each is reported to `on_made` as it is sent."""

    __slots__ = ("_on_made",)

    def __init__(self, on_made: Callable[[StreamsGroupHeartbeatRequest], None], *settings: Any) -> None:
        super().__init__(*settings)
        self._on_made = on_made

    def request(self, request: ConsumerGroupHeartbeatRequest) -> StreamsGroupHeartbeatRequest:
        """Return the request that is sent in place of this one."""
        made = super().request(request)
        self._on_made(made)
        return made


class SimulatedStreamsGroupMember(SimulatedMember):
    """A member that speaks KIP-1071 and chooses its id itself."""

    driver: ConsumerDriver

    def __init__(self, host: StreamsClientHost, thread: str, events: ThreadEvents) -> None:
        scenario = host.world.scenario
        topics = [topic.name for topic in scenario.topics]
        changelogs = {topic: changelog_topic(scenario.group.id, topic) for topic in topics}
        self.heartbeats = _WatchedHeartbeats(
            lambda made: host.world.requests.on_tasks(thread, made),
            topics,
            host.process_id,
            changelogs if scenario.application.changelogs else None,
            Endpoint(host.name, _QUERY_PORT) if scenario.application.endpoints else None,
        )
        super().__init__(host, thread, events)

    def _make_driver(self, transport: SimulatedTransport) -> ConsumerDriver:
        host = self._host
        return ConsumerDriver(
            host.world.scenario.group.id,
            host.world.draws.uuid(f"{host.name}/{host.process}/{self.thread}"),
            StreamsTransport(transport, self.heartbeats, self._shutdown_requested),
            host.clock,
            listener=self,
            config=ConsumerConfig(**self._settings()),
            rng=cast(random.Random, host.rng),
            observer=self,
        )

    def _group_is_ready(self) -> bool:
        return self.heartbeats.group_is_ready

    @property
    def joined(self) -> bool:
        """True if the member is STABLE, and the group hands out tasks."""
        return self.driver.state is ConsumerMemberState.STABLE and self.heartbeats.group_is_ready

    def ask_for_shutdown(self) -> None:
        """Ask for a shutdown in every request."""
        self.heartbeats.asks_for_shutdown = True


class SimulatedClassicStreamsMember(SimulatedMember):
    """A member that speaks the classic protocol, with the metadata and the assignor of Kafka Streams."""

    driver: ClassicDriver

    def __init__(self, host: StreamsClientHost, thread: str, events: ThreadEvents) -> None:
        topics = [topic.name for topic in host.world.scenario.topics]
        self._in_round = False
        self._assignor = StreamsAssignor(uuid_from_topic_id(host.process_id), (topics,))
        super().__init__(host, thread, events)

    def _make_driver(self, transport: SimulatedTransport) -> ClassicDriver:
        host = self._host
        group = host.world.scenario.group
        config = ClassicConfig(
            session_timeout_ms=group.session_timeout.ms,
            heartbeat_interval_ms=group.heartbeat_interval.ms,
            **self._settings(),
        )
        return ClassicDriver(
            group.id,
            transport,
            host.clock,
            assignors=(self._assignor,),
            listener=self,
            config=config,
            rng=cast(random.Random, host.rng),
            observer=self,
        )

    def _change(self) -> None:
        in_round = self.driver.is_rebalancing
        if in_round is not self._in_round:
            self._in_round = in_round
            self._look = True
        super()._change()

    def _group_is_ready(self) -> bool:
        return not self._assignor.error

    @property
    def joined(self) -> bool:
        """True if the member has taken up the tasks of its generation."""
        return self.driver.is_settled and not self._assignor.error

    @property
    def round_s(self) -> float:
        """Time that the current round of joining may take, in seconds; 0 if there is no round."""
        longest_s = self._host.world.scenario.group.rebalance_timeout.ms / 1000
        return longest_s if self.driver.is_rebalancing else 0

    async def close(self, *, told_to_end: bool = False, within_s: float = 10.0) -> None:
        """Leave the group, unless other members would then not learn of its end."""
        self._judge_end()
        stays = told_to_end and not self._assignor.all_know
        await self.driver.close(CloseOption.REMAIN_IN_GROUP if stays else CloseOption.DEFAULT)
        self.has_left = True

    def ask_for_shutdown(self) -> None:
        """Ask in each subscription from now on, and rejoin for that."""
        self._assignor.request_shutdown()
        self.driver.rejoin()

    async def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """Handle the leader's error, which comes without partitions: the thread is not assigned any."""
        if self._assignor.error == AssignorError.SHUTDOWN_REQUESTED:
            self._shutdown_requested()
        elif not self._assignor.error:
            await super().on_partitions_assigned(partitions)
