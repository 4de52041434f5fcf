"""Hunts mutants: runs seeds until a checker reports the bug, and shows that healthy code survives them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

import msgspec

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.kernel.observers import Violation
from fencepost.simulation.mutants.mutant import Mutant
from fencepost.simulation.mutants.registry import MUTANTS
from fencepost.simulation.run import run
from fencepost.simulation.scenarios.load import load_any

Survivors: TypeAlias = dict[tuple[str, tuple[str, ...], int], bool]
"""Whether healthy code broke nothing: by scenario, overrides and seed."""


class MutantResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one mutant."""

    mutant: str
    caught: bool
    """A checker that is meant to reported it, and healthy code passed the same runs."""
    seeds_needed: int | None
    """How many seeds were run, the catching one included; None if it was missed."""
    by: tuple[str, ...] = ()
    """The invariants that were reported by the run that caught it, in their order."""
    scenario: str = ""
    seed: int = -1
    message: str = ""
    """The first report of a checker that is meant to catch it."""
    healthy: bool = True
    """Whether the code without the bug passed the same runs."""


def violations_of(scenario: str, seed: int, overrides: Iterable[str] = ()) -> list[Violation]:
    """What the checkers report in one run. A run that a bug brings down has reported until then."""
    return run(load_any(scenario, overrides=overrides), seed, raises=False).violations


def hunt(
    mutant: Mutant,
    seeds: Iterable[int],
    *,
    survivors: Survivors | None = None,
) -> MutantResult:
    """Runs each seed in the mutant's scenario for it, until one of its invariants is reported.

    `survivors` remembers runs of healthy code between mutants.
    """
    known = {} if survivors is None else survivors
    healthy = True
    for needed, seed in enumerate(seeds, 1):
        scenario = mutant.scenarios[seed % len(mutant.scenarios)]
        key = scenario, mutant.overrides, seed
        if key not in known:
            known[key] = not violations_of(scenario, seed, mutant.overrides)
        healthy = healthy and known[key]
        with mutant.apply():
            found = violations_of(scenario, seed, mutant.overrides)
        hits = [violation for violation in found if violation.invariant in mutant.expected]
        if hits:
            return MutantResult(
                mutant=mutant.name,
                caught=healthy,
                seeds_needed=needed if healthy else None,
                by=tuple(dict.fromkeys(violation.invariant for violation in found)),
                scenario=scenario,
                seed=seed,
                message=hits[0].message,
                healthy=healthy,
            )
    return MutantResult(mutant=mutant.name, caught=False, seeds_needed=None, healthy=healthy)


def hunt_all(
    seeds: int,
    *,
    names: Iterable[str] = (),
    progress: Callable[[MutantResult], None] | None = None,
) -> Mapping[str, MutantResult]:
    """Hunts mutants with seeds 0 to `seeds` - 1; all of them, or those that are named.

    `progress` is told each result as it comes.

    :raises FencepostError: if a name is not a mutant's.
    """
    chosen = list(names) or list(MUTANTS)
    if unknown := [name for name in chosen if name not in MUTANTS]:
        raise FencepostError(f"unknown mutant {unknown[0]!r}; there are {', '.join(MUTANTS)}")
    survivors: Survivors = {}
    results = {}
    for name in chosen:
        results[name] = hunt(MUTANTS[name], range(seeds), survivors=survivors)
        if progress is not None:
            progress(results[name])
    return results
