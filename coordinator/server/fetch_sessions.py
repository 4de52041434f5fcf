"""Fetch sessions: a client names its partitions once, and gets only those that changed (KIP-227)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import NamedTuple

from fencepost.coordinator.protocol import logs
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.ids import TopicId

NO_SESSION = 0
INITIAL_EPOCH, FINAL_EPOCH = 0, -1
"""Session epochs of requests that name all partitions: the first begins a session, the other does not."""
MAX_SESSIONS = 1_000
"""Kafka's default of max.incremental.fetch.session.cache.slots; the one used longest ago makes room."""
MAX_SESSION_PARTITIONS = 100_000
"""The most partitions that all sessions hold together; sessions used longest ago make room."""
_NAME_CHARACTERS = 250
"""A name of this length is no valid topic name; such names count as one more partition per this many
characters."""
_EPOCHS = 2**31


class Wanted(NamedTuple):
    """One partition to read, under the name or the id that the client used."""

    name: str | None
    """With an id: the name that the topic of that id had at the request; None if there was no such topic.

    A session keeps that name, so it notices if the topic is deleted, or created again under another id.
    """
    topic_id: TopicId | None
    partition: logs.FetchPartition


class Fetched(NamedTuple):
    """A wanted partition, and what was read of it."""

    wanted: Wanted
    found: logs.FetchedPartition


_Key = tuple[str | TopicId | None, int]


class _Held(NamedTuple):
    wanted: Wanted
    high_watermark: int = -1
    log_start_offset: int = -1
    """Both offsets as last sent to the client."""


class FetchSession:
    """The partitions of one client, in the order in which they are read."""

    def __init__(self, session_id: int, *, by_id: bool) -> None:
        self.session_id = session_id
        self.by_id = by_id
        """True if the session names topics by id, not by name."""
        self.epoch = 1
        """The session epoch that the next request must have."""
        self.weight = 0
        """Number of partitions that it holds; those with long names count more."""
        self._held: dict[_Key, _Held] = {}

    def __len__(self) -> int:
        return len(self._held)

    @property
    def wanted(self) -> list[Wanted]:
        """All partitions."""
        return [held.wanted for held in self._held.values()]

    def find_names(self, name_of: Callable[[TopicId], str | None]) -> None:
        """Look again for the topics of ids that were unknown."""
        if not self.by_id:
            return
        for key, held in self._held.items():
            topic_id = held.wanted.topic_id
            if held.wanted.name is None and topic_id is not None and (name := name_of(topic_id)) is not None:
                self._held[key] = held._replace(wanted=held.wanted._replace(name=name))

    def update(self, wanted: Iterable[Wanted], forgotten: Iterable[logs.OfTopic[int]]) -> None:
        """Take more partitions, and new positions of those that are held; forget others."""
        for one in wanted:
            key = _key(one)
            held = self._held.get(key)
            if held is None:
                self.weight += _weight(key)
                self._held[key] = _Held(one)
            else:
                name = held.wanted.name or one.name
                self._held[key] = held._replace(wanted=one._replace(name=name))
        for topic in forgotten:
            for number in topic.partitions:
                key = topic.topic_id or topic.name, number
                if self._held.pop(key, None) is not None:
                    self.weight -= _weight(key)

    def news(self, fetched: Iterable[Fetched]) -> list[Fetched]:
        """Return the results that the client does not know yet. Partitions with records are read last the
        next time.

        After the first response, partitions are read in the order of that response.
        """
        news = []
        for one in fetched:
            key = _key(one.wanted)
            held = self._held.get(key)
            found = one.found
            if held is None:
                continue
            if (
                found.batches
                or found.error_code is not ErrorCode.NONE
                or found.diverging_end is not None
                or found.preferred_read_replica != logs.NO_REPLICA
                or found.high_watermark != held.high_watermark
                or found.log_start_offset != held.log_start_offset
            ):
                news.append(one)
                told = held._replace(
                    high_watermark=found.high_watermark, log_start_offset=found.log_start_offset
                )
                if found.batches or self.epoch == 1:
                    del self._held[key]
                self._held[key] = told
        return news


