"""One run of a scenario with a seed, in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import time
import traceback
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec
import structlog

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.faults.plan import FaultPlan, draw_plan
from fencepost.simulation.interrupts import between_steps
from fencepost.simulation.kafka import world as kafka
from fencepost.simulation.kernel.loop import TooManyEvents, VirtualLoop
from fencepost.simulation.kernel.observers import RAISED, Violation, WorldObserver
from fencepost.simulation.kernel.rng import Draws
from fencepost.simulation.kernel.world import PreparedRun
from fencepost.simulation.sac import world as sac
from fencepost.simulation.scenarios.kinds import AnyScenario
from fencepost.simulation.scenarios.load import DEFAULT, load_any
from fencepost.simulation.scenarios.sac import SacScenario
from fencepost.simulation.scenarios.scenario import Scenario
from fencepost.simulation.scenarios.streams import StreamsScenario
from fencepost.simulation.streams import world as streams
from fencepost.simulation.trace.rows import TraceRows, TraceSink
from fencepost.simulation.trace.schema import Row, RowKind

WORLD: Final = "simulated"
_SLICES = 200
"""Number of slices of a run. After each slice, progress is reported and the wall time is checked."""

_PREPARED: Final[Mapping[type[AnyScenario], Callable[..., PreparedRun]]] = {
    Scenario: kafka.prepare,
    SacScenario: sac.prepare,
    StreamsScenario: streams.prepare,
}
"""The function that prepares the run of a scenario, by the scenario's kind."""

