"""Automatic mutants: what is changed, how a change gets into running code, and what becomes of it."""

from __future__ import annotations

import ast
from collections import Counter

import pytest

from fencepost.coordinator.protocol import sac
from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.coordinator.sac import draft
from fencepost.simulation.lab.mutation import score as scoring
from fencepost.simulation.lab.mutation.allowed import ALLOWED, ALLOWED_FUNCTIONS
from fencepost.simulation.lab.mutation.judge import (
    HealthyRun,
    Judgement,
    healthy_runs,
    judge,
    runs_for,
    schedule,
)
from fencepost.simulation.lab.mutation.page import mutation_page
from fencepost.simulation.lab.mutation.score import JudgedMutants, chosen_mutants, mutation_report
from fencepost.simulation.mutants.automatic import (
    AutomaticMutant,
    all_mutants,
    function_of,
    mutant_named,
    mutants_of,
    mutated_code,
    with_automatic_mutant,
)
from fencepost.simulation.mutants.operators import edits
from fencepost.simulation.run import run
from fencepost.simulation.scenarios.load import load_any


def changes(source: str) -> list[tuple[str, str]]:
    """The operator and the function's new source, of each edit."""
    found = []
    for number in range(len(list(edits(_function(source))))):
        function = _function(source)
        edit = list(edits(function))[number]
        edit.make()
        found.append((edit.operator, ast.unparse(ast.fix_missing_locations(function))))
    return found


def _function(source: str) -> ast.FunctionDef:
    (function,) = ast.parse(source).body
    assert isinstance(function, ast.FunctionDef)
    return function


@pytest.mark.parametrize(
    ("body", "operator", "changed"),
    [
        ("return a < b", "compare", "return a <= b"),
        ("return a == b", "compare", "return a != b"),
        ("return a in b", "compare", "return a not in b"),
        ("return 45000", "constant", "return 22500"),
        ("return 45000", "constant", "return 90000"),
        ("return 0", "constant", "return 1"),
        ("return True", "constant", "return False"),
        ("return a and b", "and-or", "return a or b"),
        ("return a and b", "drop-condition", "return a"),
        ("return a and b", "drop-condition", "return b"),
        ("return not a", "drop-not", "return a"),
        ("return a if b else c", "swap-branches", "return c if b else a"),
        ("return now_ms - a", "plus-minus", "return now_ms + a"),
        ("return a | b", "drop-operand", "return a"),
        ("return min(a, b)", "min-max", "return max(a, b)"),
        ("return replace(a, x=1, y=b)", "keep-field", "return replace(a, x=1)"),
        ("return (*records, tombstone(a))", "drop-element", "return (*records,)"),
        ("return [a(), b()]", "drop-element", "return [b()]"),
        ("self.epoch = 5", "drop-statement", "pass"),
        ("records.append(a)", "drop-statement", "pass"),
        ("count += 1", "drop-statement", "pass"),
        ("raise Refused(a)", "drop-statement", "pass"),
    ],
)
def test_a_place_is_changed_as_its_operator_says(body: str, operator: str, changed: str) -> None:
    assert (operator, f"def f():\n    {changed}") in changes(f"def f():\n    {body}\n")


def test_branches_are_swapped_and_loops_are_skipped() -> None:
    source = "def f(a, b):\n    if a > b:\n        return 5\n    for c in a:\n        go(c)\n"
    found = changes(source)
    operators = [operator for operator, _ in found]
    assert operators.count("swap-branches") == 1
    assert any("if not a > b" in text for _, text in found)
    assert any("for c in ()" in text for _, text in found)


def test_a_branch_on_equality_is_not_changed_twice() -> None:
    found = [text for operator, text in changes("def f(a, b):\n    if a == b:\n        go()\n")]
    assert len(found) == len(set(found))


