"""The kill matrix: which rule of the judge reports which mutant, in how many of its runs.

One run of each mutant is judged by all rules at once, and as a real run would be (`BlindJudge`). So a file of
the matrix answers what would be missed without a rule. Healthy code runs in every scenario: its findings are
false alarms, and its digests show if anything else has changed.
"""

from __future__ import annotations

import functools
import gzip
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Final

import msgspec

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.coordinator.reading import read_file
from fencepost.simulation.judge import all_judges
from fencepost.simulation.kernel.loop import TooManyEvents
from fencepost.simulation.kernel.observers import RAISED, Violation, WorldObserver
from fencepost.simulation.lab.hunt import process_map
from fencepost.simulation.lab.mutation.blind import BLIND, BlindJudge
from fencepost.simulation.lab.mutation.judge import HealthyRun, in_own_process, runs_for, schedule
from fencepost.simulation.lab.mutation.judge import healthy_runs as noted_runs
from fencepost.simulation.lab.mutation.score import chosen_mutants
from fencepost.simulation.mutants.automatic import CORES, AutomaticMutant
from fencepost.simulation.mutants.registry import MUTANTS, with_mutant
from fencepost.simulation.run import RunResult, run
from fencepost.simulation.scenarios.kinds import AnyScenario
from fencepost.simulation.scenarios.load import library_names, load_any
from fencepost.simulation.scenarios.scenario import Scenario

RUNS: Final = 12
"""Runs of each mutant."""
HEALTHY_SEEDS: Final = 30
SAMPLE: Final[Mapping[str, int]] = {"consumer": 150, "members": 150}
"""Automatic mutants of a core; 60 of the others."""
_OF_OTHERS: Final = 60
_NOTED_SEEDS: Final = 3
"""Seeds of each scenario in which it is noted which statements run."""
_MOST_EVENTS: Final = 2_000_000


class MatrixRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One mutant, or one scenario of healthy code, with the findings of all its runs."""

    name: str
    """A mutant, or a scenario."""
    kind: str
    """`known`, `automatic`, or `healthy`."""
    core: str = ""
    """The part of the automatic score."""
    runs: tuple[tuple[str, int], ...]
    """Scenarios and seeds."""
    digests: tuple[str, ...] = ()
    """Of healthy runs, one for each."""
    changed: int = 0
    """Runs of an automatic mutant with another digest than healthy code has."""
    crashed: str = ""
    """The exception or the limit that ended a run early; empty without one."""
    found: dict[str, tuple[int, ...]] = {}
    """By invariant and rule, such as `one-owner judge.targets:check_targets`, the indices of runs."""


def judged(scenario: AnyScenario, seed: int, *, max_events: int | None = None) -> RunResult:
    """Run a scenario with all rules, and those of real runs next to them where they apply."""
    judges: Sequence[WorldObserver] | None = None
    if isinstance(scenario, Scenario) and scenario.application.commit != "transaction":
        judges = [*all_judges(scenario.protocols), BlindJudge(scenario.protocols)]
    return run(scenario, seed, judges=judges, max_events=max_events, raises=False)


def row_count() -> int:
    """Return the number of rows of a whole matrix."""
    return len(library_names()) + len(MUTANTS) + len(_sample())


def make_matrix(path: Path, *, progress: Callable[[int], None], processes: int) -> None:
    """Run everything, and write the rows to a compressed file of JSON lines.

    `progress` is called with 1 after each row.
    """
    names = library_names()
    rows: list[MatrixRow] = []

    def take(made: Iterable[MatrixRow]) -> None:
        for row in made:
            rows.append(row)
            progress(1)

    take(process_map(healthy_row, names, processes))
    take(process_map(known_row, list(MUTANTS), processes))
    sample = _sample()
    noted = noted_runs(schedule(names, _NOTED_SEEDS)) if sample else []
    work = [(each.name, each.core, runs_for(each, noted, RUNS)) for each in sample]
    with ThreadPool(processes) as pool:  # each row has a process of its own
        take(pool.imap_unordered(automatic_row, work))
    encode = msgspec.json.Encoder().encode
    with gzip.GzipFile(path, "wb", mtime=0) as file:
        for row in sorted(rows, key=lambda each: (each.kind, each.name)):
            file.write(encode(row) + b"\n")


def _sample() -> list[AutomaticMutant]:
    return [
        each for core in CORES for each in chosen_mutants(SAMPLE.get(core, _OF_OTHERS)) if each.core == core
    ]


def healthy_row(scenario: str) -> MatrixRow:
    """Return the row of healthy code in a scenario."""
    results = [judged(load_any(scenario), seed) for seed in range(HEALTHY_SEEDS)]
    return MatrixRow(
        name=scenario,
        kind="healthy",
        runs=tuple((scenario, seed) for seed in range(HEALTHY_SEEDS)),
        digests=tuple(each.digest for each in results),
        found=_found([each.violations for each in results]),
    )


def known_row(name: str) -> MatrixRow:
    """Return the row of a known bug."""
    mutant = MUTANTS[name]
    runs = [(mutant.scenarios[seed % len(mutant.scenarios)], seed) for seed in range(RUNS)]
    with mutant.apply():
        results = [judged(load_any(each, overrides=mutant.overrides), seed) for each, seed in runs]
    return MatrixRow(
        name=name, kind="known", runs=tuple(runs), found=_found([each.violations for each in results])
    )


def automatic_row(work: tuple[str, str, Sequence[HealthyRun]]) -> MatrixRow:
    """Return the row of an automatic mutant, which runs in a process of its own: it may never end."""
    name, core, runs = work
    empty = MatrixRow(name=name, kind="automatic", core=core, runs=())
    if not runs:
        return empty
    row, _, how = in_own_process(functools.partial(_automatic_runs, name, core, runs))
    return row or msgspec.structs.replace(empty, crashed=how)


def _automatic_runs(
    name: str, core: str, runs: Sequence[HealthyRun], alive: Callable[[int], None]
) -> MatrixRow:
    found: list[Sequence[Violation]] = []
    changed, crashed = 0, ""
    with with_mutant(name):
        for index, healthy in enumerate(runs):
            alive(index)
            try:
                result = judged(load_any(healthy.scenario), healthy.seed, max_events=_MOST_EVENTS)
            except TooManyEvents:
                crashed = "does not end"
                break
            except Exception as error:  # a mutant may break anything, a rule included
                crashed = f"{type(error).__name__}: {error}"
                break
            changed += result.digest != healthy.digest
            found.append(result.violations)
    return MatrixRow(
        name=name,
        kind="automatic",
        core=core,
        runs=tuple((each.scenario, each.seed) for each in runs),
        changed=changed,
        crashed=crashed,
        found=_found(found),
    )


def _found(runs: Sequence[Sequence[Violation]]) -> dict[str, tuple[int, ...]]:
    found: dict[str, list[int]] = {}
    for index, violations in enumerate(runs):
        for key in dict.fromkeys(f"{each.invariant} {each.rule}".strip() for each in violations):
            found.setdefault(key, []).append(index)
    return {key: tuple(indices) for key, indices in sorted(found.items())}


# -- queries ------------------------------------------------------------------------------------------------


def read_matrix(path: Path) -> list[MatrixRow]:
    """Return the rows of a file.

    :raises FencepostError: if it can't be read, or is no matrix.
    """
    content = read_file(path)
    try:
        lines = gzip.decompress(content).replace(b" checkers.", b" judge.").splitlines()  # the former name
        return [msgspec.json.decode(line, type=MatrixRow) for line in lines]
    except (OSError, EOFError, msgspec.DecodeError) as error:
        raise FencepostError(f"{path}: {error}; expected a file that `mutants --matrix` wrote") from error


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """A row that two judges do not agree on."""

    name: str
    """A mutant or a scenario."""
    what: str
    """`shown` if other runs show a mutant, `alarms` if healthy code raises other findings, or `digests`."""
    blind: bool
    """True if this is about the judge of real runs."""
    before: int
    """Number of runs, or of digests."""
    after: int
    """Number of runs, or of digests that are unchanged."""
    by: tuple[str, ...]
    """The invariants and rules that report it before, and not afterwards; for alarms, the new ones."""


def differences(before: Iterable[MatrixRow], after: Iterable[MatrixRow]) -> Iterator[Difference]:
    """Yield what the second judge misses, and what it reports of healthy code."""
    now = {(row.kind, row.name): row for row in after}
    for row in before:
        other = now.get((row.kind, row.name))
        if other is None or other.runs != row.runs:
            continue
        if row.digests != other.digests:
            same = sum(map(str.__eq__, row.digests, other.digests))
            yield Difference(
                name=row.name, what="digests", blind=False, before=len(row.digests), after=same, by=()
            )
        for blind in (False, True):
            old, new = by_rule(row, blind=blind), by_rule(other, blind=blind)
            if row.kind == "healthy":
                more, what = {key: new[key] for key in new.keys() - old.keys()}, "alarms"
            else:
                more, what = {key: old[key] for key in old.keys() - new.keys()}, "shown"
            shown, still = _union(old), _union(new)
            if (row.kind == "healthy" and more) or (row.kind != "healthy" and shown - still):
                yield Difference(
                    name=row.name,
                    what=what,
                    blind=blind,
                    before=len(shown),
                    after=len(still),
                    by=tuple(sorted(more)),
                )


def without(rows: Iterable[MatrixRow], rules: Sequence[str]) -> list[MatrixRow]:
    """Return the rows as they were without the rules whose names begin like that.

    A name begins with its module, such as `judge.targets` or `judge.consumer_groups:check_due`.
    """
    prefixes = tuple(
        "judge" + each.removeprefix("checkers") if each.startswith("checkers") else each for each in rules
    )
    return [
        msgspec.structs.replace(
            row,
            found={
                key: runs
                for key, runs in row.found.items()
                if not key.partition(" ")[2].removeprefix(BLIND).startswith(prefixes)
            },
        )
        for row in rows
    ]


def by_rule(row: MatrixRow, *, blind: bool) -> dict[str, tuple[int, ...]]:
    """Return the runs by what rules report; exceptions are not reported by rules."""
    return {
        key: runs
        for key, runs in row.found.items()
        if not key.startswith(RAISED) and key.partition(" ")[2].startswith(BLIND) == blind
    }


def _union(found: Mapping[str, tuple[int, ...]]) -> set[int]:
    return set().union(*found.values())
