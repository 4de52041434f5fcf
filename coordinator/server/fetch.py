"""Fetch: reads available records, or waits until there are enough or the time is over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from fencepost.coordinator.protocol import logs
from fencepost.coordinator.protocol.acls import AclOperation, AclResourceType
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.ids import NO_EPOCH
from fencepost.coordinator.protocol.topics import Topic
from fencepost.coordinator.server import fetch_sessions
from fencepost.coordinator.server.logs import PartitionLog
from fencepost.coordinator.server.services import Asked, Services
from fencepost.coordinator.server.turns import FairTurns, Share

_LEADERS_FROM = 16
"""The first version of Fetch with the current leader in errors."""
_READ = (AclOperation.READ, AclResourceType.TOPIC)
_NEW_LEADER = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})


class FetchApi:
    """The handler of Fetch, with the fetch sessions of its broker."""

    def __init__(self) -> None:
        self.sessions = fetch_sessions.FetchSessions()
        self._crowd = _Crowd()

    def __call__(
        self, services: Services, request: logs.FetchRequest, asked: Asked
    ) -> logs.FetchResponse | asyncio.Future[logs.FetchResponse]:
        """Return the records of the request, now or later."""
        name_of = services.cluster.name_of
        wanted = fetch_sessions.wanted_by(request, name_of)
        try:
            session = self.sessions.session_of(request, wanted)
        except ProtocolError as error:
            return logs.FetchResponse(error_code=error.code)
        if session is not None:
            session.find_names(name_of)
            wanted = session.wanted
        fetch = _Fetch(services, request, session, wanted, asked, sessions=self.sessions)
        found = fetch.read()
        needed = min(request.min_bytes, request.max_bytes)
        if found.is_urgent or found.size >= needed or request.max_wait_ms <= 0 or not found.positions:
            return fetch.reply(found)
        return _Waiting(fetch, found.positions, needed, asked.connection.share, self._crowd).future


class _Position(NamedTuple):
    log: PartitionLog
    offset: int
    leader_epoch: int


class _Found(NamedTuple):
    fetched: list[fetch_sessions.Fetched]
    """Results of partitions that were read, then of those that did not exist."""
    positions: list[_Position]
    """Read positions of all partitions that exist."""
    size: int
    is_urgent: bool
    """True if the client shall get the response immediately: it can't read on, or shall ask another broker.

    Missing partitions end no wait, unless all are missing, as in Kafka. A topic that was created again under
    another id ends it: a client that keeps the old id fetches without a pause.
    """


class _Fetch:
    """One request."""

    __slots__ = ("_asked", "_sessions", "missing", "request", "services", "session", "wanted")

    def __init__(
        self,
        services: Services,
        request: logs.FetchRequest,
        session: fetch_sessions.FetchSession | None,
        wanted: Sequence[fetch_sessions.Wanted],
        asked: Asked,
        *,
        sessions: fetch_sessions.FetchSessions,
    ) -> None:
        self._asked = asked
        self.services = services
        self.request = request
        self._sessions = sessions
        self.session = session
        self.wanted: list[fetch_sessions.Wanted] = []
        """Partitions that exist when the request arrives."""
        self.missing: list[fetch_sessions.Fetched] = []
        """Results of partitions that do not exist then, unknown ids first, as in Kafka."""
        for one in wanted:
            try:
                if asked.may is not None and one.name is not None and not asked.may(*_READ, one.name):
                    raise ProtocolError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "the client may not read it")
                self._topic(one)
                self.wanted.append(one)
            except ProtocolError as error:
                gone = logs.FetchedPartition(
                    partition=one.partition.partition, error_code=error.code, aborted=()
                )
                self.missing.append(fetch_sessions.Fetched(one, gone))
        self.missing.sort(key=lambda one: one.found.error_code is not ErrorCode.UNKNOWN_TOPIC_ID)

    def read(self) -> _Found:
        """Read the records that are there now, within the limits of the request."""
        left, size, is_urgent = self.request.max_bytes, 0, False
        fetched: list[fetch_sessions.Fetched] = []
        positions: list[_Position] = []
        for wanted in self.wanted:
            number = wanted.partition.partition
            try:
                topic = self._topic(wanted)
                log = self._log(wanted, topic)
                positions.append(_Position(log, wanted.partition.fetch_offset, log.epochs.latest))
                one = self._read_partition(topic, log, wanted.partition, left, first=size == 0)
                is_urgent |= one.diverging_end is not None or one.preferred_read_replica != logs.NO_REPLICA
            except ProtocolError as error:
                is_urgent = True
                leader = self._current_leader(wanted, error.code)
                one = logs.FetchedPartition(partition=number, error_code=error.code, current_leader=leader)
            found = sum(map(len, one.batches))
            size += found
            left -= found
            fetched.append(fetch_sessions.Fetched(wanted, one))
        return _Found(fetched + self.missing, positions, size, is_urgent)

    def _read_partition(
        self, topic: Topic, log: PartitionLog, partition: logs.FetchPartition, left: int, *, first: bool
    ) -> logs.FetchedPartition:
        committed = self.request.committed
        replica_id = self._preferred_read_replica(topic, log, partition)
        if replica_id != logs.NO_REPLICA:
            return logs.FetchedPartition(
                partition=partition.partition,
                high_watermark=log.high_watermark,
                last_stable_offset=log.last_stable_offset,
                log_start_offset=log.log_start_offset,
                preferred_read_replica=replica_id,
            )
        diverging_end = log.diverging_end(partition.last_fetched_epoch, partition.fetch_offset)
        if diverging_end is not None:
            return logs.FetchedPartition(
                partition=partition.partition,
                high_watermark=log.high_watermark,
                last_stable_offset=log.last_stable_offset,
                log_start_offset=log.log_start_offset,
                diverging_end=diverging_end,
            )
        limit = max(0, min(left, partition.partition_max_bytes))
        records = log.read(partition.fetch_offset, limit, at_least_one=first, committed=committed)
        return logs.FetchedPartition(
            partition=partition.partition,
            high_watermark=log.high_watermark,
            last_stable_offset=log.last_stable_offset,
            log_start_offset=log.log_start_offset,
            batches=records.batches,
            aborted=records.aborted if committed else None,
        )

    def _preferred_read_replica(self, topic: Topic, log: PartitionLog, partition: logs.FetchPartition) -> int:
        """Return the follower to read instead. Only the leader names one, and only for offsets that it
        has."""
        cluster, number = self.services.cluster, partition.partition
        if (
            self.request.from_leader
            or not self.request.rack_id
            or not log.log_start_offset <= partition.fetch_offset <= log.high_watermark
        ):
            return logs.NO_REPLICA
        if cluster.leader_id(topic, number) != self.services.node_id:
            return logs.NO_REPLICA
        return cluster.preferred_read_replica(topic, number, self.request.rack_id)

    def _topic(self, wanted: fetch_sessions.Wanted) -> Topic:
        """Return the topic of that name, which may have another id now.

        :raises ProtocolError: UNKNOWN_TOPIC_ID or UNKNOWN_TOPIC_OR_PARTITION.
        """
        topic = self.services.cluster.find(wanted.name, wanted.topic_id)
        self.services.cluster.check_partition(topic, wanted.partition.partition)
        return topic

    def _log(self, wanted: fetch_sessions.Wanted, topic: Topic) -> PartitionLog:
        """Return the log to read.

        :raises ProtocolError: NOT_LEADER_OR_FOLLOWER, INCONSISTENT_TOPIC_ID, or about the leader epoch.
        """
        number = wanted.partition.partition
        if wanted.topic_id is not None and wanted.topic_id != topic.topic_id:
            self.services.replica_log(topic, number)
            raise ProtocolError(
                ErrorCode.INCONSISTENT_TOPIC_ID,
                f"topic {topic.name!r} has the id {topic.topic_id}, not {wanted.topic_id}",
            )
        find = self.services.log if self.request.from_leader else self.services.replica_log
        # Here, unlike in other requests, any epoch below 0 means no epoch.
        return find(topic, number, max(NO_EPOCH, wanted.partition.current_leader_epoch))

    def _current_leader(self, wanted: fetch_sessions.Wanted, code: ErrorCode) -> tuple[int, int] | None:
        """Return the leader and its epoch to a client that knows others (KIP-951)."""
        if self._asked.context.api_version < _LEADERS_FROM or code not in _NEW_LEADER:
            return None
        return self.services.current_leader(self._topic(wanted), wanted.partition.partition)

    def reply(self, found: _Found) -> logs.FetchResponse:
        """Return the response. It has all partitions of a new session, later only those with news.

        A client above its quota gets none, and no session begins.
        """
        session = self.session
        if self._asked.account is not None and self._asked.account.exceeds(found.size):
            return logs.FetchResponse(
                session_id=fetch_sessions.NO_SESSION if session is None else session.session_id
            )
        session = self._sessions.begun(session)
        topics = fetch_sessions.by_topic(found.fetched if session is None else session.news(found.fetched))
        return logs.FetchResponse(
            session_id=fetch_sessions.NO_SESSION if session is None else session.session_id,
            topics=topics,
            leaders=self.services.leaders(topics, self._asked) if found.is_urgent else (),
        )


_READ_AT_ONCE = 20
"""The most partitions that a fetch reads as soon as there are enough records. With more it waits."""


class _Crowd:
    """The fetches of many partitions that wait. An append costs the same for any number of them."""

    def __init__(self) -> None:
        self._turns = FairTurns()
        self._share = Share()
        self._waiting: dict[PartitionLog, dict[_Waiting, None]] = {}
        self._changed: dict[PartitionLog, None] = {}
        """Logs whose fetches are to be notified."""

    def add(self, waiting: _Waiting, turns: FairTurns) -> None:
        """Notify a fetch of changes to its logs, later than within the work that changes them."""
        self._turns = turns
        for log in waiting.positions:
            if log not in self._waiting:
                self._waiting[log] = {}
                log.add_listener(self._on_change)
            self._waiting[log][waiting] = None

    def remove(self, waiting: _Waiting) -> None:
        """Notify a fetch no more."""
        for log in waiting.positions:
            others = self._waiting[log]
            del others[waiting]
            if not others:
                del self._waiting[log]
                log.remove_listener(self._on_change)

    def _on_change(self, log: PartitionLog) -> None:
        self._changed[log] = None
        if len(self._changed) == 1:
            self._turns.run(self._share, self._notify)

    def _notify(self) -> None:
        changed, self._changed = self._changed, {}
        for log in changed:
            for waiting in tuple(self._waiting.get(log, ())):
                waiting.look_at(log)


class _Waiting:
    """A fetch that waits. An append to one of its partitions costs the same for any number of partitions."""

    def __init__(
        self, fetch: _Fetch, positions: list[_Position], needed: int, share: Share, crowd: _Crowd
    ) -> None:
        loop, turns = fetch.services.loop, fetch.services.turns
        self.future: asyncio.Future[logs.FetchResponse] = loop.create_future()
        self.positions: dict[PartitionLog, list[_Position]] = {}
        for position in positions:
            self.positions.setdefault(position.log, []).append(position)
        self._fetch = fetch
        self._ready = {log: self._available(log) for log in self.positions}
        """The number of bytes that can be read from each log, as of the last look at it."""
        self._missing = needed - sum(self._ready.values())
        """Number of further bytes that end the wait."""
        self._share = share
        self._crowd = crowd
        self._turns = turns if len(self.positions) > _READ_AT_ONCE else None
        """Set if its work waits for its turn, as many clients may wait for one append."""
        self._changed: dict[PartitionLog, None] = {}
        self._timer = loop.call_later(fetch.request.max_wait_ms / 1000, self._in_turn, self._finish)
        if self._turns is not None:
            crowd.add(self, self._turns)
        else:
            for log in self.positions:
                log.add_listener(self.look_at)
        self.future.add_done_callback(self._stop)

    def _available(self, log: PartitionLog) -> int:
        committed = self._fetch.request.committed
        return sum(log.available(each.offset, committed=committed) for each in self.positions[log])

    def look_at(self, log: PartitionLog) -> None:
        """End the wait if there is enough to read, or the client shall learn of another change."""
        self._changed[log] = None
        if len(self._changed) == 1:
            self._in_turn(self._look)

    def _in_turn(self, piece: Callable[[], None]) -> None:
        if self._turns is None:
            piece()
        else:
            self._turns.run(self._share, piece)

    def _look(self) -> None:
        changed, self._changed = self._changed, {}
        is_over = False
        for log in changed:
            ready = self._available(log)
            self._missing -= ready - self._ready[log]
            self._ready[log] = ready
            is_over |= log.is_closed or log.epochs.latest != self.positions[log][0].leader_epoch
        if is_over or self._missing <= 0:
            self._finish()

    def _finish(self) -> None:
        if not self.future.done():
            self.future.set_result(self._fetch.reply(self._fetch.read()))

    def _stop(self, future: asyncio.Future[logs.FetchResponse]) -> None:
        self._timer.cancel()
        if self._turns is not None:
            self._crowd.remove(self)
        else:
            for log in self.positions:
                log.remove_listener(self.look_at)
