"""Programs that an exception has ended, as a run's result and a report list them."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

import fencepost.simulation
from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.coordinator.reading import visible

_LIBRARIES: Final = tuple(
    str(Path(each).resolve())
    for each in (
        sysconfig.get_path("stdlib"),
        sysconfig.get_path("purelib"),
        sysconfig.get_path("platlib"),
        Path(fencepost.simulation.__file__).parent,
    )
)
_MOST_LINES: Final = 8
"""Maximum number of places that a report lists."""
_MOST_NAMES: Final = 3
_MOST_LETTERS: Final = 200


_OF_ANOTHER_RUN: Final = (
    "attached to a different loop",
    "is bound to a different event loop",
    "await wasn't used with future",
)
"""Parts of asyncio's messages about objects of another loop; the programs of a world share one."""


def left_behind(program: str, error: BaseException) -> FencepostError | None:
    """Return an error in place of one about an object that an earlier run or process has left, else None."""
    if not isinstance(error, RuntimeError) or not any(each in str(error) for each in _OF_ANOTHER_RUN):
        return None
    return FencepostError(
        f"{program} ended by RuntimeError: {error}. It uses an object of an earlier run or process, such "
        "as a client, an application or a queue that is a variable of a module. A world imports no module "
        "again: make the object within the program's function"
    )


class Crash(msgspec.Struct, frozen=True, kw_only=True):
    """One process of a program that an exception has ended."""

    program: str
    at_s: float
    """The virtual time in seconds."""
    error: str
    """The name of the exception's class."""
    message: str = ""
    file: str = ""
    """The file of the innermost line of the program's own code that the exception went through."""
    line: int = 0

    @property
    def told(self) -> str:
        """The program, the error and the place, as messages have them."""
        what = f"{self.error}: {self.message}" if self.message else self.error
        return f"{self.program} ended by {what}, at {self.place}"

    @property
    def place(self) -> str:
        """The file and the line, as editors read them."""
        return f"{self.file}:{self.line}"


def crash_of(program: str, at_s: float, error: BaseException) -> Crash:
    """Return the entry about an exception that has ended a program."""
    told = getattr(error, "crash", None)
    if isinstance(told, Crash):  # of a process of its own
        return msgspec.structs.replace(told, program=program, at_s=at_s)
    every = list(traceback.extract_tb(error.__traceback__))
    frames = [each for each in every if not _is_inside(each.filename)] or every
    return Crash(
        program=program,
        at_s=at_s,
        error=type(error).__name__,
        message=_short(error),
        file=frames[-1].filename if frames else "",
        line=(frames[-1].lineno or 0) if frames else 0,
    )


def _short(error: BaseException) -> str:
    """Return the first line with words of an error's text; libraries put whole pages into some."""
    text = visible(str(error).replace("\\n", "\n").strip().partition("\n")[0])
    return text if len(text) <= _MOST_LETTERS else text[:_MOST_LETTERS] + "..."


def _is_inside(file: str) -> bool:
    """Return true for files of libraries and of this package."""
    return str(Path(file).resolve()).startswith(_LIBRARIES)


def crash_lines(crashes: Mapping[int, Sequence[Crash]]) -> list[str]:
    """Return lines about the crashes of a test by seed: one for each place and exception, frequent ones
    first."""
    by_cause: dict[tuple[str, str], list[tuple[int, Crash]]] = {}
    for seed in sorted(crashes):
        for each in crashes[seed]:
            by_cause.setdefault((each.error, each.place), []).append((seed, each))
    causes = sorted(by_cause.values(), key=len, reverse=True)
    lines = [_line(each) for each in causes[:_MOST_LINES]]
    if len(causes) > _MOST_LINES:
        lines.append(f"  and {len(causes) - _MOST_LINES} other places")
    return lines


def _line(found: Sequence[tuple[int, Crash]]) -> str:
    seed, first = found[0]
    names = list(dict.fromkeys(each.program for _, each in found))
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    message = f": {first.message}" if first.message else ""
    return (
        f"  {len(found)} x {first.error} in {', '.join(names[:_MOST_NAMES])}{more}, at {first.place}; "
        f"the first at {first.at_s:.1f} s of seed {seed}{message}"
    )


def crash_count(crashes: Iterable[Sequence[Crash]]) -> str:
    """Return the number of crashes as words."""
    count = sum(map(len, crashes))
    return f"{count} exception{'' if count == 1 else 's'} ended programs"
