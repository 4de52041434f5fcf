"""Fetch: reads what is there, or waits until there is enough or the time is over."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.ids import NO_EPOCH
from fencepost.coordinator.protocol.logs import (
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
)
from fencepost.coordinator.server.fetch_sessions import (
    NO_SESSION,
    Fetched,
    FetchSession,
    FetchSessions,
    Wanted,
    by_topic,
    wanted_by,
)
from fencepost.coordinator.server.logs import PartitionLog
from fencepost.coordinator.server.services import Asked, Services


class FetchApi:
    """The handler of Fetch, with the fetch sessions of its broker."""

    def __init__(self) -> None:
        self.sessions = FetchSessions()

    def __call__(
        self, services: Services, request: FetchRequest, asked: Asked
    ) -> FetchResponse | asyncio.Future[FetchResponse]:
        """The records that are asked for, now or later."""
        try:
            session = self.sessions.session_of(request)
        except ProtocolError as error:
            return FetchResponse(error_code=error.code)
        fetch = _Fetch(services, request, session)
        found = fetch.read()
        needed = min(request.min_bytes, request.max_bytes)
        if found.is_urgent or found.size >= needed or request.max_wait_ms <= 0 or not found.positions:
            return fetch.reply(found)
        return _Waiting(fetch, found.positions, needed).future


class _Position(NamedTuple):
    log: PartitionLog
    offset: int


class _Found(NamedTuple):
    fetched: list[Fetched]
    """What was read, behind it what is not there, unknown ids first: Kafka's order."""
    positions: list[_Position]
    """Where it was read, of all partitions that there are."""
    size: int
    is_urgent: bool
    """Whether the client has to hear at once why it can't read on.

    Not of what is not there: who asks on for what was deleted would ask without a pause.
    """


class _Fetch:
    """One request."""

    __slots__ = ("request", "services", "session", "wanted")

    def __init__(self, services: Services, request: FetchRequest, session: FetchSession | None) -> None:
        self.services = services
        self.request = request
        self.session = session
        self.wanted: Sequence[Wanted] = wanted_by(request) if session is None else session.wanted

    def read(self) -> _Found:
        """What is there now, within the limits of the request."""
        left, size, is_urgent = self.request.max_bytes, 0, False
        fetched: list[Fetched] = []
        missing: list[Fetched] = []
        positions: list[_Position] = []
        for wanted in self.wanted:
            number = wanted.partition.partition
            try:
                log = self._log(wanted)
            except ProtocolError as error:
                gone = FetchedPartition(partition=number, error_code=error.code, aborted=())
                missing.append(Fetched(wanted, gone))
                continue
            positions.append(_Position(log, wanted.partition.fetch_offset))
            try:
                one = self._read_partition(log, wanted.partition, left, first=size == 0)
                is_urgent |= one.diverging_epoch != NO_EPOCH
            except ProtocolError as error:
                is_urgent = True
                one = FetchedPartition(partition=number, error_code=error.code)
            found = sum(map(len, one.batches))
            size += found
            left -= found
            fetched.append(Fetched(wanted, one))
        missing.sort(key=lambda one: one.found.error_code is not ErrorCode.UNKNOWN_TOPIC_ID)
        return _Found(fetched + missing, positions, size, is_urgent)

    def _read_partition(
        self, log: PartitionLog, partition: FetchPartition, left: int, *, first: bool
    ) -> FetchedPartition:
        committed = self.request.committed
        # Here, unlike in other requests, any epoch below 0 stands for none.
        log.check_leader_epoch(max(NO_EPOCH, partition.current_leader_epoch))
        if log.diverges(partition.last_fetched_epoch, partition.fetch_offset):
            return FetchedPartition(
                partition=partition.partition,
                high_watermark=log.high_watermark,
                last_stable_offset=log.last_stable_offset,
                log_start_offset=log.log_start_offset,
                diverging_epoch=log.leader_epoch,
            )
        limit = max(0, min(left, partition.partition_max_bytes))
        records = log.read(partition.fetch_offset, limit, at_least_one=first, committed=committed)
        return FetchedPartition(
            partition=partition.partition,
            high_watermark=log.high_watermark,
            last_stable_offset=log.last_stable_offset,
            log_start_offset=log.log_start_offset,
            batches=records.batches,
            aborted=records.aborted if committed else None,
        )

    def _log(self, wanted: Wanted) -> PartitionLog:
        topic = self.services.cluster.find(wanted.name, wanted.topic_id)
        return self.services.log(topic, wanted.partition.partition)

    def reply(self, found: _Found) -> FetchResponse:
        """The answer. The client hears of a new session with all it asked for, later of news only."""
        if self.session is None:
            return FetchResponse(session_id=NO_SESSION, topics=by_topic(found.fetched))
        news = self.session.news(found.fetched)
        return FetchResponse(session_id=self.session.session_id, topics=by_topic(news))


class _Waiting:
    """A fetch that waits. It costs one callback per append to its partitions, and one timer."""

    def __init__(self, fetch: _Fetch, positions: list[_Position], needed: int) -> None:
        loop = fetch.services.loop
        self.future: asyncio.Future[FetchResponse] = loop.create_future()
        self._fetch = fetch
        self._positions = positions
        self._needed = needed
        """How many bytes end the wait."""
        self._timer = loop.call_later(fetch.request.max_wait_ms / 1000, self._finish)
        for position in positions:
            position.log.watch(self._appended)
        self.future.add_done_callback(self._stop)

    def _appended(self) -> None:
        ready, committed = 0, self._fetch.request.committed
        for position in self._positions:
            ready += position.log.available(position.offset, committed=committed)
            if ready >= self._needed or position.log.is_closed:
                self._finish()
                return

    def _finish(self) -> None:
        if not self.future.done():
            self.future.set_result(self._fetch.reply(self._fetch.read()))
            self._unwatch()

    def _stop(self, future: asyncio.Future[FetchResponse]) -> None:
        self._unwatch()

    def _unwatch(self) -> None:
        self._timer.cancel()
        for position in self._positions:
            position.log.unwatch(self._appended)
