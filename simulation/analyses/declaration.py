"""The declaration of an analysis: its name, its columns with their units, and the views that it is computed
from."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType

    from fencepost.simulation.analyses.views import Views


class Unit(enum.StrEnum):
    """The unit of a column; it decides the column's type and how its values are shown."""

    TEXT = "text"
    PARAMETERS = "parameters"
    """The parameters by name as JSON; all values are texts."""
    RUN = "run"
    """A run's id."""
    COUNT = "count"
    """A whole number of things."""
    NUMBER = "number"
    """A number of things that need not be whole, such as a mean."""
    SECONDS = "seconds"
    BYTES = "bytes"
    RATIO = "ratio"
    SHARE = "share"
    """A part of all, from 0 to 1."""
    MEASURED = "measured"
    """A number in the unit of the row's measure."""
    CURVE = "curve"
    """The percentiles 0 to 100, in seconds, for charts."""

    @property
    def spark_type(self) -> DataType:
        """The Spark type of such a column."""
        from pyspark.sql.types import ArrayType, DoubleType, LongType, StringType

        if self in (Unit.TEXT, Unit.PARAMETERS, Unit.RUN):
            return StringType()
        if self is Unit.COUNT:
            return LongType()
        return ArrayType(DoubleType()) if self is Unit.CURVE else DoubleType()

    def typed(self, found: Any) -> Any:
        """Return a value that was computed in this process, in the type of such a column."""
        if found is None or self in (Unit.TEXT, Unit.PARAMETERS, Unit.RUN):
            return found
        if self is Unit.CURVE:
            return [float(each) for each in found]
        return int(found) if self is Unit.COUNT else float(found)


class Column(msgspec.Struct, frozen=True):
    """A column of a table."""

    name: str
    unit: Unit
    text: str
    """The meaning of the column in a sentence for people, including when it is null."""
    title: str = ""
    """The heading of the column; empty if the name alone is clear."""

    @property
    def heading(self) -> str:
        """The heading of the column for people."""
        return self.title or self.name.replace("_", " ")


CELL = (
    Column("scenario", Unit.TEXT, "The scenario's name."),
    Column("parameters", Unit.PARAMETERS, "The parameters that its runs share, as JSON."),
)
"""The first columns of every table except those of single runs."""


def quantiles(unit: Unit, of: str = "", but: str = "") -> tuple[Column, ...]:
    """Return the columns of a distribution, without the count.

    `of` names the measure if a table has several distributions; `but` says when the columns are null.
    """
    prefix, head = (f"{of}_", f"{of} ") if of else ("", "")
    most = "longest" if unit is Unit.SECONDS else "most"
    when = f"; {but}" if but else ""
    return (
        Column(f"{prefix}median", unit, f"The median{when}."),
        Column(f"{prefix}p90", unit, "The 90th percentile.", f"{head}90 %"),
        Column(f"{prefix}p99", unit, "The 99th percentile.", f"{head}99 %"),
        Column(f"{prefix}max", unit, "The largest.", f"{of}, {most}" if of else most),
    )


def spread(unit: Unit, what: str) -> tuple[Column, ...]:
    """Return the columns of a distribution. `what` is a noun phrase, such as `rebalances that ended`."""
    return Column("count", Unit.COUNT, f"Number of {what}."), *quantiles(unit)


class Declared(msgspec.Struct, frozen=True, kw_only=True):
    """A table with its name and its columns."""

    name: str
    title: str
    summary: str
    """The content of the table, in a sentence or two."""
    columns: tuple[Column, ...]

    @property
    def schema(self) -> StructType:
        """Return the table's columns as a Spark schema; all may be null."""
        from pyspark.sql.types import StructField, StructType

        return StructType(
            [
                StructField(each.name, each.unit.spark_type, metadata={"comment": each.text})
                for each in self.columns
            ]
        )


class Analysis(Declared, frozen=True, kw_only=True):
    """A table over traces. Call it with rows of a trace, as a DataFrame, to get the table."""

    def __call__(self, trace: DataFrame, summaries: DataFrame | None = None) -> DataFrame:
        """Return the table over these rows.

        `summaries` are a campaign's runs: with them, runs also differ by their parameters, and only runs with
        a summary count. Nothing is computed before the rows of the result are read.
        """
        from fencepost.simulation.analyses.views import Views

        return self.over(Views(trace, summaries))

    def over(self, views: Views) -> DataFrame:
        """Return the table over views that other analyses share: cached views are computed once."""
        return views.table(self.name)


def analysis(name: str, title: str, summary: str, *columns: Column) -> Analysis:
    """Return an analysis of runs with the same scenario and parameters: its columns begin with `CELL`."""
    return Analysis(name=name, title=title, summary=summary, columns=(*CELL, *columns))
