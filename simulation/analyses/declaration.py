"""What an analysis is declared as: its name, its columns with their units, and what it is made of."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType

    from fencepost.simulation.analyses.views import Views


class Unit(enum.StrEnum):
    """What a column holds; it decides the type, and how the value is shown."""

    TEXT = "text"
    PARAMETERS = "parameters"
    """JSON of the parameters by name, all of them texts."""
    RUN = "run"
    """A run's id."""
    COUNT = "count"
    """A whole number of things."""
    NUMBER = "number"
    """Of things as well, but not whole: a mean."""
    SECONDS = "seconds"
    BYTES = "bytes"
    RATIO = "ratio"
    SHARE = "share"
    """A part of all, from 0 to 1."""
    MEASURED = "measured"
    """A number in the unit of the row's measure."""
    CURVE = "curve"
    """The percentiles 0 to 100, in seconds; for drawing."""

    @property
    def spark_type(self) -> DataType:
        """The type of such a column in Spark."""
        from pyspark.sql.types import ArrayType, DoubleType, LongType, StringType

        if self in (Unit.TEXT, Unit.PARAMETERS, Unit.RUN):
            return StringType()
        if self is Unit.COUNT:
            return LongType()
        return ArrayType(DoubleType()) if self is Unit.CURVE else DoubleType()


class Column(msgspec.Struct, frozen=True):
    """A column of a table."""

    name: str
    unit: Unit
    text: str
    """A sentence for people: what it holds, and when it is null."""
    title: str = ""
    """What heads it; its name where that is plain."""

    @property
    def heading(self) -> str:
        """What heads it, for people."""
        return self.title or self.name.replace("_", " ")


CELL = (
    Column("scenario", Unit.TEXT, "The scenario's name."),
    Column("parameters", Unit.PARAMETERS, "The parameters that its runs share, as JSON."),
)
"""The columns that begin every table but those of single runs."""


def quantiles(unit: Unit, of: str = "", but: str = "") -> tuple[Column, ...]:
    """The columns of a distribution, without how many there are.

    `of` is what is measured, where a table has several distributions; `but` is when the columns are null.
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
    """The columns of a distribution. `what` is a noun phrase, such as `rebalances that ended`."""
    return Column("count", Unit.COUNT, f"Number of {what}."), *quantiles(unit)


class Declared(msgspec.Struct, frozen=True, kw_only=True):
    """A table: what it is called, and what its columns hold."""

    name: str
    title: str
    summary: str
    """What the table tells, in a sentence or two."""
    columns: tuple[Column, ...]

    @property
    def schema(self) -> StructType:
        """The table's columns, as Spark has them; all may be null."""
        from pyspark.sql.types import StructField, StructType

        return StructType(
            [
                StructField(each.name, each.unit.spark_type, metadata={"comment": each.text})
                for each in self.columns
            ]
        )


class Analysis(Declared, frozen=True, kw_only=True):
    """A table over traces. Call it with rows of a trace to get the table, as a function of a DataFrame."""

    def __call__(self, trace: DataFrame, summaries: DataFrame | None = None) -> DataFrame:
        """The table over these rows.

        `summaries` are a campaign's runs: with them, runs differ by their parameters as well, and
        only runs that have one are looked at. Nothing is computed before the answer is asked for its rows.
        """
        from fencepost.simulation.analyses.views import Views

        return self.over(Views(trace, summaries))

    def over(self, views: Views) -> DataFrame:
        """The table over views that other analyses use as well: what is cached there is computed once."""
        return views.table(self.name)
