"""One membership from start to stop: the member's driver, the fetcher, and the polls between them.

A poll begins when the application requests records and ends when it gets some. For some milliseconds after
it, buffered records are handed out without another poll, as long as nothing happens to the member: a poll
could do nothing else. The member is notified of them when that time is over, or before anything that depends
on it.
"""

from __future__ import annotations

import asyncio
import logging
import random
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from aiokafka.errors import CommitFailedError, ConsumerStoppedError, IllegalStateError, KafkaTimeoutError

from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.ids import TopicPartition, topic_id_from_uuid
from fencepost.coordinator.protocol.offsets import (
    OffsetAndMetadata,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from fencepost.member.base.actions import CallbackKind
from fencepost.member.base.clock import LoopClock, time_before_ms
from fencepost.member.base.config import ConsumerConfig
from fencepost.member.base.driver import MemberDriver
from fencepost.member.base.errors import CallbackFailed, CommitFailed, MemberError
from fencepost.member.base.leave import CloseOption
from fencepost.member.base.listener import AnyState, MemberObserver, Phase, RebalanceListener
from fencepost.member.base.log import log
from fencepost.member.base.transport import Transport, TransportError
from fencepost.member.consumer.driver import ConsumerDriver
from fencepost.member.consumer.states import ConsumerMemberState
from fencepost.member.kafka.client import KafkaClient
from fencepost.member.kafka.connections import Connections, Fetching
from fencepost.member.kafka.errors import AuthenticationError, as_kafka_error
from fencepost.member.kafka.listener import MemberWatch
from fencepost.member.kafka.transport import KafkaTransport

T = TypeVar("T")

_REST_S = 0.01
"""Longest time for which records are handed out without another poll, in seconds."""

STOPPED = "the consumer is stopped"
"""The text of ConsumerStoppedError."""

_JOINED = (ConsumerMemberState.ACKNOWLEDGING, ConsumerMemberState.STABLE)


class KafkaMember:
    """A member of a group on a client that has learned of its cluster. Errors are aiokafka's."""

    def __init__(
        self,
        client: KafkaClient,
        connections: Connections,
        group_id: str,
        config: ConsumerConfig,
        *,
        listener: RebalanceListener,
        observer: MemberObserver | None,
        fetch_settings: Mapping[str, Any],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._group_id = group_id
        self._config = config
        self._client = client
        self._connections = connections
        self.fetching = Fetching(client, **fetch_settings)
        self.fetching.on_out_of_range = self._out_of_range
        client.on_refused = self._refused
        self._transport = KafkaTransport(connections, self.fetching, config.request_timeout_ms)
        self._watch = MemberWatch(self._moved, self._callback, observer)
        self.driver = self._make_driver(
            LoopClock(self._loop), listener=listener, config=config, rng=random.Random(), observer=self._watch
        )
        self.driver.on_change = self._changed
        self.paused: set[TopicPartition] = set()
        self._topics: frozenset[str] = frozenset()
        self._is_subscribed = False
        self._has_joined = False
        """The member has taken up an assignment once: it may have moved on before the next check."""
        self._has_lost = False
        """Partitions were lost since the last poll began: their records that were handed out are delivered
        again."""
        self._being_assigned: frozenset[TopicPartition] = frozenset()
        self._being_lost: frozenset[TopicPartition] = frozenset()
        """Lost partitions while their callback runs; they may belong to another member already."""
        self._polling = 0
        """Number of tasks that are in a poll."""
        self._settling: asyncio.Handle | None = None
        """Set from the end of a poll until the member is notified of the records that were handed out since.
        """
        self._rest_s = min(_REST_S, config.max_poll_interval_ms / 100_000)
        self.resting = False
        """True if buffered records may be had without another poll."""
        self.closed = False
        self.ended = False
        """Closed, and nothing of it runs any more."""
        self._committing: set[asyncio.Task[None]] = set()
        self._refusal: AuthenticationError | None = None
        """The error after which commits were given up, if a broker did not accept the credentials."""

    def _make_driver(self, clock: LoopClock, **options: Any) -> MemberDriver:
        member_id = topic_id_from_uuid(uuid.uuid4())
        return ConsumerDriver(self._group_id, member_id, self._driven_over(), clock, **options)

    def _driven_over(self) -> Transport:
        """Return the transport of a member of a consumer group."""
        return self._transport

    def check_loop(self) -> None:
        """Check that this is the event loop on which the member lives, if any is running here.

        :raises RuntimeError: if it is not.
        """
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            return
        if running is not self._loop:
            raise RuntimeError(
                "a consumer should be used on the event loop that it was started on; elsewhere use"
                " asyncio.run_coroutine_threadsafe"
            )

    @property
    def is_settled(self) -> bool:
        """True if the member has taken up the assignment of the group."""
        return self.driver.state in _JOINED

    def _settles_in(self, target: AnyState) -> bool:
        """True if the member, which moves to this state, has taken up the assignment of the group."""
        return target in _JOINED

    @property
    def _is_steady(self) -> bool:
        """True if a poll would change nothing but the poll timer."""
        return self.driver.state is ConsumerMemberState.STABLE

    @property
    def is_connected(self) -> bool:
        """True if the last request to the coordinator was answered, or none was sent yet (KIP-457)."""
        return self._watch.connected

    @property
    def has_failed(self) -> bool:
        """True if the member has stopped for good."""
        return self.driver.state is ConsumerMemberState.FATAL

    def check_failed(self) -> None:
        """Raise the error that stopped the member for good, if there is one.

        :raises KafkaError: each time.
        """
        if isinstance(fatal := self.driver.fatal, MemberError):
            raise as_kafka_error(fatal) from fatal

    def check_may_commit(self) -> None:
        """Refuse commits of a member that has stopped for good.

        :raises CommitFailedError: each time.
        """
        if self.has_failed:
            raise CommitFailedError(
                f"the member has stopped for good and commits nothing: {self.driver.fatal}"
            ) from self.driver.fatal

    # -- subscription ------------------------------------------------------------------------------------

    def subscribe(self, topics: Iterable[str], pattern: str | None) -> None:
        """Replace the subscription."""
        self.settle()
        self._topics = frozenset(topics)
        self._is_subscribed = True
        self._track()
        self.driver.subscribe(sorted(self._topics), pattern=pattern)

    def unsubscribe(self) -> asyncio.Future[None]:
        """Leave the group; the future is done when that is over."""
        self.settle()
        self._topics = frozenset()
        self._is_subscribed = False
        return self.driver.unsubscribe()

    async def joined(self) -> None:
        """Wait until the member has taken up its first assignment, or has no subscription any more.

        A callback that raises is logged and tried once more: a caller that waits here makes no later call to
        try it.

        :raises CallbackFailed: if a callback raises twice.
        :raises ConsumerStoppedError: if the session is closed meanwhile.
        """
        self._polling += 1
        has_raised = False
        try:
            while True:
                if self.closed:
                    raise ConsumerStoppedError(STOPPED)
                try:
                    self._begin()
                except CallbackFailed as error:
                    if has_raised or self.has_failed:
                        raise
                    has_raised = True
                    log(logging.WARNING, "a callback failed and is tried again", exc_info=error)
                    continue
                if self._has_joined or self.is_settled or not self._is_subscribed:
                    return
                await self.fetching.wait(None)
        finally:
            self._end()

    def _track(self) -> None:
        """Keep the metadata of the topics that are subscribed to by name, and of all owned ones, fetched or
        not yet."""
        self._connections.track({*self._topics, *(each.topic for each in self.driver.assignment)})

    def _callback(self, kind: CallbackKind, phase: Phase, partitions: tuple[TopicPartition, ...]) -> None:
        if kind is CallbackKind.LOST:
            self._has_lost = True
            self._being_lost = frozenset(partitions if phase == "begin" else ())
        if kind is CallbackKind.ASSIGNED:
            self._being_assigned = frozenset(partitions if phase == "begin" else ())
            self._track()
        elif phase == "end":
            self.paused.difference_update(partitions)
        if phase != "begin":
            self.fetching.wake()

    def _moved(self, target: AnyState) -> None:
        self._has_joined |= self._settles_in(target)
        self.resting = False
        self.fetching.wake()

    def _changed(self) -> None:
        """Take the fetchable partitions in after a change: partitions that were taken away lose their records
        at once."""
        self._has_joined |= self.is_settled
        self.resting = False
        self.fetching.assign(self.driver.fetchable(), self.paused)
        self._track()
        self.fetching.wake()

    # -- polls -------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Notify the member of the records that were handed out since the last poll ended."""
        self.resting = False
        if self._settling is not None:
            self._settling.cancel()
            self._settling = None
            handed = self.fetching.handed()
            if handed:
                self._tell(handed)

    async def poll(self, take: Callable[[], T], timeout_s: float | None) -> T | None:
        """Return what `take` takes of the buffered records once that is something; None when the time is up.

        No record is handed out during a callback: its commit would include records that the application has
        not processed.

        :raises ConsumerStoppedError: if the session is closed meanwhile.
        :raises IllegalStateError: in a callback, if it would wait for its own end.
        """
        if timeout_s is None and self.driver.is_in_callback:
            raise IllegalStateError("records can't be awaited in a rebalance callback: they come after it")
        self.settle()
        until = None if timeout_s is None else self._loop.time() + timeout_s
        self._polling += 1
        try:
            while True:
                if self.closed:
                    raise ConsumerStoppedError(STOPPED)
                changes = self.driver.changes
                self._begin()
                taken = None if self.driver.is_calling_back else take()
                if taken:
                    return taken
                if changes != self.driver.changes:
                    continue  # the member's errors, or its work on a position outside of its log
                left = None if until is None else until - self._loop.time()
                if left is not None and left <= 0:
                    await asyncio.sleep(0)  # a program that polls without waiting gives others a turn, too
                    return taken
                await self.fetching.wait(self._at_most(left))
        finally:
            self._end()

    def _at_most(self, seconds: float | None) -> float | None:
        """Limit a wait for records: a poll begins anew for each automatic commit that may be due."""
        if not self._config.enable_auto_commit:
            return seconds
        interval = self._config.auto_commit_interval_ms / 1000
        return interval if seconds is None else min(seconds, interval)

    def _begin(self) -> None:
        self._has_lost = False
        try:
            self.driver.poll_begin()
        except MemberError as error:
            raise as_kafka_error(error) from error
        self._client.check()
        self.fetching.check()

    def _end(self) -> None:
        self._polling -= 1
        self._tell(self.fetching.handed())
        if not self.closed and self._settling is None:
            self._settling = self._loop.call_later(self._rest_s, self.settle)
            self.resting = self._is_steady

    def _tell(self, handed: Mapping[Any, int]) -> None:
        self.driver.poll_end(handed)
        if self._polling:
            self.fetching.wake()  # another task still waits: its poll begins again

    def _out_of_range(self, partition: Any) -> None:
        self.driver.offset_out_of_range(TopicPartition(*partition))
        self._changed()

    # -- positions ---------------------------------------------------------------------------------------

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Go on reading from this offset.

        :raises IllegalStateError: if the partition is not assigned.
        """
        self.settle()
        try:
            self.driver.seek(partition, offset)
        except ValueError as error:
            if partition not in self.driver.assignment:
                self.check_failed()
            raise IllegalStateError(f"Partition {partition} is not assigned") from error
        if partition in self.fetching.partitions:
            self.fetching.seek(partition, offset)

    def pause(self, partition: TopicPartition) -> None:
        """Hand out nothing of an assigned partition."""
        self.settle()
        self.paused.add(partition)
        self.fetching.pause(partition)

    def resume(self, partition: TopicPartition) -> None:
        """Undo `pause`."""
        self.paused.discard(partition)
        self.fetching.resume(partition)

    async def position(self, partition: TopicPartition) -> int:
        """Return the offset of the next record; wait until it is known.

        :raises IllegalStateError: if the partition is not assigned.
        :raises KafkaError: if it is the application's to decide; KafkaTimeoutError, if it is not known
            within `request_timeout_ms`: the topic may be deleted, and only a poll can release it.
        """
        until = self._loop.time() + self._config.request_timeout_ms / 1000
        while True:
            self.settle()
            position = self.driver.position(partition)
            if position is not None:
                return position
            if partition not in self.driver.assignment:
                raise IllegalStateError(f"Partition {partition} is not assigned")
            if self.has_failed:
                self._begin()
            undecided = self.driver.undecided(partition)
            if undecided is not None:
                raise as_kafka_error(undecided)
            if partition in self._being_assigned:
                return await self._starting_position(partition)
            if (left_s := until - self._loop.time()) <= 0:
                raise KafkaTimeoutError(f"no position of {partition} to be had")
            await self.fetching.wait(left_s)

    async def _starting_position(self, partition: TopicPartition) -> int:
        """Return the offset at which reading is going to start: the member looks it up only after its
        callback."""
        committed = await self.committed(partition)
        if committed is not None:
            return committed
        config = self._config
        if not config.resets_offsets:
            raise as_kafka_error(
                MemberError(ErrorCode.OFFSET_OUT_OF_RANGE, f"nothing is committed for {partition}")
            )
        timeout_ms, duration_ms = config.request_timeout_ms, config.offset_reset_duration_ms
        if duration_ms is None:
            earliest = config.auto_offset_reset == "earliest"
            offsets = await self.fetching.offsets_at([partition], timeout_ms, earliest=earliest)
        else:
            since_ms = time_before_ms(duration_ms)
            offsets = await self.fetching.offsets_since([partition], since_ms, timeout_ms)
        return offsets[partition]

    # -- committed offsets -------------------------------------------------------------------------------

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata] | None) -> None:
        """Commit these, or everything that was handed out: committed or not, so that a commit always sends a
        request.

        :raises KafkaError: if the coordinator refuses, or has assigned partitions that were handed out to
            other members.
        """
        self.settle()
        is_lost = self._has_lost if offsets is None else not self._being_lost.isdisjoint(offsets)
        if is_lost:
            raise CommitFailedError("the member was out of the group, and its partitions are lost")
        work = self.driver.commit(self.driver.delivered() if offsets is None else offsets)
        task = self._loop.create_task(work)
        self._committing.add(task)
        try:
            await task
        except CommitFailed as error:
            raise as_kafka_error(error) from error
        except asyncio.CancelledError:
            self._raise_if_stopped()
            if self._refusal is not None and not self._is_cancelled():
                raise self._refusal from None
            raise
        finally:
            self._committing.discard(task)

    def _refused(self) -> None:
        """End polls and commits that wait, since a broker does not take the credentials."""
        self._refusal = self._client.refused
        self.fetching.wake()
        for task in self._committing:
            task.cancel()

    async def committed(self, partition: TopicPartition) -> int | None:
        """Return the committed offset, or None if the group has no offset.

        :raises KafkaError: if the coordinator refuses; KafkaTimeoutError, if it can't be reached.
        """
        request = OffsetFetchRequest(group_id=self._group_id, partitions=(partition,), require_stable=True)
        until = self._loop.time() + self._config.default_api_timeout_ms / 1000
        while True:
            code, offset = await self._ask_committed(request, partition)
            if code is ErrorCode.NONE:
                return None if offset < 0 else offset
            if not code.retriable:
                raise as_kafka_error(MemberError(code, f"the committed offset of {partition}"))
            if self._loop.time() >= until:
                raise KafkaTimeoutError(f"{code.name}: no committed offset of {partition} to be had")
            await asyncio.sleep(self._config.retry_backoff_ms / 1000)

    async def _ask_committed(
        self, request: OffsetFetchRequest, partition: TopicPartition
    ) -> tuple[ErrorCode, int]:
        """Return a code and an offset. Without a response, the coordinator is looked up for the next try."""
        try:
            response = await self._transport.send(request, self._config.request_timeout_ms)
            assert isinstance(response, OffsetFetchResponse)
            if response.error_code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
                await self._transport.find_coordinator(self._group_id)
            offset = response.offsets.get(partition)
            return response.error_code, -1 if offset is None else offset.offset
        except ProtocolError as error:
            return error.code, -1
        except TransportError:
            try:
                await self._transport.find_coordinator(self._group_id)
            except ProtocolError as error:
                return error.code, -1
            except TransportError:
                pass
            return ErrorCode.NETWORK_EXCEPTION, -1
        except asyncio.CancelledError:
            self._raise_if_stopped()
            raise

    def _raise_if_stopped(self) -> None:
        """Raise ConsumerStoppedError if the session ended a wait, unless the task was cancelled."""
        if self.closed and not self._is_cancelled():
            raise ConsumerStoppedError(STOPPED) from None

    @staticmethod
    def _is_cancelled() -> bool:
        task = asyncio.current_task()
        return task is None or task.cancelling() > 0

    # -- the end -----------------------------------------------------------------------------------------

    async def close(self, option: CloseOption, timeout_ms: int) -> None:
        """Commit what was handed out if commits are automatic, give everything up, leave, and stop.

        :raises CallbackFailed: if a callback raised and no poll has reported it; everything is closed
            then.
        """
        self.settle()
        self.closed = True
        self.fetching.wake()
        try:
            await self.driver.close(option, timeout_ms=timeout_ms)
        finally:
            self.ended = True
            await self.fetching.close()
        for error in self.driver.unheard:
            if isinstance(error, CallbackFailed):
                raise error
