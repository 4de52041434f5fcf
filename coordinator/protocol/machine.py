"""State machines as literal tables: one declaration for the code, the judges and the docs."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Generic, NamedTuple, Self, TypeVar

S = TypeVar("S", bound=enum.StrEnum)
E = TypeVar("E", bound=enum.StrEnum)


class CodedState(enum.StrEnum):
    """A state with a number, its `code`, which stands for it in records."""

    code: int

    def __new__(cls, value: str, code: int) -> Self:
        """Return the state with this number."""
        state = str.__new__(cls, value)
        state._value_ = value
        state.code = code
        return state


class IllegalTransition(Exception):
    """A transition that is not in the table: a defect of the code that requested it."""


class Transition(NamedTuple, Generic[S, E]):
    """One arrow: in `source`, on `event`, go to `target`."""

    source: S
    event: E
    target: S


class StateTable(Generic[S, E]):
    """A state machine, declared once as data.

    `transitions` lists every arrow; several arrows may share (source, event) when a guard of the
    machine's own chooses between them. `refused` lists moves that are ignored without an error.
    Raises ValueError on declaration if a state cannot be reached or a terminal state has an outgoing arrow.
    """

    __slots__ = ("_targets", "initial", "name", "refused", "source", "states", "terminal", "transitions")

    def __init__(
        self,
        name: str,
        *,
        source: str,
        states: type[S],
        initial: S,
        transitions: Iterable[tuple[S, E, S]],
        terminal: Iterable[S] = (),
        refused: Iterable[tuple[S, S]] = (),
    ) -> None:
        self.name = name
        self.source = source
        self.states: tuple[S, ...] = tuple(states)
        self.initial = initial
        self.terminal: tuple[S, ...] = tuple(terminal)
        self.transitions: tuple[Transition[S, E], ...] = tuple(Transition(*row) for row in transitions)
        self.refused: tuple[tuple[S, S], ...] = tuple(refused)
        self._targets: Mapping[tuple[S, E], tuple[S, ...]] = self._index()
        self._check()

    def _index(self) -> dict[tuple[S, E], tuple[S, ...]]:
        targets: dict[tuple[S, E], tuple[S, ...]] = {}
        for source, event, target in self.transitions:
            if target in targets.get((source, event), ()):
                raise ValueError(f"{self.name}: {source} --{event}--> {target} is declared twice")
            targets[source, event] = (*targets.get((source, event), ()), target)
        return targets

    def _check(self) -> None:
        reached = {self.initial}
        while more := {t.target for t in self.transitions if t.source in reached} - reached:
            reached |= more
        if lost := [state for state in self.states if state not in reached]:
            raise ValueError(f"{self.name}: no arrow leads to {', '.join(lost)}")
        if leaks := [t for t in self.transitions if t.source in self.terminal]:
            raise ValueError(f"{self.name}: terminal {leaks[0].source} has a way out")

    def next(self, state: S, event: E) -> S:
        """Return the state that `event` leads to from `state`, for events with one arrow.

        :raises IllegalTransition: if the table has no such arrow, or has several.
        """
        targets = self._targets.get((state, event), ())
        if len(targets) != 1:
            raise IllegalTransition(
                f"{self.name}: {event} in {state} has {len(targets)} targets, expected one"
            )
        return targets[0]

    def check(self, state: S, event: E, target: S) -> S:
        """`target`, if the arrow is in the table.

        :raises IllegalTransition: if it is not.
        """
        if target not in self._targets.get((state, event), ()):
            raise IllegalTransition(f"{self.name}: no arrow {state} --{event}--> {target}")
        return target

    def refuses(self, state: S, target: S) -> bool:
        """Return true if the move is one that is ignored without an error."""
        return (state, target) in self.refused

    def allows(self, state: str, target: str) -> bool:
        """Return true if any event leads from `state` to `target`."""
        return any(t.source == state and t.target == target for t in self.transitions)
