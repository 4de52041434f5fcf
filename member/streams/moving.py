"""A state that moves along its table, tells of each step, and counts what it refuses."""

from __future__ import annotations

import enum
from typing import Generic, TypeVar

from fencepost.coordinator.protocol.machine import StateTable
from fencepost.member.streams.actions import Action, Level, MoveRefused, StreamsMoved

S = TypeVar("S", bound=enum.StrEnum)
E = TypeVar("E", bound=enum.StrEnum)


class Moving(Generic[S, E]):
    """One machine's state. `out` takes what there is to tell."""

    __slots__ = ("_out", "_table", "level", "name", "refusals", "state")

    def __init__(self, table: StateTable[S, E], level: Level, name: str, out: list[Action]) -> None:
        self._table = table
        self._out = out
        self.level = level
        self.name = name
        self.state: S = table.initial
        self.refusals = 0
        """How many moves were refused without an error."""

    def move(self, event: E, target: S) -> bool:
        """Take the arrow. False, and nothing changes, if the table refuses the move.

        :raises IllegalTransition: if the table neither has the arrow nor refuses the move.
        """
        source = self.state
        if self._table.refuses(source, target):
            self.refusals += 1
            self._out.append(MoveRefused(self.level, self.name, event, source, target))
            return False
        self._table.check(source, event, target)
        self._out.append(StreamsMoved(self.level, self.name, event, source, target))
        self.state = target
        return True
