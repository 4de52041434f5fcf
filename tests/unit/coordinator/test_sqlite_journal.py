"""The journal in a file: what it keeps, how it stays small, and that no other file is taken for one."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.consumer.group import ConsumerGroup
from fencepost.coordinator.consumer.member import ConsumerGroupMember
from fencepost.coordinator.coordinator import GroupCoordinator
from fencepost.coordinator.journal.encoding import BrokenJournal, JournalRecord
from fencepost.coordinator.journal.repair import repair
from fencepost.coordinator.journal.sqlite import JournalFailed, SqliteJournal
from fencepost.coordinator.protocol import transaction_records
from fencepost.coordinator.protocol.cluster_records import ClusterRecord, TopicKey, TopicValue
from fencepost.coordinator.protocol.errors import EnvironmentLacks, FencepostError, InconsistentRecord
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.records import (
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    Record,
)


def group(name: str, epoch: int | None) -> Record:
    value = None if epoch is None else ConsumerGroupMetadataValue(epoch)
    return Record(ConsumerGroupMetadataKey(name), value)


def offset(partition: int, position: int) -> Record:
    return Record(OffsetCommitKey("g", "orders", partition), OffsetCommitValue(position, 0, "m" * 60, 1))


TOPIC = ClusterRecord(TopicKey("AAAAAAAAAAAAAAAAAAAAAA"), TopicValue("orders", 12))
TRANSACTION = transaction_records.TransactionRecord(
    transaction_records.TransactionKey("t"),
    transaction_records.TransactionValue(7, 0, 60_000, 1, (TopicPartition("orders", 3),), ("g",)),
)


def batch(base: int) -> bytes:
    return base.to_bytes(8, "big") + b"records"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal"


def opened(path: Path) -> list[JournalRecord]:
    journal = SqliteJournal(path)
    try:
        assert len(journal) == len(list(journal))
        return list(journal)
    finally:
        journal.close()


def accept(records: object) -> None:
    assert list(records) is not None  # type: ignore[call-overload]


def test_records_of_all_kinds_come_back_in_order(path: Path) -> None:
    journal = SqliteJournal(path)
    journal.append((group("a", 1), TOPIC))
    journal.append(())
    journal.append((TRANSACTION, offset(3, 5)))
    journal.append_batch("AAAAAAAAAAAAAAAAAAAAAA", 3, batch(0))
    journal.append_batch("AAAAAAAAAAAAAAAAAAAAAA", 3, batch(10))
    journal.close()
    assert opened(path) == [group("a", 1), TOPIC, TRANSACTION, offset(3, 5)]
    journal = SqliteJournal(path)
    assert [(place, data) for _, place, data in journal.batches_of_logs()] == [(3, batch(0)), (3, batch(10))]
    journal.drop_batches("AAAAAAAAAAAAAAAAAAAAAA", 3, 10)
    journal.close()
    journal = SqliteJournal(path)
    assert [data for _, _, data in journal.batches_of_logs()] == [batch(10)]
    journal.close()


def test_many_outcomes_share_one_flush_and_none_is_there_before(path: Path) -> None:
    told: list[int] = []
    journal = SqliteJournal(path, on_pending=lambda: told.append(1))
    journal.append((group("a", 1), group("b", 1)))
    journal.append((group("a", 2),))
    assert journal.is_pending
    assert told == [1]
    assert list(journal) == []
    journal.flush()
    assert not journal.is_pending
    assert list(journal) == [group("a", 1), group("b", 1), group("a", 2)]
    journal.append((group("a", 3),))
    assert told == [1, 1]
    journal.close()
    assert len(opened(path)) == 4


def test_a_process_that_ends_without_a_word_leaves_what_was_flushed(path: Path) -> None:
    journal = SqliteJournal(path, on_pending=lambda: None)
    journal.append((group("a", 1),))
    journal.flush()
    journal.append((group("a", 2),))
    copy = path.with_name("copy")
    for suffix in ("", "-wal"):
        copy.with_name("copy" + suffix).write_bytes(path.with_name(path.name + suffix).read_bytes())
    journal.close()
    assert opened(copy) == [group("a", 1)]


def test_compaction_keeps_the_newest_of_each_key_and_no_tombstones(path: Path) -> None:
    journal = SqliteJournal(path)
    for epoch in range(1, 200):
        journal.append((group("a", epoch), group("b", epoch)))
    journal.append((group("b", None),))
    journal.compact()
    assert list(journal) == [group("a", 199)]
    journal.append((group("c", 1),))
    journal.close()
    assert opened(path) == [group("a", 199), group("c", 1)]


def test_the_file_stays_small_however_often_the_same_keys_are_written(path: Path) -> None:
    journal = SqliteJournal(path, on_pending=lambda: None)
    for position in range(40_000):
        journal.append((offset(position % 100, position),))
        if position % 50 == 49:
            journal.flush()
    assert len(journal) < 3_000
    journal.close()
    assert path.stat().st_size < 1_000_000
    newest = {record.key: record.value for record in opened(path)}
    assert [newest[offset(n, 0).key].offset for n in range(100)] == list(range(39_900, 40_000))  # type: ignore[union-attr]


def test_it_is_small_in_steps_after_each_of_which_it_can_be_replayed(path: Path) -> None:
    """Members come and go; a journal without some of the tombstones of one that went can't be loaded."""
    with closing(SqliteJournal(path, lambda: None)) as journal:
        for number in range(400):
            member = ConsumerGroupMember(member_id=f"m{number}")
            journal.append((member.metadata_record("g"), member.assignment_record("g"), group("g", number)))
            journal.append(ConsumerGroup("g").member_tombstones(member.member_id))
            journal.flush()
            if number % 20 == 0:
                GroupCoordinator(GroupCoordinatorConfig()).replay(journal, 0)
        assert len(journal) < 400 * 3, "some of it was removed"


