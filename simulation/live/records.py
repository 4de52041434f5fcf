"""Records of a topic as rows of a trace, in Spark: a topic that a trace was written to, or the group log.

Both go through JSON documents, so that only one place knows the format of a row. Rows have `at`, the time of
their record. A record that is not a row has only `skipped`, the reason.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.coordinator.protocol.ids import TopicId
from fencepost.coordinator.protocol.topics import OFFSETS_TOPIC
from fencepost.simulation.brokers.blocking import ask_topics
from fencepost.simulation.brokers.security import OPEN, ClientSecurity
from fencepost.simulation.trace.documents import NO_DOCUMENT, TracedRow, decode, encode
from fencepost.simulation.trace.parquet import SCHEMA, record_batch
from fencepost.simulation.trace.schema import COLUMNS, LOG_WORLD, TRACE_DDL, Row

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.state import GroupState

GROUP_LOG: Final = OFFSETS_TOPIC
"""Kafka's own topic of group records, which is not a trace."""
AT: Final = pa.field("at", pa.timestamp("us", "UTC"))
SKIPPED: Final = pa.field("skipped", pa.string())
GONE: Final = "start again with another --out"
"""Advice if records were deleted before they were read."""
UNREADABLE: Final = "no record of a group that is known here"

_BLANK: Final = Row._make(column.type.blank for name, column in COLUMNS.items() if name != "run_id")


def rows_of(source: DataFrame, servers: str, topic: str, security: ClientSecurity = OPEN) -> DataFrame:
    """Return the rows in the records of a streaming source: columns of a trace, then `at` and `skipped`."""
    documents, otherwise = source, NO_DOCUMENT
    if topic == GROUP_LOG:
        documents, otherwise = group_documents(source, servers, security), UNREADABLE
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


_ASKED_AGAIN_S: Final = 5.0


def group_documents(source: DataFrame, servers: str, security: ClientSecurity) -> DataFrame:
    """Return the documents of each group's records in `value`, empty ones for unreadable records."""
    from pyspark.sql import functions as f
    from pyspark.sql.streaming.state import GroupStateTimeout

    # A key has two bytes for its type, two for the length of the group's id, and that id.
    group = f.expr("substring(key, 5, cast(conv(hex(substring(key, 3, 2)), 16, 10) AS int))")
    return (
        source.withColumn("group_id", f.coalesce(group, f.lit(b"")))
        .groupBy("group_id")
        .applyInPandasWithState(
            _GroupDocuments(servers, security),
            "value binary, timestamp timestamp",
            "kept binary",
            "append",
            GroupStateTimeout.NoTimeout,
        )
    )


class _GroupDocuments:
    """Turns the records of one group that came with a batch into documents, in the order of the log."""

    def __init__(self, servers: str, security: ClientSecurity) -> None:
        self._servers = servers
        self._security = security

    def __call__(
        self, key: tuple[bytes], parts: Iterator[pd.DataFrame], state: GroupState
    ) -> Iterator[pd.DataFrame]:
        import pandas as pd

        from fencepost.simulation.live.group_log import (  # only these workers need it
            GroupLog,
            LogRecord,
        )

        records = pd.concat(list(parts)).sort_values("offset")
        group_id = bytes(key[0]).decode(errors="replace")
        names = _names(self._servers, self._security)
        log = GroupLog(group_id, names.of, bytes(state.get[0]) if state.exists else None)
        columns = (records[name] for name in ("timestamp", "key", "value"))
        rows = log.take(
            LogRecord(moment.value // 1_000_000, _bytes(key), _bytes(value))
            for moment, key, value in zip(*columns, strict=True)
        )
        state.update((log.keep(),))
        moments = [pd.Timestamp(log.began_ms * 1_000 + row.t_us, unit="us") for row in rows]
        yield pd.DataFrame(
            {
                "value": [encode(f"{LOG_WORLD}/{group_id}", row) for row in rows] + [b""] * log.unreadable,
                "timestamp": moments + [records["timestamp"].iloc[0]] * log.unreadable,
            }
        )


def _bytes(value: bytes | None) -> bytes | None:
    """Return bytes from a column of pandas, which has bytearrays, or nan for a missing value."""
    return bytes(value) if isinstance(value, bytes | bytearray | memoryview) else None


class _Names:
    """Topics' names by id. An unknown id causes a new request to the cluster, but not too often."""

    def __init__(self, servers: str, security: ClientSecurity) -> None:
        self._servers = servers
        self._security = security
        self._known: dict[TopicId, str] = {}
        self._asked_s = -_ASKED_AGAIN_S

    def of(self, topic_id: TopicId) -> str:
        """Return the name, or the id itself if the topic was deleted."""
        if topic_id not in self._known and time.monotonic() - self._asked_s >= _ASKED_AGAIN_S:
            with contextlib.suppress(FencepostError):  # rows without names are better than none
                topics = ask_topics(self._servers, "--kafka", self._security)
                self._known.update({known.topic_id: name for name, known in topics.items() if known.topic_id})
            self._asked_s = time.monotonic()
        return self._known.get(topic_id, topic_id)


_names = functools.cache(_Names)
"""One object for each worker process."""
