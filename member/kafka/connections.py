"""aiokafka's client and fetcher as a member uses them; its private names: here, in client.py, in fetcher.py.

The client carries requests that aiokafka does not know: its connections take any object that builds its own
bytes. The fetcher keeps its buffers for partitions that stay: partitions are added and removed in place,
while aiokafka's own reassignment drops all buffers. A partition is in the fetcher's assignment exactly as
long as the member may fetch it, and always with a position, so the fetcher never looks for one.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from io import BytesIO
from typing import TYPE_CHECKING, Any, ClassVar

from aiokafka import AIOKafkaConsumer
from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.conn import CloseReason
from aiokafka.consumer.fetcher import UNKNOWN_OFFSET, FetchError, FetchResult
from aiokafka.consumer.subscription_state import SubscriptionState, TopicPartitionState
from aiokafka.errors import (
    BrokerResponseError,
    IncompatibleBrokerVersion,
    KafkaConnectionError,
    KafkaError,
    OffsetOutOfRangeError,
    TopicAuthorizationFailedError,
)
from aiokafka.structs import ConsumerRecord, TopicPartition

from fencepost.member.kafka.client import why_no_start
from fencepost.member.kafka.fetcher import PatientFetcher, end_fetches, take_next, take_up_to

if TYPE_CHECKING:
    from fencepost.coordinator.codec.conversation import CallVersions

Frame = Callable[[int, int, str], bytes]
"""Make a whole request frame, with its length, from version, correlation id and client id."""

COORDINATION = int(ConnectionGroup.COORDINATION)
"""The connections to coordinators."""
ROUNDS = COORDINATION + 1
"""The connections for requests that coordinators may leave waiting: nothing else should wait behind them."""

NO_OFFSET: int = UNKNOWN_OFFSET
"""The offset that a log returns if it has no record at a time or after it."""

_CORRELATION_ID = struct.Struct(">i")


class AiokafkaRequest:
    """A request for aiokafka's connections. `version` is the one that was agreed upon."""

    def __init__(self, spoken: CallVersions, frame: Frame) -> None:
        self.api_key = spoken.key
        self.version = -1
        self._spoken = spoken
        self._frame = frame

    def prepare(self, versions: Mapping[int, tuple[int, int]]) -> _PreparedCall:
        """Return the request in the newest version that both sides speak.

        :raises IncompatibleBrokerVersion: if there is no such version.
        """
        version = self._spoken.newest_of(versions)
        if version is None:
            raise IncompatibleBrokerVersion(self._spoken.complaint(versions))
        self.version = version
        return _PreparedCall(version, self._frame)


class _WholeFrame:
    """Returns the response as it is: bytes that can't be read must not end aiokafka's reader."""

    @staticmethod
    def decode(answer: BytesIO) -> bytes:
        return answer.getvalue()


class _Bytes:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def encode(self) -> bytes:
        return self._data


class _ResponseHeader:
    def __init__(self, correlation_id: int) -> None:
        self.correlation_id = correlation_id


class _PreparedCall:
    RESPONSE_TYPE: ClassVar[type[_WholeFrame]] = _WholeFrame

    def __init__(self, version: int, frame: Frame) -> None:
        self._version = version
        self._frame = frame

    def build_request_header(self, correlation_id: int, client_id: str) -> _Bytes:
        """Return the header, and with it the body; aiokafka puts the length before both."""
        return _Bytes(self._frame(self._version, correlation_id, client_id)[4:])

    def encode(self) -> bytes:
        return b""

    def parse_response_header(self, answer: BytesIO) -> _ResponseHeader:
        return _ResponseHeader(*_CORRELATION_ID.unpack(answer.read(_CORRELATION_ID.size)))


