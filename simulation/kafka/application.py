"""The application of a member's process: it polls, processes records, and polls again.

An iteration begins a poll, waits for records of partitions that may be fetched, and ends the poll with at
most `max_poll_records` of them. Then it spends the processing time, and commits if the application has to. A
poll without records stays open and costs nothing. A poll after a full one returns at once, and begins with
the partitions that had to wait. Records are ranges of offsets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.offsets import OffsetAndMetadata
from fencepost.member.base.errors import CallbackFailed, CommitFailed, FatalMemberError, MemberError
from fencepost.simulation.kafka.producer import ProducerReplaced, TransactionFailed
from fencepost.simulation.kafka.transactional import TransactionalWork
from fencepost.simulation.kernel.host import HostTimer

if TYPE_CHECKING:
    from fencepost.member.base.driver import MemberDriver
    from fencepost.simulation.kafka.member import MemberHost

Taken: TypeAlias = dict[TopicPartition, tuple[int, int]]
"""Records as ranges of offsets: the first, and the one after the last."""

_AFTER_ERROR_US = 100_000
"""Time until an application that caught an exception polls again, in microseconds."""


class SimulatedApplication:
    """The loop of one process. It ends on `stop`, or at a fatal error."""

    def __init__(self, host: MemberHost, driver: MemberDriver) -> None:
        world = host.world
        self._host = host
        self._loop = host.loop
        self._driver = driver
        self._logs = world.cluster.logs
        self._poll_us = world.scenario.application.poll.us
        self._commit = world.scenario.application.commit
        self._most = world.scenario.application.max_poll_records
        self._record_times, self._batch_times = world.processing_times, world.batch_times
        self._polls = world.hooks["on_poll"]
        self._commits_told = world.hooks["on_commit_told"]
        self._delivered = world.hooks["on_records_delivered"]
        self._processed = world.hooks["on_records_processed"]
        transactional = self._commit == "transaction"
        self._transactional = TransactionalWork(host, driver, self._drop) if transactional else None
        self._stopping = False
        self._stall_until_us = 0
        self._batch: Taken = {}
        """Records that were handed over and are not processed yet."""
        self._commit_due = self._committing = False
        self._looked_up: tuple[Mapping[TopicPartition, int], int] = {}, 0
        """The positions, and the number of changes of the logs, for which `_first_us` was computed."""
        self._arrivals: dict[TopicPartition, int] = {}
        """Time when the next record at each of these positions is there, in microseconds."""
        self._first_us: int | None = None
        self._handed_over: dict[TopicPartition, int] = {}
        """The new position of each partition that the last poll moved."""
        self._filled_by: TopicPartition | None = None
        """The partition that filled the last poll; more records may wait there and elsewhere."""
        self._waiter: asyncio.Future[None] | None = None
        driver.on_change = self.wake

    # -- from outside -------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Leave the loop after the current batch."""
        self._stopping = True
        self.wake()

    def stall(self, until_us: int) -> None:
        """Stay busy until that time, as with a batch that takes far too long."""
        self._stall_until_us = until_us
        self.wake()

    def wake(self) -> None:
        """Check again which records are there; called when the assignment changes."""
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    # -- the loop -----------------------------------------------------------------------------------------

    async def run(self) -> FatalMemberError | ProducerReplaced | TransactionFailed | None:
        """Poll and process until `stop`; return the error if a fatal one ended it."""
        transactional = self._transactional
        while not self._stopping:
            if transactional is not None and transactional.replaced is not None:
                return transactional.replaced
            self._tell_poll("begin")
            try:
                taken = await self._poll()
            except FatalMemberError as error:
                return error
            except (MemberError, CallbackFailed):
                self._tell_poll("failed")
                await self._host.pause_us(_AFTER_ERROR_US)
                continue
            self._tell_poll("end")
            if transactional is not None and transactional.replaced is not None:
                return transactional.replaced  # it gave up in the meantime
            self._batch = dict(taken)
            self._handed_over = {partition: end for partition, (_, end) in taken.items()}
            self._driver.poll_end(self._handed_over)
            await self._process(taken)
            if taken and self._commit == "sync":
                await self._commit_processed()
            elif taken and self._commit == "async":
                self._commit_soon()
        return None

    def _tell_poll(self, phase: str) -> None:
        for hook in self._polls:
            hook(self._host.name, phase, self._loop.now_us)

    async def before_release(self, partitions: Iterable[TopicPartition]) -> None:
        """Commit what was processed while that is still allowed; then partitions may be released."""
        if self._transactional is not None:
            self._drop(partitions)
            await self._transactional.before_release(partitions)
        elif self._commit != "auto":
            await self._commit_processed()

    async def lost(self, partitions: Iterable[TopicPartition]) -> None:
        """Drop what was processed of these partitions: they belong to another member now."""
        if self._transactional is not None:
            self._drop(partitions)
            await self._transactional.lost(partitions)

    def _drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Remove these partitions from the batch that is being processed."""
        for partition in partitions:
            self._batch.pop(partition, None)

    def _commit_soon(self) -> None:
        """Commit without waiting, one commit at a time; if batches are faster than responses, a commit covers
        several batches."""
        self._commit_due = True
        if not self._committing:
            self._committing = True
            self._host.spawn(self._commit_while_due())

    async def _commit_while_due(self) -> None:
        while self._commit_due:
            self._commit_due = False
            await self._commit_processed()
        self._committing = False

    async def _commit_processed(self) -> None:
        """Commit what was processed. If it fails, the next commit covers it."""
        code = ErrorCode.NONE
        try:
            await self._driver.commit(self._offsets_processed())
        except CommitFailed as error:
            code = error.code
        for hook in self._commits_told:
            hook(self._host.name, code, self._loop.now_us)

    def _offsets_processed(self) -> Mapping[TopicPartition, OffsetAndMetadata] | None:
        """Return the offsets to commit while a batch is being processed, as callbacks may; None for all that
        was handed over."""
        if not self._batch:
            return None
        begun = {partition: OffsetAndMetadata(offset=first) for partition, (first, _) in self._batch.items()}
        return {
            partition: begun.get(partition, handed_over)
            for partition, handed_over in self._driver.delivered().items()
        }

    async def _poll(self) -> Taken:
        """Poll once; records end the poll, or an event from outside ends it without records."""
        earliest_us = self._loop.now_us + (0 if self._filled_by is not None else self._poll_us)
        while True:
            self._driver.poll_begin()
            if self._stopping or self._stall_until_us > self._loop.now_us:
                return {}
            ready_us = self._records_at()
            if ready_us is not None:
                ready_us = max(ready_us, earliest_us)
                if ready_us <= self._loop.now_us:
                    return self._take()
            timer = None if ready_us is None else HostTimer(self._host, ready_us, self.wake, ())
            self._waiter = self._loop.create_future()
            await self._waiter
            self._waiter = None
            if timer is not None:
                timer.cancel()

    def _records_at(self) -> int | None:
        """Return the time when the first record is there that this member may fetch; None if never."""
        fetchable, changes = self._driver.fetchable(), self._logs.changes
        before, changes_before = self._looked_up
        # A process that is woken often mostly has the same positions; changed positions are another object.
        if fetchable is not before or changes != changes_before:
            self._looked_up = fetchable, changes
            moved = self._handed_over
            if moved and changes == changes_before and fetchable == {**before, **moved}:
                later, outside = self._logs.arrivals(moved)
                self._arrivals.update(later)
            else:
                self._arrivals, outside = self._logs.arrivals(fetchable)
            self._first_us = min(self._arrivals.values(), default=None)
            for partition in outside:
                self._driver.offset_out_of_range(partition)
        return self._first_us

    def _take(self) -> Taken:
        """Return the records that are there now."""
        fetchable = self._driver.fetchable()
        arrivals = self._arrivals if fetchable is self._looked_up[0] else None
        taken, self._filled_by = self._logs.take(fetchable, self._most, self._filled_by, arrivals)
        return taken

    def _working_us(self, records: int) -> int:
        return self._batch_times.draw() if self._batch_times else records * self._record_times.draw()

    async def _process(self, taken: Taken) -> None:
        host, name = self._host, self._host.name
        records = 0
        for partition, (first, end) in taken.items():
            records += end - first
            for hook in self._delivered:
                hook(name, partition, first, end, self._loop.now_us)
        await host.pause_us(self._working_us(records) if records else 0)
        if self._stall_until_us > self._loop.now_us:
            await host.pause_us(self._stall_until_us - self._loop.now_us)
        finished, self._batch = self._batch, {}
        if self._transactional is None:
            finished = taken
        for partition, (first, end) in finished.items():
            for hook in self._processed:
                hook(name, partition, first, end, self._loop.now_us)
        if self._transactional is not None:
            await self._transactional.processed({each: end for each, (_, end) in finished.items()})
