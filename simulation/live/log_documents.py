"""The group log as documents of a trace, in Spark, which keeps what is known of groups between batches."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.coordinator.protocol.ids import TopicId
from fencepost.simulation.brokers.blocking import ask_topics
from fencepost.simulation.brokers.security import ClientSecurity
from fencepost.simulation.live.group_log import WORLD, GroupLog, LogRecord
from fencepost.simulation.trace.documents import encode

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.state import GroupState

_ASKED_AGAIN_S: Final = 5.0


def told_by_groups(source: DataFrame, servers: str, security: ClientSecurity) -> DataFrame:
    """What each group's records tell: documents in `value`, empty ones for what is unreadable."""
    from pyspark.sql import functions as f
    from pyspark.sql.streaming.state import GroupStateTimeout

    # A key is two bytes of its type, two of the length of the group's id, and that id.
    group = f.expr("substring(key, 5, cast(conv(hex(substring(key, 3, 2)), 16, 10) AS int))")
    return (
        source.withColumn("group_id", f.coalesce(group, f.lit(b"")))
        .groupBy("group_id")
        .applyInPandasWithState(
            _Telling(servers, security),
            "value binary, timestamp timestamp",
            "kept binary",
            "append",
            GroupStateTimeout.NoTimeout,
        )
    )


class _Telling:
    """Tells the records of one group that came with a batch, in the order of the log."""

    def __init__(self, servers: str, security: ClientSecurity) -> None:
        self._servers = servers
        self._security = security

    def __call__(
        self, key: tuple[bytes], parts: Iterator[pd.DataFrame], state: GroupState
    ) -> Iterator[pd.DataFrame]:
        import pandas as pd

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
                "value": [encode(f"{WORLD}/{group_id}", row) for row in rows] + [b""] * log.unreadable,
                "timestamp": moments + [records["timestamp"].iloc[0]] * log.unreadable,
            }
        )


def _bytes(value: bytes | None) -> bytes | None:
    """Columns of pandas have bytearrays, or nan where there is nothing."""
    return bytes(value) if isinstance(value, bytes | bytearray | memoryview) else None


class _Names:
    """Topics' names by id, asked of the cluster again when one is not known, but not all the time."""

    def __init__(self, servers: str, security: ClientSecurity) -> None:
        self._servers = servers
        self._security = security
        self._known: dict[TopicId, str] = {}
        self._asked_s = -_ASKED_AGAIN_S

    def of(self, topic_id: TopicId) -> str:
        """The name; the id itself where the topic is gone."""
        if topic_id not in self._known and time.monotonic() - self._asked_s >= _ASKED_AGAIN_S:
            with contextlib.suppress(FencepostError):  # rows without names are better than none
                topics = ask_topics(self._servers, "--kafka", self._security)
                self._known.update({known.topic_id: name for name, known in topics.items() if known.topic_id})
            self._asked_s = time.monotonic()
        return self._known.get(topic_id, topic_id)


_names = functools.cache(_Names)
"""One for a worker's process."""
