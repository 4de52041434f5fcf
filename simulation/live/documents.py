"""Records of a topic as rows of a trace, in Spark: a topic that a trace was written to, or the group log.

Both ways lead over JSON documents, so there is one place that knows what a row is. Rows come with `at`, the
time of their record; what is no row has in `skipped` why, and nothing else.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from fencepost.simulation.trace.documents import NO_DOCUMENT, TracedRow, decode
from fencepost.simulation.trace.parquet import SCHEMA, record_batch
from fencepost.simulation.trace.schema import COLUMNS, TRACE_DDL, Row
from fencepost.simulation.trace.security import OPEN, ClientSecurity

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

GROUP_LOG: Final = "__consumer_offsets"
"""The topic that is no trace, but Kafka's own."""
AT: Final = pa.field("at", pa.timestamp("us", "UTC"))
SKIPPED: Final = pa.field("skipped", pa.string())
GONE: Final = "begin anew in another --out"
"""What there is to do when records were deleted before they were read."""
UNREADABLE: Final = "no record of a group that is known here"

_BLANK: Final = Row._make(column.type.blank for name, column in COLUMNS.items() if name != "run_id")


def rows_of(source: DataFrame, servers: str, topic: str, security: ClientSecurity = OPEN) -> DataFrame:
    """The rows in records of a streaming source: columns of a trace, then `at` and `skipped`."""
    documents, otherwise = source, NO_DOCUMENT
    if topic == GROUP_LOG:
        from fencepost.simulation.live.log_documents import told_by_groups  # workers need not know of it

        documents, otherwise = told_by_groups(source, servers, security), UNREADABLE
    decoded = functools.partial(_decoded, otherwise)
    return documents.select("value", "timestamp").mapInArrow(
        decoded, f"{TRACE_DDL}, at timestamp, skipped string"
    )


def _decoded(otherwise: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        found = [_or(decode(value), otherwise) for value in batch.column("value").to_pylist()]
        traced = [each if isinstance(each, TracedRow) else TracedRow("", _BLANK) for each in found]
        rows = record_batch([each.row for each in traced], [each.run_id for each in traced])
        skipped = pa.array([each if isinstance(each, str) else None for each in found], SKIPPED.type)
        yield pa.RecordBatch.from_arrays(
            [*rows.columns, batch.column("timestamp"), skipped], schema=SCHEMA.append(AT).append(SKIPPED)
        )


def _or(found: TracedRow | str, otherwise: str) -> TracedRow | str:
    return otherwise if found == NO_DOCUMENT else found
