"""Actions in a Spark session: Ctrl-C ends them, and they run with settings for their number of rows."""

from __future__ import annotations

import contextlib
import math
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, TypeVar

from fencepost.simulation.interrupts import interrupts_held
from fencepost.simulation.pipeline.session import STOP_SECONDS, wall_clock

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_LOOK_S: Final = 0.25
T = TypeVar("T")


class OutOfTime(Exception):
    """Raised if an action has not ended by its deadline. Its jobs are cancelled."""


def run_job(
    spark: SparkSession,
    name: str,
    action: Callable[[], T],
    watch: Callable[[int, int], None] | None = None,
    *,
    until: float | None = None,
) -> T:
    """Run an action of Spark's; `watch` is called from time to time with the numbers of finished tasks and of
    all tasks. `until` is its deadline, on the clock of `wall_clock`.

    The action runs in a thread of its own, so that this one stays free for Ctrl-C: an interrupt cancels the
    action's jobs, waits for them to end, and is raised again.

    :raises OutOfTime: if the action has not ended by then.
    """
    return run_jobs(spark, {name: action}, watch, until=until)[name]


def run_jobs(
    spark: SparkSession,
    jobs: Mapping[str, Callable[[], T]],
    watch: Callable[[int, int], None] | None = None,
    *,
    advance: Callable[[int], None] = lambda more: None,
    at_once: int = 1,
    until: float | None = None,
) -> dict[str, T]:
    """Run named actions, `at_once` at the same time, and return their results; otherwise the same as
    `run_job`.

    `advance` is called with the number of newly finished actions. The first failure ends them all.
    """
    from pyspark import InheritableThread

    group = uuid.uuid4().hex
    context = spark.sparkContext
    waiting = deque(jobs.items())
    results: dict[str, T] = {}
    failures: list[BaseException] = []

    def work() -> None:
        while not failures:
            try:
                name, action = waiting.popleft()
            except IndexError:
                return
            try:
                context.setJobGroup(group, name, interruptOnCancel=True)
                results[name] = action()
            except BaseException as error:
                failures.append(error)

    def cancel() -> None:
        waiting.clear()
        with contextlib.suppress(Exception):  # a JVM that has ended runs none; the caller raises the reason
            # Jobs that a thread has not submitted yet must not run either; PySpark has no method for this.
            context._jsc.sc().cancelJobGroupAndFutureJobs(group)
        for thread in threads:
            thread.join(STOP_SECONDS)

    threads = [InheritableThread(target=work, name="spark-jobs", daemon=True) for _ in range(at_once)]
    for thread in threads:
        thread.start()
    through = 0
    ends = math.inf if until is None else until
    try:
        while not failures and (running := [thread for thread in threads if thread.is_alive()]):
            _check_time(ends)
            running[0].join(_LOOK_S)
            if watch is not None:
                with interrupts_held() as release:
                    watch(*_tasks(context, group))
                release()
            before, through = through, len(results)
            advance(through - before)
    except BaseException:
        cancel()
        raise
    if failures:
        cancel()
        raise failures[0]
    return results


def _check_time(until: float) -> None:
    if wall_clock() >= until:
        raise OutOfTime


def _tasks(context: SparkContext, group: str) -> tuple[int, int]:
    tracker = context.statusTracker()
    done = total = 0
    for job in tracker.getJobIdsForGroup(group):
        information = tracker.getJobInfo(job)
        for stage in information.stageIds if information is not None else ():
            if (progress := tracker.getStageInfo(stage)) is not None:
                done += progress.numCompletedTasks
                total += progress.numTasks
    return done, total


INTERPRETED_ROWS: Final = 8_000_000
"""Number of trace rows up to which compiling a query takes longer than interpreting it: the runs' views then
have about a million rows. Above that, the JVM's second compiler is worth its cost, too."""

ROWS_A_PARTITION: Final = 1_500_000
"""Approximate number of rows that one task sorts. With two tasks at a time, they fit into the 2 GB of a local
session."""

_SMALL: Final[Mapping[str, str]] = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
_LARGE: Final[Mapping[str, str]] = {
    # Percentiles of a few hundred groups do not justify sorting all rows.
    "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "100000",
}


def settings(rows: int) -> Mapping[str, str]:
    """Return the settings of a session for that many rows of traces."""
    if rows <= INTERPRETED_ROWS:
        partitions, chosen = max(1, -(-rows // ROWS_A_PARTITION)), _SMALL
    else:
        partitions, chosen = max(4, -(-rows // ROWS_A_PARTITION)), _LARGE
    return {**chosen, "spark.sql.shuffle.partitions": str(partitions)}


def session_settings(rows: int) -> Mapping[str, str]:
    """Return the settings that a local session starts with for that many rows, in place of those for short
    jobs."""
    if rows <= INTERPRETED_ROWS:
        return {}
    return {"spark.driver.extraJavaOptions": "-XX:+UseParallelGC -XX:-UsePerfData"}


@contextlib.contextmanager
def settings_for(spark: SparkSession, rows: int) -> Iterator[None]:
    """Apply settings for that many rows inside the block; restore the session's own afterwards."""
    wanted = settings(rows)
    before = {name: spark.conf.get(name, None) for name in wanted}
    for name, value in wanted.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        with contextlib.suppress(
            Exception
        ):  # a JVM that has ended has no settings; the caller raises the reason
            for name, earlier in before.items():
                if earlier is None:
                    spark.conf.unset(name)
                else:
                    spark.conf.set(name, earlier)
