"""SQLite with the clock and the randomness of Python, which are those of the seed during a run."""

from __future__ import annotations

import datetime
import functools
import os
import sqlite3
from collections.abc import Callable
from typing import Any, Final

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
