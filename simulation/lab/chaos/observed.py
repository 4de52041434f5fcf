"""A real coordinator, observed: its journal is applied to a coordinator of ours, outcome by outcome.

Reading the journal and applying it are separate. Each outcome arrives as an `Arrival` with its time in the
run. `play` applies it, and then calls observers as the simulated world does, with a `RecordsObserved` in
place of the event that was not seen. Between the two, the run brings arrivals and its members' events into
one order (`merge`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, TypeAlias

import msgspec

from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.consumer.states import ConsumerGroupMemberState
from fencepost.coordinator.coordinator import GroupCoordinator
from fencepost.coordinator.protocol import records as r
from fencepost.coordinator.protocol.errors import InconsistentRecord
from fencepost.coordinator.protocol.ids import MemberId, TopicId
from fencepost.coordinator.protocol.outcome import Outcome, TopicsChanged
from fencepost.coordinator.protocol.records import Record
from fencepost.coordinator.protocol.topics import TopicsImage
from fencepost.simulation.kernel.observers import RecordsObserved, hook_lists
from fencepost.simulation.lab.chaos.group_log_tail import GroupLogTail, LogBatch, LoggedRecord
from fencepost.simulation.lab.chaos.merge import RunClock, commit_before, marks_of
from fencepost.simulation.lab.chaos.outcomes import outcomes

Hooks: TypeAlias = Mapping[str, Sequence[Callable[..., Any]]]
"""Observers' methods by hook, as `hook_lists` makes them."""

SETTLE_MS: Final = 5_000
"""Time after a change of a topic for which its coordinator may not have seen it, or the reader may be late,
in ms.

On a machine with nine processes a core Kafka's coordinator took 1.9 s.
"""
TOPICS_S: Final = 0.5
"""Interval at which topics are requested, in seconds. They are requested in any case before targets are
judged."""


