"""The analyses on traces whose answers are known."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.simulation.analyses.catalogue import ANALYSES
from fencepost.simulation.analyses.views import TRACE
from fencepost.simulation.pipeline.analyze import Tables, analyze
from fencepost.simulation.trace.parquet import ParquetTrace
from fencepost.simulation.trace.schema import COLUMNS, Row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.real,
    pytest.mark.timeout(400),
    pytest.mark.usefixtures("spark"),
    # Libraries of Spark's own warn of each other's; our code runs in the tests beside this one.
    pytest.mark.filterwarnings("default"),
]


class Story:
    """The trace of one run, told event by event; times are in seconds."""

    def __init__(self, run_id: str, scenario: str, members: str = "") -> None:
        self.run_id = run_id
        self.rows: list[Row] = []
        self.add(0, "run.start", detail=f"{scenario} 1 {members}".rstrip())
        self.add(0, "topic", "orders", detail="created 2")

    def add(
        self,
        t: float,
        kind: str,
        actor: str = "",
        parts: tuple[int, ...] = (),
        *,
        member_epoch: int = -1,
        group_epoch: int = -1,
        **columns: str,
    ) -> None:
        blank = {"state_from": "", "state_to": "", "error": "", "detail": ""}
        self.rows.append(
            Row(
                seq=len(self.rows) + 1,
                t_us=round(t * 1e6),
                world="simulated",
                group="g",
                actor=actor,
                kind=kind,
                member_epoch=member_epoch,
                group_epoch=group_epoch,
                partitions=tuple(TopicPartition("orders", part) for part in parts),
                **{**blank, **columns},
            )
        )

    def given(self, t: float, actor: str, *parts: int) -> None:
        self.add(t, "callback.end", actor, parts, detail="assigned")

    def taken(self, t: float, actor: str, *parts: int, how: str = "revoked") -> None:
        self.add(t, "callback.begin", actor, parts, detail=how)
        self.add(t, "callback.end", actor, parts, detail=how)

    def epoch(self, t: float, cause: str, state: str = "Reconciling") -> None:
        self.add(t, "group.epoch", "b", state_to=state, detail=cause)

    def state(self, t: float, state: str) -> None:
        self.add(t, "group.state", "b", state_to=state)

    def write(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        with ParquetTrace(folder / f"{self.run_id}.parquet", self.run_id) as trace:
            trace.write(self.rows)


def healthy() -> Story:
    """Three rebalances of 2, 5 and 2 seconds, one that is over at once, and one that the trace cuts off."""
    story = Story("a", "alpha")
    story.add(1, "member.state", "m1", state_to="JOINING")
    story.epoch(1, "join", "Assigning")
    story.state(1, "Assigning")
    story.add(1.5, "heartbeat", "m1", detail="keepalive")
    story.given(2.5, "m1", 0, 1)
    story.add(2.5, "member.state", "m1", state_to="STABLE")
    story.state(3, "Stable")
    story.add(5, "heartbeat", "m1", detail="keepalive")
    story.epoch(10, "join")
    story.state(10, "Reconciling")
    story.taken(11, "m1", 1)
    story.add(12, "heartbeat", "m1", detail="ack")
    story.add(12, "heartbeat", "m2", detail="keepalive")
    story.given(13, "m2", 1)
    story.epoch(14, "full")
    story.state(15, "Stable")
    story.add(20, "host", "m2", detail="crash")
    story.add(30, "member.removed", "m2", detail="session")
    story.epoch(30, "timeout")
    story.state(30, "Reconciling")
    story.given(32, "m1", 1)
    story.state(32, "Stable")
    story.add(33, "member.removed", "old-id-of-m1", detail="session")
    story.add(33, "commit", "m1", (1,), error="STALE_MEMBER_EPOCH")
    story.add(34, "commit", "m1", (1,))
    story.add(35, "heartbeat", "m1", error="FENCED_MEMBER_EPOCH", detail="keepalive")
    story.epoch(40, "full", "Stable")
    story.epoch(50, "join")
    story.state(50, "Reconciling")
    story.add(60, "run.end")
    return story


def broken() -> Story:
    """A partition with two owners for two seconds, then fenced away; a topic that grows."""
    story = Story("b", "beta")
    story.given(1, "m1", 0)
    story.given(3, "m2", 0)
    story.add(3, "violation", error="one owner", detail="orders-0 has two")
    story.taken(5, "m1", 0)
    story.add(8, "member.removed", "m2", detail="session")
    story.given(9, "m3", 0)
    story.add(10, "topic", "orders", detail="grown 3")
    story.given(14, "m3", 2)
    story.add(20, "run.end")
    return story


def forming() -> Story:
    """Two members start, and are STABLE at the epoch of the group at 9 s. A third one comes later."""
    story = Story("c", "gamma", members="2")

    def stable(t: float, actor: str, epoch: int) -> None:
        story.add(t, "heartbeat", actor, member_epoch=epoch)
        story.add(t, "member.state", actor, state_to="STABLE")
        story.state(t, "Stable")

    story.add(1, "host", "m1", detail="start")
    story.add(1, "group.epoch", "b", detail="join", group_epoch=1)
    stable(2, "m1", 1)
    story.add(3, "host", "m2", detail="start")
    story.add(3, "group.epoch", "b", detail="join", group_epoch=2)
    stable(4, "m2", 2)
    story.add(5, "host", "m1", detail="crash")
    story.add(6, "heartbeat", "m2", member_epoch=2)
    story.add(7, "host", "m1", detail="start")
    stable(8, "m1", 1)
    story.add(9, "heartbeat", "m1", member_epoch=2)
    story.add(10, "host", "m3", detail="start")
    story.add(10, "group.epoch", "b", detail="join", group_epoch=3)
    story.state(11, "Stable")
    story.add(30, "run.end")
    return story


def taking_turns() -> Story:
    """Single active consumers of one stream: a step-down of 1 s, a crash of 3 s, and two at once for 2 s."""
    story = Story("d", "delta")

    def moves(t: float, host: str, before: str, after: str) -> None:
        story.add(t, "member.state", f"{host}/orders", (0,), state_from=before, state_to=after)

    moves(1, "c1", "ACTIVATING", "ACTIVE")
    moves(5, "c1", "ACTIVE", "STEPPING_DOWN")
    moves(6, "c1", "STEPPING_DOWN", "WAITING")
    moves(7, "c2", "ACTIVATING", "ACTIVE")
    story.add(10, "host", "c2", detail="crash")
    moves(13, "c3", "ACTIVATING", "ACTIVE")
    moves(20, "c1", "ACTIVATING", "ACTIVE")
    moves(22, "c3", "ACTIVE", "LOST")
    story.add(22, "callback.begin", "c3/orders", (0,), detail="lost")
    story.add(30, "run.end")
    return story


@pytest.fixture(scope="module")
def tables(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Tables:
    folder = tmp_path_factory.mktemp("stories")
    healthy().write(folder)
    broken().write(folder)
    forming().write(folder)
    taking_turns().write(folder)
    return analyze(folder)


def rows(tables: Tables, name: str, scenario: str) -> list[dict[str, Any]]:
    return [row for row in tables[name] if row["scenario"] == scenario]


def test_rebalances_last_until_the_group_is_stable(tables: Tables) -> None:
    (row,) = rows(tables, "rebalances", "alpha")
    assert (row["count"], row["unfinished"], row["median"], row["max"]) == (4, 1, 2.0, 5.0)
    assert row["formed_median"] is None, "its trace does not say how many there were"
    (beats,) = rows(tables, "heartbeats", "alpha")
    assert (beats["rebalances"], beats["mean"], beats["max"]) == (4, 0.75, 2)
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
    ]


def test_turns_of_single_active_consumers_are_told_as_owners_are(tables: Tables) -> None:
    found = {row["cause"]: (row["count"], row["max"]) for row in rows(tables, "downtime", "delta")}
    assert found == {"all": (2, 3.0), "stepped down": (1, 1.0), "crash": (1, 3.0)}


def test_residency_adds_up(tables: Tables) -> None:
    found = {row["state"]: (row["seconds"], row["visits"]) for row in rows(tables, "residency", "alpha")}
    assert found == {"STABLE": (57.5, 1), "JOINING": (1.5, 1)}
    assert sum(row["share"] for row in rows(tables, "residency", "alpha")) == pytest.approx(1)


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
        ("gamma", 1, 0, 1),
    ]


def test_a_single_file_is_enough(spark: SparkSession, tmp_path: Path) -> None:
    broken().write(tmp_path)
    report = tmp_path / "report.html"
    found = analyze(tmp_path / "b.parquet", report=report)
    assert [row["scenario"] for row in found["runs"]] == ["beta"]
    page = report.read_text()
    assert "one owner" in page
    assert 'id="run-0"' in page


def test_an_error_on_the_way_is_told_and_not_a_stack(spark: SparkSession, tmp_path: Path) -> None:
    healthy().write(tmp_path)
    path = tmp_path / "a.parquet"
    whole = path.read_bytes()
    path.write_bytes(whole[:4] + bytes(len(whole) // 2) + whole[4 + len(whole) // 2 :])
    with pytest.raises(FencepostError) as raised:
        analyze(path)
    assert "\n" not in str(raised.value)


def test_what_comes_out_is_what_is_declared(spark: SparkSession) -> None:
    trace = spark.createDataFrame([], TRACE)
    assert trace.columns == list(COLUMNS)
    for name, analysis in ANALYSES.items():
        found = [(field.name, field.dataType.simpleString()) for field in analysis(trace).schema]
        assert found == [(field.name, field.dataType.simpleString()) for field in analysis.schema], name


def test_every_column_is_told_in_a_sentence() -> None:
    for analysis in ANALYSES.values():
        assert analysis.summary.endswith("."), analysis.name
        for column in analysis.columns:
            assert column.text.endswith("."), (analysis.name, column.name)
