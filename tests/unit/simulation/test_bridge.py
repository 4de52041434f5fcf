"""Single active consumers beside a consumer group: the same disturbances, who has nobody, the page."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest

from fencepost.simulation.cli import main
from fencepost.simulation.faults.draw import FaultKind
from fencepost.simulation.lab.bridge.counterpart import compare, counterpart, translated
from fencepost.simulation.lab.bridge.shifts import Shifts
from fencepost.simulation.run import plan_of, run
from fencepost.simulation.scenarios.load import library_names, load_any
from fencepost.simulation.scenarios.sac import SacScenario
from fencepost.simulation.trace.parquet import ParquetTrace
from tests.unit.simulation.analyses.plain_arithmetic import gaps, shares, told_by

SHORT = ("duration=7m", "group.members=2", "quiet=4m")


def scenario(name: str = "sac-node-failures", *overrides: str) -> SacScenario:
    loaded = load_any(name, overrides=(*SHORT, *overrides))
    assert isinstance(loaded, SacScenario)
    return loaded


def test_gaps_begin_when_the_first_ends() -> None:
    shifts = Shifts()
    shifts.begin("p", "a", 10)
    shifts.begin("p", "a", 11)
    shifts.end("p", "b", 12)
    shifts.end("p", "a", 20)
    shifts.begin("p", "b", 35)
    shifts.begin("q", "b", 50)
    shifts.end_all("b", 60)
    shifts.close(100)
    assert sorted(shifts.gaps) == [15, 40, 40]
    assert shifts.overlaps == []


def test_two_at_once_are_told_until_one_has_ended() -> None:
    shifts = Shifts()
    for who in ("a/1", "b/1", "c/1"):
        shifts.begin("p", who, 10)
    shifts.end_all("a", 30)
    shifts.end("p", "b/1", 40)
    shifts.begin("p", "b/2", 50)
    shifts.close(70)
    assert shifts.overlaps == [30, 20]
    assert shifts.gaps == []


def test_the_counterpart_has_the_same_clients_and_partitions() -> None:
    mine = scenario()
    other = counterpart(mine)
    assert other.group.members == mine.group.members
    assert other.partitions == mine.partitions
    assert other.cluster.brokers == mine.cluster.nodes
    assert [topic.name for topic in other.topics] == [stream.name for stream in mine.streams]


def test_the_same_disturbances_come_at_the_same_moments() -> None:
    plan = plan_of(msgspec.structs.replace(scenario("sac-stale-nodes"), duration=scenario().duration), 3)
    other = translated(plan)
    assert [entry.at_us for entry in other.entries] == [entry.at_us for entry in plan.entries]
    assert FaultKind.NODE_LEAVE in {entry.kind for entry in plan.entries}
    assert {entry.kind for entry in other.entries} <= {
        FaultKind.BROKER_CRASH,
        FaultKind.BROKER_PAUSE,
        FaultKind.CONNECTION_LOSS,
    }
    for mine, theirs in zip(plan.entries, other.entries, strict=True):
        if mine.kind is FaultKind.NODE_LEAVE:
            assert theirs.at_us + theirs.lasts_us == plan.end_us


def test_both_are_run_and_measured() -> None:
    told: list[int] = []
    result = compare(scenario(), (1, 2), progress=told.append)
    assert told == [1, 1, 1, 1]
    assert (result.seeds, result.members, result.partitions) == (2, 2, 4)
    for protocol in result.protocols:
        assert protocol.violations == 0
        assert protocol.gaps > 0
        assert protocol.median_s is not None
        assert protocol.p99_s is not None
        assert protocol.longest_s is not None
        assert 0 < protocol.median_s <= protocol.p99_s <= protocol.longest_s
        assert 0 < protocol.share_without_consumer < 1
    assert compare(scenario(), (1, 2)) == result


@pytest.mark.parametrize("name", [name for name in library_names() if name.startswith("sac-")])
def test_both_sides_find_what_their_traces_tell(name: str, tmp_path: Path) -> None:
    """In the consumers' own eyes: a member that was removed goes on until it hears of it."""
    single = load_any(name)
    assert isinstance(single, SacScenario)
    plan = plan_of(single, 3)
    sides = ((single, plan), (counterpart(single), translated(plan)))
    for (world, disturbed), protocol in zip(sides, compare(single, (3,)).protocols, strict=True):
        path = tmp_path / f"{world.name}.parquet"  # type: ignore[attr-defined]
        with ParquetTrace(path, run_id=world.name) as trace:  # type: ignore[attr-defined]
            run(world, 3, plan=disturbed, trace=trace)
        told = told_by(row for row in pq.read_table(path).to_pylist() if row["kind"] != "member.removed")
        read = [(each.partition, each.begin, each.reads_until) for each in told.tenures]
        held = [(each.partition, each.begin, each.holds_until) for each in told.tenures]
        ended, cut = gaps(read, told.end)
        assert protocol.without_consumer_s == pytest.approx(sum((*ended, *cut)) / 1e6)
        assert protocol.longest_s == max((*ended, *cut)) / 1e6
        assert protocol.gaps == len(ended) + len(cut)
        two = sum(lasts for owners, lasts in shares(held, told.end).items() if owners > 1)
        assert protocol.two_consumers_s == pytest.approx(two / 1e6)


def test_time_spent_stepping_down_is_a_gap_and_no_second_consumer() -> None:
    """One client of this run takes 28.5 s to step down, and reads nothing meanwhile."""
    single = load_any("sac-churn")
    assert isinstance(single, SacScenario)
    protocol = compare(single, (3,)).protocols[0]
    assert protocol.longest_s is not None
    assert 28 < protocol.longest_s < 30
    assert run(single, 3).figures["without_active_longest_seconds"] == pytest.approx(
        protocol.longest_s, abs=0.1
    )
    assert protocol.two_consumers_s < 0.1


def test_the_command_tells_both(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    settings = [word for override in SHORT for word in ("--set", override)]
    words = ["bridge", "sac-churn", "--seeds", "1", *settings]
    assert main([*words, "--json", "--report", str(page)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in document["protocols"]] == [
        "single active consumers",
        "consumer group (KIP-848)",
    ]
    text = page.read_text()
    assert "sac-churn" in text
    assert "without a consumer" in text
    assert "http" not in text.replace("http-equiv", "")
    assert main(words) == 0
    assert "consumer group (KIP-848)" in capsys.readouterr().out


def test_a_scenario_of_a_consumer_group_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bridge", "steady"]) == 2
    assert 'protocol = "sac"' in capsys.readouterr().err
