"""Changelogs under a client at work: what is written when, and what a store waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.member.streams.application.changelog import ChangelogUnavailable
from fencepost.member.streams.application.port import CommitRefused
from fencepost.member.streams.client_states import StreamClientState as S
from tests.unit.member.played_streams import Rig, settle


class Log:
    """A changelog in memory, which can be out of order."""

    def __init__(self) -> None:
        self.changes: list[tuple[Any, Any]] = []
        self.refuses = self.unavailable = False
        self.gate: asyncio.Event | None = None
        self.closed = False

    async def restore(self, partition: TopicPartition, store: Any) -> None:
        if self.unavailable:
            raise ChangelogUnavailable("no broker")
        if store.checkpoint is None and not self.changes:
            return
        for key, value in self.changes[store.checkpoint or 0 :]:
            store.restore(key, value)
        store.restored(len(self.changes))

    async def write(self, partition: TopicPartition, changes: Mapping[Any, Any]) -> int:
        if self.gate is not None:
            await self.gate.wait()
        if self.refuses:
            raise CommitRefused("no broker")
        self.changes += changes.items()
        return len(self.changes)

    async def close(self) -> None:
        self.closed = True


async def remember(partition: TopicPartition, records: Sequence[Any], store: Any) -> None:
    for record in records:
        store.put(record, (store.get(record) or 0) + 1)


async def counting(log: Log, state_dir: Any) -> tuple[Rig, Any]:
    rig = Rig(remember, threads=1, changelog=log, state_dir=state_dir)
    await rig.running()
    (member,) = rig.members.values()
    return rig, member


async def test_changes_are_in_the_changelog_before_offsets_are_committed(tmp_path: Any) -> None:
    log = Log()
    log.gate = asyncio.Event()
    rig, member = await counting(log, tmp_path)
    place = TopicPartition("t", 0)
    member.give(place, 0, "a", "b", "a")
    await rig.time.advance(31)
    member.wake()
    member.give(place, 3, "c")
    await settle()
    assert member.committed_offsets == {}
    log.gate.set()
    await settle()
    assert log.changes == [("a", 2), ("b", 1)]
    assert member.committed_offsets == {place: 3}
    closing = asyncio.create_task(rig.engine.close(None))
    await settle()
    assert await closing
    assert log.changes == [("a", 2), ("b", 1), ("c", 1)]
    assert member.committed_offsets == {place: 4}
    assert log.closed


async def test_what_can_not_be_written_is_not_committed_but_with_the_next(tmp_path: Any) -> None:
    log = Log()
    rig, member = await counting(log, tmp_path)
    log.refuses = True
    place = TopicPartition("t", 0)
    member.give(place, 0, "a")
    member.give(place, 1, "b")
    await rig.time.advance(31)
    member.wake()
    await settle()
    assert member.committed_offsets == {}
    log.refuses = False
    member.give(place, 2, "a")
    await rig.time.advance(31)
    member.wake()
    await settle()
    assert log.changes == [("a", 2), ("b", 1)]
    assert member.committed_offsets == {place: 3}
    await rig.engine.close(None)


async def test_a_store_from_before_it_had_a_changelog_goes_on_and_is_written_to_it(tmp_path: Any) -> None:
    place, log = TopicPartition("t", 0), Log()
    before = Rig(remember, threads=1, state_dir=tmp_path)
    await before.running()
    (member,) = before.members.values()
    member.give(place, 0, "a", "b", "a")
    await settle()
    await before.engine.close(None)
    assert member.committed_offsets == {place: 3}

    rig = Rig(remember, threads=1, changelog=log, state_dir=tmp_path)
    await rig.engine.start()
    (member,) = rig.members.values()
    member.committed_offsets[place] = 3
    member.assign(place)
    await settle()
    member.give(place, 3, "a")
    await settle()
    await rig.engine.close(None)
    assert sorted(log.changes) == [("a", 3), ("b", 1)]


async def test_a_store_has_what_others_wrote_and_waits_until_that_can_be_read(tmp_path: Any) -> None:
    log = Log()
    log.changes = [("a", 5), ("b", 1), ("b", None)]
    log.unavailable = True
    rig = Rig(remember, threads=1, changelog=log, state_dir=tmp_path)
    await rig.engine.start()
    (member,) = rig.members.values()
    member.assign(TopicPartition("t", 0))
    await settle()
    assert rig.state is S.REBALANCING
    log.unavailable = False
    await rig.time.advance(2)
    assert rig.state is S.RUNNING
    member.give(TopicPartition("t", 0), 0, "a", "b")
    await settle()
    await rig.engine.close(None)
    assert log.changes[3:] == [("a", 6), ("b", 1)]
