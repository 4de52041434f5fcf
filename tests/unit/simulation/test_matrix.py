"""The matrix of rules and mutants, and the judge of real runs in a simulated one."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from importlib import import_module
from operator import attrgetter
from pathlib import Path

import pytest

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.cli.entry import main
from fencepost.simulation.judge.base import FindingReporter
from fencepost.simulation.kernel.observers import RAISED, Violation
from fencepost.simulation.lab.mutation import matrix
from fencepost.simulation.lab.mutation.blind import BLIND, BlindJudge
from fencepost.simulation.lab.mutation.judge import healthy_runs, runs_for
from fencepost.simulation.lab.mutation.matrix import MatrixRow, differences, known_row, without
from fencepost.simulation.lab.mutation.score import chosen_mutants
from fencepost.simulation.mutants.automatic import CORES
from fencepost.simulation.mutants.registry import MUTANTS
from fencepost.simulation.run import run
from fencepost.simulation.scenarios.load import library_names, load_any

MATRIX = Path(__file__).parents[2] / "vectors" / "kill-matrix.gz"


def test_the_matrix_of_the_repository_shows_each_known_bug_and_has_no_false_alarm():
    rows = matrix.read_matrix(MATRIX)
    known = {row.name: row for row in rows if row.kind == "known"}
    healthy = {row.name: row for row in rows if row.kind == "healthy"}
    assert len(known) > 150
    assert known.keys() <= MUTANTS.keys()
    assert all(any(BLIND not in key for key in row.found) for row in known.values())
    assert healthy.keys() <= set(library_names())
    assert {len(row.runs) for row in healthy.values()} == {30}
    assert not [row.name for row in healthy.values() if row.found]
    random = [row for row in rows if row.kind == "automatic"]
    assert Counter(row.core for row in random) == {**dict.fromkeys(CORES, 60), **matrix.SAMPLE}
    assert sum(bool(matrix.by_rule(row, blind=False)) for row in random) >= 300
    assert sum(bool(matrix.by_rule(row, blind=True)) for row in random) >= 100


def test_the_matrix_of_the_repository_names_rules_that_exist():
    keys = {key for row in matrix.read_matrix(MATRIX) for key in row.found if not key.startswith(RAISED)}
    for module, _, rule in {key.rpartition(" ")[2].partition(":") for key in keys}:
        attrgetter(rule)(import_module(f"fencepost.simulation.{module}"))


def test_a_finding_has_the_rule_that_yields_it():
    found: list[tuple[str, str]] = []
    reporter = FindingReporter()
    reporter.attach(None, lambda invariant, message, rule="": found.append((invariant, rule)))

    def inner():
        yield "one-owner", "from within"

    def outer():
        yield from inner()
        yield "epochs-ordered", "of its own"

    reporter.report_all(outer())
    reporter.report_all([("one-owner", "returned")])
    reporter.report("one-owner", "at once")
    here = f"{__name__}:test_a_finding_has_the_rule_that_yields_it"
    assert found == [
        ("one-owner", f"{here}.<locals>.inner"),
        ("epochs-ordered", f"{here}.<locals>.outer"),
        ("one-owner", here),
        ("one-owner", here),
    ]


def test_each_rule_reports_an_invariant_a_few_times():
    found: list[str] = []
    reporter = FindingReporter()
    reporter.attach(None, lambda invariant, message, rule="": found.append(rule))
    for _ in range(9):
        reporter.report("one-owner", "again", "a")
        reporter.report("one-owner", "again", "b")
    assert sorted(found) == ["a"] * 5 + ["b"] * 5


@pytest.mark.parametrize(
    ("scenario", "seed"),
    [
        *(("rolling-deploy", 3), ("regex-subscriptions", 3), ("coordinator-failover", 3)),
        ("classic-static-members", 0),  # members that did not join a generation are in its record
        ("classic-static-members", 7),  # a leader that came back has not noticed new partitions
        ("growing-topics", 26),  # topics that just went are no longer released
        ("swarm", 9),  # a member without a coordinator sends no leave
        ("rolling-migration", 3),  # a group that was a consumer group has what that gave to its members
    ],
)
def test_the_judge_of_real_runs_is_silent_on_healthy_code(scenario, seed):
    chosen = load_any(scenario)
    assert not run(chosen, seed, judges=[BlindJudge(chosen.protocols)]).violations


def test_the_judge_of_real_runs_sees_what_records_show_and_not_the_requests():
    def seen(name: str, seed: int) -> list[Violation]:
        mutant = MUTANTS[name]
        chosen = load_any(mutant.scenarios[0], overrides=mutant.overrides)
        with mutant.apply():
            return run(chosen, seed, judges=[BlindJudge(chosen.protocols)], raises=False).violations

    found = seen("owner-entry-lost", 4)
    assert "one-owner" in {each.invariant for each in found}
    assert all(each.rule.startswith(BLIND) for each in found)


def test_a_row_has_the_runs_in_which_each_rule_reported(monkeypatch):
    monkeypatch.setattr(matrix, "RUNS", 5)
    row = known_row("owner-entry-lost")
    assert row.runs == tuple(("churn", seed) for seed in range(5))
    assert row.found["one-owner judge.consumer_groups:ConsumerGroupJudge._owners"] == (4,)
    assert row.found["one-owner blind judge.consumer_groups:ConsumerGroupJudge._owners"] == (4,)


@pytest.mark.processes
def test_an_automatic_mutant_runs_in_a_process_of_its_own():
    noted = healthy_runs([("churn", 0)])
    mutant = next(each for each in chosen_mutants(20) if runs_for(each, noted, 1))
    row = matrix.automatic_row((mutant.name, mutant.core, runs_for(mutant, noted, 1)))
    assert (row.name, row.runs) == (mutant.name, (("churn", 0),))


def row(name: str, found: dict[str, tuple[int, ...]], kind: str = "known", digests: tuple[str, ...] = ()):
    runs = tuple(("steady", seed) for seed in range(12))
    return MatrixRow(name=name, kind=kind, runs=runs, digests=digests, found=found)


ROWS = [
    row("a", {"one-owner x:f": (0, 1), "epochs-ordered y:g": (1, 2), "raised KeyError": (5,)}),
    row("b", {"one-owner x:f": (0,), "one-owner blind x:f": (3,), "epochs-ordered y:g": (0,)}),
]


def test_a_query_tells_which_mutants_would_be_missed_without_some_rules():
    lost = list(differences(ROWS, without(ROWS, ["x"])))
    assert [(each.name, each.blind, each.before, each.after, each.by) for each in lost] == [
        ("a", False, 3, 2, ("one-owner x:f",)),
        ("b", True, 1, 0, ("one-owner blind x:f",)),
    ]
    assert not list(differences(ROWS, without(ROWS, ["z"])))


def test_a_query_takes_the_former_names_of_rules():
    (left,) = without([row("a", {"one-owner judge.x:f": (0,), "one-owner judge.y:f": (1,)})], ["checkers.x"])
    assert left.found == {"one-owner judge.y:f": (1,)}


def test_two_matrices_differ_in_false_alarms_and_digests():
    before = [row("steady", {}, "healthy", ("d1", "d2"))]
    after = [row("steady", {"one-owner x:f": (7,)}, "healthy", ("d1", "d3"))]
    found = [(each.what, each.before, each.after, each.by) for each in differences(before, after)]
    assert found == [("digests", 2, 1, ()), ("alarms", 0, 1, ("one-owner x:f",))]


def test_the_command_makes_and_reads_a_matrix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(matrix, "RUNS", 1)
    monkeypatch.setattr(matrix, "HEALTHY_SEEDS", 1)
    monkeypatch.setattr(matrix, "library_names", lambda: ["churn"])
    monkeypatch.setattr(matrix, "MUTANTS", {"owner-entry-lost": MUTANTS["owner-entry-lost"]})
    monkeypatch.setattr(matrix, "_sample", list)
    path = tmp_path / "matrix.jsonl.gz"
    assert main(["mutants", "--matrix", str(path), "--json"]) == 0
    kinds = [json.loads(line)["kind"] for line in gzip.decompress(path.read_bytes()).splitlines()]
    assert kinds == ["healthy", "known"]
    assert main(["mutants", "--matrix", str(path), "--compare", str(path)]) == 0
    capsys.readouterr()
    assert main(["mutants", "--matrix", str(tmp_path / "none.gz"), "--without", "judge"]) == 2
    assert "none.gz: can't be read: no such file" in capsys.readouterr().err
    assert main(["mutants", "--without", "judge"]) == 2
    assert "needs --matrix" in capsys.readouterr().err


def test_a_file_that_is_no_matrix_is_refused(tmp_path: Path):
    path = tmp_path / "matrix.gz"
    path.write_bytes(gzip.compress(b'{"name": 3}\n'))
    with pytest.raises(FencepostError, match="expected a file"):
        matrix.read_matrix(path)