@pytest.mark.parametrize(
    ("returns", "early"),
    [
        ("None", ["return None"]),
        ("bool", ["return True", "return False"]),
        ("Record | None", ["return None"]),
        ("tuple[Record, ...]", ["return ()"]),
        ("tuple[int, int]", []),
        ("Mapping[str, int]", ["return {}"]),
        ("Group", []),
    ],
)
def test_a_function_returns_early_what_its_annotation_allows(returns: str, early: list[str]) -> None:
    source = f'def f() -> {returns}:\n    """Doc."""\n    a = g()\n    return a\n'
    found = [text for operator, text in changes(source) if operator == "early-return"]
    assert [text.splitlines()[2].strip().replace("return None", "return None") for text in found] == early


def test_texts_annotations_and_docstrings_are_left_alone() -> None:
    source = (
        'def f(a: int = 5) -> Outcome:\n    """Doc 7."""\n    b: int = g()\n'
        '    assert b > 3\n    raise Bad(f"{a + 1} of 7")\n'
    )
    assert [operator for operator, _ in changes(source)] == ["drop-statement"]


@pytest.mark.parametrize("module", ["coordinator.sac.draft", "coordinator.streams.groups"])
def test_every_mutant_has_code_that_fits_its_function(module: str) -> None:
    """That holds even if the change drops `super().__init__()`, and with it a free variable."""
    for mutant in mutants_of(module, ""):
        function = function_of(mutant.module, mutant.function)
        assert function is not None
        assert mutated_code(mutant).co_freevars == function.__code__.co_freevars


def test_all_cores_have_mutants_and_names_are_theirs_alone() -> None:
    found = all_mutants()
    assert len({mutant.name for mutant in found}) == len(found)
    assert {mutant.core for mutant in found} == {
        "consumer",
        "classic",
        "streams",
        "sac",
        "offsets",
        "members",
    }


def _mutant(function: str, operator: str, after: str) -> AutomaticMutant:
    return next(
        each
        for each in mutants_of("coordinator.sac.draft", "sac")
        if (each.function, each.operator, each.after) == (function, operator, after)
    )


def test_a_mutant_is_in_the_running_code_only_inside_its_block() -> None:
    mutant = _mutant("is_active", "early-return", "return True")
    status = next(iter(sac.ConsumerStatus))
    before = draft.is_active.__code__
    with with_automatic_mutant(mutant.name):
        assert draft.is_active(status) is True
        assert draft.is_active.__code__ is not before
    assert draft.is_active.__code__ is before


def test_an_unknown_mutant_is_refused() -> None:
    with pytest.raises(FencepostError, match=r"there is no automatic mutant coordinator\.sac\.draft:no#1"):
        mutant_named("coordinator.sac.draft:no#1")
    with pytest.raises(FencepostError, match="no automatic mutant's name begins with nowhere"):
        chosen_mutants(only=["nowhere"])


def test_a_sample_is_the_same_each_time_and_from_each_core() -> None:
    sample = chosen_mutants(3)
    assert sample == chosen_mutants(3)
    assert sample != chosen_mutants(3, salt="another")
    assert sorted(each.core for each in sample) == sorted(
        3 * ["classic", "consumer", "members", "offsets"]
    ) + sorted(3 * ["sac", "streams"])


def test_seeds_go_round_the_scenarios() -> None:
    assert schedule(["a", "b"], 2) == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]


@pytest.fixture(scope="module")
def healthy(processes: None) -> list[HealthyRun]:
    """Runs of single active consumers."""
    return healthy_runs(schedule(["sac-frozen-clients", "sac-node-failures"], 3))


def test_noting_statements_changes_no_run(healthy: list[HealthyRun]) -> None:
    for each in healthy:
        assert run(load_any(each.scenario), each.seed).digest == each.digest
        assert any(module == "coordinator.sac.draft" for module, _ in each.reached)
        assert not any(module.startswith("coordinator.consumer") for module, _ in each.reached)


def test_a_mutant_that_a_judge_sees_is_killed(healthy: list[HealthyRun]) -> None:
    mutant = _mutant("is_active", "early-return", "return True")
    judged = judge(mutant, runs_for(mutant, healthy, 6))
    assert judged.verdict in ("killed", "crashed")
    if judged.verdict == "killed":
        assert judged.invariants


def test_a_mutant_that_no_run_reaches_is_told() -> None:
    assert judge(_mutant("is_active", "early-return", "return True"), []).verdict == "unreached"


