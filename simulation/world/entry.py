"""`simulated`: a test function that runs in a simulated world, from many seeds."""

from __future__ import annotations

import functools
import inspect
import math
import os
import shlex
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, cast

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.coordinator.server.listener_config import NO_LISTENERS
from fencepost.coordinator.server.topic_configs import BrokerConfig
from fencepost.simulation.embedded.settings import broker_count, duration, flag, topics_of, users_of, whole
from fencepost.simulation.world.apart import run_apart
from fencepost.simulation.world.crashes import Crash, crash_count, crash_lines
from fencepost.simulation.world.failure import (
    FOLDER,
    FailureReport,
    WorldFailure,
    explain,
    gone_text,
    read_world_failure,
)
from fencepost.simulation.world.mix import Faults, faults_of, scenario_of
from fencepost.simulation.world.record_judge import CLAIMS, DEFAULT_CLAIMS
from fencepost.simulation.world.run import WorldResult, WorldSettings, WorldTest, run_world
from fencepost.simulation.world.spread import (
    SeedAnswer,
    SeedJob,
    child_count,
    spread,
)
from fencepost.simulation.world.sweep import Sweep, tell

SEED: Final = "FENCEPOST_SEED"
FAILURE: Final = "FENCEPOST_FAILURE"


class SimulationFailed(AssertionError):
    """A seed fails. The text has the violation, the remaining faults, and commands that run it again."""


class FailureGone(UserWarning):
    """A failure that was kept in a file does not fail any more."""


class SimulatedFunction(Protocol):
    """The test function that `simulated` returns; `simulated` runs single seeds of it."""

    __name__: str
    simulated: SimulatedTest

    def __call__(self) -> None:
        """Run all seeds.

        :raises SimulationFailed: if a seed fails.
        """


