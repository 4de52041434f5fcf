"""A damaged journal: what is noticed, that a refusal changes no file, and what a repair finds."""

from __future__ import annotations

import random
import resource
import sqlite3
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TypeAlias

import pytest

from fencepost.coordinator.journal import files, wal
from fencepost.coordinator.journal.encoding import BrokenJournal, JournalRecord
from fencepost.coordinator.journal.repair import repair
from fencepost.coordinator.journal.sqlite import SqliteJournal
from fencepost.coordinator.protocol.errors import EnvironmentLacks, FencepostError
from fencepost.coordinator.protocol.records import (
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    Record,
)

Files: TypeAlias = dict[str, bytes]
"""The bytes of a folder's files by name."""

PAGE = 4096
FRAME = 24 + PAGE
OUTCOMES = 40


def outcome(number: int) -> tuple[Record, Record]:
    return (
        Record(ConsumerGroupMetadataKey(f"g{number}"), ConsumerGroupMetadataValue(1)),
        Record(OffsetCommitKey("g", "orders", number), OffsetCommitValue(number, 0, "m" * 60, 1)),
    )


WHOLE: list[JournalRecord] = [record for number in range(OUTCOMES) for record in outcome(number)]


def accept(records: Iterable[JournalRecord]) -> None:
    assert list(records) is not None


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal"


def now_in(folder: Path) -> Files:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def put(folder: Path, content: Files) -> None:
    for file in folder.iterdir():
        file.unlink()
    for name, data in content.items():
        (folder / name).write_bytes(data)


def opened(path: Path) -> list[JournalRecord]:
    with closing(SqliteJournal(path)) as journal:
        return list(journal)


def filled(path: Path, outcomes: int = OUTCOMES) -> SqliteJournal:
    journal = SqliteJournal(path)
    for number in range(outcomes):
        journal.append(outcome(number))
    return journal


def ended(path: Path, how: str, outcomes: int = OUTCOMES) -> Files:
    """What a process leaves behind that wrote some outcomes.

    merged: it was killed when the log had just been copied into the file; restarted: it was killed, and one
    that wrote nothing after it too.
    """
    journal = filled(path, outcomes)
    if how == "merged":
        journal._database.execute("PRAGMA wal_checkpoint(PASSIVE)")
    if how == "closed":
        journal.close()
        return now_in(path.parent)
    left = now_in(path.parent)
    journal.close()
    if how == "restarted":
        put(path.parent, left)
        with closing(SqliteJournal(path)):
            left = now_in(path.parent)
    return left


def refused(path: Path) -> str | None:
    """Why, if it is: by two starts alike, neither of which changes anything."""
    before = now_in(path.parent)
    told = []
    for _ in range(2):
        try:
            SqliteJournal(path).close()
        except FencepostError as error:
            assert now_in(path.parent) == before
            told.append(str(error))
        else:
            assert not told
            return None
    assert told[0] == told[1]
    assert str(path) in told[0]
    return told[0]


def repaired(path: Path) -> list[JournalRecord]:
    """What a repair finds; what was damaged is beside it as it was, and nothing else."""
    before = now_in(path.parent)
    done = repair(path, accept)
    assert done.backup.name == f"{path.name}.broken-1"
    found = opened(path)
    assert done.records == len(found)
    after = now_in(path.parent)
    del after[path.name]
    assert after == {name.replace(path.name, done.backup.name): data for name, data in before.items()}
    return found


