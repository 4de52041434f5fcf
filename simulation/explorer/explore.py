"""A world walked through: what was asked for, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from difflib import get_close_matches

import msgspec

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.explorer.group import GroupWorld
from fencepost.simulation.explorer.space import Counterexample, Search
from fencepost.simulation.explorer.steps import FAULTS, USUAL_FAULTS


class Exploration(msgspec.Struct, frozen=True, kw_only=True):
    """What a walk has found."""

    world: str
    members: int
    partitions: int
    faults: int
    kinds: tuple[str, ...]
    """Which faults might happen."""
    states: int
    transitions: int
    complete: bool
    """Every state that can be reached was seen."""
    settled: int
    """States in which the group has settled."""
    wall_seconds: float
    states_per_second: int
    violations: tuple[Counterexample, ...]


def explore(
    *,
    members: int = 2,
    partitions: int = 2,
    faults: int = 1,
    kinds: Iterable[str] = USUAL_FAULTS,
    max_states: int = 2_000_000,
    progress: Callable[[int], None] = lambda count: None,
) -> Exploration:
    """Walk through everything that may happen to a consumer group, up to a number of states.

    `progress` is told how many states are new.

    :raises FencepostError: if there is no fault of that kind.
    """
    chosen = tuple(dict.fromkeys(kinds))
    for kind in chosen:
        if kind not in FAULTS:
            close = get_close_matches(kind, FAULTS, n=1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(FAULTS)}"
            raise FencepostError(f"no fault is called {kind!r}; {hint}")
    world = GroupWorld(members=members, partitions=partitions, faults=faults, kinds=chosen)
    walk = Search(world, max_states, progress).run()
    return Exploration(
        world="consumer",
        members=members,
        partitions=partitions,
        faults=faults,
        kinds=chosen if faults else (),
        states=walk.states,
        transitions=walk.transitions,
        complete=walk.complete,
        settled=walk.settled,
        wall_seconds=round(walk.wall_seconds, 3),
        states_per_second=round(walk.states / walk.wall_seconds),
        violations=walk.violations,
    )
