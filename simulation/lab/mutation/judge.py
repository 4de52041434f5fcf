"""Judges automatic mutants: runs scenarios of the library with each, until a judge objects.

First the healthy code runs, and each run notes the statements that it reaches. A mutant then runs only where
its statement is reached, in a process of its own, since it may never come to an end.
"""

from __future__ import annotations

import functools
import multiprocessing
import resource
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing.connection import Connection
from types import CodeType
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec

from fencepost.simulation.kernel.loop import TooManyEvents
from fencepost.simulation.kernel.observers import RAISED
from fencepost.simulation.mutants.automatic import (
    AutomaticMutant,
    ReachedStatements,
    function_of,
    mutated_code,
    with_code,
)
from fencepost.simulation.run import run
from fencepost.simulation.scenarios.load import load_any

RunKey: TypeAlias = tuple[str, int]
"""A scenario of the library, and a seed."""

Verdict: TypeAlias = Literal["unreached", "no-effect", "killed", "crashed", "survived"]
"""The result for a mutant.

- `unreached`: no run reaches its statement.
- `no-effect`: every digest is that of the healthy code, and no judge objects.
- `killed`: a judge objects.
- `crashed`: runs end with an exception, do not end, or differ though their seed is the same; no judge is
  needed to see that.
- `survived`: digests differ, and no judge objects.
"""

_EVENTS: Final = 20
"""Factor by which a run may exceed the events of the healthy one."""
_MOST_EVENTS: Final = 200_000
_SILENCE_S: Final = 20.0
"""A run that takes longer than this does not end; healthy ones take less than a second."""
_MEMORY: Final = 3 << 30
_AFTER_CRASH: Final = 3
"""Number of further runs after a crash, which show whether a judge objects too."""


class HealthyRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run of the code as it is."""

    scenario: str
    seed: int
    digest: str
    events: int
    violations: int
    reached: frozenset[tuple[str, int]]
    """Modules and lines of the statements that it reached."""


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """The result for one mutant, and the run that shows it."""

    mutant: AutomaticMutant
    verdict: Verdict
    runs: int = 0
    """Number of runs, including the last one."""
    changed: int = 0
    """Runs with a different digest."""
    invariants: tuple[str, ...] = ()
    """Invariants that the judges reported in the run that killed it."""
    scenario: str = ""
    seed: int = -1
    """The run that shows the verdict: the one that killed it, or the first that it changed."""
    message: str = ""


def schedule(scenarios: Sequence[str], seeds: int) -> list[RunKey]:
    """Return all runs in their order: every scenario with seed 0, then every scenario with seed 1."""
    return [(scenario, seed) for seed in range(seeds) for scenario in scenarios]


def healthy_runs(keys: Sequence[RunKey]) -> list[HealthyRun]:
    """Run the code as it is, in a process of its own: there every statement is noted from then on."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(_noted_runs, (keys,))


def _noted_runs(keys: Sequence[RunKey]) -> list[HealthyRun]:
    return list(_noted(keys))


def _noted(keys: Iterable[RunKey]) -> Iterator[HealthyRun]:
    notes = ReachedStatements()
    for scenario, seed in keys:
        notes.clear()
        result = run(load_any(scenario), seed, raises=False)
        yield HealthyRun(
            scenario=scenario,
            seed=seed,
            digest=result.digest,
            events=result.events,
            violations=len(result.violations),
            reached=frozenset(notes.reached),
        )


def runs_for(mutant: AutomaticMutant, healthy: Sequence[HealthyRun], most: int) -> list[HealthyRun]:
    """Return the first runs that reach the mutant's statement, at most `most`, without their statements."""
    place = mutant.module, mutant.statement
    found = []
    for each in healthy:
        if place in each.reached:
            found.append(msgspec.structs.replace(each, reached=frozenset()))
            if len(found) == most:
                break
    return found


