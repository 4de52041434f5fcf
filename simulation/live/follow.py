"""Follows a topic: it writes rows to Parquet exactly once, counts windows, and runs the analyses over all
rows."""

from __future__ import annotations

import contextlib
import functools
import logging
import re
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec
import structlog

from fencepost.coordinator.protocol.errors import EnvironmentLacks, FencepostError
from fencepost.simulation.analyses.catalogue import ANALYSES
from fencepost.simulation.brokers.blocking import require_topic
from fencepost.simulation.brokers.security import OPEN, ClientSecurity
from fencepost.simulation.live.folder import Counts, Following, LiveFolder
from fencepost.simulation.live.records import AT, GONE, GROUP_LOG, SKIPPED, rows_of
from fencepost.simulation.live.source import MOST_RECORDS, SourceReader, choose_reader
from fencepost.simulation.live.windows import Window, Windows, late_rows
from fencepost.simulation.pipeline.analyze import Tables, analyze
from fencepost.simulation.pipeline.jobs import run_job
from fencepost.simulation.pipeline.progress import Progress
from fencepost.simulation.pipeline.session import (
    LOCAL,
    NO_WORKER,
    error_text,
    raised_by_spark,
    retrying,
    spark_session,
)
from fencepost.simulation.trace.schema import TRACE_DDL

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

HEADLINES: Final = ("rebalances", "downtime", "two_owners", "fencings", "violations")
"""The tables that are kept up to date while rows arrive; all others are made at the end."""

_LOOK_S: Final = 0.25
_REFRESH_S: Final = 10.0
"""Minimum time between two updates of the tables, in seconds; updates take at most half of the time."""
_TRIGGER: Final = "1 second"
_WINDOWS_EVERY_S: Final = 1
_STARVED: Final = re.compile(f"{NO_WORKER.pattern}|PYTHON_DATA_SOURCE_ERROR.+[Tt]imed out")
"""Spark's messages if a worker could not start in time."""
_STARTS: Final = 20
"""Number of times that a query is started again for that reason."""
_OURS: Final = re.compile(r"EnvironmentLacks: (.+)")
_RAISED: Final = re.compile(r"^(?:[\w.]+\.)?\w+(?:Error|Lacks|Exception): ")

T = TypeVar("T")

_log = structlog.get_logger(__name__)


