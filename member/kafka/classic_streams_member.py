"""A stream thread's member in a classic group, which may also have Java instances of Kafka Streams."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from aiokafka.structs import TopicPartition as KafkaPartition

from fencepost.member.base.leave import CloseOption
from fencepost.member.classic.assignors.streams import StreamsAssignor
from fencepost.member.classic.assignors.streams_metadata import AssignorError
from fencepost.member.kafka.classic import ClassicConsumer
from fencepost.member.kafka.streams_member import POLL_MS, KafkaConsumerGroupMember
from fencepost.member.streams.application.port import PartitionRecords, ThreadEvents
from fencepost.member.streams.errors import MissingSourceTopic, TaskAssignmentFailed


class _EscalationListener:
    """Looks at the leader's error before the thread receives an assignment (KIP-671)."""

    def __init__(self, listener: Any, events: ThreadEvents, assignor: StreamsAssignor) -> None:
        self._events = events
        self._assignor = assignor
        self.on_partitions_revoked = listener.on_partitions_revoked
        self.on_partitions_lost = listener.on_partitions_lost
        self._assigned = listener.on_partitions_assigned

    async def on_partitions_assigned(self, partitions: Iterable[KafkaPartition]) -> None:
        """An error has no partitions: the thread is not assigned anything."""
        if self._assignor.error == AssignorError.SHUTDOWN_REQUESTED:
            self._events.on_shutdown_requested()
        elif not self._assignor.error:
            await self._assigned(partitions)


class KafkaClassicStreamsMember(KafkaConsumerGroupMember):
    """A member that speaks the classic protocol, with the metadata and the assignor of Kafka Streams.

    All topics are the sources of one subtopology, as with Java's `builder.stream(topics)`: task 0_N is
    partition N of each. `process_id` is the same for all threads of a client.
    """

    _consumer: ClassicConsumer | None

    def __init__(
        self,
        events: ThreadEvents,
        topics: Sequence[str],
        settings: Mapping[str, Any],
        process_id: uuid.UUID,
        *,
        poll_ms: int = POLL_MS,
    ) -> None:
        super().__init__(events, topics, settings, poll_ms=poll_ms)
        self._assignor = StreamsAssignor(process_id, (topics,))
        self._escalation = _EscalationListener(self._listener, events, self._assignor)

    def make_consumer(self) -> ClassicConsumer:
        """Make a consumer in a classic group.

        :raises ValueError: if a setting is impossible.
        """
        return self._consumer_of(ClassicConsumer, assignors=(self._assignor,), listener=self._escalation)

    async def poll(self) -> Sequence[PartitionRecords]:
        """Return records by partition; none after `poll_ms` without any, or while no broker is reachable.

        :raises MissingSourceTopic: if the leader reports that one is missing.
        :raises TaskAssignmentFailed: if the leader could not assign, or its assignment can't be read.
        """
        batches = await super().poll()
        match self._assignor.error:
            case AssignorError.NONE | AssignorError.VERSION_PROBING | AssignorError.SHUTDOWN_REQUESTED:
                return batches
            case AssignorError.INCOMPLETE_SOURCE_TOPIC_METADATA:
                raise MissingSourceTopic(f"one of the topics {', '.join(self._topics)} does not exist")
            case _:
                raise TaskAssignmentFailed(self._assignor.message)

    @property
    def joined(self) -> bool:
        """True if the member has taken up the tasks of its generation."""
        return self._consumer is not None and self._consumer.is_settled and not self._assignor.error

    @property
    def round_s(self) -> float:
        """The longest time that the current round of joining may take, in seconds; 0 without a round."""
        return 0 if self._consumer is None else self._consumer.round_s

    def is_connected(self) -> bool:
        """Return true if the last request to the coordinator was answered, and a broker could be reached at
        all."""
        consumer = self._consumer
        if consumer is None or not consumer.is_started:
            return self._watch.connected
        return consumer.is_connected()

    async def close(self, *, told_to_end: bool = False, within_s: float = 10.0) -> None:
        """Leave the group and disconnect, within that many seconds.

        A member that received the end stays in the group until its session ends, unless all members know of
        it. A leave would begin the next round, and members that have not fetched their assignments yet might
        find no member there that knows of the shutdown.
        """
        stays = told_to_end and not self._assignor.all_know
        await self._close(CloseOption.REMAIN_IN_GROUP if stays else self._end(), within_s)

    def ask_for_shutdown(self) -> None:
        """Send the request in each subscription from now on, and join again for that (KIP-671)."""
        self._assignor.request_shutdown()
        if self._consumer is not None:
            self._consumer.rejoin()