class SimulatedTest:
    """A test function with the settings of its world and its seeds."""

    def __init__(
        self, function: WorldTest, settings: WorldSettings, seeds: Sequence[int], processes: int | None
    ) -> None:
        self.function = function
        self.settings = settings
        self.seeds = list(seeds)
        self._processes = processes

    def run(self, seed: int) -> WorldResult:
        """Run one seed in this process."""
        return run_world(self.function, self.settings, seed)

    def check(self) -> SeedAnswer:
        """Run all seeds, spread over child processes.

        :raises SimulationFailed: for the first seed that fails.
        """
        __tracebackhide__ = True
        failure, one = os.environ.get(FAILURE, ""), os.environ.get(SEED)
        seeds = self.seeds
        if one is not None:
            seeds = [_seed_in(one)]
        if failure:
            seeds = [self._kept(failure).seed]
        function = self.function
        job = SeedJob(
            path=[str(Path(each or ".").resolve()) for each in sys.path],
            module=function.__module__,
            file=str(Path(inspect.getfile(function)).resolve()),
            name=function.__qualname__,
            seeds=seeds,
            failure=str(Path(failure).resolve()) if failure else "",
            command=_command(),
            logs=bool(one or failure),
        )
        with Sweep(function.__name__, len(seeds)) as sweep:

            def passed() -> None:
                sweep.passed += 1
                sweep.show()

            # No other process can load a local function, and only in this one a debugger has the terminal.
            if "<locals>" in job.name or (job.logs and not sys.flags.hash_randomization):
                answers = [self.answer(job, passed)]
            else:
                answers = spread(job, child_count(self._processes, len(seeds)), sweep)
        for answer in answers:
            if answer.problem:
                raise FencepostError(answer.problem)
        failed = [each for each in answers if each.failed_seed is not None]
        if failed:
            first = min(failed, key=lambda each: seeds.index(each.failed_seed or 0))
            raise SimulationFailed(first.text)
        crashes = {seed: found for each in answers for seed, found in each.crashes.items() if found}
        if failure:
            warnings.warn(gone_text(failure, self._kept(failure)), FailureGone, stacklevel=2)
        elif crashes:
            tell(
                f"{function.__name__}: all {len(seeds)} seeds passed. In {len(crashes)} of them "
                f"{crash_count(crashes.values())}, which were started again. "
                '`claims=[..., "no-crash"]` does not allow that.\n' + "\n".join(crash_lines(crashes))
            )
        return SeedAnswer(
            crashes=crashes,
            digests={seed: digest for each in answers for seed, digest in each.digests.items()},
            virtual_seconds=sum(each.virtual_seconds for each in answers),
            records_done=sum(each.records_done for each in answers),
        )

    def _kept(self, path: str) -> WorldFailure:
        """Return a failure of this test from its file."""
        __tracebackhide__ = True
        kept = read_world_failure(path)
        if kept.test != self.settings.scenario.name:
            raise FencepostError(
                f"{FAILURE}={path}: is a failure of {kept.test}, and this is {self.settings.scenario.name}; "
                f"run {kept.test} alone"
            )
        return kept

    def answer(self, job: SeedJob, passed: Callable[[], object]) -> SeedAnswer:
        """Run the seeds of a job in this process until one fails, and explain that one.

        `passed` is called after each one that passes.
        """
        digests: dict[int, str] = {}
        crashes: dict[int, list[Crash]] = {}
        virtual_s, done = 0.0, 0
        kept = read_world_failure(job.failure) if job.failure else None
        for seed in job.seeds:
            result = run_apart(
                self.function,
                self.settings,
                seed,
                plan=None if kept is None else kept.plan,
                keep_rows=kept is not None,
                logs=job.logs,
            )
            digests[seed] = result.digest
            virtual_s += result.virtual_seconds
            done += result.records_done
            crashes[seed] = result.crashes
            if result.failed:
                told = self._explain(result, kept, job)
                return SeedAnswer(digests=digests, failed_seed=seed, text=told.text, is_whole=told.is_whole)
            passed()
        return SeedAnswer(digests=digests, crashes=crashes, virtual_seconds=virtual_s, records_done=done)

    def _explain(self, result: WorldResult, kept: WorldFailure | None, job: SeedJob) -> FailureReport:
        explained = partial(explain, self.function, self.settings, result, command=job.command)
        if job.shrinks is None:
            return explained(folder=Path(FOLDER), kept=kept)
        out = Path(job.shrinks.out)
        return explained(
            folder=out.parent,
            stem=out.stem,
            happened=kept.happened if kept else 0,
            tries=job.shrinks.tries,
            longest_s=math.inf,
        )


def _seed_in(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise FencepostError(f"{SEED}={text!r}: expected a whole number") from None


def _command() -> str:
    """Return the command that runs this test again."""
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]
    if test:
        return f"python -m pytest {shlex.quote(test)}"
    return shlex.join(["python", *sys.argv])


