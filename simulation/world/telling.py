"""Lines of a report about a failed run: causes of held event loops and ended sessions, and stacks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from fencepost.simulation.trace.schema import Row, RowKind
from fencepost.simulation.world.places import frames_of, user_lines

if TYPE_CHECKING:
    from fencepost.simulation.world.programs import Program

HELD_US: Final = 1_000_000
"""Time after which the report names an event loop that stands still."""
_MOST_LINES: Final = 8
_MOST_TASKS: Final = 10
_SESSION: Final = "session"
"""The detail of `member.removed` after a session timeout."""
_REACH_US: Final = 3_000_000
"""Time after which a fault that is over no longer explains an ended session: members are heard again."""
_FOR_EVER: Final = 2**62
_CUTS: Final = frozenset(
    {"partition", "loss", "slow-link", "lost-request", "lost-response", "disconnect", "slow-callback"}
)
"""Faults of one program, or between it and the brokers."""
_OF_BROKERS: Final = ("broker-", "coordinator-")


class HeldLoop(msgspec.Struct, kw_only=True):
    """A time for which a callback has held the event loop of a program."""

    program: str
    at_us: int
    lasts_us: int
    place: str

    def __str__(self) -> str:
        place = f": {self.place}" if self.place else ""
        return f"its event loop stood still from {_s(self.at_us)} for {_s(self.lasts_us)}{place}"


def waits_of(programs: Iterable[Program]) -> list[str]:
    """Return lines about the tasks of running programs: the lines of the program that each waits in."""
    lines = []
    for program in programs:
        tasks = () if program.process is None else tuple(program.process.tasks)
        waiting = [
            f"  {task.get_name()}: {' > '.join(found)}"
            for task in tasks
            if (found := user_lines(frames_of(task.get_coro())))
        ]
        if waiting:
            lines += [f"{program.name} waits:", *waiting[:_MOST_TASKS]]
            if len(waiting) > _MOST_TASKS:
                lines.append(f"  and {len(waiting) - _MOST_TASKS} more tasks")
    return lines


def held_lines(held: Sequence[HeldLoop]) -> list[str]:
    """Return lines about callbacks that have held event loops, the longest of each line of code."""
    longest: dict[tuple[str, str], HeldLoop] = {}
    for each in held:
        before = longest.get((each.program, each.place))
        if before is None or before.lasts_us < each.lasts_us:
            longest[each.program, each.place] = each
    return _short([f"  {each.program}: {each}" for each in longest.values()])


def session_lines(rows: Sequence[Row], names: Mapping[str, str], held: Sequence[HeldLoop]) -> list[str]:
    """Return a line for each member whose session ended though its program ran, with the reason.

    Heartbeats that change nothing have no rows, so what matters is what lasted until shortly before.
    """
    running: dict[str, None] = {}
    lasting: dict[str, tuple[str, int]] = {}
    lines = []
    for row in rows:
        if row.kind == RowKind.HOST and not row.group:
            word = row.detail.partition(" ")[0]
            if word in ("start", "thaw", "freeze"):
                running[row.actor] = None
            elif word in ("crash", "stopped"):
                running.pop(row.actor, None)
            if word == "freeze":
                lasting[row.actor] = f"it was frozen at {_s(row.t_us)}", _FOR_EVER
            elif row.actor in lasting:
                lasting[row.actor] = lasting[row.actor][0], row.t_us
        elif row.kind == RowKind.FAULT:
            if row.state_to == "begin":
                told = f"the fault {row.actor} began at {_s(row.t_us)} ({row.detail})"
                lasting[f"{row.actor} {row.detail}"] = told, _FOR_EVER
            else:
                for each in [each for each in lasting if each.partition(" ")[0] == row.actor]:
                    lasting[each] = lasting[each][0], row.t_us
        elif row.kind == RowKind.MEMBER_REMOVED and row.detail == _SESSION:
            program = names.get(row.actor, row.actor).partition(" ")[0]
            if program in running:
                since_us = row.t_us - _REACH_US
                reasons = [
                    str(each)
                    for each in held
                    if each.program == program and since_us - each.lasts_us < each.at_us < row.t_us
                ]
                reasons += [
                    told
                    for key, (told, until_us) in lasting.items()
                    if until_us > since_us and (key == program or _concerns(key, program))
                ]
                why = "; ".join(reasons) or "no fault and no callback kept it from sending heartbeats"
                lines.append(f"  {program} in {row.group} at {_s(row.t_us)}: {why}")
    return _short(lines)


def _concerns(fault: str, program: str) -> bool:
    """Return true if a fault may keep heartbeats of a program from its coordinator."""
    kind, _, target = fault.partition(" ")
    if kind in _CUTS:
        return re.search(rf"(?<![\w.-]){re.escape(program)}(?![\w.-])", target) is not None
    return kind.startswith(_OF_BROKERS)


def _short(lines: list[str]) -> list[str]:
    if len(lines) > _MOST_LINES:
        return [*lines[:_MOST_LINES], f"  and {len(lines) - _MOST_LINES} more"]
    return lines


def _s(us: int) -> str:
    return f"{us / 1e6:.1f} s"
