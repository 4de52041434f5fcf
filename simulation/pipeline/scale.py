"""How Spark is set for traces of a size: what is fast for millions of rows is slow for a few thousand."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SMALL_ROWS: Final = 300_000
"""Up to here it takes longer to compile a query than to interpret it."""

ROWS_A_PARTITION: Final = 1_500_000
"""Rows that one task sorts, give or take. With two at a time they fit into the 2 GB of a local session."""

_SMALL: Final = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
}


def settings(rows: int) -> Mapping[str, str]:
    """The settings of a session for so many rows of traces."""
    if rows <= SMALL_ROWS:
        return _SMALL
    return {"spark.sql.shuffle.partitions": str(max(4, -(-rows // ROWS_A_PARTITION)))}


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
        for name, earlier in before.items():
            if earlier is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, earlier)