class FetchSessions:
    """The sessions of one broker."""

    def __init__(self, limit: int = MAX_SESSIONS, max_partitions: int = MAX_SESSION_PARTITIONS) -> None:
        self._limit = limit
        self._max_partitions = max_partitions
        self._weight = 0
        """Of all sessions."""
        self._sessions: dict[int, FetchSession] = {}
        self._random = random.Random()

    def __len__(self) -> int:
        return len(self._sessions)

    def session_of(self, request: logs.FetchRequest, wanted: list[Wanted]) -> FetchSession | None:
        """Return the session of a request, updated by it; None for a request outside of sessions.

        A new one has no id before `begun`. `wanted` has the partitions that the request names.

        :raises ProtocolError: FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH or
            FETCH_SESSION_TOPIC_ID_ERROR: the client has to name all its partitions again.
        """
        if request.session_epoch in {INITIAL_EPOCH, FINAL_EPOCH}:
            self._drop(request.session_id)
            if request.session_epoch == FINAL_EPOCH or not wanted:
                return None
            new = FetchSession(NO_SESSION, by_id=request.by_id)
            new.update(wanted, ())
            return new
        session = self._sessions.pop(request.session_id, None)
        if session is None:
            raise ProtocolError(
                ErrorCode.FETCH_SESSION_ID_NOT_FOUND, f"there is no fetch session {request.session_id}"
            )
        self._sessions[session.session_id] = session
        if request.session_epoch != session.epoch:
            raise ProtocolError(
                ErrorCode.INVALID_FETCH_SESSION_EPOCH,
                f"session epoch {request.session_epoch}, expected {session.epoch}",
            )
        if request.by_id != session.by_id:
            raise ProtocolError(
                ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
                f"the session names its topics by {'id' if session.by_id else 'name'}",
            )
        session.epoch = (session.epoch + 1) % _EPOCHS or 1
        self._update(session, wanted, request.forgotten)
        if session.session_id not in self._sessions:
            raise ProtocolError(
                ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
                f"a session of more than {self._max_partitions} partitions is not kept "
                "(MAX_SESSION_PARTITIONS)",
            )
        if not session:
            self._drop(session.session_id)
            return None
        return session

    def _drop(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._weight -= session.weight

    def _update(
        self, session: FetchSession, wanted: Iterable[Wanted], forgotten: Iterable[logs.OfTopic[int]]
    ) -> None:
        """Update a session as the last used one, and drop sessions for which there is no room then."""
        self._weight -= session.weight
        session.update(wanted, forgotten)
        self._count(session)

    def _count(self, session: FetchSession) -> None:
        self._weight += session.weight
        while self._weight > self._max_partitions:
            self._drop(next(iter(self._sessions)))

    def begun(self, session: FetchSession | None) -> FetchSession | None:
        """Return the session for a response with records, with which a new one begins and takes the place of
        others; None if it alone would hold too much."""
        if session is None or session.session_id != NO_SESSION:
            return session
        if session.weight > self._max_partitions:
            return None
        if len(self._sessions) >= self._limit:
            self._drop(next(iter(self._sessions)))
        while session.session_id == NO_SESSION or session.session_id in self._sessions:
            session.session_id = self._random.randrange(1, _EPOCHS)
        self._sessions[session.session_id] = session
        self._count(session)
        return session


def wanted_by(request: logs.FetchRequest, name_of: Callable[[TopicId], str | None]) -> list[Wanted]:
    """Return the partitions that a request names, each once: of repeated ones the last counts.

    `name_of` gives the name of the topic with an id, if there is one.
    """
    named = (
        Wanted(topic.name if topic.topic_id is None else name_of(topic.topic_id), topic.topic_id, partition)
        for topic in request.topics
        for partition in topic.partitions
    )
    return list({_key(one): one for one in named}.values())


def _key(wanted: Wanted) -> _Key:
    return wanted.topic_id or wanted.name, wanted.partition.partition


def _weight(key: _Key) -> int:
    return 1 + len(key[0] or "") // _NAME_CHARACTERS


def by_topic(fetched: Iterable[Fetched]) -> tuple[logs.OfTopic[logs.FetchedPartition], ...]:
    """Group results that follow each other and are of one topic."""
    topics: list[tuple[Wanted, list[logs.FetchedPartition]]] = []
    for wanted, found in fetched:
        if topics and topics[-1][0][:2] == wanted[:2]:
            topics[-1][1].append(found)
        else:
            topics.append((wanted, [found]))
    return tuple(
        logs.OfTopic(name=wanted.name, topic_id=wanted.topic_id, partitions=tuple(found))
        for wanted, found in topics
    )
