"""Makes a failure small: fewest disturbances, members and partitions that still violate the same invariant.

It applies delta debugging (Zeller and Hildebrandt, 2002) to the plan's entries, and tries shorter runs and
smaller worlds in between. Each attempt is a whole run. The same seed draws everything that is not in the
plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from msgspec.structs import replace

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.failures.failure import Failure, replay
from fencepost.simulation.faults.plan import FaultKind, FaultPlan, PlannedEvent
from fencepost.simulation.kernel.loop import TooManyEvents
from fencepost.simulation.run import RunResult

TRIES: Final = 400
"""Default for the limit on runs."""
_ROUNDS = 4
_MARGIN_US = 1_000_000
"""Time that a shortened run continues after the violation, in microseconds."""
_NUMBERED = frozenset({FaultKind.RESTART, FaultKind.START, FaultKind.STOP, FaultKind.SUBSCRIBE})
"""Kinds of entries that are about the member with that number, which must exist."""


class Planned(Protocol):
    """A failure of any kind of run, with the run's plan."""

    @property
    def plan(self) -> FaultPlan:
        """The plan of the run: its disturbances, with their times and targets."""

    def to_json(self) -> str:
        """Return the JSON document."""


class EndedRun(Protocol):
    """The result of a run."""

    @property
    def events(self) -> int:
        """Number of steps of its loop."""


F = TypeVar("F", bound=Planned)
R = TypeVar("R", bound=EndedRun)


class Shrunk(NamedTuple):
    """A failure, and its small version."""

    before: Failure
    after: Failure
    result: RunResult
    """The run of the small failure."""
    tries: int
    """Number of runs that it took."""
    whole: bool
    """True if no single part can be left out any more; False if the limit on runs was reached first."""


class _NoMoreTries(Exception):
    pass


def shrink(failure: Failure, *, tries: int = TRIES, progress: Callable[[int], None] | None = None) -> Shrunk:
    """Return the smallest failure of the same invariant that `tries` runs find. `progress` is called after
    each run.

    :raises FencepostError: if the failure no longer occurs.
    """
    attempts = _Attempts(failure, _run_that_fails, tries, progress)
    if not attempts.fails(failure):
        raise FencepostError(f"{failure.invariant} holds: the failure does not show with this code")
    whole = True
    try:
        _shrink(attempts)
    except _NoMoreTries:
        whole = False
    assert attempts.result is not None
    return Shrunk(failure, attempts.best, attempts.result, attempts.made, whole)


def shrink_plan(failure: F, run: Callable[[F, int | None], R | None], *, tries: int = TRIES) -> tuple[F, int]:
    """Return the failure with the fewest faults that `tries` runs find, and the number of runs.

    `run` returns the result of a candidate that fails in the same way, and None for one that does not. If the
    failure does not occur again, it is returned unchanged.
    """
    attempts: _Attempts[F, R] = _Attempts(failure, run, tries, None)
    try:
        if attempts.fails(failure) and not attempts.fails(_with_entries(failure, ())):
            if not any(attempts.fails(_with_entries(failure, (each,))) for each in failure.plan.entries):
                _fewer_entries(attempts)
            _shorter_entries(attempts)
            _sooner(attempts)
    except _NoMoreTries:
        pass
    return attempts.best, attempts.made


class _Attempts(Generic[F, R]):
    """Runs candidates, and keeps the smallest one that failed."""

    def __init__(
        self,
        failure: F,
        run: Callable[[F, int | None], R | None],
        tries: int,
        progress: Callable[[int], None] | None,
    ) -> None:
        self.best = failure
        self.result: R | None = None
        self.made = 0
        self._run = run
        self._tries = tries
        self._progress = progress
        self._failed: set[str] = set()
        """Documents of candidates that do not fail."""
        self._max_events: int | None = None

    def fails(self, candidate: F) -> bool:
        """Return true if the candidate violates the invariant; it is then the best one."""
        document = candidate.to_json()
        if document in self._failed:
            return False
        if self.made >= self._tries:
            raise _NoMoreTries
        self.made += 1
        if self._progress is not None:
            self._progress(1)
        result = self._run(candidate, self._max_events)
        if result is None:
            self._failed.add(document)
            return False
        self.best, self.result = candidate, result
        self._max_events = 4 * result.events + 100_000
        return True


def _run_that_fails(failure: Failure, max_events: int | None) -> RunResult | None:
    """Return the run if it violates the failure's invariant; the violation may be an exception that ends the
    run."""
    try:
        result = replay(failure, max_events=max_events, raises=False)
    except (FencepostError, TooManyEvents):
        return None
    violated = any(each.invariant == failure.invariant for each in result.violations)
    return result if violated else None


def _shrink(attempts: _Attempts[Failure, RunResult]) -> None:
    for _ in range(_ROUNDS):
        before = attempts.best
        _cut(attempts)
        _fewer_entries(attempts)
        _fewer_members(attempts)
        _fewer_partitions(attempts)
        _no_records(attempts)
        _shorter_entries(attempts)
        _sooner(attempts)
        if attempts.best is before:
            return


def _with_entries(failure: F, entries: Sequence[PlannedEvent]) -> F:
    return _with_plan(failure, replace(failure.plan, entries=tuple(entries)))


