"""The transport of a consumer group's member that speaks the protocol of streams groups (KIP-1071)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from fencepost.coordinator.protocol.consumer import ConsumerGroupHeartbeatRequest
from fencepost.coordinator.protocol.ids import TopicId, TopicPartition
from fencepost.coordinator.protocol.offsets import MEMBER_EPOCH_VERSION, OffsetCommitRequest
from fencepost.coordinator.protocol.outcome import Request, Response
from fencepost.coordinator.protocol.streams import StreamsGroupHeartbeatResponse
from fencepost.member.base.transport import Reply, Transport
from fencepost.member.streams.heartbeats import StreamsHeartbeats


class StreamsTransport:
    """Sends streams heartbeats in place of consumer heartbeats, over another transport.

    `on_shutdown` is called for each response that shuts the application down.
    """

    def __init__(
        self, transport: Transport, heartbeats: StreamsHeartbeats, on_shutdown: Callable[[], None]
    ) -> None:
        self._transport = transport
        self._heartbeats = heartbeats
        self._on_shutdown = on_shutdown

    def send(self, request: Request, timeout_ms: int) -> Reply[Response]:
        """Send a group request to the coordinator that was found last."""
        if isinstance(request, ConsumerGroupHeartbeatRequest):
            asked = self._transport.send(self._heartbeats.request(request), timeout_ms)
            answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
            asked.add_done_callback(lambda done: self._answered(done, answer))
            return answer
        if isinstance(request, OffsetCommitRequest):
            # The machine's topic ids are those of subtopologies, which mean nothing in a commit.
            request = msgspec.structs.replace(request, topic_ids={}, api_version=MEMBER_EPOCH_VERSION)
        return self._transport.send(request, timeout_ms)

    def _answered(self, asked: Reply[Any], answer: asyncio.Future[Response]) -> None:
        if answer.done():
            return
        if asked.cancelled():
            answer.cancel()
            return
        error = asked.exception()
        if error is not None:
            self._heartbeats.failed(error)
            answer.set_exception(error)
            return
        response = asked.result()
        assert isinstance(response, StreamsGroupHeartbeatResponse)
        answer.set_result(self._heartbeats.response(response))
        if self._heartbeats.shutdown_requested:
            self._on_shutdown()

    def find_coordinator(self, group_id: str) -> Reply[None]:
        """Look the group's coordinator up."""
        return self._transport.find_coordinator(group_id)

    def topic_names(self, topic_ids: Iterable[TopicId]) -> Reply[Mapping[TopicId, str]]:
        """Return the topics of these subtopologies, which are known without a request."""
        names: asyncio.Future[Mapping[TopicId, str]] = asyncio.get_running_loop().create_future()
        known = self._heartbeats.names
        names.set_result({each: known[each] for each in topic_ids if each in known})
        return names

    def log_offsets(
        self, partitions: Iterable[TopicPartition], *, earliest: bool
    ) -> Reply[Mapping[TopicPartition, int]]:
        """Look up the first or the next offset of each partition's log."""
        return self._transport.log_offsets(partitions, earliest=earliest)

    def offsets_by_duration(
        self, partitions: Iterable[TopicPartition], duration_ms: int
    ) -> Reply[Mapping[TopicPartition, int]]:
        """Find the first record of each log that is not older, by the wall clock, or the end of the log."""
        return self._transport.offsets_by_duration(partitions, duration_ms)

    def close(self) -> None:
        """Give the connections up."""
        self._transport.close()
