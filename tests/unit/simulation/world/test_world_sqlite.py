"""SQLite in a world waits as SQLite does, but in Python.

Here another connection ends its transaction meanwhile.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fencepost.simulation.world import sqlite

INSERT = "INSERT INTO orders VALUES (?)"


class Database:
    """A database, and another connection to it whose transaction ends when someone has waited a second."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.other = sqlite3.connect(path, isolation_level=None, timeout=0)
        self.other.execute("CREATE TABLE orders (number INTEGER)")
        self.waited_s = 0.0

    def connect(self, **options: Any) -> Any:
        return sqlite.connect_patiently(sqlite3.connect, self.path, **options)

    def hold(self) -> None:
        self.other.execute("BEGIN IMMEDIATE")

    def sleep(self, seconds: float) -> None:
        self.waited_s += seconds
        if self.waited_s >= 1 and self.other.in_transaction:
            self.other.execute("COMMIT")

    def numbers(self) -> list[int]:
        return [number for (number,) in self.other.execute("SELECT number FROM orders")]


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    found = Database(tmp_path / "orders.db")
    monkeypatch.setattr(time, "sleep", found.sleep)
    yield found
    found.other.close()


def test_executemany_of_a_generator_loses_no_row(database: Database) -> None:
    connection = database.connect()
    database.hold()
    cursor = connection.executemany(INSERT, ((number,) for number in range(5)))
    assert database.waited_s >= 1
    assert cursor.rowcount == 5
    connection.commit()
    assert database.numbers() == [0, 1, 2, 3, 4]
    assert cursor.execute("DELETE FROM orders WHERE number < 2").rowcount == 2
    connection.close()


def test_executemany_doubles_no_row_where_each_commits(database: Database) -> None:
    def rows() -> Iterator[tuple[int]]:
        for number in range(5):
            if number == 2:
                database.hold()
            yield (number,)

    connection = database.connect(isolation_level=None)
    assert connection.executemany(INSERT, rows()).rowcount == 5
    assert database.waited_s >= 1
    assert database.numbers() == [0, 1, 2, 3, 4]
    connection.close()


@pytest.mark.parametrize("level", ["", "IMMEDIATE", None])
def test_executemany_is_otherwise_that_of_python(database: Database, level: str | None) -> None:
    seen = []
    ways: list[Any] = [database.connect, sqlite3.connect]
    for connect in ways:
        path = () if connect == database.connect else (database.path,)
        connection = connect(*path, isolation_level=level)
        cursor = connection.cursor()
        cursor.executemany(INSERT, [])
        told: list[Any] = [connection.in_transaction, cursor.rowcount]
        connection.commit()
        cursor.executemany(INSERT, [(7,), (7,)])
        told += [cursor.rowcount, cursor.fetchall()]
        for statement, given in (("SELECT ?", [(1,)]), (INSERT, [(7,), (8, 9)]), (INSERT, None)):
            try:
                cursor.executemany(statement, given)
            except (sqlite3.Error, TypeError) as error:
                told += [type(error), str(error), cursor.rowcount]
        told.append(cursor.executemany("DROP TABLE IF EXISTS bills", [()]).rowcount)
        connection.rollback()
        connection.execute("DELETE FROM orders")
        connection.commit()
        connection.close()
        seen.append(told)
    assert seen[0] == seen[1]


@pytest.mark.parametrize("level", ["", None])
def test_executescript_leaves_a_transaction_open(database: Database, level: str | None) -> None:
    connection = database.connect(isolation_level=level)
    connection.executescript("BEGIN; INSERT INTO orders VALUES (1);")
    assert connection.in_transaction
    assert connection.isolation_level == level
    connection.rollback()
    assert database.numbers() == []
    connection.close()


@pytest.mark.parametrize("mode", ["DELETE", "WAL"])
@pytest.mark.parametrize("reads", ["in a transaction", "in a query that has not ended"])
def test_write_after_a_read_fails_at_once(database: Database, mode: str, reads: str) -> None:
    database.other.execute(f"PRAGMA journal_mode = {mode}")
    database.other.execute("INSERT INTO orders VALUES (1), (2)")
    connection = database.connect(isolation_level=None)
    if reads == "in a transaction":
        connection.execute("BEGIN")
        connection.execute("SELECT * FROM orders").fetchall()
        cursor = connection.cursor()
    else:
        cursor = connection.execute("SELECT * FROM orders")
    database.hold()
    with pytest.raises(sqlite3.OperationalError, match="database is locked"):
        connection.execute(INSERT, (3,))
    assert database.waited_s == 0
    cursor.close()
    if connection.in_transaction:
        connection.rollback()
    connection.execute(INSERT, (4,))
    assert database.waited_s >= 1
    assert database.numbers() == [1, 2, 4]
    connection.close()


@pytest.mark.parametrize("commit", ["commit", "COMMIT", "/* all * of */ ---- -- them\n end;", "RELEASE a"])
def test_commit_waits_for_a_connection_that_reads(database: Database, commit: str) -> None:
    connection = database.connect(isolation_level=None)
    connection.execute("SAVEPOINT a" if "RELEASE" in commit else "BEGIN")
    connection.execute(INSERT, (1,))
    database.other.execute("BEGIN")
    assert database.numbers() == []
    if commit == "commit":
        connection.commit()
    else:
        connection.execute(commit)
    assert database.waited_s >= 1
    assert database.numbers() == [1]
    connection.close()