def _with_plan(failure: F, plan: FaultPlan) -> F:
    return replace(failure, plan=plan)  # type: ignore[type-var]  # all failures are structs


def _cut(attempts: _Attempts[Failure, RunResult]) -> None:
    """End the run after the violation. If the violation is in the quiet phase, begin that phase earlier."""
    best, result = attempts.best, attempts.result
    assert result is not None
    plan = best.plan
    at_us = next(v.t_us for v in result.violations if v.invariant == best.invariant)
    end_us = at_us + _MARGIN_US
    entries = tuple(entry for entry in plan.entries if entry.at_us <= at_us)
    if end_us < plan.end_us:
        shorter = replace(plan, entries=entries, end_us=end_us, faults_end_us=min(plan.faults_end_us, end_us))
        if attempts.fails(replace(best, plan=shorter)):
            return
    calm_us = max((entry.at_us + entry.lasts_us for entry in plan.entries), default=0) + _MARGIN_US
    if calm_us < plan.faults_end_us:
        quiet_us = plan.end_us - plan.faults_end_us
        attempts.fails(replace(best, plan=replace(plan, faults_end_us=calm_us, end_us=calm_us + quiet_us)))


def _fewer_entries(attempts: _Attempts[F, R]) -> None:
    """Leave out smaller and smaller parts of the plan, until no single entry can be left out."""
    parts = 2
    while entries := attempts.best.plan.entries:
        if any(
            attempts.fails(_with_entries(attempts.best, left)) for left in _without_a_part(entries, parts)
        ):
            parts = max(parts - 1, 2)
        elif parts >= len(entries):
            return
        else:
            parts = min(2 * parts, len(entries))


def _without_a_part(entries: tuple[PlannedEvent, ...], parts: int) -> Iterator[tuple[PlannedEvent, ...]]:
    parts = min(parts, len(entries))
    for part in range(parts):
        begin, end = len(entries) * part // parts, len(entries) * (part + 1) // parts
        yield entries[:begin] + entries[end:]


def _fewer_members(attempts: _Attempts[Failure, RunResult]) -> None:
    now = attempts.best.loaded().group.members
    for members in _smaller(now):
        best = attempts.best
        candidate = replace(
            best,
            overrides=_with_override(best.overrides, "group.members", members),
            plan=_with_members(best.plan, now, members),
        )
        if attempts.fails(candidate):
            return


def _with_members(plan: FaultPlan, before: int, after: int) -> FaultPlan:
    """Return the plan for a group of `after` members at the start: later members move up, and entries of
    missing members are dropped."""
    moved = [
        replace(entry, member=entry.member - (before - after))
        if entry.kind in _NUMBERED and entry.member >= before
        else entry
        for entry in plan.entries
        if entry.kind not in _NUMBERED or not after <= entry.member < before
    ]
    most = max([after, *(entry.member + 1 for entry in moved if entry.kind in _NUMBERED)])
    return replace(plan, entries=tuple(moved), members=most)


def _fewer_partitions(attempts: _Attempts[Failure, RunResult]) -> None:
    scenario = attempts.best.loaded()
    for partitions in _smaller(scenario.partitions):
        if partitions < len(getattr(scenario, scenario.partitioned)):
            continue
        if attempts.fails(replace(attempts.best, partitions=partitions)):
            return


def _no_records(attempts: _Attempts[Failure, RunResult]) -> None:
    best = attempts.best
    overrides = best.overrides
    for key, rate in best.loaded().record_rates.items():
        if rate:
            overrides = _with_override(overrides, key, 0)
    if overrides != best.overrides:
        attempts.fails(replace(best, overrides=overrides))


def _shorter_entries(attempts: _Attempts[F, R]) -> None:
    """Shorten long disturbances to a second."""
    for number, entry in enumerate(attempts.best.plan.entries):
        if entry.lasts_us > _MARGIN_US:
            entries = list(attempts.best.plan.entries)
            entries[number] = replace(entry, lasts_us=_MARGIN_US)
            attempts.fails(_with_entries(attempts.best, entries))


def _sooner(attempts: _Attempts[F, R]) -> None:
    """Move late disturbances to earlier times, as far as the run still fails."""
    while True:
        plan = attempts.best.plan
        entries = tuple(replace(entry, at_us=entry.at_us // 2) for entry in plan.entries)
        saved_us = max((entry.at_us for entry in plan.entries), default=0) // 2
        if saved_us < _MARGIN_US:
            return
        sooner = replace(
            plan,
            entries=entries,
            faults_end_us=plan.faults_end_us - saved_us,
            end_us=plan.end_us - saved_us,
        )
        if not attempts.fails(_with_plan(attempts.best, sooner)):
            return


def _smaller(number: int) -> Iterator[int]:
    """Yield smaller numbers, small ones first: a world of two is best."""
    candidate = 1
    while candidate < number:
        yield candidate
        candidate += max(1, candidate // 2)


def _with_override(overrides: tuple[str, ...], key: str, value: int) -> tuple[str, ...]:
    return (*(each for each in overrides if not each.startswith(f"{key}=")), f"{key}={value}")
