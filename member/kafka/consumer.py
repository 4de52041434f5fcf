"""The asyncio consumer that speaks KIP-848, with the API of aiokafka's AIOKafkaConsumer."""

from __future__ import annotations

import asyncio
import contextlib
import warnings
from collections.abc import Callable, Iterable
from ssl import SSLContext
from types import TracebackType
from typing import Any, ClassVar, NoReturn

import msgspec
from aiokafka.errors import ConsumerStoppedError, IllegalStateError
from aiokafka.structs import ConsumerRecord, TopicPartition
from aiokafka.util import commit_structure_validate

from fencepost.coordinator.protocol import ids
from fencepost.coordinator.protocol.ids import MemberId
from fencepost.coordinator.protocol.offsets import OffsetAndMetadata
from fencepost.member.base.errors import CallbackFailed
from fencepost.member.base.leave import CloseOption
from fencepost.member.base.listener import MemberObserver
from fencepost.member.consumer.driver import ConsumerDriver
from fencepost.member.consumer.states import ConsumerMemberState
from fencepost.member.kafka import settings
from fencepost.member.kafka.client import KafkaClient
from fencepost.member.kafka.connections import Connections
from fencepost.member.kafka.listener import ApplicationListener
from fencepost.member.kafka.logs import LogQuestions, Partition
from fencepost.member.kafka.member import STOPPED, KafkaMember

_FAILED_START_CLOSE_MS = 5_000
"""Longest time that a start that fails takes to leave the group, in ms."""