class Connections:
    """The client's connections to brokers, of which the coordinator has some of its own."""

    def __init__(self, client: AIOKafkaClient) -> None:
        self._client = client

    async def bootstrap(self) -> None:
        """Learn of the cluster.

        :raises KafkaConnectionError: if no broker responds; its text has the reason, as far as it is
            known.
        :raises AuthenticationError: if that is because of the credentials.
        """
        try:
            await self._client.bootstrap()
        except KafkaConnectionError as error:
            raise await why_no_start(self._client, error) from error

    async def ask(
        self, node_id: int, call: AiokafkaRequest, timeout_ms: int, *, group: int = ConnectionGroup.DEFAULT
    ) -> bytes:
        """Return the response to a call, as a frame without its length.

        :raises KafkaError: if there is no connection, or it breaks.
        :raises TimeoutError: if no response comes in time; the connection is given up.
        """
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                answer: bytes = await self._client.send(node_id, call, group=group)
                return answer
        except TimeoutError:
            connection = self._client._conns.get((node_id, group))
            if connection is not None:
                connection.close(reason=CloseReason.CONNECTION_TIMEOUT)
            raise

    def any_node(self) -> int | None:
        """Return some broker of the cluster."""
        node: int | None = self._client.get_random_node()
        return node

    async def knows(self, node_id: int, host: str, port: int, timeout_ms: int) -> bool:
        """Return true if the broker of this id is known under this address, after fresh metadata if
        necessary."""
        for renewed in (False, True):
            if renewed:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._client.force_metadata_update(), timeout_ms / 1000)
            broker = self._client.cluster.broker_metadata(node_id)
            if broker is not None and (broker.host, broker.port) == (host, port):
                return True
        return broker is not None

    def track(self, topics: set[str]) -> None:
        """Keep the metadata of exactly these topics; of all topics if this is empty."""
        if topics != self._client._topics:
            self._client.set_topics(topics)

    def leader_of(self, partition: tuple[str, int]) -> int | None:
        """Return the broker that leads a partition; None if it has no leader, or the leader is not known."""
        leader = self._client.cluster.leader_for_partition(TopicPartition(*partition))
        return None if leader == -1 else leader

    def renew_metadata(self) -> None:
        """Request leaders and addresses again."""
        self._client.force_metadata_update()


async def stop(consumer: AIOKafkaConsumer) -> None:
    """Stop a consumer of aiokafka's; its own `stop` may be cut off before it has disconnected."""
    try:
        if consumer._fetcher is not None:
            await end_fetches(consumer._fetcher)
        with contextlib.suppress(KafkaError):
            await consumer.stop()
    finally:
        await consumer._client.close()


