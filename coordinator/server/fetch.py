"""Fetch: reads what is there, or waits until there is enough or the time is over.

There are no fetch sessions: session id 0 in the answer tells the client to name all partitions each time,
which every client must be able to do (KIP-227).
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.logs import (
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    OfTopic,
)
from fencepost.coordinator.server.logs import PartitionLog
from fencepost.coordinator.server.services import Asked, Services

FINAL_SESSION_EPOCH = -1
"""Session epoch of a request that ends its session, or wants none."""


def fetch(
    services: Services, request: FetchRequest, asked: Asked
) -> FetchResponse | asyncio.Future[FetchResponse]:
    """The records that are asked for, now or later."""
    if request.session_id != 0 and request.session_epoch != FINAL_SESSION_EPOCH:
        return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    reply, found, wrong = _read(services, request)
    if wrong or found >= request.min_bytes or request.max_wait_ms <= 0:
        return reply
    positions = _positions(services, request)
    if not positions:
        return reply
    return _Waiting(services, request, positions).future


class _Position(NamedTuple):
    log: PartitionLog
    offset: int


def _positions(services: Services, request: FetchRequest) -> list[_Position]:
    return [
        _Position(
            services.log(services.cluster.topic_of(topic), partition.partition),
            partition.fetch_offset,
        )
        for topic in request.topics
        for partition in topic.partitions
    ]


class _Waiting:
    """A fetch that waits. It costs one callback per append to its partitions, and one timer."""

    def __init__(self, services: Services, request: FetchRequest, positions: list[_Position]) -> None:
        self.future: asyncio.Future[FetchResponse] = services.loop.create_future()
        self._services = services
        self._request = request
        self._positions = positions
        self._timer = services.loop.call_later(request.max_wait_ms / 1000, self._finish)
        for position in positions:
            position.log.watch(self._appended)
        self.future.add_done_callback(self._stop)

    def _appended(self) -> None:
        log_closed = any(position.log.is_closed for position in self._positions)
        ready = sum(position.log.available(position.offset) for position in self._positions)
        if log_closed or ready >= self._request.min_bytes:
            self._finish()

    def _finish(self) -> None:
        if not self.future.done():
            self.future.set_result(_read(self._services, self._request)[0])
            self._unwatch()

    def _stop(self, future: asyncio.Future[FetchResponse]) -> None:
        self._unwatch()

    def _unwatch(self) -> None:
        self._timer.cancel()
        for position in self._positions:
            position.log.unwatch(self._appended)


def _read(services: Services, request: FetchRequest) -> tuple[FetchResponse, int, bool]:
    """The answer as of now, its bytes of records, and whether a partition has an error."""
    left, found, wrong = request.max_bytes, 0, False
    topics = []
    for topic in request.topics:
        partitions = []
        for wanted in topic.partitions:
            try:
                one = _read_partition(services, topic, wanted, left, first=found == 0)
            except ProtocolError as error:
                wrong = True
                one = FetchedPartition(partition=wanted.partition, error_code=error.code)
            size = sum(map(len, one.batches))
            found += size
            left -= size
            partitions.append(one)
        topics.append(OfTopic(name=topic.name, topic_id=topic.topic_id, partitions=tuple(partitions)))
    return FetchResponse(topics=tuple(topics)), found, wrong


def _read_partition(
    services: Services, topic: OfTopic[FetchPartition], wanted: FetchPartition, left: int, *, first: bool
) -> FetchedPartition:
    log = services.log(services.cluster.topic_of(topic), wanted.partition)
    log.check_leader_epoch(wanted.current_leader_epoch)
    limit = max(0, min(left, wanted.partition_max_bytes))
    return FetchedPartition(
        partition=wanted.partition,
        high_watermark=log.high_watermark,
        log_start_offset=log.log_start_offset,
        batches=log.read(wanted.fetch_offset, limit, at_least_one=first),
    )
