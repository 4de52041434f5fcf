"""Who may read a journal, and what a stranger who may write it can make of it."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from fencepost.coordinator.journal import files
from fencepost.coordinator.journal.encoding import BrokenJournal
from fencepost.coordinator.journal.repair import repair
from fencepost.coordinator.journal.sqlite import SqliteJournal
from fencepost.coordinator.protocol.errors import EnvironmentLacks
from fencepost.coordinator.protocol.records import (
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    Record,
)

NOBODY = 65_534


def group(name: str) -> Record:
    return Record(ConsumerGroupMetadataKey(name), ConsumerGroupMetadataValue(1))


def modes(folder: Path) -> dict[str, str]:
    return {path.name: oct(stat.S_IMODE(path.stat().st_mode)) for path in folder.iterdir()}


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    old = os.umask(0)
    yield tmp_path / "journal"
    os.umask(old)


def test_only_its_owner_may_read_a_journal_and_what_is_beside_it(path: Path) -> None:
    with closing(SqliteJournal(path)) as journal:
        journal.append([group("a")])
        assert modes(path.parent) == {"journal": "0o600", "journal-wal": "0o600"}
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)):
            pass
    data = bytearray(path.read_bytes())
    data[-3_000:-2_000] = bytes(1_000)
    path.write_bytes(data[:5_000])
    repair(path, lambda records: [*records] and None)
    assert set(modes(path.parent)) == {"journal", "journal.broken-1"}
    assert set(modes(path.parent).values()) == {"0o600"}


def test_a_journal_that_exists_keeps_its_mode(path: Path) -> None:
    SqliteJournal(path).close()
    path.chmod(0o640)
    SqliteJournal(path).close()
    assert modes(path.parent) == {"journal": "0o640"}


@contextmanager
def unprivileged() -> Iterator[None]:
    """Nothing is read-only for root."""
    if os.geteuid() != 0:
        yield
        return
    os.setresuid(NOBODY, NOBODY, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)


@pytest.mark.skipif(not hasattr(os, "setresuid"), reason="a user can't be changed back here")
@pytest.mark.parametrize("mode", [None, 0o666, 0o444], ids=["new", "writable", "read-only"])
def test_a_folder_that_is_not_writable_is_named(mode: int | None) -> None:
    with TemporaryDirectory(dir="/tmp") as folder:  # each user may enter it
        path = Path(folder) / "journal"
        SqliteJournal(Path(folder) / "other").close()
        if mode is not None:
            SqliteJournal(path).close()
            path.chmod(mode)
        path.parent.chmod(0o555)
        with unprivileged(), pytest.raises(EnvironmentLacks) as refused:
            SqliteJournal(path)
        assert str(refused.value) == (
            f"journal {path}: the folder {folder} is not writable; SQLite creates files in it: make it "
            "writable, or choose another file"
        )
        path.parent.chmod(0o755)


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("CREATE TRIGGER t AFTER INSERT ON record BEGIN DELETE FROM record; END", "the trigger t"),
        ("CREATE VIEW v AS SELECT * FROM record", "the view v"),
        ("CREATE INDEX i ON record (data)", "the index i"),
        ("CREATE TABLE other (x)", "the table other"),
        ("ALTER TABLE record ADD COLUMN more AS (data || data)", "the table record"),
    ],
    ids=["trigger", "view", "index", "table", "column"],
)
def test_what_a_stranger_added_to_the_schema_is_refused_and_repaired(
    path: Path, statement: str, told: str
) -> None:
    with closing(SqliteJournal(path)) as journal:
        journal.append([group("a")])
    with closing(sqlite3.connect(path)) as database:
        database.execute(statement)
        database.commit()
    before = path.read_bytes()
    with pytest.raises(BrokenJournal, match=f"{told} is not part of a journal, .*--journal-repair"):
        SqliteJournal(path)
    assert path.read_bytes() == before
    repaired = repair(path, lambda records: [*records] and None)
    assert repaired.records == 1
    assert repaired.backup.read_bytes() == before
    with closing(SqliteJournal(path)) as journal:
        journal.append([group("b")])
        assert [record.key.group_id for record in journal] == ["a", "b"]


def test_the_schema_is_not_trusted(path: Path) -> None:
    """SQLite would let a view call functions with side effects, such as those of extensions."""
    SqliteJournal(path).close()
    with closing(files.connect(path)) as database:
        assert database.execute("PRAGMA trusted_schema").fetchone() == (0,)
    with files.looked_at(path) as database:
        assert database.execute("PRAGMA trusted_schema").fetchone() == (0,)
