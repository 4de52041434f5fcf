"""Views over the rows of traces: what several tables are made of, made when it is first asked for."""

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

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CURVE: Final = [point / 100 for point in range(101)]
"""A distribution is drawn from its percentiles 0, 1, … 100, however many values it has."""

_CACHED: Final = frozenset(
    {"run", "rebalance", "ownership", "handover", "occupancy", "incident", "escalation", "move"}
)
"""Views that are small beside the trace and used more than once."""


class Views:
    """Queries over one trace. Each is a file of SQL beside this one; `{NAME}` in it stands for another view.

    `files` has the `run_id` of runs that only their `file` distinguishes; it has that as JSON. `cached`
    keeps those that several tables use; `release` lets go of them. Several threads may ask.
    """

    def __init__(
        self,
        trace: DataFrame,
        summaries: DataFrame | None = None,
        *,
        files: DataFrame | None = None,
        cached: bool = False,
    ) -> None:
        self._cached = cached
        self._making = threading.RLock()
        self._frames: dict[str, DataFrame] = {"trace": trace}
        self._with_summaries = summaries is not None
        self._with_files = files is not None
        if summaries is not None:
            self._frames["summary"] = summaries
        if files is not None:
            self._frames["file"] = files

    def view(self, name: str) -> DataFrame:
        """A view by its name."""
        with self._making:
            if name not in self._frames:
                frame = self.query(name)
                self._frames[name] = frame.cache() if self._cached and name in _CACHED else frame
            return self._frames[name]

    def query(self, name: str) -> DataFrame:
        """What the query of this name answers."""
        text = _text(self._variant(name))
        names = {field for _, field, _, _ in string.Formatter().parse(text) if field}
        with _named({each: self.view(each) for each in names - _TEXTS.keys()}) as named:
            arguments = {"curve": CURVE} if ":curve" in text else None
            texts = {each: _TEXTS[each]() for each in names & _TEXTS.keys()}
            return self._frames["trace"].sparkSession.sql(text.format(**named, **texts), arguments)

    def _variant(self, name: str) -> str:
        if self._with_summaries and name in _OF_SUMMARIES:
            return f"{name}_of_summaries"
        return f"{name}_of_files" if self._with_files and name == "run" else name

    def release(self) -> None:
        """Drop what was cached."""
        with contextlib.suppress(
            Exception
        ):  # a JVM that has ended keeps nothing; the caller raises the reason
            for name in _CACHED & self._frames.keys():
                self._frames[name].unpersist()


_TEXTS: Final[Mapping[str, Callable[[], str]]] = {
    "active_like": lambda: _ACTIVE_LIKE,
    "situation_counts": situations.counts,
    "situation_rows": situations.stacked,
    "situation_invariants": situations.tested,
}
"""What else a query may name in braces."""

_ACTIVE_LIKE: Final = "('CONNECTED_ACTIVE', 'CONNECTED_DEACTIVATING', 'DISCONNECTED_ACTIVE')"
"""As which the coordinator counts a single active consumer that has its stream, or may have it."""

_OF_SUMMARIES: Final = frozenset({"mutants", "run", "runs"})
"""Views that are another query where a campaign left summaries."""


@functools.cache
def _text(name: str) -> str:
    return resources.files(__package__).joinpath("sql", f"{name}.sql").read_text(encoding="utf-8")


@contextlib.contextmanager
def _named(frames: Mapping[str, DataFrame]) -> Iterator[dict[str, str]]:
    """Names under which SQL finds these frames, for as long as a query is read.

    Names that Spark makes and forgets by itself (`spark.sql(text, name=frame)`) take a frame out of the cache
    when they are forgotten; so does `dropTempView`, and the statement does not.
    """
    names = {name: f"{name}_{uuid.uuid4().hex}" for name in frames}
    for name, frame in frames.items():
        frame.createOrReplaceTempView(names[name])
    try:
        yield names
    finally:
        for name, frame in frames.items():
            frame.sparkSession.sql(f"DROP VIEW {names[name]}")
