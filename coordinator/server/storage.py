"""The journal of a cluster, which outlives its brokers: groups, topics, transactions, records.

A gate between responses and the wire is shut while data that they may report is not on disk.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.coordinator import GroupCoordinator
from fencepost.coordinator.journal.encoding import JournalRecord
from fencepost.coordinator.journal.repair import Repaired, repair
from fencepost.coordinator.journal.sqlite import JournalFailed, SqliteJournal
from fencepost.coordinator.protocol.cluster_records import ClusterRecord
from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.coordinator.protocol.records import Record
from fencepost.coordinator.protocol.transaction_records import TransactionRecord


class Gate:
    """Lets responses out after a flush. All appends in one turn of the loop share the flush at its end.

    `flush` writes them to the disk; `on_failure` is called if it can't, and then the gate stays shut.
    """

    def __init__(
        self,
        flush: Callable[[], None] = lambda: None,
        on_failure: Callable[[JournalFailed], None] = lambda failure: None,
    ) -> None:
        self.is_shut = False
        self._flush = flush
        self._on_failure = on_failure
        self._waiting: dict[Callable[[], None], None] = {}
        self._failed = False

    def shut(self) -> None:
        """Shut the gate after an append. Without a running loop, flush immediately instead.

        :raises JournalFailed: if that fails.
        """
        if self.is_shut:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self._flush()
            return
        self.is_shut = True
        loop.call_soon(self.open)

    def when_open(self, callback: Callable[[], None]) -> None:
        """Call back once the gate opens, each callback once, in their order."""
        self._waiting[callback] = None

    def open(self) -> None:
        """Flush, and run the waiting callbacks. A gate that is open stays open."""
        if not self.is_shut or self._failed:
            return
        try:
            self._flush()
        except JournalFailed as failure:
            self._failed = True
            self._waiting.clear()
            self._on_failure(failure)
            return
        self.is_shut = False
        waiting, self._waiting = self._waiting, {}
        for callback in waiting:
            callback()


class Storage:
    """A journal file, open. `keeps_records` is true if produced records are stored too, not only the rest.

    :raises BrokenJournal: if the file is not a journal, or is damaged.
    :raises EnvironmentLacks: if it can't be opened or written, or is in use.
    """

    def __init__(self, path: Path, *, keeps_records: bool = False) -> None:
        self.keeps_records = keeps_records
        self.folder = path.absolute().parent
        self.failure: JournalFailed | None = None
        self.gate = Gate(self._flush, self._failed)
        self.on_failure: Callable[[], None] = lambda: None
        """Called once the disk does not accept a write; nothing is acknowledged from then on."""
        self._journal = SqliteJournal(path, on_pending=self.gate.shut)
        if not keeps_records and self._journal.keeps_batches:
            self._journal.close()
            raise FencepostError(f"journal {path} holds produced records too: start with --journal-records")

    def _flush(self) -> None:
        self._journal.flush()

    def _failed(self, failure: JournalFailed) -> None:
        self.failure = failure
        self.on_failure()

    def append(self, records: tuple[JournalRecord, ...]) -> None:
        """Keep one batch."""
        self._journal.append(records)

    def append_batch(self, topic_id: str, partition: int, batch: bytes) -> None:
        """Keep a batch of a partition's log, if records are kept at all."""
        if self.keeps_records:
            self._journal.append_batch(topic_id, partition, batch)

    def drop_batches(self, topic_id: str, partition: int, before: int) -> None:
        """Forget the batches that a partition's log no longer holds."""
        if self.keeps_records:
            self._journal.drop_batches(topic_id, partition, before)

    def __iter__(self) -> Iterator[Record]:
        """Return the records of groups."""
        return (record for record in self._all() if isinstance(record, Record))

    def cluster_records(self) -> Iterator[ClusterRecord]:
        """Return the records of the cluster."""
        return (record for record in self._all() if isinstance(record, ClusterRecord))

    def transaction_records(self) -> Iterator[TransactionRecord]:
        """Return the records of transactional ids."""
        return (record for record in self._all() if isinstance(record, TransactionRecord))

    def batches(self) -> Iterator[tuple[str, int, bytes]]:
        """Topic id, partition and batch, of all logs in the order in which they were appended."""
        return self._journal.batches_of_logs()

    def _all(self) -> Iterator[JournalRecord]:
        self.gate.open()
        return iter(self._journal)

    def close(self) -> None:
        """Close the file. Data that was not flushed, and can't be any more, was not acknowledged."""
        with contextlib.suppress(JournalFailed):
            self._journal.close()


def repaired(path: Path, config: GroupCoordinatorConfig) -> Repaired | None:
    """Repair a journal that can't be loaded; return None if there is nothing to repair.

    :raises BrokenJournal: if the file was never a journal.
    :raises EnvironmentLacks: if it can't be opened, or the repaired file can't be written.
    """

    def load(records: Iterable[JournalRecord]) -> None:
        GroupCoordinator(config).replay((record for record in records if isinstance(record, Record)), 0)

    try:
        journal = SqliteJournal(path)
        try:
            load(journal)
        finally:
            journal.close()
    except FencepostError as error:
        if error.exit_code != FencepostError.exit_code:
            raise
        return repair(path, load)
    return None
