"""The coordinators of transactional ids, and the code that ends transactions in logs and groups."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec
import structlog

from fencepost.coordinator.codec.batches import BatchHeader
from fencepost.coordinator.host import CoordinatorHost, HostHooks
from fencepost.coordinator.protocol import transactions
from fencepost.coordinator.protocol.asks import Asks
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.transaction_records import TransactionKey, TransactionRecord
from fencepost.coordinator.server.cluster import KafkaCluster
from fencepost.coordinator.server.groups import GroupCoordinators
from fencepost.coordinator.server.loop import ServerClock
from fencepost.coordinator.server.producers import Producers
from fencepost.coordinator.server.storage import Storage
from fencepost.coordinator.transactions.coordinator import (
    TransactionConfig,
    TransactionCoordinator,
    refusal,
)

log = structlog.get_logger(__name__)
_R = TypeVar("_R")

_RETRY_S = 0.02
"""Time after which groups that are loading are notified again of a transaction's end, in s."""
_ABORTABLE_FROM, _ADDED_BY_BROKER_FROM = 11, 12
"""Versions of Produce: the first that knows TRANSACTION_ABORTABLE, the first whose partitions are added."""
_RETRIABLE = frozenset({ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_COORDINATOR})


class TransactionCoordinators:
    """The coordinator of all transactional ids of a cluster; each id is led by one of the brokers."""

    def __init__(self, cluster: KafkaCluster, groups: GroupCoordinators, storage: Storage | None) -> None:
        config = groups.config
        self.coordinator = TransactionCoordinator(
            TransactionConfig(
                transaction_max_timeout_ms=config.transaction_max_timeout_ms,
                transactional_id_expiration_ms=config.transactional_id_expiration_ms,
            )
        )
        self._cluster = cluster
        self._groups = groups
        self._homes = list(groups.node_ids)
        """The broker of each partition of Kafka's `__transaction_state`, while it runs."""
        self._storage = storage
        self._clock: ServerClock | None = None
        self._host: CoordinatorHost[TransactionCoordinator] | None = None
        self._retries: dict[asyncio.TimerHandle, None] = {}

    def start(self, clock: ServerClock) -> None:
        """Load the records, and carry out ends that were decided before."""
        self._clock = clock
        known = self.coordinator.transactions
        records: Iterable[TransactionRecord] = (
            [TransactionRecord(TransactionKey(name), value) for name, value in known.items()]
            if self._storage is None
            else self._storage.transaction_records()
        )
        self.coordinator = TransactionCoordinator(self.coordinator.config)
        self._host = CoordinatorHost(self.coordinator, self._storage, clock, _TransactionHooks(self._end))
        for effect in self.coordinator.replay(records):
            self._end(effect)
        self._host.run_due()

    def close(self) -> None:
        """Stop all timers."""
        self._clock = None
        if self._host is not None:
            self._host.abandon()
        for handle in self._retries:
            handle.cancel()
        self._retries.clear()

    def now_ms(self) -> int:
        """Return the time by which transactions time out."""
        assert self._clock is not None
        return self._clock.now_ms()

    def latest_ms(self) -> int:
        """Return the latest time that a producer's record may have, by the cluster's clock or its own."""
        assert self._clock is not None
        return self._clock.latest_ms()

    def leader_id(self, transactional_id: str) -> int:
        """Return the broker that coordinates a transactional id."""
        node_id = self._homes[zlib.crc32(transactional_id.encode()) % len(self._homes)]
        return self._cluster.running_from(node_id) if self._cluster.stopped else node_id

    def move_off(self, node_id: int, to: int) -> None:
        """Let another broker coordinate the ids of a broker that is removed."""
        self._homes = [to if each == node_id else each for each in self._homes]

    def ask(self, request: Asks[_R], node_id: int) -> _R:
        """Return the response of the broker `node_id`; NOT_COORDINATOR for ids that another one leads."""
        event: Any = request  # each request of a transaction has the id
        if event.transactional_id is not None and self.leader_id(event.transactional_id) != node_id:
            refused: _R = refusal(request, ErrorCode.NOT_COORDINATOR)
            return refused
        return self._process(request)

    def check_batch(
        self,
        transactional_id: str | None,
        header: BatchHeader,
        partition: TopicPartition,
        producers: Producers,
        *,
        api_version: int,
    ) -> None:
        """Check that a batch may begin a transaction in a partition; newer clients' partitions are added.

        `producers` are those that the partition's log knows.
        :raises ProtocolError: if the producer has no such transaction, with a code that its version of
            Produce knows (KIP-890).
        """
        added = api_version >= _ADDED_BY_BROKER_FROM
        if not producers.needs_verification(header, own_epochs=added):
            return
        assert transactional_id is not None, "a transactional batch has a transactional id"
        reply = self._process(
            transactions.AddPartitionsToTxnRequest(
                transactional_id=transactional_id,
                producer_id=header.producer_id,
                producer_epoch=header.producer_epoch,
                partitions=(partition,),
                verify_only=not added,
                client_version=transactions.EPOCH_PER_TRANSACTION if added else 0,
            )
        )
        code = reply.errors[partition]
        if code is ErrorCode.NONE:
            return
        if code is ErrorCode.PRODUCER_FENCED:
            code = ErrorCode.INVALID_PRODUCER_EPOCH
        elif code is ErrorCode.TRANSACTION_ABORTABLE and api_version < _ABORTABLE_FROM:
            code = ErrorCode.INVALID_TXN_STATE
        elif code in _RETRIABLE:
            code = ErrorCode.NOT_ENOUGH_REPLICAS
        raise ProtocolError(code, f"{partition.topic}-{partition.partition} is in no open transaction")

    def check_offsets(self, request: transactions.AddOffsetsToTxnRequest) -> ErrorCode:
        """Return the error of committing a group's offsets in a transaction, or NONE; newer clients' groups
        are added.

        Once the transaction has offsets of the group, the transactional id makes no difference: Kafka asks
        the coordinator of that id only if the partition's log has no open transaction of the producer
        (UnifiedLog.hasOngoingTransaction).
        """
        known = self.coordinator.transactions
        named = known.get(request.transactional_id)
        if (named is None or named.producer_id != request.producer_id) and self._groups.has_pending(
            request.group_id, request.producer_id
        ):
            own_id = self.coordinator.id_of(request.producer_id)
            # At an epoch that is new to the log, the producer has no open transaction in it.
            if own_id is not None and request.producer_epoch <= known[own_id].producer_epoch:
                request = msgspec.structs.replace(request, transactional_id=own_id)
        return self._process(request).error_code

    def _process(self, request: Asks[_R]) -> _R:
        assert self._host is not None
        event: Any = request
        if self.coordinator.needs_producer_id(event):
            event = msgspec.structs.replace(event, next_producer_id=self._cluster.next_producer_id())
        reply: _R = self._host.process(event).reply
        return reply

    def _end(self, effect: transactions.WriteMarkers) -> None:
        assert self._clock is not None
        self._write_markers(effect, self._clock.now_ms())
        self._notify(effect, effect.groups)

    def _notify(self, effect: transactions.WriteMarkers, groups: tuple[str, ...]) -> None:
        """Notify groups of the end, then the coordinator that it is complete; retry groups that are being
        loaded."""
        left = []
        for group_id in groups:
            host = self._groups.shard_of(group_id).host
            if host is None:
                left.append(group_id)
            else:
                host.process(
                    transactions.TransactionEnded(
                        group_id=group_id, producer_id=effect.producer_id, commit=effect.commit
                    )
                )
        if left:
            self._notify_later(effect, tuple(left))
            return
        assert self._host is not None
        self._host.process(
            transactions.MarkersWritten(
                transactional_id=effect.transactional_id,
                producer_id=effect.producer_id,
                producer_epoch=effect.producer_epoch,
            )
        )

    def _write_markers(self, effect: transactions.WriteMarkers, now_ms: int) -> None:
        for name, number in effect.partitions:
            topic = self._cluster.image.by_name.get(name)
            if topic is None:
                continue
            try:
                self._cluster.log(topic, number).end_transaction(
                    effect.producer_id, effect.producer_epoch, commit=effect.commit, timestamp_ms=now_ms
                )
            except ProtocolError as error:
                log.warning("marker_refused", topic=name, partition=number, reason=error.message)

    def _notify_later(self, effect: transactions.WriteMarkers, groups: tuple[str, ...]) -> None:
        def again() -> None:
            self._retries.pop(handle, None)
            self._notify(effect, groups)

        handle = asyncio.get_running_loop().call_later(_RETRY_S, again)
        self._retries[handle] = None

    def next_deadline(self) -> int | None:
        """Return the time when the next transaction times out or the next id is forgotten, in ms."""
        return self.coordinator.next_deadline()

    def run_due(self) -> None:
        """Abort transactions that have timed out, and forget unused ids. The clock may have been moved."""
        assert self._host is not None
        self._host.run_due()


class _TransactionHooks(HostHooks):
    """Carries out effects of the host: writes markers, and notifies groups."""

    __slots__ = ("_end",)

    def __init__(self, end: Callable[[transactions.WriteMarkers], None]) -> None:
        self._end = end

    def carry_out(self, effect: transactions.WriteMarkers) -> None:
        """End a transaction in all logs and groups."""
        self._end(effect)