def test_two_processes_can_t_share_it(path: Path) -> None:
    journal = SqliteJournal(path)
    with pytest.raises(EnvironmentLacks, match="is in use: stop the program that uses it"):
        SqliteJournal(path)
    journal.append((group("a", 1),))
    journal.close()
    assert opened(path) == [group("a", 1)]


def test_a_disk_that_takes_nothing_is_told(path: Path) -> None:
    journal = SqliteJournal(path, on_pending=lambda: None)
    journal.append((group("a", 1),))
    journal.flush()
    journal._database.execute("PRAGMA max_page_count = 1")
    for partition in range(100):
        journal.append((offset(partition, 1),))
    with pytest.raises(JournalFailed, match="can't be written: database or disk is full"):
        journal.flush()
    with pytest.raises(JournalFailed):
        journal.close()
    assert opened(path) == [group("a", 1)]


def database_of_another(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE t (x)")


@pytest.mark.parametrize(
    ("make", "error", "told"),
    [
        (lambda path: path.mkdir(), FencepostError, "is a directory, expected a file"),
        (lambda path: path.write_text("orders:12\n" * 1000), BrokenJournal, "this is not a journal$"),
        (database_of_another, BrokenJournal, "another program"),
    ],
    ids=["folder", "text", "database"],
)
def test_what_is_no_journal_is_refused(
    path: Path, make: Callable[[Path], object], error: type[Exception], told: str
) -> None:
    make(path)
    before = path.read_bytes() if path.is_file() else b""
    with pytest.raises(error, match=told):
        SqliteJournal(path)
    with pytest.raises((BrokenJournal, EnvironmentLacks)):
        repair(path, accept)
    assert not path.is_file() or path.read_bytes() == before


def test_a_journal_in_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FencepostError, match=r"j: .*none does not exist$"):
        SqliteJournal(tmp_path / "none" / "j")
    with pytest.raises(FencepostError, match=r"j: .*file is not a directory$"):
        SqliteJournal(tmp_path / "file" / "j")


def test_a_journal_of_a_later_format_is_refused(path: Path) -> None:
    SqliteJournal(path).close()
    database = sqlite3.connect(path)
    database.execute("PRAGMA user_version = 2")
    database.close()
    with pytest.raises(BrokenJournal, match="format 2 is unknown, 1 was expected"):
        SqliteJournal(path)


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("UPDATE record SET data = x'00' WHERE number = 5", "record 5, the one after record 4"),
        ("UPDATE record SET outcome = 9 WHERE number = 5", "record 5, the one after record 4"),
        ("UPDATE record SET number = 500 WHERE number = 5", "record 500, the one after record 40"),
        ("UPDATE record SET data = 'text' WHERE number = 5", "types that were written"),
        ("DELETE FROM record WHERE number = 5", "39 rows in table record, expected 40"),
        ("UPDATE batch SET place = 9 WHERE number = 2", "record batch 2 fails its checksum"),
        ("DELETE FROM batch WHERE number = 2", "2 rows in table batch, expected 3"),
        ("DROP TABLE total", "no such table"),
        ("DELETE FROM total", "expected None"),
    ],
)
def test_what_was_altered_is_named_and_repaired(path: Path, statement: str, told: str) -> None:
    journal = SqliteJournal(path)
    for number in range(20):
        journal.append((group(f"g{number}", 1), offset(number, number)))
    for base in range(3):
        journal.append_batch("AAAAAAAAAAAAAAAAAAAAAA", 0, batch(base))
    journal.close()
    whole = opened(path)
    database = sqlite3.connect(path)
    database.execute(statement)
    database.commit()
    database.close()
    with pytest.raises(BrokenJournal, match=told) as caught:
        SqliteJournal(path)
    assert "--journal-repair" in str(caught.value)
    done = repair(path, accept)
    assert done.backup.name == "journal.broken-1"
    kept = opened(path)
    assert kept == [record for record in whole if record in kept]
    assert len(kept) == done.records >= 4
    assert not [file for file in path.parent.iterdir() if file.suffix in {".copy", ".new"}]


def test_a_repair_keeps_whole_outcomes_that_can_be_applied(path: Path) -> None:
    journal = SqliteJournal(path)
    for number in range(5):
        journal.append((group(f"g{number}", 1), offset(number, number)))
    journal.close()
    whole = opened(path)

    def check(records: Iterator[JournalRecord]) -> None:
        for record in records:
            if record == offset(3, 3):
                raise InconsistentRecord("it can't follow")

    assert repair(path, check).records == 6  # type: ignore[arg-type]
    assert opened(path) == whole[:6]
