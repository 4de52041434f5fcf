"""The search: every state that can be reached from the first one, the nearest first."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import msgspec

from fencepost.simulation.judge.base import Finding

S = TypeVar("S", bound=Hashable)


Move: TypeAlias = tuple[Any, S, bool, tuple[Finding, ...]]
"""One thing that may happen next: its label, which `Explored.told` puts in words; the state then; true
for a fault, which need not happen; and the findings."""


class Explored(Protocol[S]):
    """A world to walk through. A state is a value, and what can happen next follows from it alone."""

    def first(self) -> S:
        """Return the first state."""

    def moves(self, state: S) -> Iterable[Move[S]]:
        """Return all that may happen next."""

    def findings(self, state: S) -> Iterable[Finding]:
        """Return what is wrong with a state."""

    def has_settled(self, state: S) -> bool:
        """Return true if everything is as it should be in the end."""

    def told(self, label: Any) -> Sequence[str]:
        """Return what happens, each step in words."""


class Counterexample(msgspec.Struct, frozen=True, kw_only=True):
    """An invariant that does not hold, and the shortest way to the point where it does not."""

    invariant: str
    message: str
    steps: tuple[str, ...]


class Walk(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a search. Times are in seconds."""

    states: int
    transitions: int
    complete: bool
    """True if every state that can be reached was seen."""
    interrupted: bool
    """True if it was stopped from outside, by Ctrl-C or SIGTERM."""
    settled: int
    """States in which the group has settled."""
    wall_seconds: float
    violations: tuple[Counterexample, ...]


class Search(Generic[S]):
    """One walk through a world, breadth first, up to `max_states`.

    It ends with the first findings: all that are as near to the first state.
    """

    def __init__(
        self, world: Explored[S], max_states: int, progress: Callable[[int], None] = lambda _: None
    ) -> None:
        self._world = world
        self._max_states = max_states
        self._progress = progress
        self._numbers: dict[S, int] = {}
        self._parents: array[int] = array("q")
        """The state from which each was reached first."""
        self._edges: array[int] = array("q")
        """The states to which each state leads without a fault, one after the other; `_ends` says up to
        where."""
        self._ends: array[int] = array("q")
        self._settled: array[int] = array("q")
        self._violations: dict[str, Counterexample] = {}
        self._transitions = 0

    def run(self) -> Walk:
        """Walk. If no state was left out, each must also lead to one in which the group has settled.

        Ctrl-C ends it with what was found so far.
        """
        began = time.perf_counter()
        complete = interrupted = False
        try:
            complete = self._reach()
            if complete and not self._violations:
                self._progress_is_possible()
        except KeyboardInterrupt:
            complete, interrupted = False, True
        return Walk(
            states=len(self._numbers),
            transitions=self._transitions,
            complete=complete,
            interrupted=interrupted,
            settled=len(self._settled),
            wall_seconds=time.perf_counter() - began,
            violations=tuple(self._violations.values()),
        )

    def _reach(self) -> bool:
        moves, numbers, parents = self._world.moves, self._numbers, self._parents
        edges, ends = self._edges, self._ends
        first = self._world.first()
        numbers[first] = 0
        parents.append(-1)
        self._look(first, 0)
        layer, at = [first], -1
        while layer:
            following: list[S] = []
            for state in layer:
                at += 1
                for label, after, is_fault, findings in moves(state):
                    self._transitions += 1
                    number = numbers.setdefault(after, len(numbers))
                    if number == len(parents):
                        parents.append(at)
                        following.append(after)
                        self._look(after, number)
                    if not is_fault:
                        edges.append(number)
                    for invariant, message in findings:
                        self._found(invariant, message, at, label)
                ends.append(len(edges))
                if len(numbers) > self._max_states:
                    return False
            if self._violations:
                return False
            self._progress(len(following))
            layer = following
        return True

    def _look(self, state: S, number: int) -> None:
        for invariant, message in self._world.findings(state):
            self._found(invariant, message, number)
        if self._world.has_settled(state):
            self._settled.append(number)

    def _found(self, invariant: str, message: str, number: int, last: Any = None) -> None:
        """Note a finding about a state, or about what happened last, from that state on."""
        if invariant in self._violations:
            return
        steps = self._way(number)
        if last is not None:
            steps.extend(self._world.told(last))
        found = Counterexample(invariant=invariant, message=message, steps=tuple(steps))
        self._violations[invariant] = found

    def _way(self, number: int) -> list[str]:
        """Return the events on the shortest way to a state."""
        path = [number]
        while (number := self._parents[number]) >= 0:
            path.append(number)
        steps, state = list[str](), self._world.first()
        for wanted in reversed(path[:-1]):
            for label, after, _, _ in self._world.moves(state):
                if self._numbers.get(after) == wanted:
                    steps.extend(self._world.told(label))
                    state = after
                    break
        return steps

    def _progress_is_possible(self) -> None:
        """Go back from the states in which the group has settled; a state that is not met is stuck."""
        count = len(self._numbers)
        sources, begins = self._sources()
        met = bytearray(count)
        todo = list(self._settled)
        for number in todo:
            met[number] = 1
        while todo:
            number = todo.pop()
            for source in sources[begins[number] : begins[number + 1]]:
                if not met[source]:
                    met[source] = 1
                    todo.append(source)
        stuck = met.find(0)
        if stuck >= 0:
            others = met.count(0) - 1
            message = f"from here on the group can never settle, nor from {others:,} more states"
            self._found("progress", message, stuck)

    def _sources(self) -> tuple[array[int], array[int]]:
        """Return all edges in reverse: the sources of each state, and where its part of them begins."""
        begins = array("q", bytes(8 * (len(self._numbers) + 2)))
        for target in self._edges:
            begins[target + 2] += 1
        for number in range(2, len(begins)):
            begins[number] += begins[number - 1]
        sources = array("q", bytes(8 * len(self._edges)))
        first = 0
        for number, end in enumerate(self._ends):
            for target in self._edges[first:end]:
                sources[begins[target + 1]] = number
                begins[target + 1] += 1
            first = end
        return sources, begins