def simulated(
    without_parentheses: None = None,
    /,
    *,
    seeds: int | Iterable[int] = 200,
    always: Iterable[int] = (),
    topics: Mapping[str, int] | Iterable[str] | None = None,
    brokers: int = 3,
    config: Mapping[str, object] | None = None,
    users: Mapping[str, str] | None = None,
    faults: Faults = None,
    deploys: bool = True,
    duration: float = 60.0,
    claims: Iterable[str] = DEFAULT_CLAIMS,
    processes: int | None = None,
) -> Callable[[WorldTest], SimulatedFunction]:
    """Run a test function in a simulated world, in virtual time, with many seeds.

        @fencepost.simulated(seeds=200, topics={"orders": 6}, brokers=3)
        async def test_no_order_is_lost(world):
            workers = [world.process(f"worker-{n}", run_worker) for n in range(3)]
            await world.produce("orders", orders, over=30)
            await world.settled()
            assert world.processed == orders

    The result is a test for pytest, and a function that any program may call.

    :param seeds: The number of seeds, which begin with 1, or the seeds, such as `range(200, 400)`.
    :param always: Seeds to run first, such as those that once failed.
    :param topics: Partitions by topic, or names of topics.
    :param config: Settings of brokers by Kafka's names.
    :param users: Passwords by user, as for SASL_SSL: all clients then have to log in.
    :param faults: Changes to the default mix of faults, or a list of faults in its place. An empty tuple
        switches faults off.
    :param deploys: If true, some runs restart programs gracefully. There are no deploys without faults.
    :param duration: The length of the phase with faults, in virtual seconds.
    :param claims: The claims that are judged.
    :param processes: The number of processes that run seeds, by default one for each core.
    :raises FencepostError: if a setting is not valid.
    """
    if without_parentheses is not None:
        raise FencepostError("@fencepost.simulated: has no parentheses; expected @fencepost.simulated()")
    first = [whole("always", each, 0, None) for each in _several("always", always, "seeds")]
    numbers = list(dict.fromkeys([*first, *_seeds(seeds)]))
    flag("deploys", deploys)
    if processes is not None:
        whole("processes", processes, 1, None)
    known = topics_of(topics)
    count = broker_count(brokers)
    length_us = round(_length(duration) * 1e6)
    chosen = faults_of(faults)
    if config is not None and not isinstance(config, Mapping):
        raise FencepostError(f"config={config!r}: expected values by Kafka's names")
    settings_of_brokers, logins = dict(config or {}), users_of(users)
    if BrokerConfig.from_properties(settings_of_brokers).listeners != NO_LISTENERS:
        raise FencepostError(
            "config: the brokers of a world have the addresses kafka-1:9092, kafka-2:9092, ...;"
            " leave out settings of listeners and node.id"
        )
    wanted = tuple(_several("claims", claims, "claims"))
    for each in wanted:
        if each not in CLAIMS:
            raise FencepostError(f"claims: {each!r} is no claim, expected some of {', '.join(CLAIMS)}")

    def make(function: WorldTest) -> SimulatedFunction:
        if not inspect.iscoroutinefunction(function):
            raise FencepostError(f"simulated: {function!r}: expected an async function that takes a world")
        _check_parameters(function)
        settings = WorldSettings(
            topics=known,
            brokers=count,
            config=settings_of_brokers,
            users=logins,
            scenario=scenario_of(
                function.__name__, known, count, chosen, length_us, deploys=deploys and bool(chosen)
            ),
            claims=wanted,
        )
        test = SimulatedTest(function, settings, numbers, processes)

        def check() -> None:
            __tracebackhide__ = True
            test.check()

        functools.update_wrapper(check, function)
        check.__dict__.pop("__wrapped__")  # pytest would look for a fixture `world`
        check.__annotations__ = {}
        made = cast("SimulatedFunction", check)
        made.simulated = test
        return made

    return make


def _seeds(seeds: int | Iterable[int]) -> Iterable[int]:
    if not isinstance(seeds, Iterable) or isinstance(seeds, str | bytes):
        return range(1, whole("seeds", seeds, 1, None) + 1)
    found = [whole("seeds", each, 0, None) for each in seeds]
    if not found:
        raise FencepostError(f"seeds={seeds!r}: expected at least one seed")
    return found


def _several(name: str, values: Any, what: str) -> list[Any]:
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise FencepostError(f"{name}={values!r}: expected a list of {what}")
    return list(values)


def _check_parameters(function: WorldTest) -> None:
    """Check that a function can be called with a world alone: it runs in processes without fixtures.

    :raises FencepostError: if it can't.
    """
    signature = inspect.signature(function)
    try:
        signature.bind(None)
    except TypeError:
        raise FencepostError(
            f"simulated: {function.__qualname__}{signature}: expected an async function that takes a world "
            "and nothing else. It runs in processes without fixtures: make what it needs in it. It can be no "
            "method"
        ) from None


def _length(seconds: float) -> float:
    return duration("duration", seconds)


def run_simulated(function: WorldTest, seed: int = 1, **settings: Any) -> WorldResult:
    """Run one seed of a test function in this process. Settings are those of `simulated`.

    :raises FencepostError: if a setting is not valid.
    """
    return simulated(**settings)(function).simulated.run(seed)
