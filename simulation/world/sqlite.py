"""SQLite with the clock and the randomness of Python, which are those of the seed during a run."""

from __future__ import annotations

import datetime
import functools
import os
import sqlite3
from collections.abc import Callable
from typing import Any, Final

_RETRY_S: Final = 0.01
_FACTORY: Final = 5
"""The place of the class of connections among the arguments of `sqlite3.connect`."""
_TIMES: Final = ("date", "time", "datetime", "julianday", "unixepoch", "strftime", "timediff")


@functools.cache
def _original() -> sqlite3.Connection:
    """Return a connection whose functions are SQLite's own."""
    return sqlite3.Connection(":memory:", check_same_thread=False)


def _now() -> str:
    """Return the present in SQLite's form: UTC, milliseconds."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def _of_time(name: str) -> Callable[..., Any]:
    """Return a function of time that asks SQLite, but not for the present."""
    first = 1 if name == "strftime" else 0

    def compute(*arguments: Any) -> Any:
        given = list(arguments) if len(arguments) > first else [*arguments, "now"]
        for place in range(first, len(given)):
            if isinstance(given[place], str) and given[place].lower() == "now":
                given[place] = _now()
        return _original().execute(f"SELECT {name}({','.join('?' * len(given))})", given).fetchone()[0]

    return compute


def take_clock_and_randomness(connection: sqlite3.Connection) -> None:
    """Replace the functions of a connection that ask the machine for the time or for randomness."""
    known = {row[0] for row in _original().execute("SELECT name FROM pragma_function_list")}
    for name in _TIMES:
        if name in known:
            connection.create_function(name, -1, _of_time(name), deterministic=True)
    for name, length in (("current_date", 10), ("current_time", 8), ("current_timestamp", 19)):
        begin = 11 if name == "current_time" else 0
        part = slice(begin, begin + length)
        connection.create_function(name, 0, lambda part=part: _now()[part], deterministic=True)
    connection.create_function("random", 0, lambda: int.from_bytes(os.urandom(8), "little", signed=True))
    connection.create_function("randomblob", 1, lambda size: os.urandom(max(1, int(size or 0))))


class _PatientCursor(sqlite3.Cursor):
    def execute(self, *arguments: Any) -> Any:
        return _patiently(self.connection, super().execute, *arguments)

    def executemany(self, *arguments: Any) -> Any:
        return _patiently(self.connection, super().executemany, *arguments)


class PatientConnection(sqlite3.Connection):
    """A connection that waits in Python while another one holds the database, so that its thread may run."""

    timeout_s: float
    sleep: Callable[[float], object]

    def cursor(self, factory: Any = _PatientCursor) -> Any:
        """Return a cursor that waits, unless it is one of another class."""
        return super().cursor(factory)

    def execute(self, *arguments: Any) -> Any:
        """Execute a statement, once no other connection holds what it needs."""
        return self.cursor().execute(*arguments)

    def executemany(self, *arguments: Any) -> Any:
        """Execute a statement several times."""
        return self.cursor().executemany(*arguments)

    def commit(self) -> None:
        """Commit, once no other connection reads."""
        _patiently(self, super().commit)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> Any:
        """Commit, or roll back after an exception."""
        if kind is not None:
            return super().__exit__(kind, error, trace)
        try:
            self.commit()
        except BaseException:
            self.rollback()
            raise
        return False


def _patiently(connection: Any, call: Callable[..., Any], *arguments: Any) -> Any:
    """Call, again and again while the database is locked, for as long as the connection may wait."""
    waited_s = 0.0
    while True:
        try:
            return call(*arguments)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or waited_s >= connection.timeout_s:
                raise
        connection.sleep(_RETRY_S)
        waited_s += _RETRY_S


def connect_patiently(connect: Any, sleep: Callable[[float], object], *args: Any, **options: Any) -> Any:
    """Do what `sqlite3.connect` does, with a connection that waits in virtual time.

    If the program has a class of connections of its own, that waits in real time.
    """
    if len(args) > _FACTORY or "factory" in options:
        return connect(*args, **options)
    timeout_s = args[1] if len(args) > 1 else options.pop("timeout", 5.0)
    connection = connect(*args[:1], 0, *args[2:], factory=PatientConnection, **options)
    connection.timeout_s, connection.sleep = timeout_s, sleep
    return connection