Progress: TypeAlias = Callable[[float], None]
"""Receives the share of the run that is done, 0 to 1."""


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run. `digest` is equal for equal runs, on every machine and Python."""

    scenario: str
    seed: int
    members: int
    partitions: int
    virtual_seconds: float
    wall_seconds: float
    events: int
    """Steps of the virtual event loop."""
    heartbeats: int
    """Heartbeats that a coordinator answered; for single active consumers, the commands that it answered."""
    rebalances: int
    """Rebalances that ended: from a raise of the group epoch until the group was stable again.

    For single active consumers: number of times that a consumer was told to be active.
    """
    converged: bool
    """True if the group had settled when the run ended."""
    violations: list[Violation]
    digest: str
    figures: dict[str, float] = {}
    """Further measurements; for single active consumers, see docs/sac.md."""


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Collect garbage rarely: a run makes many small objects and hardly a cycle.

    No collection runs until the run is over and its world is released: it would scan everything and free
    nothing.
    """
    thresholds = gc.get_threshold()
    gc.set_threshold(1_000_000, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


def _a_loop_runs() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def simulate(
    scenario: str | Path | AnyScenario = DEFAULT,
    seed: int = 1,
    *,
    overrides: Iterable[str] = (),
    members: int | None = None,
    partitions: int | None = None,
    duration: str | None = None,
    trace: TraceSink | None = None,
) -> RunResult:
    """Simulate a scenario with a seed in virtual time, with all judges, and return the result.

    `scenario` is a name of the library, a TOML file, or a scenario that `load` returned. `overrides` are
    texts such as "group.members=12", as for `fencepost simulate --set`; `members`, `partitions` (a total that
    the topics share) and `duration` are shorter ways to say the same. `trace` receives the rows of the trace
    as they are made. Equal arguments give an equal `digest`.

    :raises FencepostError: if there is no such scenario, something in it or in the overrides is wrong, or an
        event loop runs in this thread: use `await asyncio.to_thread(simulate, ...)`.
    """
    if isinstance(scenario, str | Path):
        scenario = load_any(
            scenario, overrides=overrides, members=members, partitions=partitions, duration=duration
        )
    elif overrides or (members, partitions, duration) != (None, None, None):
        raise FencepostError("simulate: expected a name or a file with overrides, got a loaded scenario")
    return run(scenario, seed, trace=trace)


@_without_collections()
def run(
    scenario: AnyScenario,
    seed: int,
    *,
    plan: FaultPlan | None = None,
    judges: Iterable[WorldObserver] | None = None,
    trace: TraceSink | None = None,
    progress: Progress | None = None,
    max_events: int | None = None,
    raises: bool = True,
    until: Container[str] = (),
) -> RunResult:
    """Run the scenario. `plan` replaces what the seed would draw; `judges` replaces the built-in judges.

    The judges of single active consumers and of Streams applications always run, in addition to `judges`.

    An exception in the simulated code ends the run and is raised. Without `raises` it becomes the last
    violation, with its type (`RAISED`), and the result covers what came before it. Exceptions of `trace` and
    `progress` are always raised.

    A violation of an invariant in `until` ends the run soon; it has not converged then.

    The caller closes the trace. A run has its own event loop. If a loop already runs (in an async test or a
    notebook), use `await asyncio.to_thread(run, ...)`.

    :raises FencepostError: if the seed is no whole number, or another event loop runs in this thread.
    :raises TooManyEvents: if it takes more than `max_events` steps of the loop.
    """
    if _a_loop_runs():
        raise FencepostError(
            "run() has an event loop of its own, and one runs already: await asyncio.to_thread(run, ...)"
        )
    started = time.perf_counter()
    chosen = plan_of(scenario, seed) if plan is None else plan
    loop = VirtualLoop(max_events=max_events)
    failures = _Failures(loop)
    beside = _Beside(trace, progress)
    recorder = TraceRows(world=WORLD, group=scenario.group.id, sink=None if trace is None else beside)
    try:
        prepared = _PREPARED[type(scenario)](scenario, seed, chosen, loop, recorder, judges=judges)
    except BaseException:
        loop.close()
        raise
    world = prepared.world
    ended_us = chosen.end_us
    with _without_logs(), between_steps(loop) as pass_interrupts_on:
        try:
            said = f"{scenario.name} {seed} {scenario.group.members}"
            recorder.add(0, "", RowKind.RUN_START.value, detail=said)
            prepared.begin()
            for until_us in _slices(chosen.end_us):
                while loop.now_us < until_us:
                    loop.run_until(until_us)
                    pass_interrupts_on()
                    failures.check()
                beside.tell(until_us / chosen.end_us)
                if until and any(each.invariant in until for each in world.violations):
                    converged, ended_us = False, loop.now_us
                    world.vanish()
                    break
            else:
                converged = world.end()
            recorder.add(loop.now_us, "", RowKind.RUN_END.value)
            loop.run_until(loop.now_us)
            failures.check()
        except BaseException as error:
            is_simulated = isinstance(error, Exception) and not isinstance(error, TooManyEvents)
            told = is_simulated and not raises and not beside.failed
            if told:
                converged, ended_us = False, loop.now_us
                world.report(f"{RAISED}{type(error).__name__}", f"{error} ({_place(error)})")
                recorder.add(ended_us, "", RowKind.RUN_END.value)
            loop.max_events = None
            world.vanish()
            loop.run_until(loop.now_us)
            if not told:
                raise
        finally:
            loop.close()
    counts = prepared.counts()
    return RunResult(
        scenario=scenario.name,
        seed=seed,
        members=scenario.group.members,
        partitions=scenario.partitions,
        virtual_seconds=ended_us / 1_000_000,
        wall_seconds=time.perf_counter() - started,
        events=loop.events,
        heartbeats=counts.heartbeats,
        rebalances=counts.rebalances,
        converged=converged,
        violations=world.violations,
        digest=recorder.digest(),
        figures=dict(counts.figures),
    )


class _Beside:
    """The caller's trace and progress callback, which are not part of the simulation."""

    def __init__(self, trace: TraceSink | None, progress: Progress | None) -> None:
        self._trace = trace
        self._progress = progress
        self.failed = False
        """True if it raised."""

    def write(self, rows: Sequence[Row], /) -> None:
        """Hand rows to the trace."""
        assert self._trace is not None
        with self._watched():
            self._trace.write(rows)

    def tell(self, share: float) -> None:
        """Report the share of the run that is done."""
        if self._progress is not None:
            with self._watched():
                self._progress(share)

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.failed = True
            raise


def _place(error: BaseException) -> str:
    """Return the file, line and function in which the error was raised; the same on every machine."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(frame.filename).name}:{frame.lineno}, in {frame.name}"


def plan_of(scenario: AnyScenario, seed: int) -> FaultPlan:
    """Return the faults and steps that the seed draws for the scenario."""
    return draw_plan(scenario, Draws(seed), scenario.quiet_us)


def _slices(end_us: int) -> Iterator[int]:
    for index in range(1, _SLICES + 1):
        yield end_us * index // _SLICES


class _Failures:
    """Exceptions of callbacks and tasks, which asyncio would only log; in a simulation they end the run."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._errors: list[BaseException] = []
        self._loop = loop
        loop.set_exception_handler(self._note_context)
        loop.on_task_failed = self._note

    def _note_context(self, _: object, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self._note(error if isinstance(error, BaseException) else RuntimeError(context["message"]))

    def _note(self, error: BaseException) -> None:
        self._errors.append(error)
        self._loop.stop()

    def check(self) -> None:
        """Raise the first of them."""
        if self._errors:
            raise self._errors[0]


@contextlib.contextmanager
def _without_logs() -> Iterator[None]:
    """Silence the logs of members, through structlog or otherwise; a simulation has its trace instead."""
    standard = logging.getLogger("fencepost")
    level = standard.level
    before = structlog.get_config() if structlog.is_configured() else None
    standard.setLevel(logging.CRITICAL + 1)
    if before is not None:
        silent = structlog.make_filtering_bound_logger(logging.CRITICAL)
        structlog.configure(wrapper_class=silent, cache_logger_on_first_use=False)
    try:
        yield
    finally:
        standard.setLevel(level)
        if before is not None:
            structlog.configure(**before)
