"""Threads at work: a task that polls its member, has records processed, and commits; and the global one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.member.base.log import log
from fencepost.member.streams.application.changelog import Changelog, ChangelogUnavailable
from fencepost.member.streams.application.port import (
    CommitRefused,
    GlobalReader,
    PartitionRecords,
    StreamThreadMember,
)
from fencepost.member.streams.application.runtime import CutShort
from fencepost.member.streams.application.settings import Processing
from fencepost.member.streams.application.store import TaskStore
from fencepost.member.streams.thread_states import StreamThreadState

if TYPE_CHECKING:
    from fencepost.member.streams.application.driver import StreamsDriver

_RESTORE_AGAIN_S = 1.0
"""Delay before another attempt to read a changelog that could not be read, in seconds."""
_LOOK_S = 0.1
"""Interval at which a thread that waits for its start checks if it has to end, in seconds."""
_COMMIT_S = 10.0
"""Longest time that the last commit of a thread may take, in seconds."""
_LEAVE_S = 10.0
"""Longest time that a thread may take to leave the group, in seconds."""
_LEAVE_UNHEARD_S = 2.0
"""The same limit if no broker responded to the last commit."""
_WAITING = (StreamThreadState.STARTING, StreamThreadState.PARTITIONS_REVOKED)


def is_cancelled(error: BaseException) -> bool:
    """Return true if the error is the end of a task that was cancelled, and not a failure.

    A CancelledError of something that the task waited for is a failure like any other.
    """
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


class Worker:
    """A thread of the engine. Its state is in the client's machine, under its name."""

    def __init__(self, engine: StreamsDriver, name: str) -> None:
        self.name = name
        self.member: StreamThreadMember = engine.make_member(name, self)
        self.task: asyncio.Task[None] | None = None
        self.done = asyncio.Event()
        self.rest_s = 0.0
        """Wait before the start, in seconds."""
        self.started_at = engine.runtime.now()
        """Time at which the wait was over; in the runtime's seconds."""
        self._engine = engine
        self._stopping = False
        self._told = asyncio.Event()
        """Set with `_stopping`, to cut waits short."""
        self._stirred = asyncio.Event()
        """Set when a wait for a store may be over: it is free, or not wanted any more."""
        self._committing = asyncio.Lock()
        self._clean = True
        """True if the processed offsets may be committed: not after a failure."""
        self._processed: dict[TopicPartition, int] = {}
        """The next offset of each partition whose offset is to be committed."""
        self._owned: dict[TopicPartition, int] = {}
        """The owned partitions, with the number of the assignment in which they came."""
        self._assignments = 0
        self._fresh: dict[TopicPartition, None] = {}
        """Those of them whose stores are not open yet."""
        self._current: TopicPartition | None = None
        """The partition that is being processed; its store stays open until that is over, even if the
        partition is lost."""
        self._commit_at = 0.0
        self._unheard = False
        """True if no broker responded to the last commit."""

    def stop(self) -> None:
        """End after the current record."""
        self._stopping = True
        self._told.set()
        self._stirred.set()
        self.member.wake()

    async def run(self) -> None:
        """Run the thread for its whole life. An exception of any kind goes to the handler; then all is
        closed."""
        engine, client = self._engine, self._engine.client
        try:
            if self.rest_s:
                await self._rest()
            started, actions = client.thread_started(self.name)
            engine.carry_out(actions)
            if started:
                await self._work()
        except GeneratorExit:
            raise
        except BaseException as error:
            self._clean = False
            if is_cancelled(error):
                log(logging.WARNING, "a stream thread was cancelled", thread=self.name)
            else:
                engine.failed(self.name, error)
        finally:
            await self._end()

    async def _rest(self) -> None:
        """Wait before the start, until it is time or the thread has to end."""
        runtime = self._engine.runtime
        until = runtime.now() + self.rest_s
        while not self._stopping and (left := until - runtime.now()) > 0:
            await runtime.sleep(min(left, _LOOK_S))
        self.started_at = runtime.now()

    async def _work(self) -> None:
        await self.member.start()
        self._commit_at = self._engine.runtime.now() + self._engine.commit_interval_s
        while not self._stopping:
            batches = await self.member.poll()
            await self._note_state()
            for batch in batches:
                await self._process(batch)
            if self._engine.runtime.now() >= self._commit_at:
                await self._commit_in_time()
        await self._finish_round()
        await self._commit_in_time()

    async def _finish_round(self) -> None:
        """Wait for the end of the current round if the application is to be shut down.

        Members learn of the shutdown from the round: one that missed its response learns of it in the next
        round, if a member that knows is still there. The coordinator ends each round; without a coordinator
        the round may never end.
        """
        client, member, now = self._engine.client, self.member, self._engine.runtime.now
        until = now() + member.round_s
        while (client.shutdown_requested or client.shutdown_told) and member.round_s:
            if now() >= until and not member.is_connected():
                break
            await member.poll()

    async def _note_state(self) -> None:
        """Move the thread according to the member's state."""
        engine, client = self._engine, self._engine.client
        self.on_connection()
        thread = client.threads[self.name]
        if self.member.joined and thread.state in _WAITING:
            engine.carry_out(client.partitions_assigned(self.name))
        if self.member.joined and thread.state is StreamThreadState.PARTITIONS_ASSIGNED:
            for partition in list(self._fresh):
                await self._restore_unless_told(partition)
            engine.carry_out(client.tasks_ready(self.name))

    async def _restore_unless_told(self, partition: TopicPartition) -> None:
        """Open a partition's store, unless the thread has to end."""
        with contextlib.suppress(CutShort):
            await self._engine.runtime.wait_for(self._restore(partition), self._told, lambda: 0.0)

    async def _restore(self, partition: TopicPartition) -> None:
        """Open a partition's store, with the content of its changelog, or at the offset that was committed.

        A thread of this client that lost the partition may still be busy with it.
        """
        engine = self._engine
        if engine.processing.wants_store:
            while engine.directory.is_open(partition) and self._may_go_on(partition):
                self._stirred.clear()
                engine.directory.tell_when_free(partition, self._stirred)
                await self._stirred.wait()
            if engine.changelog is not None:
                await self._read_changelog(engine.changelog, partition)
                return
            committed = await self.member.committed(partition)
            if not self._may_go_on(partition):
                return
            engine.directory.store(partition).follow(committed)
        self._fresh.pop(partition, None)

    async def _read_changelog(self, changelog: Changelog, partition: TopicPartition) -> None:
        """Restore a store; retry if the changelog can't be read."""
        assignment = self._owned.get(partition)
        directory = self._engine.directory
        restored = False
        while not restored and self._may_go_on(partition) and self._owned[partition] == assignment:
            try:
                store = directory.store(partition)
                await changelog.restore(partition, store)
                if store.checkpoint is None:
                    await self._log_from_now_on(partition, store)
                restored = self._owned.get(partition) == assignment
            except ChangelogUnavailable as error:
                log(logging.WARNING, "a changelog can't be read", thread=self.name, error=str(error))
                directory.release(partition)
                await self._engine.runtime.sleep(_RESTORE_AGAIN_S)
            finally:
                if not restored:
                    directory.release(partition)
        if restored:
            del self._fresh[partition]

    async def _log_from_now_on(self, partition: TopicPartition, store: TaskStore) -> None:
        """Start the changelog of a store that had none: content that is not stale is written there with the
        next commit."""
        committed = await self.member.committed(partition)
        if not store.is_closed:
            store.follow(committed)
            store.put_back(dict(store.items()))

    def _may_go_on(self, partition: TopicPartition) -> bool:
        return partition in self._owned and not self._stopping

    async def _process(self, batch: PartitionRecords) -> None:
        engine, partition = self._engine, batch.partition
        if partition in self._fresh:
            await self._restore_unless_told(partition)
        if partition in self._fresh or not self._may_go_on(partition):
            return
        self._current = partition
        assignment = self._owned[partition]
        try:
            store = engine.directory.store(partition) if engine.processing.wants_store else None
            await engine.processing.call(partition, batch.records, store)
        finally:
            self._current = None
            still_owned = self._owned.get(partition) == assignment
            if not still_owned:
                engine.directory.release(partition)
        engine.records += len(batch.records)
        if still_owned:
            self._processed[partition] = batch.next_offset

    async def _commit(self) -> None:
        """Make the processed records durable. Stores go first: records may come twice, changes must not get
        lost."""
        self._commit_at = self._engine.runtime.now() + self._engine.commit_interval_s
        if self._engine.changelog is None:
            await self._commit_all()
            return
        # The next commit must not commit offsets that one commit has taken, and not written yet.
        async with self._committing:
            await self._commit_all()

    async def _commit_in_time(self) -> None:
        """Commit; a thread that has to end waits for it only as long as it may take.

        Records that are not committed come again.
        """
        if self._unheard:
            return
        try:
            await self._engine.runtime.wait_for(
                self._commit(), self._told, lambda: self._share(_COMMIT_S, 0.5)
            )
        except CutShort:
            self._unheard = True
            error = "no response in the time that a thread has for its end"
            log(logging.WARNING, "offsets were not committed", thread=self.name, error=error)

    def _share(self, most: float, part: float) -> float:
        """Return the time that a step of the end may take, in seconds.

        It is a part of the time that `close` has left, and at most `most`. Once `close` has returned, a
        thread that still works takes the time that it needs.
        """
        end_by = self._engine.end_by
        left = 0.0 if end_by is None else end_by - self._engine.runtime.now()
        return min(most, left * part) if left > 0 else most

    async def _commit_all(self) -> None:
        offsets = dict(self._processed)
        if not offsets or not self._clean:
            return
        try:
            for partition, offset in offsets.items():
                if self._engine.directory.is_open(partition):
                    await self._make_durable(partition, self._engine.directory.store(partition), offset)
            await self.member.commit(offsets)
        except CommitRefused as error:
            log(logging.WARNING, "offsets were not committed", thread=self.name, error=str(error))
            return
        self._engine.commits += 1
        for partition, offset in offsets.items():
            if self._processed.get(partition) == offset:
                del self._processed[partition]

    async def _make_durable(self, partition: TopicPartition, store: TaskStore, offset: int) -> None:
        """Write the changes of the store to the changelog first, then commit the store."""
        changelog, checkpoint = self._engine.changelog, None
        changes = store.take_changes()
        if changelog is not None and changes:
            try:
                checkpoint = await changelog.write(partition, changes)
            except BaseException:
                store.put_back(changes)
                raise
        if not store.is_closed:
            store.commit(offset, checkpoint)

    async def _end(self) -> None:
        try:
            # A thread that failed leaves in any case (KAFKA-12738).
            told = self._engine.client.shutdown_told and self._clean
            within_s = self._share(_LEAVE_UNHEARD_S if self._unheard else _LEAVE_S, 0.8)
            await self.member.close(told_to_end=told, within_s=within_s)
        finally:
            self._forget(list(self._owned))
            self._engine.ended(self.name)
            self.done.set()

    def _forget(self, partitions: Sequence[TopicPartition]) -> None:
        for partition in partitions:
            opened = partition in self._owned and partition not in self._fresh
            self._owned.pop(partition, None)
            self._processed.pop(partition, None)
            self._fresh.pop(partition, None)
            self._stirred.set()
            if opened and partition != self._current:
                self._engine.directory.release(partition)

    # -- callbacks of the member ---------------------------------------------------------------------------

    async def on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """Commit the processed offsets of all partitions, then release these."""
        self._engine.carry_out(self._engine.client.partitions_revoked(self.name))
        try:
            await self._commit()
        finally:
            self._forget(partitions)

    async def on_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """Take these up; their stores are opened when the thread polls."""
        self._assignments += 1
        self._owned.update(dict.fromkeys(partitions, self._assignments))
        self._fresh.update(dict.fromkeys(partitions))
        self._engine.carry_out(self._engine.client.partitions_assigned(self.name))

    async def on_lost(self, partitions: Sequence[TopicPartition]) -> None:
        """Release these; records that were processed and not committed come again."""
        self._engine.carry_out(self._engine.client.partitions_revoked(self.name))
        self._forget(partitions)

    def on_connection(self) -> None:
        """Take over the member's connection state, also while records are processed (KIP-457)."""
        client = self._engine.client
        if self.name in client.threads:
            self._engine.carry_out(client.connection(self.name, connected=self.member.is_connected()))

    def on_shutdown_requested(self) -> None:
        """Take in that the application is to be shut down."""
        self._engine.carry_out(self._engine.client.shutdown_received(self.name))


