"""A stream thread's member in a streams group (KIP-1071): tasks, and notices of shutdowns."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fencepost.coordinator.protocol.streams import StatusCode
from fencepost.member.kafka.connections import Connections
from fencepost.member.kafka.consumer import KIP848Consumer
from fencepost.member.kafka.member import KafkaMember
from fencepost.member.kafka.settings import refuse
from fencepost.member.kafka.streams_member import POLL_MS, KafkaConsumerGroupMember
from fencepost.member.streams.application.port import PartitionRecords, ThreadEvents
from fencepost.member.streams.application.streams_transport import StreamsTransport
from fencepost.member.streams.errors import MissingSourceTopic, StreamsError
from fencepost.member.streams.heartbeats import StreamsHeartbeats

_MISSING_TOPIC_S = 300.0
"""Time for which source topics may be missing; Kafka's max.poll.interval.ms."""


class _StreamsSession(KafkaMember):
    """A member of a streams group on a client that has learned of its cluster."""

    def __init__(
        self, *given: Any, heartbeats: StreamsHeartbeats, on_shutdown: Callable[[], None], **rest: Any
    ) -> None:
        self._heartbeats = heartbeats
        self._on_shutdown = on_shutdown
        super().__init__(*given, **rest)

    def _driven_over(self) -> StreamsTransport:
        return StreamsTransport(self._transport, self._heartbeats, self._on_shutdown)


class _StreamsConsumer(KIP848Consumer):
    """A consumer whose member is one of a streams group."""

    _protocol = "streams"
    _session_type = _StreamsSession

    def __init__(
        self,
        *topics: str,
        heartbeats: StreamsHeartbeats,
        on_shutdown: Callable[[], None],
        group_instance_id: str | None = None,
        group_remote_assignor: str | None = None,
        **rest: Any,
    ) -> None:
        refuse(
            self._protocol,
            group_instance_id=group_instance_id,
            group_remote_assignor=group_remote_assignor,
        )
        super().__init__(*topics, **rest)
        self._heartbeats = heartbeats
        self._on_shutdown = on_shutdown

    def _make_session(self, connections: Connections, **options: Any) -> KafkaMember:
        options |= {"heartbeats": self._heartbeats, "on_shutdown": self._on_shutdown}
        return super()._make_session(connections, **options)


class KafkaStreamsGroupMember(KafkaConsumerGroupMember):
    """A member that speaks KIP-1071. Each topic is a subtopology: task N_P is partition P of topic N.

    `process_id` is the same for all threads of a client. `changelogs`, by topic, are those that the brokers
    create.
    """

    def __init__(
        self,
        events: ThreadEvents,
        topics: Sequence[str],
        settings: Mapping[str, Any],
        process_id: uuid.UUID,
        changelogs: Mapping[str, str] | None = None,
        *,
        poll_ms: int = POLL_MS,
    ) -> None:
        super().__init__(events, topics, settings, poll_ms=poll_ms)
        self._heartbeats = StreamsHeartbeats(topics, str(process_id), changelogs)
        self._on_shutdown = events.on_shutdown_requested
        self._missing_since: float | None = None

    def make_consumer(self) -> KIP848Consumer:
        """Make a consumer whose member is one of a streams group.

        :raises ValueError: if a setting is impossible.
        """
        return self._consumer_of(_StreamsConsumer, heartbeats=self._heartbeats, on_shutdown=self._on_shutdown)

    async def poll(self) -> Sequence[PartitionRecords]:
        """Return records by partition; none after `poll_ms` without any, or while no broker is reachable.

        :raises MissingSourceTopic: if one has been missing for five minutes.
        :raises StreamsError: if the topics can't be read together.
        """
        batches = await super().poll()
        details = {status.code: status.detail for status in self._heartbeats.statuses}
        if StatusCode.INCORRECTLY_PARTITIONED_TOPICS in details:
            raise StreamsError(details[StatusCode.INCORRECTLY_PARTITIONED_TOPICS])
        if StatusCode.MISSING_SOURCE_TOPICS not in details:
            self._missing_since = None
        else:
            now = asyncio.get_running_loop().time()
            since = self._missing_since = now if self._missing_since is None else self._missing_since
            if now - since >= _MISSING_TOPIC_S:
                raise MissingSourceTopic(details[StatusCode.MISSING_SOURCE_TOPICS])
        return batches

    @property
    def joined(self) -> bool:
        """True if the member owns its target, and the group hands out tasks."""
        return super().joined and self._heartbeats.group_is_ready

    def ask_for_shutdown(self) -> None:
        """Send the request with each heartbeat from now on, the leave included (KIP-671)."""
        self._heartbeats.asks_for_shutdown = True
