"""Every scenario of the library: the analyses, plain arithmetic on the same rows, and the judges agree."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
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
    gaps,
    shares,
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

    folder: Path
    runs: dict[str, Ran]
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
    for shown, name, bug, seed in plans:
        scenario = msgspec.structs.replace(load_any(name), name=shown)
        path = folder / f"{shown}-{seed}.parquet"
        with ParquetTrace(path, run_id=path.stem) as trace, with_mutant(bug):
            result = run(scenario, seed, trace=trace, raises=False)
        runs[shown].results.append(result)
        runs[shown].told.append(told_by(pq.read_table(path).to_pylist()))
    on_spark, here = (analyze(folder, tables=place) for place in ("spark", "driver"))
    tables: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for table, rows in here.items():
        tables[table] = defaultdict(list)
        for row in rows:
            tables[table][row["scenario"]].append(row)
    return Library(folder, dict(runs), tables, on_spark, here)


@pytest.mark.parametrize("table", ANALYSES)
def test_spark_and_the_driver_make_the_same_table(library: Library, table: str) -> None:
    assert library.on_spark[table] == library.here[table]
    assert library.here[table] or table == "mutants"


def seconds(us: Iterable[int]) -> float:
    return sum(us) / 1e6


def names() -> list[str]:
    return [*library_names(), *(f"{bug}-{seed}" for bug in BUGS for seed in SEEDS)]


def two_owners_are_found_by_plain_arithmetic_too(library: Library, name: str) -> None:
    shared = [each for told in library.runs[name].told for each in two_owners(told)]
    rows = library.rows("two_owners", name)
    assert sum(row["count"] for row in rows) == len(shared)
    assert sum(row["seconds"] for row in rows) == pytest.approx(seconds(shared))


def two_owners_without_a_window_are_those_that_the_judges_report(library: Library, name: str) -> None:
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


def downtime_is_found_by_plain_arithmetic_too(library: Library, name: str) -> None:
    found: dict[str, list[int]] = defaultdict(list)
    for told in library.runs[name].told:
        for cause, each in downtime(told).items():
            found[cause] += each
            found["all"] += each
    rows = {row["cause"]: row for row in library.rows("downtime", name)}
    assert {cause: row["count"] for cause, row in rows.items()} == {c: len(each) for c, each in found.items()}
    for cause, row in rows.items():
        assert row["max"] == max(found[cause]) / 1e6
        assert row["run_seconds_mean"] == pytest.approx(seconds(found[cause]) / len(library.runs[name].told))


def first_owners_are_found_by_plain_arithmetic_too(library: Library, name: str) -> None:
    found = [each for told in library.runs[name].told for each in first_waits(told)]
    rows = library.rows("initial_assignment", name)
    assert [(row["count"], row["max"]) for row in rows] == ([(len(found), max(found) / 1e6)] if found else [])


def spans(told: Told, eyes: str) -> list[tuple[tuple[str, int], int, int]]:
    if eyes == "coordinator":
        return [(part, begin, until) for part, begin, until, _, _ in told.coordinator]
    if eyes == "members":
        return [(each.partition, each.begin, each.holds_until) for each in told.tenures]
    return [(each.partition, each.begin, each.believes_until) for each in told.tenures]


def owners_over_time_are_found_by_plain_arithmetic_too(library: Library, name: str) -> None:
    found: Counter[tuple[str, int]] = Counter()
    for told in library.runs[name].told:
        for eyes in ("coordinator", "members", "all members"):
            for owners, lasts in shares(spans(told, eyes), told.end).items():
                found[eyes, owners] += lasts
    rows = {(row["as_seen_by"], row["owners"]): row["seconds"] for row in library.rows("owners", name)}
    assert rows == pytest.approx({key: lasts / 1e6 for key, lasts in found.items()})


def gaps_of_single_active_consumers_are_found_by_plain_arithmetic_too(library: Library, name: str) -> None:
    found = {}
    for eyes in ("coordinator", "members"):
        closed, cut = [], []
        for told in library.runs[name].told:
            read = [
                (part, begin, until) for part, begin, until, sac, reads in told.coordinator if sac and reads
            ]
            if eyes == "members":
                read = [(each.partition, each.begin, each.reads_until) for each in told.tenures if told.sac]
            ended, unfinished = gaps(read, told.end)
            closed += ended
            cut += unfinished
        if closed or cut:
            longest = max(closed) / 1e6 if closed else None
            found[eyes] = (len(closed), len(cut), longest)
    rows = {
        row["as_seen_by"]: (row["count"], row["unfinished"], row["max"])
        for row in library.rows("sac_gaps", name)
    }
    assert rows == found


def fencings_are_found_by_plain_arithmetic_too(library: Library, name: str) -> None:
    count: Counter[str] = Counter()
    recovered = defaultdict(list)
    for told in library.runs[name].told:
        for each in told.fencings:
            count[each.cause] += 1
            if each.stable_at is not None:
                recovered[each.cause].append((each.stable_at - each.at) / 1e6)
    rows = {
        row["cause"]: (row["count"], row["recovered"], row["max"]) for row in library.rows("fencings", name)
    }
    assert rows == {
        cause: (each, len(recovered[cause]), max(recovered[cause], default=None))
        for cause, each in count.items()
    }


def violations_and_rebalances_are_those_of_the_runs(library: Library, name: str) -> None:
    results = library.runs[name].results
    reported = Counter(each.invariant for result in results for each in result.violations)
    assert {row["invariant"]: row["count"] for row in library.rows("violations", name)} == reported
    if not name.startswith(("sac-", "streams-")):  # their traces have no rows of the group's epochs
        ended = sum(row["count"] for row in library.rows("rebalances", name))
        assert ended == sum(result.rebalances for result in results)


@pytest.mark.parametrize(
    "check",
    [
        two_owners_are_found_by_plain_arithmetic_too,
        two_owners_without_a_window_are_those_that_the_judges_report,
        downtime_is_found_by_plain_arithmetic_too,
        first_owners_are_found_by_plain_arithmetic_too,
        owners_over_time_are_found_by_plain_arithmetic_too,
        gaps_of_single_active_consumers_are_found_by_plain_arithmetic_too,
        fencings_are_found_by_plain_arithmetic_too,
        violations_and_rebalances_are_those_of_the_runs,
    ],
    ids=lambda check: check.__name__,
)
def test_tables_are_those_of_plain_arithmetic(
    library: Library, check: Callable[[Library, str], None]
) -> None:
    for name in names():
        check(library, name)


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


@pytest.mark.parametrize("name", library_names())
def test_views_of_each_scenario_are_what_plain_python_finds(library: Library, name: str) -> None:
    compare_views(pq.read_table(library.folder / f"{name}-{SEEDS[0]}.parquet"))


def test_there_is_something_to_agree_on(library: Library) -> None:
    """Scenarios in which nothing happens agree on everything."""
    told = [each for ran in library.runs.values() for each in ran.told]
    assert sum(len(two_owners(each)) for each in told) > 20
    assert sum(each.fenced for one in told for each in one.tenures) > 2
    assert any(each.sac for each in told)
    for bug in BUGS:
        found = [each for seed in SEEDS for each in library.runs[f"{bug}-{seed}"].results[0].violations]
        assert any(each.invariant in EXCLUSIVE for each in found), bug
