"""A real coordinator, observed: its journal is read, outcome by outcome.

Each outcome arrives as an `Arrival` with its time in the run. The run brings arrivals and its members' events
into one order (`merge`); then a `PlayedCoordinator` applies them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final

from fencepost.coordinator.protocol import records as r
from fencepost.coordinator.protocol.ids import TopicId
from fencepost.coordinator.protocol.records import Record
from fencepost.coordinator.protocol.topics import TopicsImage
from fencepost.simulation.lab.chaos.group_log_tail import GroupLogTail, LogBatch, LoggedRecord
from fencepost.simulation.lab.chaos.merge import RunClock
from fencepost.simulation.lab.chaos.outcomes import outcomes
from fencepost.simulation.lab.chaos.played import Arrival

SETTLE_MS: Final = 5_000
"""Time after a change of a topic for which its coordinator may not have seen it, or the reader may be late,
in ms.

On a machine with nine processes a core Kafka's coordinator took 1.9 s.
"""
TOPICS_S: Final = 0.5
"""Interval at which topics are requested, in seconds. They are requested in any case before targets are
judged."""


class _Topics:
    """The cluster's topics, and the time at which each was last seen to change."""

    def __init__(self) -> None:
        self.image = TopicsImage()
        self._changed_ms: dict[TopicId, float] = {}

    def take(self, image: TopicsImage) -> None:
        """Take the topics that the broker returns now."""
        before = self.image
        now_ms = time.time() * 1_000
        changed = [t for t in {*before.by_id, *image.by_id} if before.by_id.get(t) != image.by_id.get(t)]
        self._changed_ms.update(dict.fromkeys(changed, now_ms))
        if changed:
            self.image = TopicsImage.of(image.by_id.values(), before.version + 1)

    def unsettled(self, timestamp_ms: int) -> frozenset[TopicId]:
        """Return the topics that the coordinator may have seen differently at that time."""
        since = timestamp_ms - SETTLE_MS
        return frozenset(topic_id for topic_id, at_ms in self._changed_ms.items() if at_ms > since)


class ObservedCoordinator:
    """One group of a real cluster, whose journal is followed from its present end: `arrive` gets the
    arrivals.

    :raises EnvironmentLacks: on entry, if no broker answers; from `failed`, if the journal was lost.
    """

    def __init__(
        self, group_id: str, bootstrap_servers: str, *, clock: RunClock, arrive: Callable[[Arrival], None]
    ) -> None:
        self.leader_epoch = -1
        """The leader epoch of the last record before; -1 if there was none."""
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Fails if the journal can't be read any further."""
        self.journal = GroupLogTail(group_id, bootstrap_servers)
        self._clock = clock
        self._arrive = arrive
        self._topics = _Topics()
        self._arrived_to = 0
        """The offset up to which everything has arrived."""
        self._more_arrived = asyncio.Condition()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> ObservedCoordinator:
        """Skip what exists, then follow the journal."""
        await self.journal.__aenter__()
        try:
            self._topics.take(await self.journal.topics())
            end = await self.journal.end()
            while self.journal.position < end:
                for batch in await self.journal.read():
                    self.leader_epoch = batch.leader_epoch
        except BaseException:
            await self.journal.__aexit__(None, None, None)
            raise
        for work in (self._follow(), self._look_at_topics()):
            task = asyncio.create_task(work)
            task.add_done_callback(self._ended)
            self._tasks.append(task)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop reading."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.journal.__aexit__(None, None, None)
        if self.failed.done():
            self.failed.exception()  # the caller that waits has been notified
        else:
            self.failed.cancel()

    @property
    def topics(self) -> TopicsImage:
        """The cluster's topics as last returned."""
        return self._topics.image

    async def caught_up(self) -> None:
        """Wait until everything has arrived that was in the journal when this was called.

        :raises EnvironmentLacks: if the journal can't be read any further.
        """
        end = await self.journal.end()

        async def wait() -> None:
            async with self._more_arrived:
                await self._more_arrived.wait_for(lambda: self._arrived_to >= end)

        waiting = asyncio.ensure_future(wait())
        await asyncio.wait((waiting, self.failed), return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            waiting.cancel()
            self.failed.result()
        await waiting

    # -- reading -----------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        while True:
            for batch in await self.journal.read():
                await self._split(batch)
            async with self._more_arrived:
                self._arrived_to = self.journal.position
                self._more_arrived.notify_all()

    async def _split(self, batch: LogBatch) -> None:
        if any(_asks_for_topics(each.record) for each in batch.records):
            self._topics.take(await self.journal.topics())
        for piece in outcomes(batch.records):
            last = piece[-1]
            self._arrive(
                Arrival(
                    t_us=self._clock.of_wall(last.timestamp_ms),
                    timestamp_ms=last.timestamp_ms,
                    offset=last.offset,
                    leader=batch.leader,
                    leader_epoch=batch.leader_epoch,
                    records=_ours(piece),
                    image=self._topics.image,
                    unsettled=self._topics.unsettled(last.timestamp_ms),
                )
            )

    async def _look_at_topics(self) -> None:
        while True:
            await asyncio.sleep(TOPICS_S)
            self._topics.take(await self.journal.topics())

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None and not self.failed.done():
            self.failed.set_exception(error)


def _ours(records: Sequence[LoggedRecord]) -> tuple[Record, ...]:
    """Return the records of consumer groups, of classic ones, and of offsets."""
    return tuple(each.record for each in records if isinstance(each.record, Record))


def _asks_for_topics(record: object) -> bool:
    """Return true if the record is judged by the cluster's topics: a new target, or a deleted offset."""
    if not isinstance(record, Record):
        return False
    if isinstance(record.key, r.OffsetCommitKey):
        return record.value is None
    return isinstance(record.key, r.ConsumerGroupTargetAssignmentMetadataKey)
