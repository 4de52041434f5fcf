"""What of a cluster outlives its brokers, in one journal: groups, topics, transactions, records."""

from __future__ import annotations

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
from fencepost.coordinator.server.gate import Gate


class Storage:
    """A journal file, open. `keeps_records` says whether produced records go there too, or only the rest.

    :raises BrokenJournal: if the file is no journal, or a damaged one.
    :raises EnvironmentLacks: if it can't be opened or written, or is in use.
    """

    def __init__(self, path: Path, *, keeps_records: bool = False) -> None:
        self.keeps_records = keeps_records
        self.folder = path.absolute().parent
        self.failure: JournalFailed | None = None
        self.gate = Gate(self._flush, self._failed)
        self.on_failure: Callable[[], None] = lambda: None
        """Called once the disk does not take what is written; nothing is acknowledged from then on."""
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
        """Forget what a partition's log no longer holds."""
        if self.keeps_records:
            self._journal.drop_batches(topic_id, partition, before)

    def __iter__(self) -> Iterator[Record]:
        """The records of groups."""
        return (record for record in self._all() if isinstance(record, Record))

    def cluster_records(self) -> Iterator[ClusterRecord]:
        """The records of the cluster."""
        return (record for record in self._all() if isinstance(record, ClusterRecord))

    def transaction_records(self) -> Iterator[TransactionRecord]:
        """The records of transactional ids."""
        return (record for record in self._all() if isinstance(record, TransactionRecord))

    def batches(self) -> Iterator[tuple[str, int, bytes]]:
        """Topic id, partition and batch, of all logs in the order in which they were appended."""
        return self._journal.batches_of_logs()

    def _all(self) -> Iterator[JournalRecord]:
        self.gate.open()
        return iter(self._journal)

    def close(self) -> None:
        """Let go of the file. What was not flushed and can't be any more was acknowledged to nobody."""
        with contextlib.suppress(JournalFailed):
            self._journal.close()


def repaired(path: Path, config: GroupCoordinatorConfig) -> Repaired | None:
    """Repair a journal that can't be loaded; None if there is nothing to repair.

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
