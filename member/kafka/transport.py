"""A member's transport to real brokers: group messages through the codec, over aiokafka's connections."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, TypeVar

from aiokafka.errors import IncompatibleBrokerVersion, KafkaError, RequestTimedOutError

from fencepost.coordinator.codec.client import read_response, request_frame
from fencepost.coordinator.codec.conversation import CallVersions
from fencepost.coordinator.codec.framing import MalformedFrame
from fencepost.coordinator.codec.groups import LeaveGroupCall, LeaveGroupReply
from fencepost.coordinator.codec.offsets import (
    CommittedPartition,
    OffsetCommitCall,
    OffsetCommitReply,
    OffsetFetchCall,
    OffsetFetchGroup,
    OffsetFetchReply,
)
from fencepost.coordinator.codec.registry import ApiKey
from fencepost.coordinator.protocol import cluster, consumer
from fencepost.coordinator.protocol.classic import HeartbeatRequest, JoinGroupRequest, SyncGroupRequest
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.ids import TopicId, TopicPartition
from fencepost.coordinator.protocol.logs import OffsetSpec, OfTopic
from fencepost.coordinator.protocol.offsets import (
    OffsetAndMetadata,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from fencepost.coordinator.protocol.outcome import Request, Response
from fencepost.coordinator.protocol.streams import StreamsGroupHeartbeatRequest
from fencepost.member.base.clock import time_before_ms
from fencepost.member.base.transport import Disconnected, RequestTimedOut, TransportError
from fencepost.member.kafka.connections import (
    COORDINATION,
    NO_OFFSET,
    ROUNDS,
    AiokafkaRequest,
    Connections,
    Fetching,
)

T = TypeVar("T")


_KIP_848 = (
    "the broker does not speak the consumer group protocol of KIP-848: it takes Kafka 4.0 or later, with the "
    "feature group.version at 1 (kafka-features.sh upgrade --feature group.version=1)"
)
_KIP_1071 = (
    "the broker does not speak the streams group protocol of KIP-1071: it takes Kafka 4.1 or later, with the "
    "feature streams.version at 1 (kafka-features.sh upgrade --feature streams.version=1)"
)


# The versions that are used: those with member epochs, and with names in addition to ids.
_HEARTBEAT = CallVersions(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, 1)
_STREAMS_HEARTBEAT = CallVersions(ApiKey.STREAMS_GROUP_HEARTBEAT, 0, 0)
_COMMIT = CallVersions(ApiKey.OFFSET_COMMIT, 9, 9)
_COMMIT_BY_ID = CallVersions(ApiKey.OFFSET_COMMIT, 9, 10)
_FETCH = CallVersions(ApiKey.OFFSET_FETCH, 9, 9)
_METADATA = CallVersions(ApiKey.METADATA, 12, 13)
_FIND_COORDINATOR = CallVersions(ApiKey.FIND_COORDINATOR, 3, 6)
_JOIN = CallVersions(ApiKey.JOIN_GROUP, 5, 9)
_SYNC = CallVersions(ApiKey.SYNC_GROUP, 3, 5)
_BEAT = CallVersions(ApiKey.HEARTBEAT, 3, 4)
_LEAVE = CallVersions(ApiKey.LEAVE_GROUP, 3, 5)


class KafkaTransport:
    """The way from one member to a Kafka cluster. Futures fail as described in the `Transport` protocol."""

    def __init__(self, connections: Connections, fetching: Fetching, request_timeout_ms: int) -> None:
        self._connections = connections
        self._fetching = fetching
        self._timeout_ms = request_timeout_ms
        self._coordinator: int | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False

    # -- requests of a member's driver -------------------------------------------------------------------

    def send(self, request: Request, timeout_ms: int) -> asyncio.Future[Response]:
        """Send a group request to the coordinator that was found last."""
        return self._start(self._send(request, timeout_ms))

    def find_coordinator(self, group_id: str) -> asyncio.Future[None]:
        """Find the coordinator of the group through any broker."""
        return self._start(self._find_coordinator(group_id))

    def topic_names(self, topic_ids: Iterable[TopicId]) -> asyncio.Future[Mapping[TopicId, str]]:
        """Look up names of topics in fresh metadata."""
        return self._start(self._topic_names(tuple(topic_ids)))

    def partition_counts(self, topics: Iterable[str]) -> asyncio.Future[Mapping[str, int]]:
        """Count the partitions of topics from fresh metadata; topics that do not exist are missing.

        The whole group waits for a leader that counts. So the request does not use the connection of the
        fetches, on which a broker would respond only after the fetch that waits for records.
        """
        return self._start(self._partition_counts(tuple(topics)))

    def log_offsets(
        self, partitions: Iterable[TopicPartition], *, earliest: bool
    ) -> asyncio.Future[Mapping[TopicPartition, int]]:
        """Look up the first or the next offset of each partition's log; partitions without a leader are
        missing."""
        spec = OffsetSpec.EARLIEST if earliest else OffsetSpec.LATEST
        return self._start(self._log_offsets(tuple(partitions), spec))

    def offsets_by_duration(
        self, partitions: Iterable[TopicPartition], duration_ms: int
    ) -> asyncio.Future[Mapping[TopicPartition, int]]:
        """Find the first record of each log that is not older, by the wall clock, or the end of the log."""
        return self._start(self._offsets_by_duration(tuple(partitions), duration_ms))

    def close(self) -> None:
        """Fail outstanding requests. The connections are the client's, and close with it."""
        self._closed = True
        for task in tuple(self._tasks):
            task.cancel()

    # -- sending -----------------------------------------------------------------------------------------

    def _start(self, work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        if self._closed:
            work.close()
            refused: asyncio.Future[T] = asyncio.get_running_loop().create_future()
            refused.set_exception(Disconnected("the transport is closed"))
            return refused
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _send(self, request: Request, timeout_ms: int) -> Response:
        if self._coordinator is None:
            raise Disconnected("no coordinator is known")
        match request:
            case consumer.ConsumerGroupHeartbeatRequest():
                answer: Response = await self._ask_coordinator(_HEARTBEAT, request, timeout_ms)
                return answer
            case JoinGroupRequest():
                joined: Response = await self._ask_coordinator(_JOIN, request, timeout_ms, group=ROUNDS)
                return joined
            case SyncGroupRequest():
                synced: Response = await self._ask_coordinator(_SYNC, request, timeout_ms, group=ROUNDS)
                return synced
            case HeartbeatRequest():
                beat: Response = await self._ask_coordinator(_BEAT, request, timeout_ms)
                return beat
            case consumer.LeaveGroupRequest():
                call = LeaveGroupCall(group_id=request.group_id, members=(request,))
                return _leave_response(await self._ask_coordinator(_LEAVE, call, timeout_ms))
            case StreamsGroupHeartbeatRequest():
                beaten: Response = await self._ask_coordinator(_STREAMS_HEARTBEAT, request, timeout_ms)
                return beaten
            case OffsetCommitRequest():
                api = _COMMIT_BY_ID if request.topic_ids else _COMMIT
                committed = await self._ask_coordinator(api, _commit_call(request), timeout_ms)
                return _commit_response(request, committed)
            case OffsetFetchRequest():
                fetched = await self._ask_coordinator(_FETCH, _fetch_call(request), timeout_ms)
                return _fetch_response(fetched)
        raise TypeError(f"a member sends no {type(request).__name__}")

    async def _ask_coordinator(
        self, api: CallVersions, message: Any, timeout_ms: int, *, group: int = COORDINATION
    ) -> Any:
        assert self._coordinator is not None
        return await self._ask(self._coordinator, api, message, timeout_ms, group=group)

    async def _ask(
        self, node_id: int | None, api: CallVersions, message: Any, timeout_ms: int, *, group: int = 0
    ) -> Any:
        if node_id is None:
            raise Disconnected("no broker is known")

        def frame(version: int, correlation_id: int, client_id: str) -> bytes:
            try:
                return request_frame(api.key, version, correlation_id, client_id, message)
            except (AttributeError, TypeError, ValueError, struct.error) as error:
                # A retry would not do any better.
                text = f"{api.key.name} can't be encoded: {error}"
                raise ProtocolError(ErrorCode.INVALID_REQUEST, text) from error

        needs = _KIP_1071 if api is _STREAMS_HEARTBEAT else _KIP_848
        call = AiokafkaRequest(api, frame)
        answer = await _translated(self._connections.ask(node_id, call, timeout_ms, group=group), needs)
        try:
            return read_response(api.key, call.version, answer)[1]
        except MalformedFrame as error:
            raise TransportError(str(error)) from error

    async def _find_coordinator(self, group_id: str) -> None:
        request = cluster.FindCoordinatorRequest(keys=(group_id,))
        answer: cluster.FindCoordinatorResponse = await self._ask(
            self._connections.any_node(), _FIND_COORDINATOR, request, self._timeout_ms
        )
        (found,) = answer.coordinators
        if found.error_code is not ErrorCode.NONE or found.node is None:
            raise ProtocolError(found.error_code, found.error_message or "the group has no coordinator")
        node = found.node
        if not await self._connections.knows(node.node_id, node.host, node.port, self._timeout_ms):
            raise Disconnected(f"the coordinator {node.host}:{node.port} is not in the cluster's metadata")
        self._coordinator = node.node_id

    async def _topic_names(self, topic_ids: tuple[TopicId, ...]) -> Mapping[TopicId, str]:
        request = cluster.MetadataRequest(
            topics=tuple(cluster.TopicReference(topic_id=topic_id) for topic_id in topic_ids),
            allow_auto_topic_creation=False,
        )
        answer: cluster.MetadataResponse = await self._ask(
            self._connections.any_node(), _METADATA, request, self._timeout_ms, group=COORDINATION
        )
        return {topic.topic_id: topic.name for topic in answer.topics if topic.topic_id and topic.name}

    async def _partition_counts(self, topics: tuple[str, ...]) -> Mapping[str, int]:
        request = cluster.MetadataRequest(
            topics=tuple(cluster.TopicReference(name=topic) for topic in topics),
            allow_auto_topic_creation=False,
        )
        answer: cluster.MetadataResponse = await self._ask(
            self._connections.any_node(), _METADATA, request, self._timeout_ms, group=COORDINATION
        )
        return {
            topic.name: len(topic.partitions) for topic in answer.topics if topic.name and topic.partitions
        }

    async def _log_offsets(
        self, partitions: tuple[TopicPartition, ...], timestamp_ms: int
    ) -> Mapping[TopicPartition, int]:
        by_leader: dict[int, list[TopicPartition]] = {}
        for partition in partitions:
            leader = self._connections.leader_of(partition)
            if leader is not None:
                by_leader.setdefault(leader, []).append(partition)
        found: dict[TopicPartition, int] = {}
        for leader, led in by_leader.items():
            offsets = await _translated(self._fetching.log_offsets(leader, led, timestamp_ms))
            found.update({TopicPartition(*partition): offset for partition, offset in offsets.items()})
        if len(found) < len(partitions):
            self._connections.renew_metadata()
        return found

    async def _offsets_by_duration(
        self, partitions: tuple[TopicPartition, ...], duration_ms: int
    ) -> Mapping[TopicPartition, int]:
        # In this order a record that arrives in between is found by its time, or is behind the end.
        ends = await self._log_offsets(partitions, OffsetSpec.LATEST)
        found = await self._log_offsets(tuple(ends), time_before_ms(duration_ms))
        return {
            partition: ends[partition] if offset == NO_OFFSET else offset
            for partition, offset in found.items()
        }


async def _translated(work: Coroutine[Any, Any, T], needs: str = _KIP_848) -> T:
    """Return the result, or raise the transport's own error for aiokafka's."""
    try:
        return await work
    except IncompatibleBrokerVersion as error:
        raise ProtocolError(ErrorCode.UNSUPPORTED_VERSION, f"{needs}; {error}") from error
    except (RequestTimedOutError, TimeoutError) as error:
        raise RequestTimedOut(str(error) or "no response in time") from error
    except (KafkaError, OSError) as error:
        raise Disconnected(str(error)) from error


def _by_topic(partitions: Iterable[T], partition_of: Callable[[T], TopicPartition]) -> dict[str, list[T]]:
    topics: dict[str, list[T]] = {}
    for each in partitions:
        topics.setdefault(partition_of(each).topic, []).append(each)
    return topics


def _leave_response(reply: LeaveGroupReply) -> consumer.LeaveGroupResponse:
    """Return the response for the only member; an error of the group is its own."""
    if reply.error_code is not ErrorCode.NONE or not reply.members:
        return consumer.LeaveGroupResponse(error_code=reply.error_code)
    return reply.members[0]


def _commit_call(request: OffsetCommitRequest) -> OffsetCommitCall:
    """By name and by id: the version decides which of them is sent."""

    def of(item: tuple[TopicPartition, OffsetAndMetadata]) -> TopicPartition:
        return item[0]

    return OffsetCommitCall(
        group_id=request.group_id,
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        instance_id=request.instance_id,
        retention_time_ms=-1,
        api_version=request.api_version,
        topics=tuple(
            OfTopic(
                name=topic,
                topic_id=request.topic_ids.get(topic),
                partitions=tuple(
                    CommittedPartition(partition.partition, offset) for partition, offset in items
                ),
            )
            for topic, items in _by_topic(request.offsets.items(), of).items()
        ),
    )


def _commit_response(request: OffsetCommitRequest, reply: OffsetCommitReply) -> OffsetCommitResponse:
    names = {topic_id: name for name, topic_id in request.topic_ids.items()}
    errors: dict[TopicPartition, ErrorCode] = {}
    for topic in reply.topics:
        name = topic.name or names.get(topic.topic_id or "", "")
        for one in topic.partitions:
            errors[TopicPartition(name, one.partition)] = one.error_code
    return OffsetCommitResponse(errors=errors)


def _fetch_call(request: OffsetFetchRequest) -> OffsetFetchCall:
    topics: tuple[OfTopic[int], ...] | None = None
    if request.partitions is not None:
        topics = tuple(
            OfTopic(name=topic, partitions=tuple(each.partition for each in partitions))
            for topic, partitions in _by_topic(request.partitions, lambda each: each).items()
        )
    group = OffsetFetchGroup(
        group_id=request.group_id,
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        topics=topics,
    )
    return OffsetFetchCall(groups=(group,), require_stable=request.require_stable, api_version=_FETCH.newest)


def _fetch_response(reply: OffsetFetchReply) -> OffsetFetchResponse:
    """An error of one partition is the group's: all requested offsets are needed."""
    (group,) = reply.groups
    error = group.error_code
    offsets: dict[TopicPartition, OffsetAndMetadata] = {}
    for topic in group.topics:
        for one in topic.partitions:
            if one.error_code is not ErrorCode.NONE and error is ErrorCode.NONE:
                error = one.error_code
            offsets[TopicPartition(topic.name or "", one.partition)] = one.offset
    if error is not ErrorCode.NONE:
        return OffsetFetchResponse(group_id=group.group_id, error_code=error)
    return OffsetFetchResponse(group_id=group.group_id, offsets=offsets)