def test_a_mutant_without_effect_is_told(healthy: list[HealthyRun]) -> None:
    import msgspec

    mutant = _mutant("is_active", "early-return", "return True")
    function = function_of(mutant.module, mutant.function)
    assert function is not None
    judged = judge(mutant, runs_for(mutant, healthy, 1), code=function.__code__)
    assert (judged.verdict, judged.runs) == ("no-effect", 1)
    other = [msgspec.structs.replace(each, digest="another") for each in runs_for(mutant, healthy, 2)]
    judged = judge(mutant, other, code=function.__code__)
    assert (judged.verdict, judged.changed) == ("survived", 2)


def test_a_mutant_that_never_ends_is_stopped(
    healthy: list[HealthyRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fencepost.simulation.lab.mutation import judge as judging

    def is_active(status: object) -> bool:
        while True:
            pass

    monkeypatch.setattr(judging, "_SILENCE_S", 0.5)
    mutant = _mutant("is_active", "early-return", "return True")
    judged = judge(mutant, runs_for(mutant, healthy, 2), code=is_active.__code__)
    assert (judged.verdict, judged.message, judged.runs) == ("crashed", "does not end", 1)


def test_a_mutant_whose_runs_differ_for_one_seed_needs_no_judge(healthy: list[HealthyRun]) -> None:
    (mutant,) = [
        each
        for each in mutants_of("member.sac.consumer", "sac")
        if each.before == "rng or random.Random()" and each.after == "rng and random.Random()"
    ]
    judged = judge(mutant, runs_for(mutant, healthy, 2))
    assert (judged.verdict, judged.message) == ("crashed", "one seed gives different runs")


def _judgement(mutant: AutomaticMutant, verdict: str) -> Judgement:
    return Judgement(mutant=mutant, verdict=verdict, runs=5, changed=2, scenario="steady", seed=3)  # type: ignore[arg-type]


def test_the_report_counts_what_changes_behaviour_and_names_survivors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mutants = mutants_of("coordinator.sac.draft", "sac")[:6]
    verdicts = ("killed", "killed", "survived", "survived", "no-effect", "unreached")
    reason = {(f"{mutants[3].module}:{mutants[3].function}", mutants[3].before, mutants[3].after): "it may"}
    monkeypatch.setattr("fencepost.simulation.lab.mutation.allowed.ALLOWED", reason)
    judged = JudgedMutants(judgements=list(map(_judgement, mutants, verdicts)), left_out=["steady, seed 7"])
    report = mutation_report(judged, 50)
    (core,) = report.cores
    assert (core.killed, core.survived, core.allowed, core.no_effect, core.unreached) == (2, 1, 1, 1, 1)
    assert core.score == pytest.approx(2 / 3)
    assert 0 < core.score_low < 2 / 3 < core.score_high < 1
    assert not report.reached
    page = mutation_page(report)
    assert f"`{mutants[2].name}`" in page
    assert "it may" in page
    assert "breaks an invariant in them: steady, seed 7." in page
    assert "`steady`, seed 3" in page
    assert "fencepost mutants --automatic --sample 6 --seeds 50 --page" in page
    other = mutation_page(mutation_report(judged, 50, salt="another"))
    assert "fencepost mutants --automatic --sample 6 --salt another --seeds 50 --page" in other


def test_each_allowed_change_is_one_place_of_the_code() -> None:
    """A change that two places share would excuse both; one that no place has excuses nothing."""
    found = Counter((f"{each.module}:{each.function}", each.before, each.after) for each in all_mutants())
    assert {key: found[key] for key in ALLOWED} == dict.fromkeys(ALLOWED, 1)
    assert ALLOWED_FUNCTIONS.keys() <= {function for function, _, _ in found}


@pytest.mark.processes
def test_a_sample_is_judged_on_spark() -> None:
    """One mutant of each core, with few runs: the whole way."""
    chosen = chosen_mutants(1)
    judged = scoring.judge_all(chosen, seeds=4, scenarios=["lossy-network", "sac-churn"]).judgements
    assert len(judged) == 6
    assert {each.verdict for each in judged} <= {"unreached", "no-effect", "killed", "crashed", "survived"}
