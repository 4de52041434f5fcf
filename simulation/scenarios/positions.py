"""Line numbers of keys in a TOML text: tomllib keeps values, not lines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TypeAlias

Path: TypeAlias = tuple[str | int, ...]

_HEADER = re.compile(r"\s*(\[\[?)\s*([^\]]+?)\s*\]\]?\s*(?:#.*)?$")
_KEY = re.compile(r"""\s*((?:"[^"]*"|'[^']*'|[\w-]+)(?:\s*\.\s*(?:"[^"]*"|'[^']*'|[\w-]+))*)\s*=""")
_PART = re.compile(r"""\s*("[^"]*"|'[^']*'|[\w-]+)\s*\.?""")


def lines_of(text: str) -> dict[Path, int]:
    """Return the line of each table and key, counted from 1. Keys inside inline tables have their table's
    line.

    If several tables share a name, the name alone has the line of the first.
    """
    found: dict[Path, int] = {}
    table: Path = ()
    last: dict[Path, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _HEADER.match(line):
            names = _parts(header[2])
            table = (*_latest(names[:-1], last), *names[-1:])
            if header[1] == "[[":
                found.setdefault(table, number)
                last[table] = index = last.get(table, -1) + 1
                table = (*table, index)
            found.setdefault(table, number)
        elif key := _KEY.match(line):
            found.setdefault((*table, *_parts(key[1])), number)
    return found


def _latest(names: Iterable[str | int], last: Mapping[Path, int]) -> Path:
    """Return the path of the table with these names; of several with one name, the last that has begun."""
    path: Path = ()
    for name in names:
        path = (*path, name)
        if path in last:
            path = (*path, last[path])
    return path


def line_of(lines: dict[Path, int], path: Path) -> int | None:
    """Return the line of that key, or of the nearest table around it."""
    for length in range(len(path), 0, -1):
        if (line := lines.get(path[:length])) is not None:
            return line
    return None


def _parts(dotted: str) -> Path:
    return tuple(part.strip("\"'") for part in _PART.findall(dotted))
