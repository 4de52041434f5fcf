"""Hunts mutants: counts the seeds that show a bug to a judge, and sees that healthy code passes them."""

from __future__ import annotations

import functools
import multiprocessing
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias, TypeVar

import msgspec

from fencepost.simulation.analyses.comparison import share_interval
from fencepost.simulation.interrupts import leave_signals_to_parent
from fencepost.simulation.kernel.observers import Violation
from fencepost.simulation.mutants.mutant import Mutant
from fencepost.simulation.mutants.registry import MUTANTS, known_names
from fencepost.simulation.run import run
from fencepost.simulation.scenarios.load import load_any

T = TypeVar("T")
R = TypeVar("R")

Survivors: TypeAlias = dict[tuple[str, tuple[str, ...], int], bool]
"""True if healthy code broke no invariant, by scenario, overrides and seed."""


ENOUGH: Final = 3
"""Number of hits that end a hunt early."""
LEAST_SHARE: Final = 0.1
"""A mutant is caught if at least this share of the seeds shows it."""


class MutantResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of hunting one mutant."""

    mutant: str
    caught: bool
    """Healthy code passed the same runs, and at least `LEAST_SHARE` of them were hits."""
    seeds: int
    """Number of runs, each with its own seed."""
    hits: int
    """Runs in which a judge reported it that is meant to."""
    share: float
    share_low: float
    """The share that all seeds would have is between these, with 95 % confidence."""
    share_high: float
    by: tuple[str, ...] = ()
    """All invariants that those runs reported, the most frequent first."""
    scenario: str = ""
    seed: int = -1
    """The first of those runs; -1 if there is no such run."""
    message: str = ""
    """The first report of a judge that is meant to catch it."""
    healthy: bool = True
    """True if the code without the bug passed the same runs."""


def violations_of(
    scenario: str, seed: int, overrides: Iterable[str] = (), *, until: Container[str] = ()
) -> list[Violation]:
    """Return what the judges report in one run. A run that ends with an exception reports until then."""
    return run(load_any(scenario, overrides=overrides), seed, raises=False, until=until).violations


def hunt(
    mutant: Mutant, seeds: Iterable[int], *, survivors: Survivors | None = None, enough: int | None = None
) -> MutantResult:
    """Run each seed in one of the mutant's scenarios, with the mutant and without it.

    `survivors` remembers runs of healthy code between mutants. With `enough` hits, if these show that the
    mutant is caught, the hunt ends. Each run then ends at its first hit, so `by` may lack later reports.
    """
    known = {} if survivors is None else survivors
    healthy = True
    runs = 0
    by: Counter[str] = Counter()
    hits: list[tuple[str, int, str]] = []
    for seed in seeds:
        scenario = mutant.scenarios[seed % len(mutant.scenarios)]
        key = scenario, mutant.overrides, seed
        if key not in known:
            known[key] = not violations_of(scenario, seed, mutant.overrides)
        healthy = healthy and known[key]
        with mutant.apply():
            until = mutant.expected if enough else ()
            found = violations_of(scenario, seed, mutant.overrides, until=until)
        runs += 1
        meant = [violation for violation in found if violation.invariant in mutant.expected]
        if meant:
            hits.append((scenario, seed, meant[0].message))
            by.update({violation.invariant for violation in found})
        if enough and len(hits) >= enough and len(hits) >= LEAST_SHARE * runs:
            break
    share = len(hits) / runs if runs else 0.0
    low, high = share_interval(len(hits), runs)
    first = hits[0] if hits else ("", -1, "")
    return MutantResult(
        mutant=mutant.name,
        caught=healthy and bool(hits) and share >= LEAST_SHARE,
        seeds=runs,
        hits=len(hits),
        share=share,
        share_low=low,
        share_high=high,
        by=tuple(sorted(by, key=lambda name: (-by[name], name))),
        scenario=first[0],
        seed=first[1],
        message=first[2],
        healthy=healthy,
    )


def hunt_all(
    seeds: Sequence[int],
    *,
    names: Iterable[str] = (),
    enough: int | None = None,
    processes: int = 1,
    hunted: Callable[[MutantResult], None] | None = None,
) -> Mapping[str, MutantResult]:
    """Hunt mutants with these seeds; all of them, or those that are named. `hunt` explains `enough`.

    `hunted` is called with each mutant's result, in no particular order if there are several processes.

    :raises FencepostError: if a name is not a mutant's.
    """
    chosen = known_names(names)
    found: dict[str, MutantResult] = {}
    hunt_one = functools.partial(_hunt_one, seeds=seeds, enough=enough)
    for result in process_map(hunt_one, chosen, processes):
        found[result.mutant] = result
        if hunted is not None:
            hunted(result)
    return {name: found[name] for name in chosen}


_survivors: Survivors = {}
"""Runs of healthy code that this process has made."""


def _hunt_one(name: str, *, seeds: Sequence[int], enough: int | None) -> MutantResult:
    return hunt(MUTANTS[name], seeds, survivors=_survivors, enough=enough)


def process_map(function: Callable[[T], R], items: Sequence[T], processes: int) -> Iterator[R]:
    """Yield the function's results: in order from this process, and in any order from several."""
    if processes < 2 or len(items) < 2:
        yield from map(function, items)
        return
    with multiprocessing.get_context("fork").Pool(processes, leave_signals_to_parent) as pool:
        yield from pool.imap_unordered(function, items)