def judge(mutant: AutomaticMutant, runs: Sequence[HealthyRun], *, code: CodeType | None = None) -> Judgement:
    """Judge a mutant by these runs, in a process of its own; `code` takes the place of the mutant's."""
    if not runs:
        return Judgement(mutant=mutant, verdict="unreached")
    result, at, how = in_own_process(
        functools.partial(
            _with_code, mutant, code or mutated_code(mutant), functools.partial(_verdict, mutant, runs)
        )
    )
    return result or Judgement(
        mutant=mutant,
        verdict="crashed",
        runs=at + 1,
        scenario=runs[at].scenario,
        seed=runs[at].seed,
        message=how,
    )


T = TypeVar("T")
Work: TypeAlias = Callable[[Callable[[int], None]], T]
"""Runs a mutant; calls its argument with the index of each run before that begins."""


def in_own_process(work: Work[T]) -> tuple[T | None, int, str]:
    """Return what the work returns, in a process that is ended if a run takes too long, or too much memory.

    If it has no result, return None, the index of the run that began last, and what happened.
    """
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_work_and_send, args=(work, theirs), daemon=True)
    process.start()
    theirs.close()
    at, how = 0, "does not end"
    try:
        while ours.poll(_SILENCE_S):
            said = ours.recv()
            if isinstance(said, _Done):
                return said.result, at, ""
            at = said
    except EOFError:
        how = "its process ended"
    finally:
        ours.close()
        process.kill()
        process.join()
    return None, at, how


class _Done(NamedTuple):
    """The result of a process; other messages are indices of runs."""

    result: Any


def _work_and_send(work: Work[Any], connection: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    connection.send(_Done(work(connection.send)))


def _with_code(mutant: AutomaticMutant, code: CodeType, work: Work[T], alive: Callable[[int], None]) -> T:
    function = function_of(mutant.module, mutant.function)
    assert function is not None
    with with_code(function, code):
        return work(alive)


def _verdict(mutant: AutomaticMutant, runs: Sequence[HealthyRun], alive: Callable[[int], None]) -> Judgement:
    changed = 0
    shown = -1
    shown_digest = ""
    crash: tuple[int, str] | None = None
    for index, healthy in enumerate(runs):
        alive(index)
        try:
            limit = healthy.events * _EVENTS + _MOST_EVENTS
            result = run(load_any(healthy.scenario), healthy.seed, max_events=limit, raises=False)
        except TooManyEvents:
            crash = crash or (index, "does not end")
            continue
        except Exception as error:  # a mutant may break anything
            crash = crash or (index, f"{type(error).__name__}: {error}")
            continue
        if result.digest != healthy.digest:
            changed += 1
            if shown < 0:
                shown, shown_digest = index, result.digest
        invariants = tuple(dict.fromkeys(each.invariant for each in result.violations))
        if by := tuple(each for each in invariants if not each.startswith(RAISED)):
            return Judgement(
                mutant=mutant,
                verdict="killed",
                runs=index + 1,
                changed=changed,
                invariants=by,
                scenario=healthy.scenario,
                seed=healthy.seed,
                message=result.violations[0].message,
            )
        if invariants and crash is None:
            crash = index, f"{invariants[0]}: {result.violations[0].message}"
        if crash is not None and index - crash[0] >= _AFTER_CRASH:
            break
    if crash is not None:
        at = runs[crash[0]]
        return Judgement(
            mutant=mutant,
            verdict="crashed",
            runs=len(runs),
            changed=changed,
            scenario=at.scenario,
            seed=at.seed,
            message=crash[1],
        )
    if not changed:
        return Judgement(mutant=mutant, verdict="no-effect", runs=len(runs))
    at = runs[shown]
    again = run(load_any(at.scenario), at.seed, raises=False).digest == shown_digest
    return Judgement(
        mutant=mutant,
        verdict="survived" if again else "crashed",
        runs=len(runs),
        changed=changed,
        scenario=at.scenario,
        seed=at.seed,
        message="" if again else "one seed gives different runs",
    )
