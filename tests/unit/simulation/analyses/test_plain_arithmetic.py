"""Every scenario of the library: the analyses, plain arithmetic on the same rows, and the judges agree."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fencepost.simulation.analyses.catalogue import ANALYSES
from fencepost.simulation.mutants.registry import with_mutant
from fencepost.simulation.pipeline.analyze import Tables, analyze
from fencepost.simulation.run import RunResult, run
from fencepost.simulation.scenarios.load import library_names, load_any
from fencepost.simulation.trace.parquet import ParquetTrace
from tests.unit.simulation.analyses.compared_views import compare_views
from tests.unit.simulation.analyses.plain_arithmetic import (
    Told,
    downtime,
    first_waits,
    told_by,
    two_owners,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.real,
    pytest.mark.timeout(400),
    # Libraries of Spark's own warn of each other's; our code runs in the tests beside this one.
    pytest.mark.filterwarnings("default"),
]

SEEDS = (3, 5)
STAYS_AWAY = "classic-static-members"
"""A static member that freezes stays in its group. A round without it may give its partition to another one.

That is how Kafka has it, so no judge objects, and no record says that the member has lost the partition.
"""
BUGS = {
    "owner-by-epoch": "scale-up-and-down",
    "target-told-early": "scale-up-and-down",
    "null-releases": "scale-up-and-down",
    "cooperative-gives-at-once": "classic-rolling-deploy",
    "upgraded-with-nothing": "rolling-migration",
    "sac-no-handover": "sac-churn",
    "sac-disconnected-ignored": "sac-node-failures",
}
"""Bugs that give a partition to two members, and a scenario that shows it: the judges report them, and the
analyses must as well, in the same runs."""
DEMOTED = "sac-disconnected-ignored-3"
"""With two active consumers, this coordinator turns one into a waiting one as its connection ends, which
RabbitMQ never does. The table takes that for its window `demoted`, the judges for what it is."""
EXCLUSIVE = ("one-claimant", "sac-exclusive")


class Ran(NamedTuple):
    """Runs of one name, and what their traces tell."""

    results: list[RunResult]
    told: list[Told]


class Library(NamedTuple):
    """All of them, and the tables over their traces."""

    runs: dict[str, Ran]
    views: dict[str, str]
    """Names, and what the views of a run have that plain Python does not find; "" if nothing differs."""
    tables: dict[str, dict[str, list[dict[str, Any]]]]
    """By table and scenario."""
    on_spark: Tables
    here: Tables

    def rows(self, table: str, name: str) -> list[dict[str, Any]]:
        return self.tables[table].get(name, [])


@pytest.fixture(scope="module")
def library(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Library:
    folder = tmp_path_factory.mktemp("library")
    runs: dict[str, Ran] = defaultdict(lambda: Ran([], []))
    plans = [
        (name, name, "", seed)
        for number, name in enumerate(library_names())
        for seed in (SEEDS if number % 3 == 0 or name == STAYS_AWAY else SEEDS[:1])
    ]
    plans += [(f"{bug}-{seed}", name, bug, seed) for bug, name in BUGS.items() for seed in SEEDS]
    views = {}
    for shown, name, bug, seed in plans:
        scenario = msgspec.structs.replace(load_any(name), name=shown)
        path = folder / f"{shown}-{seed}.parquet"
        with ParquetTrace(path, run_id=path.stem) as trace, with_mutant(bug):
            result = run(scenario, seed, trace=trace, raises=False)
        table = pq.read_table(path)
        rows = table.to_pylist()
        told = told_by(rows)
        runs[shown].results.append(result)
        runs[shown].told.append(told)
        if shown not in views:
            views[shown] = what_differs(table, rows, told)
    on_spark, here = (analyze(folder, tables=place) for place in ("spark", "driver"))
    tables: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for name, found in here.items():
        tables[name] = defaultdict(list)
        for row in found:
            tables[name][row["scenario"]].append(row)
    return Library(dict(runs), views, tables, on_spark, here)


def what_differs(table: pa.Table, rows: list[dict[str, Any]], told: Told) -> str:
    """Return what the views of a run have that plain Python does not find, or the other way round."""
    try:
        compare_views(table, rows, told)
    except AssertionError as error:
        return f"they differ: {error}"
    return ""


@pytest.mark.parametrize("table", ANALYSES)
def test_spark_and_the_driver_make_the_same_table(library: Library, table: str) -> None:
    assert library.on_spark[table] == library.here[table]
    assert library.here[table] or table == "mutants"


def names() -> list[str]:
    return [*library_names(), *(f"{bug}-{seed}" for bug in BUGS for seed in SEEDS)]


@pytest.mark.parametrize("name", names())
def test_two_owners_without_a_window_are_those_that_the_judges_report(library: Library, name: str) -> None:
    unexplained = sum(row["count"] for row in library.rows("two_owners", name) if row["sac_window"] is None)
    reported = [
        each.invariant
        for result in library.runs[name].results
        for each in result.violations
        if each.invariant in EXCLUSIVE
    ]
    if name == STAYS_AWAY:
        assert (unexplained, reported) == (1, [])
        return
    if name == DEMOTED:
        assert (unexplained, reported) == (0, ["sac-exclusive"])
        return
    assert bool(unexplained) == bool(reported), (unexplained, reported)


@pytest.mark.parametrize("name", names())
def test_the_longest_of_many_is_in_the_table(library: Library, name: str) -> None:
    """Stories have too few values to tell it from the 99th percentile."""
    found: dict[tuple[str, str], list[int]] = defaultdict(list)
    for told in library.runs[name].told:
        found["downtime", "all"] += [us for lasted in downtime(told).values() for us in lasted]
        found["initial_assignment", "all"] += first_waits(told)
        for each in told.fencings:
            if each.stable_at is not None:
                found["fencings", each.cause].append(each.stable_at - each.at)
    rows = {
        (table, row.get("cause", "all")): row["max"]
        for table in ("downtime", "initial_assignment", "fencings")
        for row in library.rows(table, name)
        if row["max"] is not None
    }
    longest = {key: max(lasted) / 1e6 for key, lasted in found.items() if lasted}
    assert {key: rows.get(key) for key in longest} == longest


@pytest.mark.parametrize("name", names())
def test_violations_and_rebalances_are_those_of_the_runs(library: Library, name: str) -> None:
    results = library.runs[name].results
    reported = Counter(each.invariant for result in results for each in result.violations)
    assert {row["invariant"]: row["count"] for row in library.rows("violations", name)} == reported
    if not name.startswith(("sac-", "streams-")):  # their traces have no rows of the group's epochs
        ended = sum(row["count"] for row in library.rows("rebalances", name))
        assert ended == sum(result.rebalances for result in results)


@pytest.mark.parametrize("name", [name for name in library_names() if name.startswith("sac-")])
def test_windows_of_the_judge_are_in_the_table(library: Library, name: str) -> None:
    """The judge ends a window with the connection, the table when the client notices: it finds no less."""
    rows = {row["sac_window"]: row for row in library.rows("two_owners", name)}
    for figure, count in sum(
        (Counter(each.figures) for each in library.runs[name].results), Counter()
    ).items():
        if figure.startswith("two_active_") and figure.endswith("_count"):
            window = figure.removeprefix("two_active_").removesuffix("_count").replace("_", " ")
            assert rows[window]["count"] >= count


@pytest.mark.parametrize("name", names())
def test_views_are_what_plain_python_finds(library: Library, name: str) -> None:
    """The tables add up what is in them."""
    assert library.views[name] == ""


def test_there_is_something_to_agree_on(library: Library) -> None:
    """Scenarios in which nothing happens agree on everything."""
    told = [each for ran in library.runs.values() for each in ran.told]
    assert sum(len(two_owners(each)) for each in told) > 20
    assert sum(each.fenced for one in told for each in one.tenures) > 2
    assert any(each.sac for each in told)
    for bug in BUGS:
        found = [each for seed in SEEDS for each in library.runs[f"{bug}-{seed}"].results[0].violations]
        assert any(each.invariant in EXCLUSIVE for each in found), bug