class GlobalWorker:
    """The one task of the global thread, which reads whole topics before and while stream threads run.

    It commits nothing: each start reads everything again.
    """

    def __init__(self, engine: StreamsDriver, processing: Processing, reader: GlobalReader) -> None:
        self.started: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
        """Done once it has caught up, with the exception that prevented that, or if it has to end first."""
        self._engine = engine
        self._processing = processing
        self._reader = reader
        self._stopping = False

    def stop(self) -> None:
        """End after the current record."""
        self._stopping = True

    async def run(self) -> None:
        """Run the thread for its whole life."""
        engine = self._engine
        error: BaseException | None = None
        try:
            await self._work()
        except GeneratorExit:
            raise
        except BaseException as raised:
            error = raised
            engine.global_failed(raised, ask=self.started.done() and not is_cancelled(raised))
        finally:
            try:
                await self._reader.close()
            finally:
                engine.carry_out(engine.client.global_ended())
                if not self.started.done():
                    self.started.set_result(error)

    async def _work(self) -> None:
        await self._reader.start()
        while not self._stopping:
            for batch in await self._reader.poll():
                await self._processing.call(batch.partition, batch.records, None)
            if self._reader.caught_up and not self.started.done():
                self._engine.carry_out(self._engine.client.global_ready())
                self.started.set_result(None)
