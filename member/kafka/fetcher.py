"""aiokafka's fetcher, which here does not give up, and the reading of the buffers that it fills."""

from __future__ import annotations

import asyncio
import logging
import struct
from itertools import islice
from typing import Any

from aiokafka.client import ConnectionGroup
from aiokafka.conn import CloseReason
from aiokafka.consumer.fetcher import Fetcher, FetchError, FetchResult
from aiokafka.errors import NoError, OffsetOutOfRangeError, TopicAuthorizationFailedError
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.structs import ConsumerRecord, TopicPartition

from fencepost.member.base.log import log

_OF_LEADERS = 10
"""The newest fetch that leaders alone respond to: any replica responds to later ones (KIP-392)."""
_ABOUT_THE_LOG = (NoError.errno, OffsetOutOfRangeError.errno, TopicAuthorizationFailedError.errno)
"""Errors of a partition that come from the right replica, so that the application may receive them."""


class _Fetch:
    """A fetch as a connection takes it, and its response."""

    answer: Any = None

    def __init__(self, request: FetchRequest, newest: int | None) -> None:
        self._request = request
        self._newest = newest
        self.topics = request.topics

    def prepare(self, versions: dict[int, tuple[int, int]]) -> Any:
        """Return the request in the newest version that both sides speak and that is wanted."""
        if self._newest is not None and FetchRequest.API_KEY in versions:
            oldest, newest = versions[FetchRequest.API_KEY]
            versions = {**versions, FetchRequest.API_KEY: (oldest, min(newest, self._newest))}
        return self._request.prepare(versions)


class _Asked:
    """The fetcher's client, which shows the response to a fetch."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def send(self, node_id: int, request: Any) -> Any:
        answer = await self._client.send(node_id, request)
        if isinstance(request, _Fetch):
            request.answer = answer
        return answer


class PatientFetcher(Fetcher):  # type: ignore[misc]  # aiokafka has no types
    """aiokafka's fetcher, which ends for good when it can't read a response; this one retries.

    And a broker that no longer leads a partition has to say so: it may respond as a follower, with records
    that come later than the leader's. So a fetch is for leaders only, unless there is a rack to prefer.

    Nor does aiokafka's fetcher wait before it retries a broker that refuses, or that names a replica which
    came up after the last metadata. Both respond like that at once, and every time. It takes new metadata to
    go on.
    """

    def __init__(self, client: Any, subscriptions: Any, **settings: Any) -> None:
        super().__init__(_Asked(client), subscriptions, **settings)
        self._doubtful: set[TopicPartition] = set()
        """Partitions whose log does not have the position, by a replica that need not be the leader."""

    async def _proc_fetch_request(self, assignment: Any, node_id: int, request: FetchRequest) -> bool:
        asked = _partitions(request) if self._client_rack else []
        of_leaders = not asked or not self._doubtful.isdisjoint(asked)
        fetch = _Fetch(request, _OF_LEADERS if of_leaders else None)
        try:
            has_records: bool = await super()._proc_fetch_request(assignment, node_id, fetch)
            is_misdirected = fetch.answer is not None and self._misdirects(fetch.answer)
        except (LookupError, TypeError, ValueError, struct.error) as error:
            text = "broker sent a damaged fetch response"
            log(logging.WARNING, text, node_id=node_id, error=repr(error))
            # The next responses on that connection are as doubtful.
            connection = self._client._conns.get((node_id, ConnectionGroup.DEFAULT))
            if connection is not None:
                connection.close(reason=CloseReason.CONNECTION_BROKEN)
            await asyncio.sleep(self._retry_backoff)
            return False
        if not of_leaders:
            # A replica may be behind the leader: only the leader's response resets a position.
            for partition in filter(self._is_out_of_range, asked):
                del self._records[partition]
                self._doubtful.add(partition)
        elif fetch.answer is not None and not is_misdirected:
            self._doubtful.difference_update(asked)
        if is_misdirected:
            renewal = self._client.force_metadata_update()
            if not has_records:
                await asyncio.wait((renewal,), timeout=self._retry_backoff)
        return has_records

    def _is_out_of_range(self, partition: TopicPartition) -> bool:
        told = self._records.get(partition)
        return isinstance(told, FetchError) and isinstance(told._error, OffsetOutOfRangeError)

    def _misdirects(self, answer: Any) -> bool:
        """Return true if the broker responds that another broker has to serve one of the partitions."""
        knows = self._client.cluster.broker_metadata
        names_replicas = answer.API_VERSION > _OF_LEADERS
        return any(
            code not in _ABOUT_THE_LOG or (names_replicas and replica >= 0 and knows(replica) is None)
            for _, rows in answer.topics
            for _, code, *_, replica, _ in rows
        )


def _partitions(request: FetchRequest) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for topic, rows in request.topics for number, *_ in rows]


async def end_fetches(fetcher: Fetcher) -> None:
    """Cancel all fetches under way: the fetcher's own close ends with the first fetch, and forgets the
    others."""
    fetches = fetcher._fetch_task, *fetcher._pending_tasks
    for task in fetches:
        task.cancel()
    await asyncio.gather(*fetches, return_exceptions=True)
    fetcher._pending_tasks.clear()


def take_next(result: FetchResult) -> ConsumerRecord | None:
    """Return the next record of a buffer. Its partition was neither paused nor moved since the fetch."""
    try:
        return next(result._partition_records._records_iterator, None)
    except Exception as error:
        _say_where(error, result)
        raise
    finally:
        result._update_position()


def take_up_to(most: int | None, result: FetchResult, records: list[ConsumerRecord]) -> Exception | None:
    """Append the next records of a buffer, as `take_next`; return the reason if one of them can't be read."""
    try:
        # Records before an exception are in the list, and count.
        records.extend(islice(result._partition_records._records_iterator, most))
    except Exception as error:
        _say_where(error, result)
        return error
    finally:
        result._update_position()
    return None


def _say_where(error: Exception, result: FetchResult) -> None:
    """Add its place to an error: it may be a deserializer's, which does not know the place."""
    topic, partition = result._topic_partition
    offset = result._partition_records.next_fetch_offset
    note = f"offset {offset} of {topic}-{partition} can't be read: seek past it to go on"
    if note not in getattr(error, "__notes__", ()):
        error.add_note(note)
