from __future__ import annotations

import zlib

import msgspec
import pytest

from fencepost.coordinator.journal.encoding import VERSION, BrokenRecord, decode, encode
from fencepost.coordinator.journal.memory import MemoryJournal
from fencepost.coordinator.protocol import records


def group(name: str, epoch: int | None) -> records.Record:
    value = None if epoch is None else records.ConsumerGroupMetadataValue(epoch)
    return records.Record(records.ConsumerGroupMetadataKey(name), value)


def target(name: str, epoch: int) -> records.Record:
    return records.Record(
        records.ConsumerGroupTargetAssignmentMetadataKey(name),
        records.ConsumerGroupTargetAssignmentMetadataValue(epoch),
    )


def sealed(body: bytes) -> bytes:
    return zlib.crc32(body).to_bytes(4, "big") + body


def test_records_come_back_in_order_and_batches_stay_together() -> None:
    journal = MemoryJournal()
    journal.append((group("a", 1), target("a", 1)))
    journal.append(())
    journal.append((group("b", 1),))
    assert list(journal) == [group("a", 1), target("a", 1), group("b", 1)]
    assert list(journal.batches()) == [(group("a", 1), target("a", 1)), (group("b", 1),)]
    assert len(journal) == 3


def test_a_journal_can_be_made_from_the_batches_of_another() -> None:
    journal = MemoryJournal([(group("a", 1),), (group("a", 2),)])
    assert list(MemoryJournal(journal.batches())) == list(journal)


def test_truncation_forgets_the_newest_batches() -> None:
    journal = MemoryJournal([(group("a", 1),), (group("a", 2), target("a", 2)), (group("a", 3),)])
    journal.truncate(1)
    assert list(journal) == [group("a", 1)]
    assert len(journal) == 1


def test_a_journal_may_keep_itself_short() -> None:
    journal = MemoryJournal(compact_beyond=10)
    for epoch in range(1, 1_000):
        journal.append((group("a", epoch), group(f"g{epoch % 8}", epoch)))
        assert len(journal) <= 20
    journal.compact()
    assert len(journal) == 9
    assert list(journal)[-2:] == [group("a", 999), group("g7", 999)]


def test_compaction_keeps_the_newest_of_each_key() -> None:
    journal = MemoryJournal([(group("a", 1), target("a", 1)), (group("b", 1), group("a", 2))])
    journal.compact()
    assert list(journal.batches()) == [(target("a", 1),), (group("b", 1), group("a", 2))]


@pytest.mark.parametrize(("keep", "left"), [(False, []), (True, [group("a", None)])])
def test_compaction_may_keep_tombstones(keep: bool, left: list[records.Record]) -> None:
    journal = MemoryJournal([(group("a", 1),), (group("a", None),)])
    journal.compact(keep_tombstones=keep)
    assert list(journal) == left
    assert len(journal) == len(left)


def test_keys_of_different_types_are_different_facts() -> None:
    journal = MemoryJournal([(group("a", 1), target("a", 1))])
    journal.compact()
    assert len(journal) == 2


GOOD = encode(group("a", 7))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "a record has more than 5 bytes, these are 0"),
        (GOOD[:5], "a record has more than 5 bytes, these are 5"),
        (GOOD[:-1], r"checksum [0-9a-f]{8} of a record of \d+ bytes should be [0-9a-f]{8}"),
        (sealed(bytes([VERSION + 1]) + GOOD[5:]), "record version 2 is unknown, version 1 was expected"),
        (sealed(GOOD[4:] + b"\xc0"), "the record's body is malformed: .*trailing"),
        (sealed(bytes([VERSION]) + msgspec.msgpack.encode([[99, "g"], None])), "malformed: .*99"),
        (
            sealed(bytes([VERSION]) + msgspec.msgpack.encode([group("a", 1).key, target("a", 1).value])),
            "a key of type 3 has a value of type 6",
        ),
    ],
)
def test_bytes_that_are_no_record_are_named(data: bytes, message: str) -> None:
    with pytest.raises(BrokenRecord, match=message):
        decode(data)