class Fetching:
    """The fetcher with an assignment that changes in place."""

    def __init__(self, client: AIOKafkaClient, **settings: Any) -> None:
        self._subscriptions = SubscriptionState(loop=asyncio.get_running_loop())
        self._subscriptions.assign_from_user([])
        self._assignment = self._subscriptions.subscription.assignment
        # Resets are the member's: an offset that is out of range becomes an error here.
        self._fetcher = PatientFetcher(client, self._subscriptions, auto_offset_reset="none", **settings)
        self._records: OrderedDict[TopicPartition, FetchResult | FetchError] = self._fetcher._records
        self._current: FetchResult | None = None
        """The fetch result from which `take_one` took its last record."""
        self._touched: dict[TopicPartition, TopicPartitionState] = {}
        """Partitions whose position moved since `handed`."""
        self._denied: TopicAuthorizationFailedError | None = None
        self.on_out_of_range: Callable[[TopicPartition], None] = lambda partition: None
        """Called for a partition whose log does not have the position; the caller takes it away."""

    async def close(self) -> None:
        """Stop fetching; callers that wait are woken."""
        await end_fetches(self._fetcher)
        with contextlib.suppress(KafkaError):  # of a fetcher that died: it is stopped, then
            await self._fetcher.close()

    # -- partitions --------------------------------------------------------------------------------------

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """The partitions that are fetched now."""
        partitions: frozenset[TopicPartition] = self._assignment._topic_partitions
        return partitions

    def assign(self, positions: Mapping[Any, int], paused: Iterable[tuple[str, int]]) -> None:
        """Fetch exactly these, each from its position. Partitions that stay keep both their position and
        their buffer."""
        states, before = self._assignment._tp_state, self.partitions
        after = frozenset(TopicPartition(*partition) for partition in positions)
        if after == before:
            return
        self._current = None
        for partition in before - after:
            self._records.pop(partition, None)
            self._touched.pop(partition, None)
            # A fetch under way may still return records of it, and checks here if they are wanted.
            states[partition]._position = None
        for partition in after - before:
            state = states.get(partition)
            if state is None:
                state = states[partition] = TopicPartitionState(self._assignment)
            state.seek(positions[partition])
            state.resume()
        self._assignment._topic_partitions = after
        for partition in paused:
            if partition in after:
                states[partition].pause()
        if not self._fetcher._in_flight:
            for partition in [each for each in states if each not in after]:
                del states[partition]
        self._look_again()

    def _look_again(self) -> None:
        self._fetcher._notify(self._fetcher._wait_consume_future)

    def seek(self, partition: tuple[str, int], offset: int) -> None:
        """Go on from this offset, and drop what was fetched already."""
        self._current = None
        self._fetcher.seek_to(TopicPartition(*partition), offset)

    def pause(self, partition: tuple[str, int]) -> None:
        """Hand out nothing of it, and do not fetch it; fetched records are kept."""
        if partition in self.partitions:
            self._current = None
            self._assignment._tp_state[partition].pause()

    def resume(self, partition: tuple[str, int]) -> None:
        """Undo `pause`."""
        if partition in self.partitions:
            self._assignment._tp_state[partition].resume()
            self.wake()

    def position(self, partition: tuple[str, int]) -> int | None:
        """Return the offset of the next record to hand out."""
        state = self._assignment._tp_state.get(partition)
        position: int | None = None if state is None else state._position
        return position

    def last_seen(self, partition: tuple[str, int]) -> tuple[int | None, int | None, int | None]:
        """Return the high watermark, the last stable offset, and the time in ms of the last fetch; None
        before it."""
        state = self._assignment._tp_state.get(partition)
        return (None, None, None) if state is None else (state.highwater, state.lso, state.timestamp)

    # -- records -----------------------------------------------------------------------------------------

    def check(self) -> None:
        """Make sure that the fetcher's background task lives, and may look offsets up.

        :raises KafkaError: if it died of an error; it is started again.
        :raises TopicAuthorizationFailedError: if a broker has refused to return an offset since the last
            call.
        """
        denied, self._denied = self._denied, None
        if denied is not None:
            raise denied
        task: asyncio.Task[None] = self._fetcher._fetch_task
        if task.done() and not self._fetcher._closed:
            self._current = None
            self._drop_ended()
            self._fetcher._fetch_task = asyncio.ensure_future(self._fetcher._fetch_requests_routine())
            task.result()

    def _drop_ended(self) -> None:
        """Forget fetches that ended: the fetcher awaits what it finds, and would treat their errors as its
        own."""
        self._fetcher._pending_tasks = {task for task in self._fetcher._pending_tasks if not task.done()}

    def take_one(self, partitions: tuple[tuple[str, int], ...] = ()) -> ConsumerRecord | None:
        """Return the next buffered record of these partitions, or of any."""
        if self._current is not None and not partitions:
            record = take_next(self._current)
            if record is not None:
                return record
            self._exhausted(self._current._topic_partition)
        return self._next(partitions)

    def _next(self, partitions: tuple[tuple[str, int], ...]) -> ConsumerRecord | None:
        self._current = None
        for partition in list(self._records):
            result = self._buffer(partition, partitions)
            if result is None:
                continue
            record = take_next(result) if result.check_assignment(partition) else None
            if record is not None:
                self._current = result
                return record
            self._exhausted(partition)
        return None

    def take_many(
        self, partitions: tuple[tuple[str, int], ...], most: int | None
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Return buffered records of these partitions, or of all; at most that many.

        If there is anything to hand out, an error waits for the next call, and is raised first there.
        """
        self._current = None
        taken: dict[TopicPartition, list[ConsumerRecord]] = {}
        for partition in list(self._records):
            records, error = self._drain(partition, partitions, most)
            if records:
                taken[partition] = records
            if error is not None:
                if not taken:
                    raise error
                self._records[partition] = FetchError(error=error, backoff=0)
                self._records.move_to_end(partition, last=False)
            if most is not None:
                most -= len(records)
                if most == 0:
                    break
        return taken

    def _drain(
        self, partition: TopicPartition, wanted: tuple[tuple[str, int], ...], most: int | None
    ) -> tuple[list[ConsumerRecord], Exception | None]:
        """Return at most that many buffered records, and the reason if the next one can't be read."""
        records: list[ConsumerRecord] = []
        failed: Exception | None = None
        try:
            result = self._buffer(partition, wanted)
        except Exception as error:
            return records, error
        if result is None:
            return records, None
        if result.check_assignment(partition):
            failed = take_up_to(most, result, records)
        if failed is not None or most is None or len(records) < most:
            self._exhausted(partition)
        return records, failed

    def _buffer(self, partition: TopicPartition, wanted: tuple[tuple[str, int], ...]) -> FetchResult | None:
        """Return the buffer to take from; an error in it is raised, or leads to `on_out_of_range`."""
        state = self._assignment._tp_state[partition]
        if state.paused or (wanted and partition not in wanted):
            return None
        result = self._records.get(partition)
        if isinstance(result, FetchResult):
            self._touched[partition] = state
            return result
        if result is not None:
            self._exhausted(partition)
            if not isinstance(result._error, OffsetOutOfRangeError):
                result.check_raise()
            self.on_out_of_range(partition)
        return None

    def _exhausted(self, partition: TopicPartition) -> None:
        self._records.pop(partition, None)
        self._look_again()

    def handed(self) -> dict[TopicPartition, int]:
        """Return the positions of the partitions that records were taken of since the last call."""
        touched, self._touched, self._current = self._touched, {}, None
        return {partition: state._position for partition, state in touched.items()}

    # -- waiting -----------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Wake callers that wait, so that they look again."""
        for waiter in list(self._fetcher._fetch_waiters):
            self._fetcher._notify(waiter)
        self._look_again()

    async def wait(self, timeout_s: float | None) -> None:
        """Wait for records, for `wake`, or for the time to pass."""
        waiter = self._fetcher._create_fetch_waiter()
        try:
            await asyncio.wait(
                (waiter, self._fetcher._fetch_task), timeout=timeout_s, return_when="FIRST_COMPLETED"
            )
        finally:
            waiter.cancel()

    # -- offsets of logs ---------------------------------------------------------------------------------

    async def log_offsets(
        self, node_id: int, partitions: Iterable[tuple[str, int]], timestamp_ms: int
    ) -> dict[tuple[str, int], int]:
        """Return an offset of these partitions, which that node leads; without those that fail.

        It is the first at or after a time, NO_OFFSET if there is no such record, or the offset of an
        OffsetSpec.

        :raises KafkaError: if the node does not respond.
        """
        asked: dict[str, list[tuple[int, int]]] = {}
        for topic, partition in partitions:
            asked.setdefault(topic, []).append((partition, timestamp_ms))
        try:
            found = await self._fetcher._proc_offset_request(node_id, asked)
        except BrokerResponseError as error:
            several = [(topic, number) for topic, rows in asked.items() for number, _ in rows]
            if len(several) == 1:
                if isinstance(error, TopicAuthorizationFailedError):
                    self._denied = TopicAuthorizationFailedError(several[0][0])
                    self.wake()
                return {}
            alone = [await self.log_offsets(node_id, (each,), timestamp_ms) for each in several]
            return {partition: offset for one in alone for partition, offset in one.items()}
        return {partition: offset for partition, (offset, _) in found.items()}

    async def offsets_at(
        self, partitions: Iterable[Any], timeout_ms: int, *, earliest: bool
    ) -> dict[Any, int]:
        """Look offsets up like aiokafka's beginning_offsets and end_offsets."""
        ask = self._fetcher.beginning_offsets if earliest else self._fetcher.end_offsets
        offsets: dict[Any, int] = await ask(partitions, timeout_ms)
        return offsets

    async def offsets_since(
        self, partitions: Iterable[Any], timestamp_ms: int, timeout_ms: int
    ) -> dict[Any, int]:
        """Return the first offset at or after a time, by partition; the next offset if there is no such
        record."""
        ends = await self.offsets_at(partitions, timeout_ms, earliest=False)
        found = await self.offsets_for_times(dict.fromkeys(ends, timestamp_ms), timeout_ms)
        return {each: end if found[each] is None else found[each].offset for each, end in ends.items()}

    async def offsets_for_times(self, timestamps: dict[Any, int], timeout_ms: int) -> dict[Any, Any]:
        """Look offsets up like aiokafka's offsets_for_times."""
        offsets: dict[Any, Any] = await self._fetcher.get_offsets_by_times(timestamps, timeout_ms)
        return offsets
