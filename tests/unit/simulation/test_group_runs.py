"""A trace of many groups becomes runs of one group each."""

from __future__ import annotations

from fencepost.simulation.trace.group_runs import GroupRuns
from fencepost.simulation.trace.schema import Row


def row(seq: int, group: str, kind: str = "heartbeat", actor: str = "") -> Row:
    return Row(seq, seq * 10, "embedded", group, actor, kind, "", "", -1, -1, (), "", "")


def cut(rows: list[Row], left_out: frozenset[str] = frozenset()) -> dict[str, list[Row]]:
    runs: dict[str, list[Row]] = {}

    def send(run_id: str, rows: list[Row]) -> None:
        runs.setdefault(run_id, []).extend(rows)

    cutter = GroupRuns("run", send, lambda group, _: group in left_out)
    for each in rows:
        cutter.take(each)
    return runs


def told(rows: list[Row]) -> list[tuple[int, str, str]]:
    return [(each.seq, each.kind, each.detail or each.actor) for each in rows]


def test_each_group_has_its_rows_and_those_of_nobody() -> None:
    runs = cut(
        [
            row(1, "", "topic", "orders"),
            row(2, "a"),
            row(3, "b b"),
            row(4, "", "coordinator", "broker-1"),
            row(5, "a"),
        ]
    )
    assert told(runs["run/a"]) == [
        (1, "run.start", "a"),
        (2, "topic", "orders"),
        (3, "heartbeat", ""),
        (4, "coordinator", "broker-1"),
        (5, "heartbeat", ""),
    ]
    assert told(runs["run/b b"]) == [
        (1, "run.start", "b_b"),
        (2, "topic", "orders"),
        (3, "heartbeat", ""),
        (4, "coordinator", "broker-1"),
    ]
    assert {each.group for each in runs["run/b b"]} == {"b b"}


def test_a_group_that_is_left_out_has_no_run() -> None:
    runs = cut(
        [row(1, "readers"), row(2, "", "topic"), row(3, "a"), row(4, "readers")], frozenset({"readers"})
    )
    assert list(runs) == ["run/a"]
