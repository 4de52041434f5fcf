"""One run of a test function in a world of its own, from a seed."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import inspect
import io
import logging
import sys
import traceback
import warnings
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final, TypeAlias

import msgspec

from fencepost.coordinator.server.topic_configs import BrokerConfig
from fencepost.simulation.faults.plan import FaultPlan, draw_plan
from fencepost.simulation.interrupts import between_steps
from fencepost.simulation.kernel.loop import Deadlock, OutsideWorld, TooManyEvents
from fencepost.simulation.kernel.observers import RAISED, Violation
from fencepost.simulation.kernel.rng import Draws
from fencepost.simulation.run import WORLD
from fencepost.simulation.scenarios.scenario import Scenario
from fencepost.simulation.trace.schema import Row, RowKind
from fencepost.simulation.world.awaited import awaits_judged
from fencepost.simulation.world.clients import kinds_in_sets
from fencepost.simulation.world.crashes import Crash
from fencepost.simulation.world.folder import own_folder
from fencepost.simulation.world.loop import WorldLoop
from fencepost.simulation.world.machine import Machine
from fencepost.simulation.world.nemesis import DisturbedPrograms, ProgramNemesis
from fencepost.simulation.world.network import VirtualNetwork
from fencepost.simulation.world.processes import PROCESS, WorldProcess, outside
from fencepost.simulation.world.standstill import LIMIT_CPU_S, StandstillWatch, what_runs_again
from fencepost.simulation.world.substitutes import substituted, wall_clock
from fencepost.simulation.world.telling import HeldLoop, waits_of
from fencepost.simulation.world.world import SimulatedWorld

WorldTest: TypeAlias = Callable[[SimulatedWorld], Coroutine[Any, Any, object]]

_MOST_CLOSES: Final = 100
"""Maximum number of attempts to close a coroutine; each `await` in a `finally` needs one more."""
_OF_CLIENTS: Final = frozenset({"offsets-advance"})
"""Invariants of our own members that a correct program may break.

Programs may seek back, and aiokafka tries a commit again in its next generation, ahead of what it reads then.
"""
_LOOK_US: Final = 100_000
_WATCH_US: Final = 1_000_000
_COLLECT_US: Final = 30_000_000
"""Garbage is collected at fixed times: what destructors do is then the same in every run."""
LONGEST_S: Final = 3_600.0
"""Maximum virtual time of a test. One that takes longer waits for something that never happens."""
_WAITING: Final = (TimeoutError, Deadlock)
"""Errors of a test, or of a run, that waits for something that never happens."""
MAX_EVENTS: Final = 20_000_000


class WorldSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a world."""

    topics: dict[str, int]
    brokers: int
    config: dict[str, Any]
    users: dict[str, str] = {}
    """Passwords by user. Without users, clients need no login."""
    scenario: Scenario
    """The scenario from which a seed draws the faults."""
    claims: tuple[str, ...]
    deploys: bool = True


class WorldResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one run. `digest` is equal for equal runs."""

    seed: int
    digest: str
    violations: list[Violation]
    """The violations. If an exception ended the test, it is the last one."""
    trouble: str = ""
    """The traceback of that exception, and before it that of a program which `program-runs` reports."""
    where: str = ""
    """The line of the test function's file that raised it, or called what did."""
    virtual_seconds: float
    wall_seconds: float
    events: int
    segments: int
    """Pieces of TCP streams that went over the network."""
    records_done: int
    plan: FaultPlan
    rows: list[Row] = []
    names: dict[str, str] = {}
    """The names of members by their ids."""
    crashes: list[Crash] = []
    """Programs that an exception has ended, also if they were started again."""
    imported_anew: dict[str, str] = {}
    """Programs whose modules each process imports anew, by name, with the reason."""
    held: list[HeldLoop] = []
    """The times for which callbacks have held the event loops of programs."""
    waits: list[str] = []
    """Lines about what the tasks of programs waited for, if the world did not settle."""
    sent: list[tuple[int, str, str, int]] = []
    """All that was sent: when, from where, to where, how much. It is kept if the run was watched."""
    unordered: list[str] = []
    """The classes of objects in sets whose order follows addresses, if the run was watched."""
    hits: dict[int, str] = {}
    """The target of each fault that had one, by the fault's number in the plan."""

    @property
    def failed(self) -> bool:
        """True if there is a violation."""
        return bool(self.violations)

    @property
    def invariant(self) -> str | None:
        """The first invariant that did not hold; None if all held."""
        return self.violations[0].invariant if self.violations else None


