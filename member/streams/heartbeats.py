"""Heartbeats of a member of a streams group (KIP-1071), made from those of a consumer group's member.

Membership is the same in both protocols, and so is the member's machine (`streams-member`). The content of a
heartbeat differs: tasks in place of partitions, the topology and the process on joining, and the request to
shut the application down. Each topic is a subtopology of its own, so a task is a partition.

Kafka's coordinator (4.3 and 4.4) sends tasks once: when a member joins, and when they change. A consumer
group's member gets its partitions again when it sends a full heartbeat; a streams group's member does not. If
the one response is lost, the member never learns its tasks, and no member processes them. So a member that
may have missed tasks joins again with epoch 0: the response to a join always has the tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fencepost.coordinator.protocol import consumer, streams
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.ids import JOIN_EPOCH, TopicId
from fencepost.coordinator.protocol.machine import StateTable
from fencepost.member.consumer.states import CONSUMER_MEMBER, ConsumerMemberEvent, ConsumerMemberState

STREAMS_MEMBER: StateTable[ConsumerMemberState, ConsumerMemberEvent] = StateTable(
    "streams-member",
    source="KIP-1071; Kafka 4.3 client, which has the arrows of KIP-848's member",
    states=ConsumerMemberState,
    initial=CONSUMER_MEMBER.initial,
    terminal=CONSUMER_MEMBER.terminal,
    transitions=CONSUMER_MEMBER.transitions,
)

CHANGELOG_CONFIG = (("cleanup.policy", "compact"), ("message.timestamp.type", "CreateTime"))
"""Config of a changelog topic, as in Kafka Streams."""

_NOT_READY = (
    streams.StatusCode.MISSING_SOURCE_TOPICS,
    streams.StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
    streams.StatusCode.MISSING_INTERNAL_TOPICS,
    streams.StatusCode.ASSIGNMENT_DELAYED,
)

_JOIN_AGAIN = consumer.ConsumerGroupHeartbeatResponse(
    error_code=ErrorCode.FENCED_MEMBER_EPOCH,
    error_message="a response was lost that may have had this member's tasks, and they are sent only once",
)


class StreamsHeartbeats:
    """One member's translation: topics in the application's order, and the last status of the group.

    `changelogs` names the changelog of each topic's stores, if they have one; at `endpoint` the process
    serves interactive queries.
    """

    __slots__ = (
        "_confirms",
        "_endpoint",
        "_endpoint_epoch",
        "_owned",
        "_passive",
        "_process_id",
        "_sent_epoch",
        "_topology",
        "_was_lost",
        "_was_refused",
        "asks_for_shutdown",
        "names",
        "statuses",
    )

    def __init__(
        self,
        topics: Sequence[str],
        process_id: str,
        changelogs: Mapping[str, str] | None = None,
        endpoint: streams.Endpoint | None = None,
    ) -> None:
        self.names: Mapping[TopicId, str] = {str(number): topic for number, topic in enumerate(topics)}
        """Topics by the ids of their subtopologies, which stand for topic ids in the member's machine."""
        self.asks_for_shutdown = False
        """Every request from now on asks for the shutdown of the application, the leave included."""
        self.statuses: tuple[streams.Status, ...] = ()
        """The status of the group, as of the last response."""
        self._process_id = process_id
        self._topology = streams.Topology(
            epoch=0,
            subtopologies=tuple(
                streams.Subtopology(
                    subtopology_id=number,
                    source_topics=(topic,),
                    state_changelog_topics=_changelogs(changelogs, topic),
                )
                for number, topic in self.names.items()
            ),
        )
        self._endpoint_epoch = -1
        self._endpoint = endpoint
        self._owned: streams.TaskIds | None = None
        """The active tasks that the last request with any listed."""
        self._passive: tuple[streams.TaskIds, streams.TaskIds] = streams.NO_TASK_IDS, streams.NO_TASK_IDS
        """The standby and warm-up tasks that the group gave last: they are ignored."""
        self._confirms = False
        """True if those changed, and no request since has reported that the member owns none."""
        self._sent_epoch = JOIN_EPOCH
        """The epoch of the last request."""
        self._was_lost = False
        """A request since the last response got none: its response may have had tasks."""
        self._was_refused = False
        """A request since the last response got an error; if the epoch moved, it may have had tasks."""

    @property
    def group_is_ready(self) -> bool:
        """True if the group assigns tasks: its topics exist, and it does not wait for more members."""
        return not any(status.code in _NOT_READY for status in self.statuses)

    @property
    def shutdown_requested(self) -> bool:
        """True if some client of the application asked for the shutdown of all of them."""
        return any(status.code is streams.StatusCode.SHUTDOWN_APPLICATION for status in self.statuses)

    def request(
        self, request: consumer.ConsumerGroupHeartbeatRequest
    ) -> streams.StreamsGroupHeartbeatRequest:
        """Return the request that is sent to the coordinator in place of this one."""
        joins = request.member_epoch == JOIN_EPOCH
        owned = request.topic_partitions
        if owned is not None:
            self._owned = owned
        elif self._confirms:
            owned = self._owned
        self._sent_epoch = request.member_epoch
        return streams.StreamsGroupHeartbeatRequest(
            group_id=request.group_id,
            member_id=request.member_id,
            member_epoch=request.member_epoch,
            endpoint_information_epoch=self._endpoint_epoch,
            instance_id=request.instance_id,
            rack_id=request.rack_id,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            topology=self._topology if joins else None,
            active_tasks=owned,
            standby_tasks=None if owned is None else streams.NO_TASK_IDS,
            warmup_tasks=None if owned is None else streams.NO_TASK_IDS,
            process_id=self._process_id if joins else None,
            user_endpoint=self._endpoint if joins else None,
            shutdown_application=self.asks_for_shutdown,
            client_id=request.client_id,
        )

    def failed(self, error: BaseException) -> None:
        """Note that the last request got an error or no response. The coordinator may have applied it."""
        if isinstance(error, ProtocolError):
            self._was_refused = True
        else:
            self._was_lost = True

    def response(
        self, response: streams.StreamsGroupHeartbeatResponse
    ) -> consumer.ConsumerGroupHeartbeatResponse:
        """Return the response that the member's machine receives; the data that it has no use for is kept
        here."""
        if response.error_code:
            self._was_refused = True
        else:
            self._endpoint_epoch = response.endpoint_information_epoch
            if response.status is not None:
                self.statuses = response.status
            tasks = response.tasks
            if tasks is None:
                self._confirms = False
                if self._may_have_missed_tasks(response.member_epoch):
                    return _JOIN_AGAIN
            elif (tasks.standby, tasks.warmup) != self._passive:
                self._passive = tasks.standby, tasks.warmup
                self._confirms = True
            self._was_lost = self._was_refused = False
        return consumer.ConsumerGroupHeartbeatResponse(
            error_code=response.error_code,
            error_message=response.error_message,
            member_id=response.member_id,
            member_epoch=response.member_epoch,
            heartbeat_interval_ms=response.heartbeat_interval_ms,
            assignment=None if response.tasks is None else response.tasks.active,
        )

    def _may_have_missed_tasks(self, epoch: int) -> bool:
        """True if a lost response may have had tasks, as far as a response without tasks shows."""
        if self._sent_epoch <= JOIN_EPOCH:
            return False
        return self._was_lost or (self._was_refused and epoch != self._sent_epoch)


def _changelogs(changelogs: Mapping[str, str] | None, topic: str) -> tuple[streams.TopicInfo, ...]:
    """Return the changelog of a topic's stores, as Kafka Streams requests it."""
    if changelogs is None:
        return ()
    return (streams.TopicInfo(name=changelogs[topic], configs=CHANGELOG_CONFIG),)
