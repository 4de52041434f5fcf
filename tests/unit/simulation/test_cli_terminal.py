"""Tables at the width of a terminal."""

from __future__ import annotations

import pytest

from fencepost.simulation.cli import plan
from fencepost.simulation.cli.analyze import print_tables
from fencepost.simulation.cli.terminal import Terminal
from fencepost.simulation.pipeline.answer import OptionAnswer, PlanAnswer, Spread

INVARIANTS = [
    ("steady", "world=embedded", "assignment-epochs", "assignment written", "26", "0"),
    ("steady", "world=embedded", "granted-after-release", "partitions given", "30,000", "0"),
]
HEADINGS = ("scenario", "parameters", "invariant", "situations", "reached", "runs that broke it")


def test_no_word_is_broken_where_there_is_room_for_all(capsys: pytest.CaptureFixture[str]) -> None:
    Terminal(90).table(HEADINGS, INVARIANTS)
    words = set(capsys.readouterr().out.split())
    assert {"assignment-epochs", "granted-after-release", "world=embedded", "partitions", "30,000"} <= words


def test_long_texts_share_what_is_left_and_lose_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    by = "owners-map, one-owner, granted-after-release, one-claimant, journal-replay"
    bug = "A partition that is given back to the member that was to revoke it drops out of the map."
    headings = ("mutant", "verdict", "seeds", "by", "the bug")
    Terminal(80).table(headings, [("owner-entry-lost", "caught", "5", by, bug)])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert sorted(" ".join(lines[1:]).split()) == sorted(f"owner-entry-lost caught 5 {by} {bug}".split())


def test_rows_that_no_width_bears_are_printed_all_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    Terminal(20).table(HEADINGS, INVARIANTS)
    assert "".join(capsys.readouterr().out.split())
    Terminal(20).table(HEADINGS, [])


def test_a_table_that_is_too_wide_becomes_several_that_begin_with_what_names_the_row(capsys):
    headings = ("run", "cause", *(f"figure-{number}" for number in range(12)))
    rows = [
        (f"steady-{seed}", "crash", *(f"value-{seed}-{number}" for number in range(12))) for seed in (1, 2)
    ]
    Terminal(80).table(headings, rows, names=2)
    tables = capsys.readouterr().out.rstrip().split("\n\n")
    lines = [line for table in tables for line in table.splitlines()]
    assert len(tables) == 3
    assert max(map(len, lines)) <= 80
    for table in tables:
        assert [line.split()[:2] for line in table.splitlines()] == [
            ["run", "cause"],
            ["steady-1", "crash"],
            ["steady-2", "crash"],
        ]
    told = [word for line in lines for word in line.split()[2:]]
    assert sorted(told) == sorted([*headings[2:], *rows[0][2:], *rows[1][2:]])


def test_the_widest_gives_way_where_not_even_one_column_has_room(capsys: pytest.CaptureFixture[str]) -> None:
    Terminal(40).table(("error", "example"), [("DISCONNECTED", "rolling-deploy-16444e3545d0-000000")])
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[0] == "DISCONNECTED"
    assert max(map(len, lines)) <= 40
    assert "".join(line[14:] for line in lines[1:]) == "rolling-deploy-16444e3545d0-000000"


ROW = {"scenario": "rolling-deploy", "parameters": '{"group.members": "4"}', "runs": 3}


def test_analyses_break_no_word_on_a_narrow_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    error = {
        "error": "COORDINATOR_LOAD_IN_PROGRESS",
        "count": 1,
        "example": "rolling-deploy-16444e3545d0-000000",
    }
    beats = {each: 1_234.0 for each in ("rebalances", "mean", "median", "p90", "p99", "max", "bytes_mean")}
    beats |= {f"bytes_{each}": 15_600.0 for each in ("median", "p90", "p99", "max")}
    print_tables(Terminal(80), {"commits_refused": [ROW | error], "heartbeats": [ROW | beats]})
    refused, *heartbeats = capsys.readouterr().out.rstrip().split("\n\n")
    assert refused.splitlines() == [
        "Commits refused",
        "rolling-deploy, group.members=4",
        "error                         count  runs  example",
        "COORDINATOR_LOAD_IN_PROGRESS  1      3     rolling-deploy-16444e3545d0-000000",
    ]
    assert len(heartbeats) == 3
    for table in heartbeats:
        assert table.splitlines()[-1].startswith("rolling-deploy  group.members=4  ")
        assert max(map(len, table.splitlines())) <= 80


def test_analyses_show_what_could_steer_a_terminal_as_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    hostile = "<b>[red]\x1b[31m\u202e\u2028"
    row = {
        "scenario": hostile,
        "parameters": "{}",
        "runs": 3,
        "error": hostile,
        "count": 1,
        "example": hostile,
    }
    print_tables(Terminal(), {"commits_refused": [row, ROW | {"error": "E", "count": 1, "example": "r"}]})
    said = capsys.readouterr().out
    assert "<b>[red]\\x1b[31m\\u202e\\u2028" in said
    assert not {"\x1b", "\u202e", "\u2028"} & set(said)


def test_analyses_keep_a_row_in_one_line_where_it_has_room(capsys: pytest.CaptureFixture[str]) -> None:
    downtime = {"cause": "crash", "count": 3, "median": 1.0, "p90": 2.0, "p99": 2.0, "max": 2.0}
    print_tables(Terminal(), {"downtime": [ROW | downtime | {"run_seconds_mean": 6.0}]})
    assert len(capsys.readouterr().out.rstrip().splitlines()) == 3


def test_a_plan_on_a_narrow_terminal_is_told_in_two_tables(monkeypatch, capsys):
    monkeypatch.setattr(Terminal.__init__, "__defaults__", (80,))
    spread = Spread(count=36, p50=2.1, p99=80.2, total_per_run=483.0)
    option = OptionAnswer(
        name="classic/cooperative-sticky static",
        parameters={},
        runs=3,
        failed=0,
        event_s=29_150.0,
        capacity_lost=0.0263,
        most_down=124.0,
        lag_peak=12_525.0,
        lag_gone_s=116.5,
        rebalance_s=spread,
        downtime_s=spread,
        command="",
    )
    plan._print_table(PlanAnswer(options=[option], samples={}, wall_seconds=1.0), "deploy", option.name)
    cost, lag = capsys.readouterr().out.rstrip().split("\n\n")
    assert "capacity" in cost
    assert "8 h 5 min" in cost
    assert "lag," in lag
    assert "12,525" in lag
    for table in (cost, lag):
        assert "\N{RIGHTWARDS ARROW}  classic/cooperative-sticky" in table
        assert max(map(len, table.splitlines())) <= 80