def run_world(
    function: WorldTest,
    settings: WorldSettings,
    seed: int,
    *,
    plan: FaultPlan | None = None,
    keep_rows: bool = False,
    logs: bool = False,
    until: str = "",
    watch: bool = False,
    is_last: bool = False,
) -> WorldResult:
    """Run a test function in a new world. `plan` replaces what the seed would draw.

    The run ends when the invariant `until` is found broken, or with the test. With `keep_rows` the result has
    the trace. Without `logs` nothing is logged meanwhile. With `watch` the result has what helps to compare
    it with another run of the seed. If it `is_last`, the process ends afterwards, so nothing is taken down.
    """
    chosen = draw_plan(settings.scenario, Draws(seed), 0) if plan is None else plan
    with _quiet(logs=logs), _collected_by_hand(is_last=is_last), own_folder():
        run = _Run(function, settings, chosen, Draws(seed))
        run.world.shows_logs = logs
        run.world.until = until
        if watch:
            run.watch()
        try:
            return run.go(seed, keep_rows=keep_rows, is_last=is_last)
        finally:
            del run  # garbage is collected next


class _Run:
    """The parts of one run."""

    def __init__(self, function: WorldTest, settings: WorldSettings, plan: FaultPlan, draws: Draws) -> None:
        self._function = function
        self._settings = settings
        self._plan = plan
        self._loop = loop = WorldLoop(max_events=MAX_EVENTS)
        self._draws = draws
        loop.network = VirtualNetwork(loop, draws, settings.scenario.network.latency.quantiles)
        self.world = SimulatedWorld(loop, draws, loop.network, settings.claims)
        self._error: BaseException | None = None
        self._nemesis: ProgramNemesis | None = None
        self._task: asyncio.Task[None] | None = None
        self._unordered: dict[str, None] = {}
        loop.set_exception_handler(self._unhandled)

    def watch(self) -> None:
        """Keep what was sent, and look for sets whose order follows addresses each second."""
        self._loop.network.sent = []
        self._loop.schedule(self._loop.now_us + _WATCH_US, self._watch, None)

    def _watch(self, _: object) -> None:
        self._unordered |= dict.fromkeys(kinds_in_sets())
        self._loop.schedule(self._loop.now_us + _WATCH_US, self._watch, None)

    def go(self, seed: int, *, keep_rows: bool, is_last: bool) -> WorldResult:
        """Run until the test is over, and return the result."""
        started = wall_clock()
        with substituted(Machine(self._loop, self._draws)), between_steps(self._loop) as pass_interrupts_on:
            try:
                self._go()
                pass_interrupts_on()
                return self.result(seed, wall_clock() - started, keep_rows=keep_rows)
            finally:
                if not is_last:
                    self.take_down()
                    self._loop.close()

    def _go(self) -> None:
        self._task = self._loop.create_task(self._play(), name="test", context=outside())
        self._task.add_done_callback(self._over)
        self._loop.schedule(round(LONGEST_S * 1e6), self._too_long, None)
        watch = StandstillWatch(self._loop, LIMIT_CPU_S)
        try:
            with watch, awaits_judged(self.world.fail):
                self._loop.run_forever()
        except TooManyEvents as error:
            self._error = TooManyEvents(f"{error}: {what_runs_again(self._loop)}")
        except Deadlock as error:
            self._error = error
        self._error = watch.error or self._error
        if self.world.failure is not None:
            self._error = self.world.failure
        elif self._error is None:
            self._error = self._error_of(self._task)
        if isinstance(self._error, KeyboardInterrupt | SystemExit):
            raise self._error

    def _error_of(self, task: asyncio.Task[None]) -> BaseException | None:
        """Return the exception that ended the test, if one did."""
        if task.cancelled():
            return asyncio.CancelledError("the test was cancelled: a future that it awaited, or its own task")
        if task.done():
            return task.exception()
        if self.world.violations:
            return None  # one of them ended the run
        return RuntimeError("the loop was stopped before the test was over")

    async def _play(self) -> None:
        world, settings = self.world, self._settings
        broker_config = BrokerConfig.from_properties(
            {"default.replication.factor": min(3, settings.brokers), **settings.config}
        )
        options = {
            **broker_config.options,
            "users": settings.users or None,
            "tls": None,
            # Before Python 3.12 the hash of None differs between processes, and clients keep brokers in sets.
            "racks": tuple(f"rack-{number}" for number in range(1, settings.brokers + 1)),
        }
        await world.start(settings.topics, settings.brokers, broker_config.groups, options)
        stage = DisturbedPrograms(
            scenario=settings.scenario,
            loop=self._loop,
            draws=self._draws,
            network=self._loop.network,
            members=world.programs,
            endpoint=world.endpoint,
            stubs=world.stubs,
            tell_fault=self._tell_fault,
            on_calm=self._calm,
        )
        if self._plan.entries:
            self._nemesis = ProgramNemesis(stage, self._plan)
            self._nemesis.begin()
        else:
            stage.calm()
        self._look(None)
        self._collect(None)
        await self._function(world)
        await world.end()
        for violation in world.check():
            if violation.invariant not in _OF_CLIENTS:
                world.report(violation.invariant, violation.message)

    def _tell_fault(self, fault: str, phase: str, detail: str) -> None:
        self.world.endpoint.observer.note(str(fault), RowKind.FAULT, state_to=phase, detail=detail)

    def _calm(self) -> None:
        self.world.endpoint.observer.note("", RowKind.FAULTS_END)
        self.world.calm()

    def _look(self, _: object) -> None:
        try:
            self.world.look()
        except Exception as error:  # of a function that the test gave
            self.world.fail(error)
        self._loop.schedule(self._loop.now_us + _LOOK_US, self._look, None)

    def _collect(self, _: object) -> None:
        gc.collect()
        self._loop.schedule(self._loop.now_us + _COLLECT_US, self._collect, None)

    def _over(self, _: object) -> None:
        self._loop.halt()

    def _too_long(self, _: object) -> None:
        self.world.fail(TimeoutError(f"the test is not over after {LONGEST_S:g} virtual seconds"))

    def _unhandled(self, _: object, context: dict[str, Any]) -> None:
        """Handle an unhandled exception: programs log it; in brokers it is a bug that ends the run."""
        error = context.get("exception")
        handle, task = context.get("handle"), context.get("task") or context.get("future")
        if PROCESS.get() is not None or getattr(handle, "process", None) is not None or task is not None:
            if isinstance(error, OutsideWorld):
                self.world.fail(error)  # no program has handled it
            logging.getLogger("asyncio").error(context["message"], exc_info=error)
        elif error is not None:
            self.world.fail(error)

    def result(self, seed: int, wall_seconds: float, *, keep_rows: bool) -> WorldResult:
        """Return the result."""
        world, error = self.world, self._error
        trouble = ""
        if error is not None:
            trouble = "".join(traceback.format_exception(error))
            world.violations.append(
                Violation(
                    invariant=f"{RAISED}{type(error).__name__}",
                    seq=0,
                    t_us=self._loop.now_us,
                    message=str(error) or _line_of(error),
                )
            )
        if world.program_trouble:
            trouble = "\n\n".join(filter(None, (world.program_trouble.rstrip(), trouble)))
        return WorldResult(
            seed=seed,
            digest=world.digest(),
            violations=world.violations,
            trouble=trouble,
            where="" if error is None else self._where(error),
            virtual_seconds=self._loop.now_us / 1e6,
            wall_seconds=wall_seconds,
            events=self._loop.events,
            segments=self._loop.network.segments,
            records_done=sum(len(each) for each in world.record_judge.done.values()),
            plan=self._plan,
            crashes=world.crashes,
            imported_anew=world.imported_anew,
            held=self._loop.held,
            waits=world.waits or (waits_of(world.programs.values()) if isinstance(error, _WAITING) else []),
            sent=self._loop.network.sent or [],
            unordered=list(self._unordered),
            hits={} if self._nemesis is None else self._nemesis.hits,
            rows=_rows_of(world) if keep_rows and world.is_started else [],
            names=dict(world.endpoint.observer.names) if keep_rows and world.is_started else {},
        )

    def _where(self, error: BaseException) -> str:
        file = inspect.getfile(self._function)
        lines = [each.lineno for each in traceback.extract_tb(error.__traceback__) if each.filename == file]
        return f"line {lines[-1]}" if lines else ""

    def take_down(self) -> None:
        """Release all tasks. A `finally` of a killed process had no effect, and has none now."""
        with _unheard():
            self._take_down()
            gc.collect()

    def _take_down(self) -> None:
        world = self.world
        for program in world.programs.values():
            if program.process is not None:
                program.process.end()
                world.dead.append(program.process)
        for process in world.dead:
            for task in tuple(process.tasks):
                _discard(task, process)
        for task in asyncio.all_tasks(self._loop):
            _discard(task, None)
        for transport in tuple(self._loop._transports.values()):
            transport._sock = None  # otherwise it warns that it was not closed
        world.dead.clear()
        world.programs.clear()


