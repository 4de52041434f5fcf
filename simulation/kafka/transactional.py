"""An application that commits its positions in transactions: consume, process, produce, exactly once.

After each batch, the positions are staged in the open transaction. A transaction ends after a set time, and
before partitions are released. After an abort, the application goes back to the committed positions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.offsets import OffsetAndMetadata
from fencepost.member.base.errors import CommitFailed
from fencepost.simulation.kafka.producer import ProducerReplaced, SimulatedProducer, TransactionFailed

if TYPE_CHECKING:
    from fencepost.member.base.driver import MemberDriver
    from fencepost.simulation.kafka.member import MemberHost


class TransactionalWork:
    """The records that one process has processed, and the transaction that they belong to.

    `drop` removes partitions from the batch that is being processed: their records will be delivered again.
    """

    def __init__(
        self, host: MemberHost, driver: MemberDriver, drop: Callable[[Iterable[TopicPartition]], None]
    ) -> None:
        world = host.world
        self._host = host
        self._driver = driver
        self._drop = drop
        self._producer = SimulatedProducer(host, driver)
        self._spec = world.scenario.transactions
        self._rng = world.draws.random(f"transactions/{host.name}/{host.generation}")
        self._rewound = world.hooks["on_records_rewound"]
        self._one_at_a_time = asyncio.Lock()
        self._open: dict[TopicPartition, int] = {}
        """The positions that are staged in the open transaction."""
        self._unstaged: dict[TopicPartition, int] = {}
        self._ends_us = 0
        self.replaced: ProducerReplaced | TransactionFailed | None = None
        """The error for which the process can't continue, if there is one."""

    async def processed(self, ends: Mapping[TopicPartition, int]) -> None:
        """Stage the positions of a processed batch, and end the transaction if it is time."""
        self._unstaged.update(ends)
        async with self._one_at_a_time:
            if not self._unstaged and not self._open:
                return
            try:
                if self._open and self._unstaged and self._rng.random() < self._spec.plain:
                    await self._commit_without()
                else:
                    await self._stage()
                if self._open and self._host.loop.now_us >= self._ends_us:
                    await self._end(commit=self._rng.random() >= self._spec.aborts)
            except TransactionFailed:
                await self._go_back(renew=True)
            except ProducerReplaced as error:
                self._give_up(error)

    async def before_release(self, partitions: Iterable[TopicPartition]) -> None:
        """Commit what was processed; then these partitions may be released."""
        async with self._one_at_a_time:
            try:
                await self._stage()
                await self._end(commit=True)
            except TransactionFailed:
                await self._go_back(renew=True, but_for=partitions)
            except ProducerReplaced as error:
                self._give_up(error)
            self._forget(partitions)

    async def lost(self, partitions: Iterable[TopicPartition]) -> None:
        """Abort what was processed of these partitions, which belong to another member now, and of the other
        partitions."""
        self._forget(partitions)
        async with self._one_at_a_time:
            try:
                await self._end(commit=False)
            except TransactionFailed:
                await self._go_back(renew=True, but_for=partitions)
            except ProducerReplaced as error:
                self._give_up(error)

    def _forget(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self._unstaged.pop(partition, None)

    async def _stage(self) -> None:
        staged = self._unstaged
        if not staged:
            return
        self._unstaged = {}
        if not self._open:
            lasts_us = self._rng.choice(self._spec.interval.quantiles)
            self._ends_us = self._host.loop.now_us + lasts_us
            self._host.spawn(self._end_in_time(self._ends_us))
        self._open.update(staged)
        await self._producer.stage({each: OffsetAndMetadata(offset=end) for each, end in staged.items()})

    async def _end_in_time(self, ends_us: int) -> None:
        """End the transaction when it is time, if no batch does so."""
        await self._host.pause_us(ends_us - self._host.loop.now_us)
        if self._open and self._ends_us == ends_us:
            await self.processed({})

    async def _commit_without(self) -> None:
        """Commit a batch outside the open transaction, as an application should not."""
        offsets, self._unstaged = self._unstaged, {}
        positions = {each: OffsetAndMetadata(offset=end) for each, end in offsets.items()}
        try:
            await self._driver.commit(positions)
        except CommitFailed:
            self._unstaged = {**offsets, **self._unstaged}
            await self._stage()

    async def _end(self, *, commit: bool) -> None:
        if not self._open:
            return
        await self._producer.end(commit=commit)
        if commit:
            self._open.clear()
        else:
            await self._go_back(renew=False)

    async def _go_back(self, *, renew: bool, but_for: Iterable[TopicPartition] = ()) -> None:
        """Go back to the committed positions, in all partitions of the transaction that are still owned."""
        undone = {*self._open, *self._unstaged}
        again = undone.difference(but_for)
        try:
            if renew:
                await self._producer.renew()
            again = again.intersection(self._driver.assignment)
            positions = await self._producer.committed(sorted(again)) if again else {}
        except (TransactionFailed, ProducerReplaced) as error:
            self._give_up(error)  # it does not know its positions
            return
        self._open.clear()
        for partition in undone:  # a batch of other partitions may have ended since: it counts
            self._unstaged.pop(partition, None)
        for partition in sorted(again.intersection(self._driver.fetchable())):
            offset = max(0, positions.get(partition, 0))
            self._driver.seek(partition, offset)
            self._drop((partition,))
            self._tell_rewound(partition, offset)

    def _give_up(self, error: ProducerReplaced | TransactionFailed) -> None:
        """End the process: the next one repeats what it has processed and not committed."""
        self.replaced = error
        for partition in {**self._open, **self._unstaged}:
            self._tell_rewound(partition, 0)
        self._open.clear()
        self._unstaged.clear()

    def _tell_rewound(self, partition: TopicPartition, offset: int) -> None:
        for hook in self._rewound:
            hook(self._host.name, partition, offset, self._host.loop.now_us)
