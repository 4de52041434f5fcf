"""Views over the rows of traces, shared by several tables and computed on first use.

Views of single runs come from one pass over the rows (`run_pass`); the views here combine runs.
"""

from __future__ import annotations

import contextlib
import functools
import string
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from importlib import resources
from typing import TYPE_CHECKING, Final

from fencepost.simulation.analyses import situations
from fencepost.simulation.analyses.run_pass import pack, unpack, unpacked
from fencepost.simulation.analyses.run_views import RUN_VIEWS, ddl_of_view

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

CURVE: Final = [point / 100 for point in range(101)]
"""The shares at which a distribution is drawn: its percentiles 0, 1, … 100, for any number of values."""

_CACHED: Final = frozenset({"run", "traced", "rebalance", "handover", "incident", "escalation", "move"})
"""Views that are used more than once."""


_BEGINS: Final[Mapping[str, str]] = {
    "rebalance": "begin_us",
    "handover": "from_us",
    "move": "begin_us",
    "recovery": "from_us",
}
"""By view, the column with the begin of a row's event, for tables that count from a given time."""

_OF_WHOLE_RUNS: Final = frozenset({"initial_assignment", "two_owners"})
"""Tables that always count everything: they are about the time before an event, or about violations."""


class Views:
    """Queries over one trace. Each is a file of SQL next to this one; `{NAME}` in it stands for another view.

    `files` has the `run_id` of runs that only their `file` (as JSON) distinguishes. `cached` caches views
    that several tables use, until `release`. Several threads may call it. `packed` has the views of single
    runs, if they are computed already; `few` says that they fit into the driver's memory.

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
        few: bool = False,
    ) -> None:
        self._spark = trace.sparkSession
        self._packed = packed
        self._few = few
        self._kept = False
        self._here: pa.Table | None = None
        self._cached = cached
        self._since_us = since_us
        self._making = threading.RLock()
        self._frames: dict[str, DataFrame] = {"trace": trace}
        self._with_summaries = summaries is not None
        self._with_files = files is not None
        if summaries is not None:
            self._frames["summary"] = summaries
        if files is not None:
            self._frames["file"] = files

    def view(self, name: str) -> DataFrame:
        """Return a view by its name."""
        with self._making:
            if name not in self._frames:
                frame = self._of_runs(name) if name in RUN_VIEWS else self._query(name, self.view)
                keep = self._cached and not self._few and name in _CACHED
                self._frames[name] = frame.cache() if keep else frame
            return self._frames[name]

    def _of_runs(self, name: str) -> DataFrame:
        """Return a view of single runs, with the scenario and the parameters of each (except for
        `traced`)."""
        if self._packed is None:
            self._packed = pack(self._frames["trace"])
        if self._cached and not self._few and not self._kept:
            self._packed, self._kept = self._packed.cache(), True
        frame = self._rows_here(name) if self._few else unpack(self._packed, name)
        if name == "traced":
            return frame
        from pyspark.sql import functions as f

        run = self.view("run").select("run_id", "scenario", "parameters")
        return frame.join(f.broadcast(run), "run_id")

    def _rows_here(self, name: str) -> DataFrame:
        if self._here is None:
            assert self._packed is not None
            self._here = self._packed.toArrow()
        rows = unpacked(self._here, name)
        if rows is None:
            return self._spark.createDataFrame([], ddl_of_view(name))
        frame: DataFrame = self._spark.createDataFrame(rows, ddl_of_view(name))
        return frame

    def counted(self, name: str) -> DataFrame:
        """Return the rows of a view that tables count: all, or those since a time."""
        frame = self.view(name)
        if self._since_us and name in _BEGINS:
            return frame.where(f"{_BEGINS[name]} >= {self._since_us}")
        return frame

    def table(self, name: str) -> DataFrame:
        """Return the table of this name, over the counted rows."""
        return self._query(name, self.view if name in _OF_WHOLE_RUNS else self.counted)

    def _query(self, name: str, view: Callable[[str], DataFrame]) -> DataFrame:
        text = _text(self._variant(name))
        names = {field for _, field, _, _ in string.Formatter().parse(text) if field}
        with _named({each: view(each) for each in names - _TEXTS.keys()}) as named:
            arguments = {"curve": CURVE} if ":curve" in text else None
            texts = {each: _TEXTS[each]() for each in names & _TEXTS.keys()}
            return self._frames["trace"].sparkSession.sql(text.format(**named, **texts), arguments)

    def _variant(self, name: str) -> str:
        if self._with_summaries and name in _OF_SUMMARIES:
            return f"{name}_of_summaries"
        return f"{name}_of_files" if self._with_files and name == "run" else name

    def release(self) -> None:
        """Drop all cached views."""
        with contextlib.suppress(
            Exception
        ):  # a JVM that has ended caches nothing; the caller raises the reason
            for name in _CACHED & self._frames.keys():
                self._frames[name].unpersist()
            if self._kept and self._packed is not None:
                self._packed.unpersist()


_TEXTS: Final[Mapping[str, Callable[[], str]]] = {"situation_invariants": situations.tested}
"""Texts that a query may name in braces, in addition to views."""

_OF_SUMMARIES: Final = frozenset({"mutants", "run", "runs"})
"""Views with a different query if a campaign wrote summaries."""


@functools.cache
def _text(name: str) -> str:
    return resources.files(__package__).joinpath("sql", f"{name}.sql").read_text(encoding="utf-8")


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