def _line_of(error: BaseException) -> str:
    """Return the line of code that raised an error without a message, as a plain `assert` does."""
    frames = traceback.extract_tb(error.__traceback__)
    return (frames[-1].line if frames else "") or type(error).__name__


def _rows_of(world: SimulatedWorld) -> list[Row]:
    """Return the trace of a world, without violations that are not judged in worlds."""
    rows = world.endpoint.observer.rows
    return [row._replace(world=WORLD) for row in rows if row.error not in _OF_CLIENTS]


def _discard(task: asyncio.Task[Any], process: WorldProcess | None) -> None:
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    context = contextvars.Context()
    context.run(PROCESS.set, process)
    coroutine = task.get_coro()
    with contextlib.redirect_stdout(io.StringIO()):
        for _ in range(_MOST_CLOSES):
            try:
                context.run(coroutine.close)
            except RuntimeError:
                continue  # it awaits something in a `finally`
            except BaseException:
                return
            return


@contextlib.contextmanager
def _unheard() -> Iterator[None]:
    """Ignore what destructors raise: an `await` in a `finally` can't go on once its loop is over."""
    before = sys.unraisablehook
    sys.unraisablehook = lambda _: None
    try:
        yield
    finally:
        sys.unraisablehook = before


@contextlib.contextmanager
def _quiet(*, logs: bool) -> Iterator[None]:
    before = logging.root.manager.disable
    if not logs:
        logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            warnings.simplefilter("ignore", RuntimeWarning)
            yield
    finally:
        logging.disable(before)


@contextlib.contextmanager
def _collected_by_hand(*, is_last: bool) -> Iterator[None]:
    was_enabled, was_frozen = gc.isenabled(), gc.get_freeze_count() > 0
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        if not is_last:
            gc.collect()
        if not was_frozen:  # else the caller wants no one to look through what it has frozen
            gc.unfreeze()
        if was_enabled:
            gc.enable()