class Arrival(msgspec.Struct, frozen=True, gc=False):
    """One outcome of the real coordinator, or several that can't be told apart."""

    t_us: int
    """Time since the start of the run, by the broker's clock: the end of the millisecond that it wrote."""
    timestamp_ms: int
    offset: int
    leader: int
    leader_epoch: int
    records: tuple[Record, ...]
    image: TopicsImage
    """Topics as the broker knew them when the records had been read."""
    unsettled: frozenset[TopicId]
    loaded: bool = False
    """True for what existed before: `coordinator` has it from the beginning, observers do not."""

    @property
    def marks(self) -> tuple[Hashable, ...]:
        """The marks that responses to members may wait for."""
        return tuple(marks_of(self.records))

    @property
    def after(self) -> Hashable | None:
        """The mark that the arrival itself waits for, if members report their commits."""
        return None if self.loaded else commit_before(self.records)


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
    """One group of a real cluster. `coordinator` is ours, with the state of the outcomes that were played.

    `config` is the broker's, as far as checkers need it. What the journal holds of the group on entry is
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
        self.group_id = group_id
        self.clock = RunClock() if clock is None else clock
        self.coordinator = GroupCoordinator(GroupCoordinatorConfig() if config is None else config)
        self.hooks: Hooks = hook_lists(()) if hooks is None else hooks
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Fails if the journal can't be read any further."""
        self._journal = GroupLogTail(group_id, bootstrap_servers)
        self._arrive = arrive if arrive is not None else self._play_at_once
        self._topics = _Topics()
        self._left: set[MemberId] = set()
        self._revoking_since: dict[MemberId, int] = {}
        self._leader_epoch = -1
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

    def left(self, member_id: MemberId) -> None:
        """Note that this member sent its leave: its removal is not a timeout."""
        self._left.add(member_id)

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
                self._leader_epoch, leader = batch.leader_epoch, batch.leader
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
                    leader_epoch=self._leader_epoch,
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

    # -- playing -----------------------------------------------------------------------------------------

    def play(self, arrival: Arrival, now_us: int) -> None:
        """Apply an outcome, and notify observers. Arrivals are played in the order in which they came."""
        coordinator, host = self.coordinator, f"broker-{arrival.leader}"
        if arrival.loaded:
            found = RecordsObserved(group_id=self.group_id, cause="load", unsettled=arrival.unsettled)
            self._tell("on_coordinator_step", host, found, Outcome(records=arrival.records), now_us)
            return
        if arrival.leader_epoch != self._leader_epoch:
            if self._leader_epoch >= 0:
                self._tell("on_coordinator_state", host, "active", now_us)
            self._leader_epoch = arrival.leader_epoch
        if arrival.image is not coordinator.image:
            coordinator.handle(TopicsChanged(image=arrival.image), now_us // 1_000)
        cause, removed = self._cause(arrival.records), self._removals(arrival.records, now_us)
        applied, refused = [], []
        for record in arrival.records:
            try:
                key, value = record.key, record.value
                if isinstance(key, r.GroupMetadataKey) and isinstance(value, r.GroupMetadataValue | None):
                    coordinator.classic.follow(key, value)
                else:
                    coordinator.apply(record)
                applied.append(record)
            except InconsistentRecord as error:
                refused.append(f"offset {arrival.offset}: {error}")
        self._note_revocations(arrival.records, now_us)
        event = RecordsObserved(
            group_id=self.group_id,
            cause=cause,
            removed=removed,
            unsettled=arrival.unsettled,
            refused=tuple(refused),
        )
        self._tell("on_coordinator_step", host, event, Outcome(records=tuple(applied)), now_us)

    def _tell(self, hook: str, *arguments: object) -> None:
        for method in self.hooks[hook]:
            method(*arguments)

    def _cause(self, records: Sequence[Record]) -> str:
        """Return the cause of a raise of the group's epoch, as far as the records show it."""
        classic = self._classic_change(records)
        if classic is not None:
            came, went = classic
            if came or not went:
                return "join" if came else "full"
            return "leave" if all(member_id in self._left for member_id in went) else "timeout"
        group = self.coordinator.groups.get(self.group_id)
        members = {} if group is None else group.members
        told = [
            each.key.member_id
            for each in records
            if isinstance(each.key, r.ConsumerGroupMemberMetadataKey) and each.value is not None
        ]
        if told:
            return "full" if all(member_id in members for member_id in told) else "join"
        gone = [
            each.key.member_id
            for each in records
            if isinstance(each.key, r.ConsumerGroupMemberMetadataKey) and each.value is None
        ]
        if gone:
            return "leave" if all(member_id in self._left for member_id in gone) else "timeout"
        if any(isinstance(each.key, r.ConsumerGroupRegularExpressionKey) for each in records):
            return "expressions"
        return "topics" if any(isinstance(each.key, r.ConsumerGroupMetadataKey) for each in records) else ""

    def _removals(self, records: Sequence[Record], now_us: int) -> dict[MemberId, str]:
        if (classic := self._classic_change(records)) is not None:
            reasons = {each: "left" if each in self._left else "session" for each in classic[1]}
            self._left.difference_update(reasons)
            return reasons
        group = self.coordinator.groups.get(self.group_id)
        if group is None:
            return {}
        found: dict[MemberId, str] = {}
        replaced = False
        for each in records:
            key = each.key
            if not isinstance(key, r.ConsumerGroupMemberMetadataKey):
                continue
            if each.value is not None:
                replaced = replaced or bool(found)
            elif (member := group.members.get(key.member_id)) is not None:
                since = self._revoking_since.get(key.member_id)
                slow = since is not None and now_us - since >= 1_000 * member.rebalance_timeout_ms
                found[key.member_id] = (
                    "left" if key.member_id in self._left else "rebalance" if slow else "session"
                )
                self._left.discard(key.member_id)
        return dict.fromkeys(found, "replaced") if replaced else found

    def _classic_change(self, records: Sequence[Record]) -> tuple[set[MemberId], set[MemberId]] | None:
        """Return the members that joined and left with a classic group's record; None if it is about no such
        group."""
        value = next((each.value for each in records if isinstance(each.value, r.GroupMetadataValue)), None)
        if value is None:
            return None
        group = self.coordinator.classic.groups.get(self.group_id)
        before = set() if group is None else {*group.members}
        now = {member.member_id for member in value.members}
        return now - before, before - now

    def _note_revocations(self, records: Sequence[Record], now_us: int) -> None:
        unrevoked = ConsumerGroupMemberState.UNREVOKED_PARTITIONS.code
        for each in records:
            key, value = each.key, each.value
            if not isinstance(key, r.ConsumerGroupCurrentMemberAssignmentKey):
                continue
            if isinstance(value, r.ConsumerGroupCurrentMemberAssignmentValue) and value.state == unrevoked:
                self._revoking_since.setdefault(key.member_id, now_us)
            else:
                self._revoking_since.pop(key.member_id, None)


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
