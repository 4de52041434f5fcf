"""The values in the traces of both worlds: each rebalance and time without an owner, and when it began."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fencepost.member.streams.thread_states import StreamThreadState
from fencepost.simulation.analyses.views import Views
from fencepost.simulation.lab.fidelity.verdicts import TimedValue
from fencepost.simulation.pipeline.jobs import session_settings, settings_for
from fencepost.simulation.pipeline.session import is_local, spark_session
from fencepost.simulation.pipeline.traces import find_traces
from fencepost.simulation.trace.schema import TRACE_DDL

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_QUERIES: Final = {
    "rebalances": ("rebalance", "settled = 'Stable' AND NOT forms", "begin_us", "seconds"),
    "downtime": ("handover", "apart", "from_us - gap_us", "gap_us / 1e6"),
}
"""By figure: a view, the part of it that counts, when each value began, and how long it lasted."""

_AWAY: Final = frozenset({StreamThreadState.PARTITIONS_REVOKED, StreamThreadState.PARTITIONS_ASSIGNED})


def read_samples(out: Path, master: str) -> dict[str, list[TimedValue]]:
    """Return the values by figure, of all runs whose traces are in the folder.

    :raises FencepostError: if there is no trace.
    :raises EnvironmentLacks: if Spark cannot run here.
    """
    files = find_traces(out)
    settings = session_settings(files.rows) if is_local(master) else {}
    with spark_session(master, settings) as spark, settings_for(spark, files.rows):
        trace = spark.read.schema(TRACE_DDL).parquet(*files.traces)
        views = Views(trace, cached=True)
        try:
            found = {
                name: list(_values(views.view(view), *terms)) for name, (view, *terms) in _QUERIES.items()
            }
            found["rebalances"] += _away(trace)
            return found
        finally:
            views.release()


def _away(trace: DataFrame) -> Iterator[TimedValue]:
    """Yield the times for which threads of Streams clients were out of RUNNING for a rebalance.

    No trace shows what their coordinators do.
    """
    rows = trace.where("kind IN ('thread.state', 'host')").select(
        "run_id", "actor", "state_to", "t_us", "kind"
    )
    since: dict[tuple[str, str], int] = {}
    for run, actor, state, t_us, kind in rows.orderBy("run_id", "seq").collect():
        if kind == "host":
            for key in [each for each in since if each[0] == run and each[1].startswith(f"{actor}-")]:
                del since[key]  # its threads are those of another process from now on
        elif state in _AWAY:
            since.setdefault((run, actor), t_us)
        elif (begun := since.pop((run, actor), None)) is not None and state == StreamThreadState.RUNNING:
            yield TimedValue(run, begun, (t_us - begun) / 1e6)


def _values(frame: DataFrame, counts: str, begin: str, seconds: str) -> Iterator[TimedValue]:
    chosen = frame.where(counts).selectExpr(
        "run_id", f"CAST({begin} AS BIGINT)", f"CAST({seconds} AS DOUBLE)"
    )
    for row in chosen.orderBy("run_id", chosen.columns[1]).collect():
        yield TimedValue(*row)
