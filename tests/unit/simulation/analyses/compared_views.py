"""Compares the views of a run with what plain Python finds in the same rows, whatever world they are from."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from fencepost.simulation.analyses.run_pass import rows_of_task, take_rows
from fencepost.simulation.analyses.run_views import RUN_VIEWS, RunViews
from fencepost.simulation.trace.parquet import ArrowTrace
from fencepost.simulation.trace.schema import Row
from tests.unit.simulation.analyses import plain_views
from tests.unit.simulation.analyses.plain_arithmetic import (
    Told,
    downtime,
    first_waits,
    gaps,
    shares,
    told_by,
    two_owners,
)


def table_of(rows: Iterable[Row]) -> pa.Table:
    """The rows of one run as a file of traces has them."""
    trace = ArrowTrace("run")
    trace.write(list(rows))
    return pa.Table.from_batches(trace.batches)


def compare_views(
    table: pa.Table, rows: list[dict[str, Any]] | None = None, told: Told | None = None
) -> dict[str, int]:
    """Assert that both find the same in the rows of one run; return the number of rows by view.

    `rows` are those of the table, and `told` is what they tell, if that is known.
    """
    rows = table.to_pylist() if rows is None else rows
    told = told_by(rows) if told is None else told
    with rows_of_task() as connection:
        take_rows(connection, table.to_reader())
        views = RunViews(connection)
        found = {view: views.view(view) for view in RUN_VIEWS}
    spans = (
        "group",
        "begin_us",
        "end_us",
        "settled",
        "cause",
        "epochs",
        "heartbeats",
        "bytes",
        "begin_seq",
        "forms",
    )
    assert rows_of(found["rebalance"], *spans) == Counter(plain_views.rebalances(rows))
    moves = ("group", "begin_us", "moved", "first", "least")
    assert rows_of(found["move"], *moves) == Counter(plain_views.moves(rows, told))
    recoveries = ("topic", "partition", "from_us", "lag", "caught_up_us", "again")
    assert rows_of(found["recovery"], *recoveries) == Counter(plain_views.recoveries(rows, told))
    assert rows_of(found["stay"], "state", "visits", "us", "max_us") == Counter(plain_views.stays(rows, told))
    transitions = ("machine", "state_from", "state_to", "stayed_us")
    assert rows_of(found["transition"], *transitions) == Counter(plain_views.transitions(rows, told))
    (formed,) = found["formation"]["seconds"].to_pylist()
    assert in_us(formed) == plain_views.formation(rows)
    fencings = Counter((each.cause, each.at, each.stable_at) for each in told.fencings)
    assert rows_of(found["fencing"], "name", "fenced_us", "stable_us") == fencings
    _compare_owners(found, told)
    return {view: len(each) for view, each in found.items()}


def _compare_owners(found: dict[str, pa.Table], told: Told) -> None:
    handovers = found["handover"].to_pylist()
    apart: dict[str, list[int]] = defaultdict(list)
    for each in handovers:
        if each["apart"]:
            apart[each["cause"].replace(" again", "")].append(each["gap_us"])
    expected = {cause: sorted(times) for cause, times in downtime(told).items()}
    assert {cause: sorted(times) for cause, times in apart.items()} == expected
    assert sorted(each["gap_us"] for each in handovers if each["first"]) == sorted(first_waits(told))
    assert sorted(found["sharing"]["shared_us"].to_pylist()) == sorted(two_owners(told))
    owning = {
        (each["as_seen_by"], each["owners"]): each["us"] for each in found["owning"].to_pylist() if each["us"]
    }
    assert owning == {
        (eyes, owners): us
        for eyes, spans in _spans(told).items()
        for owners, us in shares(spans, told.end).items()
        if us
    }
    read = {
        "coordinator": [
            (part, begin, until) for part, begin, until, sac, reads in told.coordinator if sac and reads
        ],
        "members": [(each.partition, each.begin, each.reads_until) for each in told.tenures if told.sac],
    }
    for eyes, spans in read.items():
        stretches = [each for each in found["sac_gap"].to_pylist() if each["as_seen_by"] == eyes]
        for its, last in zip(gaps(spans, told.end), (False, True), strict=True):
            lengths = [each["until_us"] - each["from_us"] for each in stretches if each["last"] is last]
            assert sorted(lengths) == sorted(its)


def _spans(told: Told) -> dict[str, list[tuple[tuple[str, int], int, int]]]:
    return {
        "coordinator": [(part, begin, until) for part, begin, until, _, _ in told.coordinator],
        "members": [(each.partition, each.begin, each.holds_until) for each in told.tenures],
        "all members": [(each.partition, each.begin, each.believes_until) for each in told.tenures],
    }


def rows_of(table: pa.Table, *names: str) -> Counter[tuple[Any, ...]]:
    """The rows of these columns, and how often each is there."""
    return Counter(zip(*(table[name].to_pylist() for name in names), strict=True))


def in_us(seconds: float | None) -> int | None:
    """Microseconds of seconds."""
    return None if seconds is None else round(seconds * 1e6)