class Until(msgspec.Struct, frozen=True):
    """The condition for ending without a signal: all that is there now was read, or no record came for some
    time."""

    available_now: bool = False
    idle_s: float | None = None


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a followed topic at one moment."""

    rows: int
    skipped: dict[str, int]
    windows: list[Window]
    tables: Tables
    """The headline tables of some seconds ago."""


class Followed(msgspec.Struct, frozen=True, kw_only=True):
    """The result of following a topic."""

    kafka: str
    topic: str
    out: str
    reader: str
    rows: int
    """Number of rows in the folder, including earlier sessions."""
    skipped: dict[str, int]
    late: int
    """Number of rows in the last hundred batches that came too late for their window."""
    windows: list[Window]
    tables: Tables
    report: str | None = None


class _Stopping(Exception):
    """Raised to end the query before it begins another batch."""


class _Intake:
    """Writes batches of rows. The query calls it in a thread of its own."""

    def __init__(self, folder: LiveFolder) -> None:
        self.counts = folder.counts()
        self.stopping = False
        self.last_record_s = time.monotonic()
        """Time of the last record, in seconds of a monotonic clock."""
        self.failure: Exception | None = None
        self._folder = folder

    def take(self, batch: DataFrame, number: int) -> None:
        """Write one batch, which may have been written already."""
        if self.stopping:
            raise _Stopping
        try:
            self._write(batch, number)
        except Exception as error:  # the query ends with it, and reports it in Java's words
            self.failure = error
            raise

    def _write(self, batch: DataFrame, number: int) -> None:
        from pyarrow import compute

        from fencepost.simulation.trace.parquet import SCHEMA

        found = batch.toArrow()
        if len(found):
            skipped = found.column(SKIPPED.name)
            rows = found.filter(compute.is_null(skipped)).select([*SCHEMA.names, AT.name])
            reasons = Counter(each for each in skipped.drop_null().to_pylist())
            self._folder.write(number, rows.cast(SCHEMA.append(AT)), dict(sorted(reasons.items())))
            self.counts = self._folder.counts()
            self.last_record_s = time.monotonic()


def follow(
    kafka: str,
    topic: str,
    out: Path,
    *,
    security: ClientSecurity = OPEN,
    master: str = LOCAL,
    window_s: float = 10.0,
    until: Until = Until(),  # noqa: B008  # frozen
    report: Path | None = None,
    stop: threading.Event | None = None,
    tell: Callable[[Snapshot], None] = lambda snapshot: None,
    progress: Progress | None = None,
) -> Followed:
    """Follow a topic into a folder until the caller stops it, and analyse all rows.

    A restart with the same folder continues where the last one stopped.

    :raises FencepostError: if there is no such topic, the login is refused, the folder is another topic's,
        or all records were skipped.
    :raises EnvironmentLacks: if no broker responds, Spark cannot run here, or following fails on the way.
    """
    known = require_topic(kafka, topic, "--kafka", security)
    following = Following(kafka, topic, known.topic_id)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(LiveFolder(out, following))
        reader = choose_reader(topic)
        _log.info("kafka_reader", reader=reader.name)
        say = (progress or Progress()).say
        spark = stack.enter_context(spark_session(retrying(master), reader.settings, say=say))
        session = _Session(spark, reader, folder, following, security, window_s=window_s)
        try:
            late = session.run(until, stop or threading.Event(), tell)
        except Exception as error:  # those of PySpark and of Py4J have no class in common
            if raised_by_spark(error):
                raise session.failed(error) from error
            raise
        counts = folder.counts()
        _require_rows(counts, topic)
        tables: Tables = {}
        if counts.rows:
            tables = analyze(out, master=master, report=report, progress=progress)
    return Followed(
        kafka=kafka,
        topic=topic,
        out=str(out),
        reader=reader.name,
        rows=counts.rows,
        skipped=counts.skipped,
        late=late,
        windows=session.windows.all(),
        tables=tables,
        report=None if report is None or not counts.rows else str(report),
    )


def _require_rows(counts: Counts, topic: str) -> None:
    if counts.skipped and not counts.rows:
        reasons = ", ".join(f"{number:,} of {reason}" for reason, number in counts.skipped.items())
        raise FencepostError(f"--topic {topic}: holds no row of a trace; records: {reasons}")


class _Session:
    """The queries of one session."""

    def __init__(
        self,
        spark: SparkSession,
        reader: SourceReader,
        folder: LiveFolder,
        following: Following,
        security: ClientSecurity,
        *,
        window_s: float,
    ) -> None:
        self.windows = Windows(window_s, logged=following.topic == GROUP_LOG)
        self._spark = spark
        self._reader = reader
        self._folder = folder
        self._following = following
        self._security = security
        self._intake = _Intake(folder)
        self._tables: Tables = {}
        self._starts_left = _STARTS
        self._looked = (0.0, 0)
        """The time when the tables may be computed again, and the number of rows when they were computed
        last."""

    def run(self, until: Until, stop: threading.Event, tell: Callable[[Snapshot], None]) -> int:
        """Run until the end. Return the number of rows that came too late for their window."""
        with tempfile.TemporaryDirectory(prefix="fencepost-live-") as scratch, _quiet():
            intake = self._retried(lambda: self._begin(until))
            windows = self._retried(
                lambda: self.windows.start(
                    self._spark, self._folder.traces, Path(scratch), every_s=_WINDOWS_EVERY_S
                )
            )
            try:
                while intake.isActive or (intake := self._again(intake, until)).isActive:
                    if self._is_idle(until) or stop.wait(_LOOK_S):
                        break
                    self._look()
                    tell(self._snapshot())
                self._end(intake)
                windows.processAllAvailable()
                tell(self._snapshot())
                return late_rows(windows)
            finally:
                for query in (intake, windows):
                    with contextlib.suppress(Exception):  # the query or its JVM has ended
                        query.stop()

    def _begin(self, until: Until) -> StreamingQuery:
        following = self._following
        source = self._reader.load(self._spark, following.kafka, following.topic, self._security)
        rows = rows_of(source, following.kafka, following.topic, self._security)
        writer = rows.writeStream.foreachBatch(self._intake.take)
        writer = writer.option("checkpointLocation", str(self._folder.checkpoint)).queryName("intake")
        if until.available_now:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=_TRIGGER).start()

    def _retried(self, start: Callable[[], T]) -> T:
        """Start something of Spark's that needs a Python worker, again if the worker could not start in
        time."""
        while True:
            try:
                return start()
            except Exception as error:  # likewise; the message decides
                if not self._is_starved(error):
                    raise

    def _is_starved(self, error: Exception) -> bool:
        """Return true if only a worker could not start in time, and another start is left."""
        if not _STARVED.search(str(error)) or not self._starts_left:
            return False
        self._starts_left -= 1
        _log.info("spark_worker_late", starts_left=self._starts_left)
        return True

    def _is_idle(self, until: Until) -> bool:
        if until.idle_s is None or time.monotonic() - self._intake.last_record_s < until.idle_s:
            return False
        # It may not have read the topic for a while.
        from fencepost.simulation.live.reader import TopicReader

        following = self._following
        topic = TopicReader(following.kafka, following.topic, MOST_RECORDS, self._security)
        ends, read = topic.bounds(first=False), self._folder.offsets() or topic.bounds(first=True)
        if all(read.get(number, 0) >= end for number, end in ends.items()):
            return True
        self._intake.last_record_s = time.monotonic()
        return False

    def _end(self, intake: StreamingQuery) -> None:
        """Wait until a batch that is under way has ended."""
        self._intake.stopping = True
        while intake.isActive and intake.status["isTriggerActive"]:
            time.sleep(_LOOK_S)
        intake.stop()

    def _again(self, intake: StreamingQuery, until: Until) -> StreamingQuery:
        """Return the query if it ended normally; a new one if only one of its workers could not start in
        time.

        :raises EnvironmentLacks: if it failed.
        """
        error = intake.exception()
        if error is None or "_Stopping" in str(error):
            return intake
        if self._is_starved(error):
            return self._retried(lambda: self._begin(until))
        raise self.failed(self._intake.failure or error) from error

    def failed(self, error: Exception) -> EnvironmentLacks:
        """Return the error for an exception of Spark or of our own code that ended a query."""
        why = reason_of(error)
        again = "" if GONE in why else f"; run it again with the same --out {self._folder.path} to continue"
        return EnvironmentLacks(f"--topic {self._following.topic}: following it failed: {why}{again}")

    def _look(self) -> None:
        """Update the headline tables from time to time."""
        due_s, rows = self._looked
        files, count = self._folder.files, self._intake.counts.rows
        began_s = time.monotonic()
        if not files or count == rows or began_s < due_s:
            return
        trace = self._spark.read.schema(TRACE_DDL).parquet(*map(str, files))
        for name in HEADLINES:
            collect = functools.partial(run_job, self._spark, name, ANALYSES[name](trace).collect)
            self._tables[name] = [row.asDict() for row in self._retried(collect)]
        ended_s = time.monotonic()
        self._looked = max(began_s + _REFRESH_S, 2 * ended_s - began_s), count

    def _snapshot(self) -> Snapshot:
        counts = self._intake.counts
        return Snapshot(
            rows=counts.rows, skipped=counts.skipped, windows=self.windows.all(), tables=self._tables
        )


def reason_of(error: Exception) -> str:
    """Return the reason in an exception that ended a query, in one line: our own message, if it is among
    Java's stacks."""
    text = str(error)
    if ours := _OURS.search(text):
        return ours[1]
    return _RAISED.sub("", error_text(error)) or type(error).__name__


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence py4j, which logs a traceback when a batch is refused because it is time to stop."""
    loggers = [logging.getLogger(name) for name in ("py4j.clientserver", "py4j.java_gateway")]
    before = [each.level for each in loggers]
    for each in loggers:
        each.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for each, level in zip(loggers, before, strict=True):
            each.setLevel(level)