def outcomes_before(log: bytes, place: int) -> int:
    """How many transactions end in front of the frame in which a place of a log is."""
    ends = range(32 + FRAME, 32 + FRAME * ((place - 32) // FRAME) + 1, FRAME)
    return sum(struct.unpack_from(">I", log, end - FRAME + 4)[0] != 0 for end in ends) if place >= 32 else 0


def flipped(data: bytes, place: int, bit: int = 1) -> bytes:
    return data[:place] + bytes([data[place] ^ bit]) + data[place + 1 :]


def damaged(content: Files) -> Iterator[tuple[str, int, bytes]]:
    """Each file cut in pages and between them, and with a bit turned over at random and in its header."""
    rng = random.Random(5)
    for name, data in content.items():
        page = FRAME if name.endswith("-wal") else PAGE
        for cut in [
            *(place for place in (1, 50, 600) if place < len(data)),
            *range(page, len(data), page // 2),
        ]:
            yield name, cut, data[:cut]
        places = [*range(0, min(100, len(data)), 3), *(rng.randrange(len(data)) for _ in range(40) if data)]
        for place in places:
            yield name, place, flipped(data, place, 1 << rng.randrange(8))


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "how", ["closed", pytest.param("killed", marks=pytest.mark.long), "merged", "restarted"]
)
def test_no_damage_passes_and_a_refusal_changes_nothing_and_a_repair_finds_what_came_before(
    path: Path, how: str
) -> None:
    content = ended(path, how)
    log = content.get("journal-wal", b"")
    assert (len(log) > 0) == (how in {"killed", "merged"})
    broken = 0
    for name, place, data in damaged(content):
        if how == "merged" and len(data) < len(log):
            # Nothing tells what the file holds already from what it held before.
            continue
        put(path.parent, {**content, name: data})
        why = refused(path)
        found = opened(path) if why is None else repaired(path)
        broken += why is not None
        case = f"{name} at {place} of {len(data)}: {why}"
        assert found == WHOLE[: len(found)], case
        assert len(found) % 2 == 0, case
        # A log that ends early is one that never got further, and a last transaction that can't be read one
        # that was never finished; nothing else may pass for whole.
        if len(data) < len(log) and name != "journal":
            assert why is None, case
            assert len(found) == 2 * outcomes_before(log, place), case
        elif why is None:
            assert found == WHOLE or (name != "journal" and found == WHOLE[:-2]), case
        elif how == "merged" or (how == "killed" and name == "journal"):
            assert found == WHOLE, case
        elif name != "journal":
            assert len(found) == 2 * outcomes_before(log, place), case
    assert broken > 30


@pytest.mark.parametrize("outcomes", [3, OUTCOMES])
@pytest.mark.parametrize("is_there", [True, False], ids=["empty", "missing"])
def test_a_log_without_its_file_is_refused_and_repaired(path: Path, is_there: bool, outcomes: int) -> None:
    content = ended(path, "killed", outcomes)
    del content["journal"]
    put(path.parent, {**content, "journal": b""} if is_there else content)
    why = refused(path)
    assert why is not None
    assert f"it is {'empty' if is_there else 'missing'}, but journal-wal is not" in why
    assert repaired(path) == WHOLE[: 2 * outcomes]


def test_a_file_without_its_last_page_is_repaired_up_to_there(path: Path) -> None:
    content = ended(path, "closed")
    put(path.parent, {"journal": content["journal"][:-PAGE]})
    assert refused(path) is not None
    assert 0 < len(repaired(path)) < len(WHOLE)


@pytest.mark.parametrize("left", [0, 31, 55])
def test_a_log_without_a_frame_is_none(path: Path, left: int) -> None:
    put(path.parent, {"journal-wal": bytes(left)})
    assert opened(path) == []


def test_a_last_transaction_that_was_never_finished_is_no_damage(path: Path) -> None:
    content = ended(path, "killed")
    log = content["journal-wal"]
    last = 32 + FRAME * (len(log) // FRAME - 2)
    assert outcomes_before(log, last) == OUTCOMES - 1
    for data in (log[:last], log[:-1], log[:last] + bytes(FRAME) + log[last + FRAME :], log[:-FRAME]):
        put(path.parent, {**content, "journal-wal": data})
        assert refused(path) is None
        assert opened(path) == WHOLE[:-2]


def test_the_last_transaction_but_one_is_missed_though_nothing_says_where_it_ended(path: Path) -> None:
    content = ended(path, "killed")
    log = content["journal-wal"]
    end = 32 + FRAME * (len(log) // FRAME - 3)
    assert outcomes_before(log, end) == OUTCOMES - 2
    assert outcomes_before(log, end + FRAME) == OUTCOMES - 1
    put(path.parent, {**content, "journal-wal": flipped(log, end + 8)})
    assert refused(path) is not None
    assert repaired(path) == WHOLE[:-4]


def test_the_part_of_a_log_that_counts_is_the_one_that_sqlite_takes(path: Path) -> None:
    content = ended(path, "killed")
    log = content["journal-wal"]
    rng = random.Random(7)
    logs = [log, log[:5000], *(flipped(log, rng.randrange(32, len(log))) for _ in range(30))]
    # A log that began anew has frames of its run before at its end.
    put(path.parent, content)
    with closing(SqliteJournal(path)) as journal:
        for number in range(OUTCOMES):
            journal.append(outcome(number))
        journal._database.execute("PRAGMA wal_checkpoint(PASSIVE)")
        journal.append(outcome(0))
        again = now_in(path.parent)
    assert len(again["journal-wal"]) > FRAME * 10
    for content, data in [*((content, data) for data in logs), (again, again["journal-wal"])]:
        put(path.parent, {**content, "journal-wal": data})
        with closing(files.connect(path)) as database:
            _, taken, _ = database.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        assert wal.contents(data).taken == 32 + taken * FRAME
    put(path.parent, again)
    assert wal.contents(again["journal-wal"]).taken < FRAME * 10
    assert opened(path) == [*WHOLE, *WHOLE, *outcome(0)]


def other_program(path: Path) -> None:
    database = sqlite3.connect(path)
    for statement in ("PRAGMA user_version = 1", "PRAGMA journal_mode = WAL", "CREATE TABLE t (x)"):
        database.execute(statement)
    left = now_in(path.parent)
    database.close()
    put(path.parent, left)
    path.with_name("journal-shm").unlink()


def later_format(path: Path) -> None:
    content = ended(path, "killed")
    put(path.parent, content)
    database = sqlite3.connect(path)
    database.execute("PRAGMA user_version = 2")
    left = now_in(path.parent)
    database.close()
    put(path.parent, left)
    path.with_name("journal-shm").unlink()


def no_database(path: Path) -> None:
    put(path.parent, {**ended(path, "killed"), "journal": b"orders:12\n" * 1_000})


def no_log(path: Path) -> None:
    put(path.parent, {**ended(path, "killed"), "journal-wal": b"orders:12\n" * 1_000})


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (other_program, "this is an SQLite database of another program"),
        (later_format, "format 2 is unknown, 1 was expected"),
        (no_database, "this is not a journal"),
        (no_log, "journal-wal: its header is damaged"),
    ],
)
def test_what_can_t_be_a_journal_is_left_alone_with_its_log(
    path: Path, make: Callable[[Path], None], told: str
) -> None:
    make(path)
    assert set(now_in(path.parent)) == {"journal", "journal-wal"}
    why = refused(path)
    assert why is not None
    assert told in why


def test_another_program_s_database_is_not_repaired(path: Path) -> None:
    other_program(path)
    before = now_in(path.parent)
    with pytest.raises(BrokenJournal, match="another program; nothing was changed"):
        repair(path, accept)
    assert now_in(path.parent) == before


def test_a_log_that_can_t_be_read_is_left_alone(path: Path) -> None:
    SqliteJournal(path).close()
    before = path.read_bytes()
    wal.beside(path).mkdir()
    for _ in range(2):
        with pytest.raises(EnvironmentLacks, match=str(path)):
            SqliteJournal(path)
    assert path.read_bytes() == before
    assert wal.beside(path).is_dir()


def test_a_journal_whose_making_was_cut_short_is_made(path: Path) -> None:
    database = sqlite3.connect(path)
    database.execute("PRAGMA journal_mode = WAL")
    left = now_in(path.parent)
    database.close()
    put(path.parent, left)
    assert refused(path) is None
    assert opened(path) == []


def test_a_start_beside_one_that_runs_changes_nothing(path: Path) -> None:
    with closing(filled(path)):
        before = now_in(path.parent)
        with pytest.raises(EnvironmentLacks, match="is in use: stop the program that uses it"):
            SqliteJournal(path)
        assert now_in(path.parent) == before


@pytest.mark.parametrize("name", ["journal", "journal-wal"])
def test_a_repair_for_which_there_is_no_room_changes_nothing(path: Path, name: str) -> None:
    content = ended(path, "killed")
    content[name] = flipped(content[name], len(content[name]) // 2, 255)
    put(path.parent, content)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    largest = max(len(data) for data in content.values()) + PAGE
    failed = done = 0
    for limit in range(0, largest + 1, largest // 20):
        put(path.parent, content)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limits[1]))
        try:
            repair(path, accept)
            done += 1
        except EnvironmentLacks:
            assert not done
            failed += 1
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert done or now_in(path.parent) == content
    assert failed > 1
    assert done > 0


@pytest.mark.parametrize("name", ["journal", "journal-wal"])
def test_a_repair_that_is_ended_before_it_took_the_old_log_away_is_done_again(path: Path, name: str) -> None:
    content = ended(path, "killed")
    content[name] = flipped(content[name], len(content[name]) // 2, 255)
    put(path.parent, content)
    found = repaired(path) if refused(path) else WHOLE
    put(path.parent, {"journal": path.read_bytes(), "journal-wal": content["journal-wal"]})
    assert (repaired(path) if refused(path) else opened(path)) == found
