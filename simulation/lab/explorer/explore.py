"""A walk through a world: what was asked for, and the result."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.coordinator.suggestions import suggestion
from fencepost.simulation.lab.explorer.group import ExploredGroup, State
from fencepost.simulation.lab.explorer.reduced import ReducedGroup
from fencepost.simulation.lab.explorer.roles import FAULTS, USUAL_FAULTS
from fencepost.simulation.lab.explorer.space import Search, Walk


class Exploration(Walk, frozen=True, kw_only=True):
    """The result of a walk, and the world through which it led."""

    world: str
    members: int
    partitions: int
    faults: int
    kinds: tuple[str, ...]
    """Kinds of faults that might happen."""
    static: bool
    """True if a place in the group is kept for the next process that comes for it."""
    full: bool
    """True if steps that commute were taken in every order."""
    states_per_second: int


def explore(
    *,
    members: int = 2,
    partitions: int = 2,
    faults: int = 1,
    kinds: Iterable[str] = USUAL_FAULTS,
    static: bool = False,
    full: bool = False,
    max_states: int = 2_000_000,
    progress: Callable[[int], None] = lambda count: None,
) -> Exploration:
    """Walk through everything that may happen to a consumer group, up to a number of states.

    Steps that commute are taken in one order only, unless it is `full`: the walk then takes them in each.
    `progress` is called with the number of new states.

    :raises FencepostError: if there is no fault of that kind.
    """
    chosen = tuple(dict.fromkeys(kinds))
    for kind in chosen:
        if kind not in FAULTS:
            hint = suggestion(kind, FAULTS, f"there are {', '.join(FAULTS)}")
            raise FencepostError(f"no fault is called {kind!r}; {hint}")
    world = ExploredGroup(members=members, partitions=partitions, faults=faults, kinds=chosen, static=static)
    walk = Search[State](world if full else ReducedGroup(world), max_states, progress).run()
    return Exploration(
        world="consumer",
        members=members,
        partitions=partitions,
        faults=faults,
        kinds=chosen if faults else (),
        static=static,
        full=full,
        states_per_second=round(walk.states / max(walk.wall_seconds, 1e-6)),
        **msgspec.structs.asdict(walk),
    )
