"""A real coordinator, observed: its journal is applied to a coordinator of ours, outcome by outcome.

Reading the journal and applying it are separate. Each outcome arrives as an `Arrival` with its time in the
run. `play` applies it, and then calls observers as the simulated world does, with a `RecordsObserved` in
place of the event that was not seen. Between the two, the run brings arrivals and its members' events into
one order (`merge`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final

from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.coordinator import GroupCoordinator
from fencepost.coordinator.protocol import records as r
from fencepost.coordinator.protocol.ids import TopicId
from fencepost.coordinator.protocol.outcome import TopicsChanged
from fencepost.coordinator.protocol.records import Record
from fencepost.coordinator.protocol.topics import TopicsImage
from fencepost.simulation.lab.chaos.group_log_tail import GroupLogTail, LogBatch, LoggedRecord
from fencepost.simulation.lab.chaos.merge import RunClock
from fencepost.simulation.lab.chaos.outcomes import outcomes
from fencepost.simulation.lab.chaos.played import Arrival, Hooks, PlayedCoordinator

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


class ObservedCoordinator(PlayedCoordinator):
    """One group of a real cluster, whose journal is followed.

    `config` is the broker's, as far as judges need it. What the journal holds of the group on entry is
    loaded, and is the first arrival, if there is any; for observers it is a step with the cause `load`.
    `arrive` gets the arrivals; without it they are played. `hooks` may be set until the first one is played.

    :raises EnvironmentLacks: on entry, if no broker answers; from `failed`, if the journal was lost.
    """

    def __init__(
        self,
        group_id: str,
        bootstrap_servers: str,
        *,
        clock: RunClock | None = None,
        config: GroupCoordinatorConfig | None = None,
        hooks: Hooks | None = None,
        arrive: Callable[[Arrival], None] | None = None,
    ) -> None:
        super().__init__(group_id, config=config, hooks=hooks)
        self.clock = RunClock() if clock is None else clock
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Fails if the journal can't be read any further."""
        self._journal = GroupLogTail(group_id, bootstrap_servers)
        self._arrive = arrive if arrive is not None else self._play_at_once
        self._topics = _Topics()
        self._read_to = asyncio.Condition()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> ObservedCoordinator:
        """Load what exists, then follow the journal."""
        await self._journal.__aenter__()
        try:
            self._topics.take(await self._journal.topics())
            await self._load()
        except BaseException:
            await self._journal.__aexit__(None, None, None)
            raise
        for work in (self._follow(), self._look_at_topics()):
            task = asyncio.create_task(work)
            task.add_done_callback(self._ended)
            self._tasks.append(task)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop reading. Arrivals that were not played stay where they are."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._journal.__aexit__(None, None, None)
        if self.failed.done():
            self.failed.exception()  # the caller that waits has been notified
        else:
            self.failed.cancel()

    @property
    def journal(self) -> GroupLogTail:
        """The reader."""
        return self._journal

    @property
    def topics(self) -> TopicsImage:
        """The cluster's topics as last returned; `coordinator` has those of the last played arrival."""
        return self._topics.image

    async def caught_up(self) -> None:
        """Wait until everything has arrived that was in the journal when this was called.

        :raises EnvironmentLacks: if the journal can't be read any further.
        """
        end = await self._journal.end()

        async def wait() -> None:
            async with self._read_to:
                await self._read_to.wait_for(lambda: self._journal.position >= end)

        waiting = asyncio.ensure_future(wait())
        await asyncio.wait((waiting, self.failed), return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            waiting.cancel()
            self.failed.result()
        await waiting

    # -- reading -----------------------------------------------------------------------------------------

    async def _load(self) -> None:
        """Load what existed before, perhaps compacted: single facts, of which only the last ones count."""
        end, leader = await self._journal.end(), -1
        while self._journal.position < end:
            for batch in (await self._journal.read()).batches:
                self.leader_epoch, leader = batch.leader_epoch, batch.leader
                self.coordinator.replay(_ours(batch.records), 0)
        self.coordinator.handle(TopicsChanged(image=self._topics.image), 0)
        group = self.coordinator.groups.get(self.group_id)
        if group is not None:
            self._arrive(
                Arrival(
                    t_us=0,
                    timestamp_ms=0,
                    offset=end,
                    leader=leader,
                    leader_epoch=self.leader_epoch,
                    records=_facts(self.coordinator, self.group_id),
                    image=self.coordinator.image,
                    unsettled=frozenset(self.coordinator.image.by_id),
                    loaded=True,
                )
            )

    async def _follow(self) -> None:
        while True:
            for batch in (await self._journal.read()).batches:
                await self._split(batch)
            async with self._read_to:
                self._read_to.notify_all()

    async def _split(self, batch: LogBatch) -> None:
        if any(_asks_for_topics(each.record) for each in batch.records):
            self._topics.take(await self._journal.topics())
        for piece in outcomes(batch.records):
            last = piece[-1]
            self._arrive(
                Arrival(
                    t_us=self.clock.of_wall(last.timestamp_ms),
                    timestamp_ms=last.timestamp_ms,
                    offset=last.offset,
                    leader=batch.leader,
                    leader_epoch=batch.leader_epoch,
                    records=_ours(piece),
                    image=self._topics.image,
                    unsettled=self._topics.unsettled(last.timestamp_ms),
                )
            )

    def _play_at_once(self, arrival: Arrival) -> None:
        self.play(arrival, arrival.t_us)

    async def _look_at_topics(self) -> None:
        while True:
            await asyncio.sleep(TOPICS_S)
            self._topics.take(await self._journal.topics())

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


_EPOCHS: Final = (r.ConsumerGroupMetadataKey, r.ConsumerGroupTargetAssignmentMetadataKey)


def _facts(coordinator: GroupCoordinator, group_id: str) -> tuple[Record, ...]:
    """Return the records that make up a group; its epochs are left out, because its target is old."""
    return (
        *(each for each in coordinator.groups[group_id].records() if not isinstance(each.key, _EPOCHS)),
        *(
            Record(r.OffsetCommitKey(group_id, *partition), value)
            for partition, value in coordinator.offsets.committed(group_id)
        ),
    )
