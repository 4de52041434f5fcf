"""Counts for each window of time, by group: an aggregation that Spark updates as rows arrive.

The time is that of the records. A row that arrives more than `LATENESS` after a newer one is in the tables,
but in no window: its window is dropped by then.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from fencepost.simulation.trace.schema import GENERATION, TRACE_DDL

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

LATENESS: Final = "10 minutes"
MOST_WINDOWS: Final = 10_000
"""The limit on windows that are kept; the oldest are dropped first."""

COUNTS: Final[Mapping[str, str]] = {
    "heartbeats": "kind = 'heartbeat'",
    "epochs": "kind = 'group.epoch'",
    "settled": (
        "kind = 'group.state' AND state_to = 'Stable' AND state_from NOT IN ('', 'Empty') OR "
        f"kind = 'group.epoch' AND state_to = 'Stable' AND startswith(detail, '{GENERATION}:')"
    ),
    "removed": "kind = 'member.removed'",
    "commits": "kind = 'commit'",
    "violations": "kind = 'violation'",
}
"""The counts of a window, each with the rows that count."""
NOT_LOGGED: Final = ("heartbeats", "violations")
"""Counts that are not known of Kafka's own log of groups."""


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of a group from `start` on, for `seconds`."""

    start: str
    """Start of the window, in ISO 8601 and UTC."""
    seconds: float
    group: str
    rows: int
    heartbeats: int | None
    """None if the rows are from Kafka's own log of groups, which has none."""
    epochs: int
    """Number of times that the group epoch, or the generation, was raised."""
    settled: int
    """Number of times that the group became Stable: a rebalance ended, or the group has formed."""
    removed: int
    """Number of members that were removed."""
    commits: int
    violations: int | None
    """None if the rows are from Kafka's own log of groups, which nothing judges."""


class Windows:
    """The windows so far. Each session counts again from the written rows, which is quick."""

    def __init__(self, seconds: float, *, logged: bool = False) -> None:
        """`logged` says that the rows are from Kafka's own log of groups."""
        self._seconds = seconds
        self._unknown = dict.fromkeys(NOT_LOGGED) if logged else {}
        self._found: dict[tuple[str, str], Window] = {}

    def start(self, spark: SparkSession, traces: Path, scratch: Path, *, every_s: float) -> StreamingQuery:
        """Count the rows in this folder, and all new ones."""
        from pyspark.sql import functions as f

        rows = spark.readStream.schema(f"{TRACE_DDL}, at timestamp").parquet(str(traces))
        length = f"{round(self._seconds * 1_000)} milliseconds"
        counted = (
            rows.withWatermark("at", LATENESS)
            .groupBy(f.window("at", length), "group")
            .agg(f.count("*").alias("rows"), *(f.count_if(f.expr(e)).alias(n) for n, e in COUNTS.items()))
        )
        writer = counted.writeStream.outputMode("update").foreachBatch(self._take)
        writer = writer.option("checkpointLocation", str(scratch / "windows"))
        return writer.queryName("windows").trigger(processingTime=f"{every_s} seconds").start()

    def _take(self, batch: DataFrame, number: int) -> None:
        rows = batch.selectExpr("date_format(window.start, \"yyyy-MM-dd'T'HH:mm:ss.SSS'Z'\") AS start", "*")
        for row in rows.drop("window").collect():
            found = Window(seconds=self._seconds, **row.asDict() | self._unknown)
            self._found[found.start, found.group] = found
        for oldest in sorted(self._found)[:-MOST_WINDOWS]:
            del self._found[oldest]

    def all(self) -> list[Window]:
        """Return all windows, by time, then by group."""
        found = dict(self._found)  # in one operation: another thread adds to it
        return [found[key] for key in sorted(found)]


def late_rows(query: StreamingQuery) -> int:
    """Return the number of rows that the query's last batches left out because they were too late."""
    operators = (each for progress in query.recentProgress for each in progress["stateOperators"])
    return sum(each["numRowsDroppedByWatermark"] for each in operators)