class KIP848Consumer(LogQuestions):
    """A consumer of a group whose broker assigns the partitions (KIP-848): Kafka 4.0 or later.

        async with KIP848Consumer("orders", bootstrap_servers="…", group_id="billing") as consumer:
            async for record in consumer:
                ...

    Settings have the names and the defaults of AIOKafkaConsumer, whose documentation applies to everything
    else; `auto_offset_reset` takes `by_duration:PT1H` as well (KIP-1106). `listener` is aiokafka's
    ConsumerRebalanceListener, or an object like one that may have `on_partitions_lost` as well.
    `group_remote_assignor` names an assignor of the broker; `observer` sees the member's steps. Create it in
    the event loop that it is used in.

    Records that were handed over count as processed at the application's next request for records: only those
    are committed automatically. Exceptions of listeners are raised by the next poll as CallbackFailed, all
    others are aiokafka's.

    :raises TypeError: if a function can't be called, or an object lacks one of the methods that are
        needed.
    :raises ValueError: if a setting is impossible, or means nothing with KIP-848: the broker decides on
        sessions, heartbeats and strategies.
    """

    _protocol = "consumer"
    _session_type: ClassVar[Callable[..., KafkaMember]] = KafkaMember

    def __init__(
        self,
        *topics: str,
        bootstrap_servers: str | list[str] = "localhost",
        group_id: str | None = None,
        listener: Any = None,
        client_id: str = "fencepost",
        group_instance_id: str | None = None,
        group_remote_assignor: str | None = None,
        client_rack: str | None = None,
        key_deserializer: Callable[[bytes | None], Any] | None = None,
        value_deserializer: Callable[[bytes | None], Any] | None = None,
        auto_offset_reset: str = "latest",
        enable_auto_commit: bool = True,
        auto_commit_interval_ms: int = 5_000,
        max_poll_interval_ms: int = 300_000,
        max_poll_records: int | None = None,
        isolation_level: str = "read_uncommitted",
        fetch_min_bytes: int = 1,
        fetch_max_bytes: int = 52_428_800,
        fetch_max_wait_ms: int = 500,
        max_partition_fetch_bytes: int = 1_048_576,
        check_crcs: bool = True,
        consumer_timeout_ms: int = 200,
        request_timeout_ms: int = 40_000,
        default_api_timeout_ms: int = 60_000,
        retry_backoff_ms: int = 100,
        retry_backoff_max_ms: int = 1_000,
        metadata_max_age_ms: int = 300_000,
        connections_max_idle_ms: int | None = 540_000,
        security_protocol: str = "PLAINTEXT",
        ssl_context: SSLContext | None = None,
        sasl_mechanism: str = "PLAIN",
        sasl_plain_username: str | None = None,
        sasl_plain_password: str | None = None,
        sasl_kerberos_service_name: str = "kafka",
        sasl_kerberos_domain_name: str | None = None,
        sasl_oauth_token_provider: Any = None,
        observer: MemberObserver | None = None,
        session_timeout_ms: None = None,
        heartbeat_interval_ms: None = None,
        partition_assignment_strategy: None = None,
        rebalance_timeout_ms: None = None,
    ) -> None:
        self._session: KafkaMember | None = None
        self._closed = False
        self._failed_start: KafkaMember | None = None
        """The session of a start that ended with an error which no retry fixes, until `stop`."""
        self._start_error: BaseException | None = None
        """The error that ended the start and closed the consumer."""
        settings.refuse(
            self._protocol,
            session_timeout_ms=session_timeout_ms,
            heartbeat_interval_ms=heartbeat_interval_ms,
            partition_assignment_strategy=partition_assignment_strategy,
            rebalance_timeout_ms=rebalance_timeout_ms,
        )
        settings.check_servers(bootstrap_servers)
        settings.check_functions(key_deserializer=key_deserializer, value_deserializer=value_deserializer)
        settings.check_objects(observer, sasl_oauth_token_provider)
        settings.check_records("max_poll_records", max_poll_records)
        settings.check_choice("isolation_level", isolation_level, settings.ISOLATION_LEVELS)
        settings.check_offset_reset(auto_offset_reset)
        settings.check_limits(
            fetch_min_bytes=fetch_min_bytes,
            fetch_max_bytes=fetch_max_bytes,
            fetch_max_wait_ms=fetch_max_wait_ms,
            max_partition_fetch_bytes=max_partition_fetch_bytes,
        )
        self._group_id = settings.check_group_id(group_id)
        self._config = settings.member_config(
            max_poll_interval_ms=max_poll_interval_ms,
            retry_backoff_ms=retry_backoff_ms,
            retry_backoff_max_ms=max(retry_backoff_ms, retry_backoff_max_ms),
            request_timeout_ms=request_timeout_ms,
            default_api_timeout_ms=default_api_timeout_ms,
            enable_auto_commit=enable_auto_commit,
            auto_commit_interval_ms=auto_commit_interval_ms,
            auto_offset_reset=auto_offset_reset,
            group_instance_id=group_instance_id,
            group_remote_assignor=group_remote_assignor,
            client_rack=client_rack,
            client_id=settings.check_client_id(client_id),
        )
        self._fetch_settings = {
            "key_deserializer": key_deserializer,
            "value_deserializer": value_deserializer,
            "fetch_min_bytes": fetch_min_bytes,
            "fetch_max_bytes": fetch_max_bytes,
            "fetch_max_wait_ms": fetch_max_wait_ms,
            "max_partition_fetch_bytes": max_partition_fetch_bytes,
            "check_crcs": check_crcs,
            "fetcher_timeout": consumer_timeout_ms / 1000,
            "retry_backoff_ms": retry_backoff_ms,
            "isolation_level": isolation_level,
            "client_rack": client_rack,
        }
        self._max_poll_records = max_poll_records
        self._observer = observer
        self._own_listener = listener
        self._listener = ApplicationListener(listener)
        self._started = False
        settings.check_names(topics)
        self._topics = frozenset(topics)
        self._pattern: str | None = None
        self._client = KafkaClient(
            bootstrap_servers=bootstrap_servers,
            client_id=client_id,
            metadata_max_age_ms=metadata_max_age_ms,
            request_timeout_ms=request_timeout_ms,
            retry_backoff_ms=retry_backoff_ms,
            connections_max_idle_ms=connections_max_idle_ms,
            security_protocol=security_protocol,
            ssl_context=ssl_context,
            sasl_mechanism=sasl_mechanism,
            sasl_plain_username=sasl_plain_username,
            sasl_plain_password=sasl_plain_password,
            sasl_kerberos_service_name=sasl_kerberos_service_name,
            sasl_kerberos_domain_name=sasl_kerberos_domain_name,
            sasl_oauth_token_provider=sasl_oauth_token_provider,
        )

    # -- state: not started, running, stopped, or ended by an error of its start -----------------------------

    @property
    def member_id(self) -> MemberId:
        """The member id, kept from start to stop; empty before the start."""
        return MemberId("") if self._session is None else self._session.driver.member_id

    @property
    def member_epoch(self) -> int:
        """The newest epoch received; 0 before the start and while out of the group."""
        return 0 if self._session is None else self._session.driver.member_epoch

    @property
    def state(self) -> ConsumerMemberState:
        """The state of the member; UNSUBSCRIBED before the start."""
        if self._session is None:
            return ConsumerMemberState.UNSUBSCRIBED
        return ConsumerMemberState(self._session.driver.state)

    @property
    def has_failed(self) -> bool:
        """True if the member has stopped for good: polls raise the reason."""
        return self._session is not None and self._session.has_failed

    @property
    def instance_holders(self) -> tuple[MemberId, ...]:
        """The member ids under which this process may hold the consumer's instance id."""
        driver = None if self._session is None else self._session.driver
        if isinstance(driver, ConsumerDriver):
            return driver.instance_holders
        return self._config.instance_holders

    def is_connected(self) -> bool:
        """Return True if the consumer runs and its last request to the coordinator was answered (KIP-457).

        A heartbeat is sent every few seconds, so a lost connection is noticed with the next one.
        """
        session = self._session
        return session is not None and not self._closed and session.is_connected

    def _running(self) -> KafkaMember:
        """Return the session, until all of it is closed: callbacks may use it while the consumer stops.

        :raises IllegalStateError: before the start.
        :raises ConsumerStoppedError: once the consumer is stopped.
        :raises KafkaError: if its start ended with an error that no retry fixes.
        :raises RuntimeError: on another event loop than the consumer's.
        """
        session = self._session
        if self._closed and (session is None or session.ended):
            self._raise_stopped()
        if session is None:
            raise IllegalStateError("the consumer is not started")
        session.check_loop()
        return session

    def _raise_stopped(self) -> NoReturn:
        if self._failed_start is not None:
            self._failed_start.check_failed()
        if self._start_error is not None:
            raise ConsumerStoppedError(f"{STOPPED}: its start failed with {self._start_error!r}")
        raise ConsumerStoppedError(STOPPED)

    # -- start and stop ----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect; with a subscription, join the group and take up the first assignment.

        A consumer that could not connect may be started again. After any other error it is stopped, and later
        calls raise that error. A callback that raises is logged and tried once more.

        :raises CallbackFailed: if a callback raised twice.
        :raises KafkaConnectionError: if no broker responds.
        :raises AuthenticationError: if one does not accept the credentials; it is a KafkaConnectionError,
            too.
        :raises UnsupportedVersionError: if the broker does not speak KIP-848.
        :raises ConsumerStoppedError: if the consumer is stopped meanwhile.
        """
        if self._failed_start is not None:
            self._failed_start.check_failed()
        if self._started:
            raise IllegalStateError("a consumer starts once")
        self._started = True
        connections = Connections(self._client)
        try:
            await connections.bootstrap()
        except BaseException:
            self._started = self._closed
            raise
        try:
            if self._closed:
                await self._client.close()  # once more: it has connected since
                raise ConsumerStoppedError(STOPPED)
            self._session = session = self._make_session(connections)
            if self._topics or self._pattern:
                session.subscribe(self._topics, self._pattern)
                await session.joined()
        except BaseException as error:
            begun = self._session
            with contextlib.suppress(CallbackFailed):
                await self.stop(timeout_ms=_FAILED_START_CLOSE_MS)
            if begun is not None and begun.has_failed:
                self._failed_start = begun
            if not isinstance(error, ConsumerStoppedError | asyncio.CancelledError):
                self._start_error = error
            raise

    def follow(self, before: KIP848Consumer) -> None:
        """Take over the instance id of a consumer of this process that has stopped. Call it before `start`.

        A consumer that failed may not have given its instance id up. This one may then free it.
        """
        self._config = msgspec.structs.replace(self._config, instance_holders=before.instance_holders)

    def _make_session(self, connections: Connections, **options: Any) -> KafkaMember:
        return self._session_type(
            self._client,
            connections,
            self._group_id,
            self._config,
            listener=self._listener,
            observer=self._observer,
            fetch_settings=self._fetch_settings,
            **options,
        )

    async def stop(self, option: CloseOption = CloseOption.DEFAULT, *, timeout_ms: int = 30_000) -> None:
        """Commit what was handed over if commits are automatic, revoke everything, leave, disconnect.

        The group is notified at once; a static member keeps its place until its session ends, unless the
        option differs. It takes no longer than the time given, even if no broker can be reached.

        :raises CallbackFailed: if on_partitions_revoked raised; the consumer is stopped nonetheless.
        :raises IllegalStateError: in a callback, which would wait for its own end.
        :raises RuntimeError: on another event loop than the consumer's.
        """
        if self._closed:
            self._failed_start = None
            return
        if self._session is not None:
            self._session.check_loop()
            if self._session.driver.is_in_callback:
                raise IllegalStateError("stop waits for rebalance callbacks, and can't be called in one")
        self._closed = self._started = True
        try:
            if self._session is not None:
                await self._session.close(option, timeout_ms)
        finally:
            await self._client.close()

    async def __aenter__(self) -> KIP848Consumer:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(*[CallbackFailed] if error is not None else []):
            await self.stop()

    def __del__(self) -> None:
        session = getattr(self, "_session", None)
        if session is not None and not self._closed:
            warnings.warn(f"Unclosed KIP848Consumer {self!r}", ResourceWarning, source=self, stacklevel=2)

    # -- subscription ------------------------------------------------------------------------------------

    def subscribe(self, topics: Iterable[str] = (), pattern: str | None = None, listener: Any = None) -> None:
        """Subscribe to these topics, or to all that an expression matches, in place of the previous
        subscription.

        The expression is the broker's: RE2 syntax, and it has to match the whole name. The listener is
        replaced, too; without one, the listener of the constructor is used again. Partitions of topics that
        stay subscribed stay assigned.

        :raises TypeError: for neither or both, for a string in place of a list, for an impossible listener.
        """
        if isinstance(topics, str):
            raise TypeError("Topics should be list of strings")
        topics = tuple(topics)
        if not (topics or pattern):
            raise TypeError("You should provide either `topics` or `pattern`")
        if topics and pattern:
            raise TypeError("You can't provide both `topics` and `pattern`")
        if pattern is not None and not isinstance(pattern, str):
            raise TypeError("pattern should be a string in RE2 syntax: the broker matches it")
        if self._closed:
            self._raise_stopped()
        settings.check_names(topics)
        session = None if self._session is None else self._running()
        self._listener.replace(self._own_listener if listener is None else listener)
        self._topics, self._pattern = frozenset(topics), pattern
        if session is not None:
            session.subscribe(self._topics, self._pattern)

    def unsubscribe(self) -> asyncio.Future[None]:
        """Give everything up and leave the group. The returned future is done when that is over; it may be
        ignored."""
        session = self._running()
        self._topics, self._pattern = frozenset(), None
        return session.unsubscribe()

    def subscription(self) -> frozenset[str]:
        """Return the topics that are subscribed to; for a pattern those among them that are assigned."""
        if self._pattern is None:
            return self._topics
        return frozenset(partition.topic for partition in self.assignment())

    def assignment(self) -> set[TopicPartition]:
        """Return the assigned partitions, from the start of on_partitions_assigned to the end of
        on_partitions_revoked."""
        if self._session is None:
            return set()
        return {TopicPartition(*partition) for partition in self._session.driver.assignment}

    def _assigned(self, partitions: Iterable[Partition]) -> tuple[ids.TopicPartition, ...]:
        """Return these partitions, or all that are assigned.

        :raises IllegalStateError: if one of them is not assigned.
        :raises KafkaError: if nothing is assigned, as the member has stopped for good.
        """
        session = self._running()
        owned = session.driver.assignment
        if not owned:
            session.check_failed()
        chosen = tuple(ids.TopicPartition(*each) for each in _partitions(partitions)) or owned
        missing = [each for each in chosen if each not in owned]
        if missing:
            raise IllegalStateError(f"Partitions {missing} are not assigned")
        return chosen

    # -- records -----------------------------------------------------------------------------------------

    async def getone(self, *partitions: Partition) -> ConsumerRecord:
        """Return the next record, of these partitions if any are given.

        :raises ConsumerStoppedError: if the consumer is stopped, also while this waits.
        """
        session = self._session
        if session is not None and session.resting:
            record = session.fetching.take_one(partitions)
            if record is not None:
                return record
        if self._closed:
            self._raise_stopped()
        session = self._running()
        chosen = _partitions(partitions)
        return await session.poll(lambda: session.fetching.take_one(chosen), None)

    async def getmany(
        self, *partitions: Partition, timeout_ms: float = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Return records by partition, or an empty mapping if no record arrives in time.

        :raises ConsumerStoppedError: if the consumer is stopped, also while this waits.
        """
        if self._closed:
            self._raise_stopped()
        settings.check_records("max_records", max_records)
        session, chosen = self._running(), _partitions(partitions)
        most = max_records or self._max_poll_records
        taken = await session.poll(lambda: session.fetching.take_many(chosen, most), timeout_ms / 1000)
        return taken or {}

    def __aiter__(self) -> KIP848Consumer:
        if self._closed:
            self._raise_stopped()
        return self

    async def __anext__(self) -> ConsumerRecord:
        session = self._session
        if session is not None and session.resting:
            record = session.fetching.take_one()
            if record is not None:
                return record
        try:
            return await self.getone()
        except ConsumerStoppedError:
            raise StopAsyncIteration from None

    # -- positions ---------------------------------------------------------------------------------------

    async def position(self, partition: Partition) -> int:
        """Return the offset of the next record to hand over."""
        (chosen,) = self._assigned((partition,))
        return await self._running().position(chosen)

    def seek(self, partition: Partition, offset: int) -> None:
        """Go on reading from this offset; in on_partitions_assigned: start there.

        :raises ValueError: for an offset that no log can have.
        """
        self._running().seek(ids.TopicPartition(*partition), settings.check_offset(offset))

    async def seek_to_beginning(self, *partitions: Partition) -> bool:
        """Go to the first record of these partitions, or of all that are assigned."""
        return await self._seek_to(partitions, earliest=True)

    async def seek_to_end(self, *partitions: Partition) -> bool:
        """Go behind the last record of these partitions, or of all that are assigned."""
        return await self._seek_to(partitions, earliest=False)

    async def _seek_to(self, partitions: tuple[Partition, ...], *, earliest: bool) -> bool:
        session, chosen = self._running(), self._assigned(partitions)
        offsets = await session.fetching.offsets_at(
            chosen, self._config.request_timeout_ms, earliest=earliest
        )
        for partition, offset in offsets.items():
            session.seek(ids.TopicPartition(*partition), offset)
        return True

    async def seek_to_committed(self, *partitions: Partition) -> dict[TopicPartition, int | None]:
        """Go to the committed offsets, if there are any, and return them."""
        session, found = self._running(), {}
        for partition in self._assigned(partitions):
            offset = found[TopicPartition(*partition)] = await session.committed(partition)
            if offset is not None:
                session.seek(partition, offset)
        return found

    def pause(self, *partitions: Partition) -> None:
        """Hand out nothing of these until `resume`, or until they are assigned again."""
        for partition in self._assigned(partitions) if partitions else ():
            self._running().pause(partition)

    def resume(self, *partitions: Partition) -> None:
        """Hand out records of these again."""
        for partition in self._assigned(partitions) if partitions else ():
            self._running().resume(partition)

    def paused(self) -> set[TopicPartition]:
        """Return the paused partitions."""
        return {TopicPartition(*partition) for partition in self._running().paused}

    # -- committed offsets -------------------------------------------------------------------------------

    async def commit(self, offsets: dict[TopicPartition, Any] | None = None) -> None:
        """Commit offsets, or (offset, metadata), by partition; without them everything that was handed over.

        :raises CommitFailedError: if the member is out of the group or has stopped for good, or its epoch is
            not the newest.
        :raises ValueError: for an offset that no log can have.
        """
        session = self._failed_start or self._running()
        session.check_may_commit()
        is_subscribed = self._topics or self._pattern is not None
        # Partitions that `unsubscribe` and `stop` give up may be committed until the callback ends.
        if not is_subscribed and not session.driver.assignment and not self._closed:
            raise IllegalStateError("Not subscribed to any topics")
        if offsets is None:
            await session.commit(None)
            return
        given = commit_structure_validate(offsets)
        self._assigned(given)
        for each in given.values():
            settings.check_offset(each.offset)
        await session.commit(
            {
                ids.TopicPartition(*partition): OffsetAndMetadata(offset=each.offset, metadata=each.metadata)
                for partition, each in given.items()
            }
        )

    async def committed(self, partition: Partition) -> int | None:
        """Ask the coordinator for the group's committed offset. Return None if the group has no offset."""
        return await self._running().committed(ids.TopicPartition(*partition))


def _partitions(partitions: Iterable[Partition]) -> tuple[TopicPartition, ...]:
    """Return aiokafka's tuples.

    :raises TypeError: if one of them is not a partition.
    """
    chosen = tuple(partitions)
    if not all(isinstance(each, tuple) and len(each) == 2 for each in chosen):
        raise TypeError("partitions must be TopicPartition namedtuples")
    return tuple(TopicPartition(*each) for each in chosen)
