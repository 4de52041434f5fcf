"""Views over the rows of traces, shared by several tables and computed on first use.

Views of single runs come from one pass over the rows (`run_pass`); the views here combine runs.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from fencepost.simulation.analyses.queries import Queries
from fencepost.simulation.analyses.run_pass import pack, unpack
from fencepost.simulation.analyses.run_views import RUN_VIEWS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_CACHED: Final = frozenset({"run", "traced", "rebalance", "handover", "incident", "escalation", "move"})
"""Views that are used more than once."""


class Views:
    """Queries over one trace. Each is a file of SQL next to this one; `{NAME}` in it stands for another view.

    `files` has the `run_id` of runs that only their `file` (as JSON) distinguishes. `cached` caches views
    that several tables use, until `release`. Several threads may call it. `packed` has the views of single
    runs, if they are computed already.

    With `since_us`, tables of rebalances, handovers, moves and recoveries count only those since that time of
    a run. Views still have all rows, because a row depends on earlier ones.
    """

    def __init__(
        self,
        trace: DataFrame,
        summaries: DataFrame | None = None,
        *,
        files: DataFrame | None = None,
        cached: bool = False,
        since_us: int = 0,
        packed: DataFrame | None = None,
    ) -> None:
        self._spark = trace.sparkSession
        self._packed = packed
        self._kept = False
        self._cached = cached
        self._queries = Queries(summaries is not None, files is not None, since_us)
        self._making = threading.RLock()
        self._frames: dict[str, DataFrame] = {"trace": trace}
        if summaries is not None:
            self._frames["summary"] = summaries
        if files is not None:
            self._frames["file"] = files

    def view(self, name: str) -> DataFrame:
        """Return a view by its name."""
        with self._making:
            if name not in self._frames:
                frame = self._of_runs(name) if name in RUN_VIEWS else self._query(name, self.view)
                keep = self._cached and name in _CACHED
                self._frames[name] = frame.cache() if keep else frame
            return self._frames[name]

    def _of_runs(self, name: str) -> DataFrame:
        """Return a view of single runs, with the scenario and the parameters of each (except for
        `traced`)."""
        if self._packed is None:
            self._packed = pack(self._frames["trace"])
        if self._cached and not self._kept:
            self._packed, self._kept = self._packed.cache(), True
        frame = unpack(self._packed, name)
        if name == "traced":
            return frame
        from pyspark.sql import functions as f

        run = self.view("run").select("run_id", "scenario", "parameters")
        return frame.join(f.broadcast(run), "run_id")

    def counted(self, name: str, table: str = "") -> DataFrame:
        """Return the rows of a view that a table counts: all, or those since a time."""
        frame = self.view(name)
        condition = self._queries.counts(table, name)
        return frame if condition is None else frame.where(condition)

    def table(self, name: str) -> DataFrame:
        """Return the table of this name, over the counted rows."""
        return self._query(name, lambda view: self.counted(view, name))

    def _query(self, name: str, view: Callable[[str], DataFrame]) -> DataFrame:
        with _named({each: view(each) for each in self._queries.views(name)}) as named:
            return self._spark.sql(self._queries.text(name, named.__getitem__))

    def release(self) -> None:
        """Drop all cached views."""
        with contextlib.suppress(
            Exception
        ):  # a JVM that has ended caches nothing; the caller raises the reason
            for name in _CACHED & self._frames.keys():
                self._frames[name].unpersist()
            if self._kept and self._packed is not None:
                self._packed.unpersist()


@contextlib.contextmanager
def _named(frames: Mapping[str, DataFrame]) -> Iterator[dict[str, str]]:
    """Yield names under which SQL finds these frames while a query is parsed.

    If Spark itself makes the names (`spark.sql(text, name=frame)`), it uncaches a frame when it forgets its
    name. `dropTempView` does so as well; the SQL statement does not.
    """
    names = {name: f"{name}_{uuid.uuid4().hex}" for name in frames}
    for name, frame in frames.items():
        frame.createOrReplaceTempView(names[name])
    try:
        yield names
    finally:
        for name, frame in frames.items():
            frame.sparkSession.sql(f"DROP VIEW {names[name]}")
