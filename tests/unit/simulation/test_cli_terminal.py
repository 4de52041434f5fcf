"""Tables at the width of a terminal."""

from __future__ import annotations

import pytest

from fencepost.simulation.cli import plan
from fencepost.simulation.cli.terminal import Terminal
from fencepost.simulation.pipeline.answer import Answer, OptionAnswer, Spread

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


def test_a_plan_on_a_narrow_terminal_is_told_in_two_tables(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Terminal.__init__, "__defaults__", (80,))
    spread = Spread(count=36, p50=2.1, p99=80.2, total_per_run=483.0)
    option = OptionAnswer(
        name="classic/cooperative-sticky static",
        parameters={},
        runs=3,
        failed=0,
        rebalance_s=spread,
        downtime_s=spread,
        command="",
    )
    plan._print_table(Answer(options=[option], samples={}, wall_seconds=1.0))
    rebalances, downtime = capsys.readouterr().out.rstrip().split("\n\n")
    assert "rebalances a run" in rebalances
    assert "partitions down a run" in downtime
    for table in (rebalances, downtime):
        assert "classic/cooperative-sticky " in table
        assert max(map(len, table.splitlines())) <= 80
