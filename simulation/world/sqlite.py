"""SQLite with the clock and the randomness of Python, which are those of the seed during a run."""

from __future__ import annotations

import datetime
import functools
import os
import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

_RETRY_S: Final = 0.01
_RETRIED: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_BUSY_RECOVERY)
_BEGINS_TRANSACTIONS: Final = -1
"""The value of `Connection.autocommit` with which Python commits and begins transactions by itself."""
_PARAMETERS: Final = (
    "database",
    "timeout",
    "detect_types",
    "isolation_level",
    "check_same_thread",
    "factory",
    "cached_statements",
    "uri",
)
"""The parameters of `sqlite3.connect`, in their order."""
_BUSY_TIMEOUT: Final = re.compile(r"\s*PRAGMA\s+busy_timeout\s*(?:[=(]\s*(\d+)[\s)]*)?;?\s*", re.IGNORECASE)
_ENDS_TRANSACTION: Final = re.compile(
    r"(?:\s|--[^\n]*\n|/\*[^*]*\*+(?:[^/*][^*]*\*+)*/)*(?:COMMIT|END|RELEASE)\b", re.IGNORECASE
)
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


class PatientCursor(sqlite3.Cursor):
    """A cursor that waits in Python while another connection holds the database: the other thread may run."""

    _rowcount: int | None = None
    """The number of rows that `executemany` has changed; None after another call."""

    @property
    def rowcount(self) -> int:
        """The number of rows that the last call has changed, or -1."""
        return super().rowcount if self._rowcount is None else self._rowcount

    def execute(self, statement: str, *arguments: Any) -> Any:
        """Execute a statement. SQLite's own timeout is always 0: the program's is kept here."""
        connection: Any = self.connection
        self._rowcount = None
        found = _BUSY_TIMEOUT.fullmatch(statement) if isinstance(statement, str) else None
        if found is not None:
            if found[1] is not None:
                connection.timeout_s = int(found[1]) / 1000
            statement = f"SELECT {round(connection.timeout_s * 1000)} AS timeout"
        ends = found is None and isinstance(statement, str) and _ENDS_TRANSACTION.match(statement) is not None
        return _patiently(connection, super().execute, statement, *arguments, ends_transaction=ends)

    def executemany(self, statement: str, parameters: Any, /) -> Any:
        """Execute a statement for each set of parameters. Each waits by itself, and runs once."""
        given, execute = iter(parameters), super().executemany
        self._rowcount = -1  # as after an error
        _patiently(self.connection, execute, statement, ())  # which may begin a transaction
        count = super().rowcount
        for each in given:
            _patiently(self.connection, execute, statement, (each,))
            count += max(0, super().rowcount)
        self._rowcount = count
        return self

    def executescript(self, script: str) -> Any:
        """Execute several statements. Each waits by itself, so that none is executed again."""
        connection: Any = self.connection
        before = connection.isolation_level
        begins = getattr(connection, "autocommit", _BEGINS_TRANSACTIONS) == _BEGINS_TRANSACTIONS
        if begins and connection.in_transaction:
            connection.commit()
        begins = begins and before is not None  # to assign None commits, even if it was None
        if begins:
            connection.isolation_level = None
        try:
            for statement in _statements(script):
                PatientCursor.execute(self, statement).fetchall()
        finally:
            if begins:
                connection.isolation_level = before
        return self


def _statements(script: str) -> Iterator[str]:
    """Yield the statements of a script."""
    begin = end = 0
    while end := script.find(";", end) + 1:
        if sqlite3.complete_statement(script[begin:end]):
            yield script[begin:end]
            begin = end
    if script[begin:].strip():
        yield script[begin:]


class PatientConnection(sqlite3.Connection):
    """A connection that waits in Python while another one holds the database."""

    timeout_s = 5.0

    def cursor(self, factory: Any = sqlite3.Cursor) -> Any:
        """Return a cursor that waits."""
        return super().cursor(_patient(factory, PatientCursor))

    def execute(self, *arguments: Any) -> Any:
        """Execute a statement, once no other connection holds what it needs."""
        return self.cursor().execute(*arguments)

    def executemany(self, *arguments: Any) -> Any:
        """Execute a statement several times."""
        return self.cursor().executemany(*arguments)

    def executescript(self, script: str) -> Any:
        """Execute several statements."""
        return self.cursor().executescript(script)

    def commit(self) -> None:
        """Commit, once no other connection reads."""
        _patiently(self, super().commit, ends_transaction=True)

    def blobopen(self, *arguments: Any, **options: Any) -> Any:
        """Open a blob, once no other connection writes."""
        return _patiently(self, functools.partial(super().blobopen, **options), *arguments)

    def backup(self, target: Any, *, progress: Any = None, sleep: float = 0.250, **options: Any) -> None:
        """Copy the database, and sleep while another connection holds it."""

        def step(status: int, *pages: int) -> None:
            if progress is not None:
                progress(status, *pages)
            if status in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                time.sleep(sleep)

        super().backup(target, progress=step, sleep=0, **options)

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


@functools.cache
def _patient(given: Any, patient: type) -> Any:
    """Return a class that waits and is otherwise the given one; a factory that is no class stays as it is."""
    if not isinstance(given, type):
        return given
    return patient if issubclass(patient, given) else type(given.__name__, (given, patient), {})


def _patiently(
    connection: Any, call: Callable[..., Any], *arguments: Any, ends_transaction: bool = False
) -> Any:
    """Call, again and again while the database is locked, for as long as the connection may wait."""
    waited_s = 0.0
    while True:
        try:
            return call(*arguments)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode not in _RETRIED or waited_s >= connection.timeout_s:
                raise
            if not waited_s and not ends_transaction and _holds_lock(connection):
                raise  # SQLite does not wait either: the other connection may wait for this one
        time.sleep(_RETRY_S)
        waited_s += _RETRY_S


def _holds_lock(connection: sqlite3.Connection) -> bool:
    """Return true if the connection has read in a transaction, or in a query that has not ended.

    Python has no `sqlite3_txn_state`, but SQLite refuses a checkpoint exactly then.
    """
    try:
        sqlite3.Cursor(connection).execute("PRAGMA wal_checkpoint")
    except sqlite3.OperationalError as error:
        return error.sqlite_errorcode == sqlite3.SQLITE_LOCKED
    return False


def connect_patiently(connect: Any, *args: Any, **options: Any) -> Any:
    """Do what `sqlite3.connect` does, with a connection that waits in virtual time.

    If `factory` is a function, its connections wait in real time, in which nothing else runs.
    """
    given = dict(zip(_PARAMETERS, args, strict=False))
    if len(given) < len(args) or given.keys() & options.keys():
        return connect(*args, **options)  # which says what is wrong
    given |= options
    given["factory"] = factory = _patient(given.get("factory", sqlite3.Connection), PatientConnection)
    if not isinstance(factory, type):
        return connect(**given)
    timeout_s = given.pop("timeout", PatientConnection.timeout_s)
    connection = connect(**given, timeout=0)
    connection.timeout_s = timeout_s
    return connection
