"""The analyses on traces whose answers are known, and what is declared of their tables."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.simulation.analyses.catalogue import ANALYSES, TABLES
from fencepost.simulation.analyses.measures import VALUES
from fencepost.simulation.analyses.situations import SITUATIONS
from fencepost.simulation.analyses.views import Views
from fencepost.simulation.cli import main
from fencepost.simulation.judge.catalogue import INVARIANTS
from fencepost.simulation.pipeline.analyze import Tables, analyze
from fencepost.simulation.trace.schema import COLUMNS, TRACE_DDL
from tests.unit.simulation.analyses.conftest import broken, healthy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.real,
    pytest.mark.long,
    pytest.mark.timeout(400),
    pytest.mark.usefixtures("spark"),
    # Libraries of Spark's own warn of each other's; our code runs in the tests beside this one.
    pytest.mark.filterwarnings("default"),
]


def rows(tables: Tables, name: str, scenario: str) -> list[dict[str, Any]]:
    return [row for row in tables[name] if row["scenario"] == scenario]


def test_rebalances_last_until_the_group_is_stable(tables: Tables) -> None:
    """The first one only forms the group."""
    (row,) = rows(tables, "rebalances", "alpha")
    assert (row["count"], row["unfinished"], row["median"], row["max"]) == (3, 1, 2.0, 5.0)
    assert row["formed_median"] is None, "its trace does not say how many there were"
    (beats,) = rows(tables, "heartbeats", "alpha")
    assert (beats["rebalances"], beats["mean"], beats["max"]) == (3, pytest.approx(2 / 3), 2)
    assert (beats["median"], beats["p90"]) == (0, 2), "by the nearest rank: values that there were"
    assert rows(tables, "rebalances", "beta") == []


def test_a_group_is_formed_once_all_of_the_start_are_stable_at_its_epoch(tables: Tables) -> None:
    (row,) = rows(tables, "rebalances", "gamma")
    assert row["formed_median"] == 9.0


def test_the_longest_rebalance_comes_first(tables: Tables) -> None:
    first = tables["longest_rebalances"][0]
    assert (first["run_id"], first["begin_s"], first["seconds"]) == ("a", 10.0, 5.0)
    assert (first["cause"], first["epochs"], first["heartbeats"]) == ("join", 2, 2)


def test_downtime_is_from_owner_to_owner_by_cause(tables: Tables) -> None:
    found = {
        row["cause"]: (row["count"], row["median"], row["max"]) for row in rows(tables, "downtime", "alpha")
    }
    assert found == {"all": (2, 2.0, 12.0), "revoked": (1, 2.0, 2.0), "crash": (1, 12.0, 12.0)}
    (total,) = (row for row in rows(tables, "downtime", "alpha") if row["cause"] == "all")
    assert total["run_seconds_mean"] == 14.0
    fenced = {row["cause"]: row["max"] for row in rows(tables, "downtime", "beta")}
    assert fenced == {"all": 1.0, "fenced": 1.0}


@pytest.mark.parametrize("table", ["downtime", "recoveries"])
def test_all_causes_together_have_a_name_that_the_documentation_tells(
    table: str, spark: SparkSession, stories: Path
) -> None:
    trace = spark.read.schema(TRACE_DDL).parquet(str(stories / "e.parquet"), str(stories / "a.parquet"))
    found = [row.cause for row in ANALYSES[table](trace).collect() if row.scenario == "epsilon"]
    assert found[0] == "all"
    assert "revoked" in found
    (column,) = (each for each in TABLES[table].columns if each.name == "cause")
    assert column.text.endswith(" `all` is for all causes together.")


def test_a_first_owner_is_awaited_since_the_partition_exists(tables: Tables) -> None:
    (alpha,) = rows(tables, "initial_assignment", "alpha")
    assert (alpha["count"], alpha["max"]) == (2, 2.5)
    (beta,) = rows(tables, "initial_assignment", "beta")
    assert (beta["count"], beta["median"], beta["max"]) == (2, 1.0, 4.0)


def test_two_owners_are_counted(tables: Tables) -> None:
    assert [(row["scenario"], row["count"], row["seconds"]) for row in tables["two_owners"]] == [
        ("alpha", 0, 0.0),
        ("beta", 1, 2.0),
        ("delta", 1, 2.0),
        ("epsilon", 0, 0.0),
        ("eta", 0, 0.0),
        ("three", 0, 0.0),
    ]


def test_turns_of_single_active_consumers_are_told_as_owners_are(tables: Tables) -> None:
    found = {row["cause"]: (row["count"], row["max"]) for row in rows(tables, "downtime", "delta")}
    assert found == {"all": (2, 3.0), "stepped down": (1, 2.0), "crash": (1, 3.0)}


def test_residency_adds_up(tables: Tables) -> None:
    found = {row["state"]: (row["seconds"], row["visits"]) for row in rows(tables, "residency", "alpha")}
    assert found == {"STABLE": (57.5, 1), "JOINING": (1.5, 1)}
    assert sum(row["share"] for row in rows(tables, "residency", "alpha")) == pytest.approx(1)


def test_single_active_consumers_are_in_no_state_when_their_process_has_crashed(tables: Tables) -> None:
    found = {row["state"]: (row["seconds"], row["visits"]) for row in rows(tables, "residency", "delta")}
    assert found == {"ACTIVE": (26.0, 4), "WAITING": (14.0, 1), "LOST": (8.0, 1), "STEPPING_DOWN": (1.0, 1)}


def test_owners_are_counted_over_time_by_whose_eyes(tables: Tables) -> None:
    found = {
        (row["as_seen_by"], row["owners"]): (row["count"], row["seconds"], row["max"])
        for row in rows(tables, "owners", "epsilon")
    }
    assert found == {
        ("members", 0): (4, 6.0, 2.0),
        ("members", 1): (6, 70.0, 19.0),
        ("all members", 0): (3, 4.0, 2.0),
        ("all members", 1): (6, 71.0, 19.0),
        ("all members", 2): (1, 1.0, 1.0),
        ("coordinator", 0): (1, 1.0, 1.0),
        ("coordinator", 1): (3, 77.0, 39.0),
    }
    shares = [row["share"] for row in rows(tables, "owners", "epsilon") if row["as_seen_by"] == "members"]
    assert sum(shares) == pytest.approx(1)


def test_owners_of_all_runs_are_added_up(tables: Tables) -> None:
    found = [
        (row["owners"], row["seconds"], row["max"])
        for row in rows(tables, "owners", "three")
        if row["as_seen_by"] == "members"
    ]
    assert found == [(0, 9.0, 6.0), (1, 23.0, 9.0)]


def test_where_nothing_lasted_there_is_no_share(tables: Tables) -> None:
    (stay,) = rows(tables, "residency", "eta")
    assert (stay["state"], stay["visits"], stay["seconds"], stay["share"]) == ("JOINING", 1, 0.0, None)
    assert rows(tables, "owners", "eta") == [], "which are told by the time that they had"


def test_moves_are_counted_against_the_least_that_would_have_done(tables: Tables) -> None:
    (row,) = rows(tables, "moved_partitions", "epsilon")
    assert (row["count"], row["median"], row["max"]) == (3, 1.0, 2.0)
    assert (row["moved"], row["least"], row["excess"], row["run_moved_mean"]) == (4, 2, 2.0, 4.0)
    (row,) = rows(tables, "moved_partitions", "alpha")
    assert (row["moved"], row["least"], row["excess"]) == (2, 2, 1.0), "to m2, and back when it was gone"


def test_what_a_run_had_on_average_is_of_all_runs_so_that_causes_add_up(tables: Tables) -> None:
    assert {row["cause"]: row["run_seconds_mean"] for row in rows(tables, "downtime", "three")} == {
        "all": 3.0,
        "crash": 2.0,
        "revoked": 1.0,
    }
    assert {row["cause"]: row["run_again_mean"] for row in rows(tables, "recoveries", "three")} == {
        "all": pytest.approx(4 / 3),
        "crash": 1.0,
        "revoked": pytest.approx(1 / 3),
    }
    (moved,) = rows(tables, "moved_partitions", "three")
    assert (moved["moved"], moved["run_moved_mean"]) == (1, pytest.approx(1 / 3))


def test_a_new_owner_has_to_catch_up_and_does_some_again(tables: Tables) -> None:
    (row,) = (row for row in rows(tables, "recoveries", "epsilon") if row["cause"] == "revoked")
    assert (row["count"], row["lag_median"], row["lag_max"]) == (1, 15.0, 15.0)
    assert (row["median"], row["max"], row["behind"]) == (3.0, 3.0, 0)
    assert (row["again"], row["again_max"], row["run_again_mean"]) == (2, 2, 2.0)
    assert {row["cause"] for row in rows(tables, "recoveries", "epsilon")} == {"all", "revoked"}


def test_the_bytes_of_a_rebalance_are_those_of_its_heartbeats(tables: Tables) -> None:
    (row,) = rows(tables, "heartbeats", "epsilon")
    keepalive = 103 + len("m1") + len("g")
    assert (row["bytes_max"], row["bytes_median"]) == (150.0 + keepalive, 0.0)
    assert row["bytes_mean"] == pytest.approx((150 + keepalive) / 3)


def test_gaps_of_single_active_consumers_by_whose_eyes(tables: Tables) -> None:
    found = {
        row["as_seen_by"]: (
            row["count"],
            row["median"],
            row["max"],
            row["run_seconds_mean"],
            row["unfinished"],
        )
        for row in tables["sac_gaps"]
    }
    assert found == {"members": (2, 2.0, 3.0, 5.0, 0), "coordinator": (2, 1.0, 2.0, 11.0, 1)}
    assert rows(tables, "sac_gaps", "epsilon") == []


def test_moves_of_machines_come_with_the_time_in_the_state_before(tables: Tables) -> None:
    found = {
        (row["state_from"], row["state_to"]): (row["count"], row["share"], row["median"], row["max"])
        for row in rows(tables, "transitions", "delta")
        if row["machine"] == "sac-member"
    }
    assert found == {
        ("ACTIVATING", "ACTIVE"): (4, 1.0, None, None),
        ("ACTIVE", "STEPPING_DOWN"): (1, 0.5, 4.0, 4.0),
        ("ACTIVE", "LOST"): (1, 0.5, 9.0, 9.0),
        ("STEPPING_DOWN", "WAITING"): (1, 1.0, 1.0, 1.0),
    }
    machines = {row["scenario"]: set() for row in tables["transitions"]}
    for row in tables["transitions"]:
        machines[row["scenario"]].add(row["machine"])
    assert machines["delta"] == {"sac-member", "sac-consumer"}
    assert machines["alpha"] == {"group", "member"}
    assert machines["zeta"] == {"stream-client"}


def test_a_process_that_is_started_anew_was_in_no_state_before(tables: Tables) -> None:
    found = {
        (row["state_from"], row["state_to"]): (row["count"], row["median"])
        for row in rows(tables, "transitions", "gamma")
        if row["machine"] == "member" and row["state_from"]
    }
    assert found == {("UNSUBSCRIBED", "JOINING"): (2, None), ("JOINING", "UNSUBSCRIBED"): (2, 2.0)}


def test_escalations_last_until_each_client_is_in_error(tables: Tables) -> None:
    found = {row["answer"]: row for row in rows(tables, "escalations", "zeta")}
    alone, whole = found["SHUTDOWN_CLIENT"], found["SHUTDOWN_APPLICATION"]
    assert (alone["requests"], alone["count"], alone["median"], alone["unfinished"]) == (1, 1, 1.0, 0)
    assert (whole["requests"], whole["count"], whole["unfinished"]) == (1, 3, 1)
    assert (whole["median"], whole["max"], whole["last_max"]) == (2.0, 4.0, 4.0)


def test_a_fenced_member_takes_some_time_to_be_back(tables: Tables) -> None:
    assert {row["recovered"] for row in rows(tables, "fencings", "alpha")} == {0}
    (row,) = rows(tables, "fencings", "epsilon")
    assert (row["cause"], row["count"], row["recovered"], row["median"]) == ("session", 1, 1, 5.0)


def test_invariants_are_reached_and_broken(tables: Tables) -> None:
    def found(scenario: str) -> dict[str, tuple[int, int, int, str]]:
        return {
            row["invariant"]: (row["reached"], row["runs"], row["broken"], row["situations"])
            for row in rows(tables, "invariants", scenario)
        }

    assert found("alpha")["epochs-monotone"] == (6, 1, 0, "epoch raised")
    assert found("alpha")["commit-fenced"] == (1, 1, 0, "commit refused")
    assert "sac-exclusive" not in found("alpha")
    assert found("beta")["one owner"] == (0, 0, 1, "")
    assert found("delta")["sac-exclusive"] == (3, 1, 0, "consumer activated")


def test_incidents_are_counted_by_name(tables: Tables) -> None:
    assert {row["cause"]: row["count"] for row in rows(tables, "fencings", "alpha")} == {
        "session": 2,
        "FENCED_MEMBER_EPOCH": 1,
    }
    (refused,) = tables["commits_refused"]
    assert (refused["error"], refused["count"], refused["example"]) == ("STALE_MEMBER_EPOCH", 1, "a")
    (violation,) = tables["violations"]
    assert (violation["scenario"], violation["invariant"], violation["runs"]) == ("beta", "one owner", 1)


def test_runs_without_summaries_are_counted_from_their_traces(tables: Tables) -> None:
    assert [(row["scenario"], row["runs"], row["violations"], row["traced"]) for row in tables["runs"]] == [
        ("alpha", 1, 0, 1),
        ("beta", 1, 1, 1),
        ("delta", 1, 0, 1),
        ("epsilon", 1, 0, 1),
        ("eta", 1, 0, 1),
        ("gamma", 1, 0, 1),
        ("three", 3, 0, 3),
        ("zeta", 1, 0, 1),
    ]


def test_the_report_shows_a_run_that_broke_an_invariant(tables: Tables, stories: Path) -> None:
    page = (stories / "report.html").read_text()
    assert "one owner" in page
    assert 'id="run-0"' in page


def test_tables_that_are_enough_have_the_same_rows(tables: Tables, stories: Path) -> None:
    """Those that are compared come with the runs that they are of, and here there is nothing to compare."""
    found = analyze(stories, only=["comparisons", "violations"])
    assert found == {name: tables[name] if name in ("runs", "violations") else [] for name in tables}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"only": ["deaths", "runs"]}, "only: there is no table deaths; there are runs, .*"),
        ({"only": ["runs"], "report": "r.html"}, "only: a report has all tables"),
    ],
)
def test_tables_that_there_cannot_be_alone_are_refused(
    stories: Path, options: dict[str, Any], told: str
) -> None:
    with pytest.raises(FencepostError, match=told):
        analyze(stories, **options)


def test_an_error_on_the_way_is_told_and_not_a_stack(stories: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    whole = (stories / "a.parquet").read_bytes()
    path.write_bytes(whole[:4] + bytes(len(whole) // 2) + whole[4 + len(whole) // 2 :])
    with pytest.raises(FencepostError) as raised:
        analyze(path)
    told = str(raised.value)
    assert told.startswith(f"{path}: not a readable Parquet file (")
    assert "\n" not in told


def test_what_comes_out_is_what_is_declared(spark: SparkSession) -> None:
    trace = spark.createDataFrame([], TRACE_DDL)
    assert trace.columns == list(COLUMNS)
    views = Views(trace)
    for name, analysis in {**ANALYSES, "measures": VALUES}.items():
        found = [(field.name, field.dataType.simpleString()) for field in analysis.over(views).schema]
        assert found == [(field.name, field.dataType.simpleString()) for field in analysis.schema], name
    assert ANALYSES["runs"](trace).columns == ANALYSES["runs"].schema.names


def test_spark_makes_the_same_tables_as_the_driver(tables: Tables, stories: Path) -> None:
    for name, rows_of_table in analyze(stories, tables="spark").items():
        assert rows_of_table == tables[name], name


def test_situations_put_invariants_to_the_test_that_there_are() -> None:
    assert {name for each in SITUATIONS for name in each.invariants} <= INVARIANTS.keys()


def test_every_column_is_told_in_a_sentence() -> None:
    for analysis in TABLES.values():
        assert analysis.summary.endswith("."), analysis.name
        for column in analysis.columns:
            assert column.text.endswith("."), (analysis.name, column.name)


def test_runs_of_one_id_are_set_against_each_other_and_not_mixed(
    stories: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "what, if? 100%"
    folder.mkdir()
    for name in ("after", "before"):
        shutil.copy(stories / "a.parquet", folder / f"{name} it.parquet")
    found = analyze(folder, report=tmp_path / "r.html")
    names = [{"file": "after it"}, {"file": "before it"}]
    assert [json.loads(row["parameters"]) for row in found["runs"]] == names
    assert [row["runs"] for row in found["runs"]] == [1, 1]
    assert [row["count"] for row in found["rebalances"]] == [3, 3]
    assert {row["ratio"] for row in found["comparisons"]} == {1.0, None}
    assert "a@after it" in (tmp_path / "r.html").read_text()
    show = ["analyze", str(folder), "--report", str(tmp_path / "r.html"), "--run"]
    assert main([*show, "a@before it"]) == 0
    assert main([*show, "a"]) == 2
    assert "expected a name such as a@after it, a@before it" in capsys.readouterr().err


EVIL = "<a/href=//evil.example>&lt;b\x1b[31m\u202e"


def test_a_strangers_strings_are_only_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "traces"
    for story in (healthy(), broken()):
        story.add(61, "member.state", "m1", state_from="STABLE", state_to=EVIL)
        story.add(62, "member.state", "m1", state_from=EVIL, state_to="STABLE")
        story.add(63, "violation", error=EVIL, detail=EVIL)
        story.add(64, EVIL, EVIL, state_from=EVIL, state_to=EVIL, error=EVIL, detail=EVIL)
        story.rows = [
            row._replace(
                group=row.group + EVIL,
                actor=row.actor and row.actor + EVIL,
                error=row.error and row.error + EVIL,
                detail=row.detail.replace("alpha", EVIL).replace("beta", f"{EVIL}2"),
                partitions=tuple(TopicPartition(EVIL, each.partition) for each in row.partitions),
            )
            for row in story.rows
        ]
        story.write(folder)
    assert main(["analyze", str(folder), "--report", str(tmp_path / "r.html")]) == 0
    said = capsys.readouterr()
    for text in (said.out, said.err, page := (tmp_path / "r.html").read_text()):
        assert not {"\x1b", "\u202e"} & set(text)
    assert EVIL[:24] in said.out
    assert EVIL[:8] not in page
    figures = re.findall(r'id="figure-\d+">(.*?)</script>', page, re.DOTALL)
    texts = [*_texts([json.loads(each) for each in figures])]
    assert any("&lt;a/href" in text for text in texts)
    for text in texts:
        assert not re.search("<(?!/?(extra|b|br)>)", text), "plotly would take it for markup"


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts(each)
