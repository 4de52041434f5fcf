"""How Spark is set for traces of a size: what is fast for millions of rows is slow for a few thousand."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SMALL_ROWS: Final = 300_000
"""Up to here it takes longer to compile a query than to interpret it."""

COMPILED_ROWS: Final = 2_000_000
"""From here on the JVM's second compiler earns its keep."""

ROWS_A_PARTITION: Final = 1_500_000
"""Rows that one task sorts, give or take. With two at a time they fit into the 2 GB of a local session."""

_SMALL: Final = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
}
_LARGE: Final = {
    # Percentiles of a few hundred groups are no reason to sort all rows.
    "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "100000",
}


def settings(rows: int) -> Mapping[str, str]:
    """The settings of a session for so many rows of traces."""
    if rows <= SMALL_ROWS:
        return _SMALL
    partitions = max(4, -(-rows // ROWS_A_PARTITION))
    return _LARGE | {"spark.sql.shuffle.partitions": str(partitions)}


def session_settings(rows: int) -> Mapping[str, str]:
    """The settings that a local session starts with for so many rows, in place of those for short jobs."""
    if rows <= COMPILED_ROWS:
        return {}
    return {"spark.driver.extraJavaOptions": "-XX:+UseParallelGC -XX:-UsePerfData"}


@contextlib.contextmanager
def settings_for(spark: SparkSession, rows: int) -> Iterator[None]:
    """These settings for a while; the session has its own again afterwards."""
    wanted = settings(rows)
    before = {name: spark.conf.get(name, None) for name in wanted}
    for name, value in wanted.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        with contextlib.suppress(Exception):  # a JVM that has ended has no settings; why it did is told
            for name, earlier in before.items():
                if earlier is None:
                    spark.conf.unset(name)
                else:
                    spark.conf.set(name, earlier)
