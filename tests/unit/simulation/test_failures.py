"""Failed runs are kept, replayed and made small: with known bugs put back, for there are no others."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.failures.case import pytest_case
from fencepost.simulation.failures.case import test_name as name_of_test
from fencepost.simulation.failures.failure import Failure, failure_of, read_failure, replay
from fencepost.simulation.failures.shrink import Shrunk, shrink
from fencepost.simulation.faults.fitting import misfit
from fencepost.simulation.faults.plan import FaultKind, FaultPlan, PlannedEvent
from fencepost.simulation.mutants.registry import MUTANTS
from fencepost.simulation.run import plan_of, run
from fencepost.simulation.scenarios.load import library, load, load_any


def failed(mutant: str, invariant: str, *, scenario: str, seed: int = 0) -> Failure:
    return failure_of(scenario, seed, invariant, overrides=MUTANTS[mutant].overrides, mutant=mutant)


def test_a_failure_is_the_run_that_failed() -> None:
    failure = failed("target-told-early", "reply-equals-state", scenario="scale-up-and-down")
    with MUTANTS["target-told-early"].apply():
        first = run(load("scale-up-and-down"), 0)
    again = replay(failure.to_json())
    assert again.digest == first.digest
    assert again.violations == first.violations != []


def test_its_document_is_all_of_it(tmp_path: Path) -> None:
    failure = failed("sessions-never-end", "progress", scenario="crash-and-return")
    file = tmp_path / "failure.json"
    file.write_text(failure.to_json())
    assert read_failure(file) == failure
    assert failure.loaded() == load("crash-and-return")


@pytest.fixture(scope="module")
def crash() -> Shrunk:
    """A crash that the coordinator never notices."""
    return shrink(failed("sessions-never-end", "progress", scenario="crash-and-return"))


@pytest.fixture(scope="module")
def told_early() -> Shrunk:
    """A bug that shows as soon as a second member joins."""
    return shrink(failed("target-told-early", "reply-equals-state", scenario="scale-up-and-down"))


@pytest.mark.parametrize(("name", "disturbances", "members"), [("crash", 1, 1), ("told_early", 0, 2)])
def test_little_is_left_of_a_failure(
    request: pytest.FixtureRequest, name: str, disturbances: int, members: int
) -> None:
    shrunk: Shrunk = request.getfixturevalue(name)
    before, small = shrunk.before, shrunk.after
    assert shrunk.whole
    assert len(small.plan.entries) == disturbances
    assert small.loaded().group.members == members
    assert small.loaded().partitions < before.loaded().partitions
    assert small.plan.end_us < before.plan.end_us
    assert not any(topic.records_per_second for topic in small.loaded().topics)
    again = replay(small)
    assert again.digest == shrunk.result.digest
    assert before.invariant in {violation.invariant for violation in again.violations}


def test_nothing_more_can_go(crash: Shrunk) -> None:
    """The one crash is what it takes: without it nothing fails."""
    document = json.loads(crash.after.to_json())
    assert document["plan"]["entries"][0]["kind"] == "member-crash"
    document["plan"]["entries"] = []
    assert replay(json.dumps(document)).violations == []


def test_a_run_that_raises_is_made_small_too(monkeypatch: pytest.MonkeyPatch) -> None:
    from fencepost.simulation.kafka.nemesis import GroupNemesis

    def broken(self: GroupNemesis, entry: object, host: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(GroupNemesis, "crash", broken)
    failure = failure_of("crash-and-return", 0, "raised ZeroDivisionError")
    with pytest.raises(ZeroDivisionError):
        replay(failure)
    shrunk = shrink(failure)
    (violation,) = shrunk.result.violations
    assert violation.invariant == "raised ZeroDivisionError"
    assert [entry.kind for entry in shrunk.after.plan.entries] == ["member-crash"]
    assert shrunk.after.loaded().group.members == 1


def test_few_tries_still_give_the_best_so_far() -> None:
    failure = failed("sessions-never-end", "progress", scenario="crash-and-return")
    tried: list[int] = []
    shrunk = shrink(failure, tries=4, progress=tried.append)
    assert (shrunk.tries, shrunk.whole, len(tried)) == (4, False, 4)
    assert len(shrunk.after.plan.entries) < len(failure.plan.entries)


@pytest.mark.parametrize("name", ['a """ b', 'ends in "', "C:\\new\\x", "a\nb", "x" * 249, "größer"])
def test_the_test_of_a_scenario_of_any_name_is_python(name: str) -> None:
    failure = msgspec.structs.replace(failure_of("steady", 1, "progress"), name=name)
    text, called = pytest_case(failure), name_of_test(failure)
    space: dict[str, object] = {}
    exec(compile(text, "case", "exec"), space)
    assert callable(space[called])
    assert str(space["__doc__"]).startswith(f"progress in {name}, seed 1: ")
    assert len(called) < 100


def test_what_does_not_fail_is_told() -> None:
    with pytest.raises(FencepostError, match="progress holds: the failure does not show with this code"):
        shrink(failure_of("steady", 1, "progress"))


def test_the_test_of_a_failure_fails_as_long_as_the_bug_is_there(told_early: Shrunk) -> None:
    text = pytest_case(told_early.after)
    assert text.startswith(
        '"""reply-equals-state in scale-up-and-down, seed 0: 2 members, 0 disturbances, with'
    )
    space: dict[str, object] = {}
    exec(compile(text, "case", "exec"), space)
    case = space["test_reply_equals_state_holds_in_scale_up_and_down_0"]
    assert callable(case)
    with pytest.raises(AssertionError):
        case()
    mended = text.replace('"mutant": "target-told-early"', '"mutant": ""')
    exec(compile(mended, "case", "exec"), space)
    again = space["test_reply_equals_state_holds_in_scale_up_and_down_0"]
    assert callable(again)
    again()


def test_an_unknown_invariant_is_told() -> None:
    document = json.loads(failure_of("steady", 1, "progress").to_json())
    for name, hint in (("progres", r"did you mean progress\?"), ("zzz", "the names are those of the column")):
        with pytest.raises(FencepostError, match=f"<text>: there is no invariant {name}; {hint}"):
            replay(json.dumps(document | {"invariant": name}))


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ("", "f.json: not JSON: .*; expected what simulate --failure, shrink or a campaign wrote"),
        ('duration = "5m"', "f.json: not JSON: .*; expected what simulate --failure"),
        ("{}", "f.json: not a failure that fencepost wrote: Object missing required field `name`"),
        ('{"fencepost": 2, "new": 1}', "f.json: was written by a newer fencepost.*: upgrade fencepost"),
        ('{"test": "test_a"}', "f.json: is a failure of the test test_a in a simulated world; run it with "),
        ('{"fencepost": 0}', "f.json: not a failure that fencepost wrote: .*>= 1"),
        (None, "f.json: can't be read: no such file or directory"),
    ],
)
def test_what_is_no_failure_is_refused(tmp_path: Path, document: str | None, said: str) -> None:
    file = tmp_path / "f.json"
    if document is not None:
        file.write_text(document)
    with pytest.raises(FencepostError, match=said):
        read_failure(file)


def test_a_mutant_or_a_scenario_that_is_wrong_is_refused(tmp_path: Path) -> None:
    document = json.loads(failed("sessions-never-end", "progress", scenario="crash-and-return").to_json())
    for change, said in (
        ({"mutant": "nobody"}, "there is no mutant nobody"),
        ({"scenario": "duration = 5"}, r"/f\.json: its scenario crash-and-return.*duration"),
        ({"scenario": "x"}, r"/f\.json: its scenario crash-and-return: not TOML"),
        ({"seed": -1}, r"/f\.json: not a failure that fencepost wrote: .*>= 0 - at `\$\.seed`"),
    ):
        (tmp_path / "f.json").write_text(json.dumps(document | change))
        with pytest.raises(FencepostError, match=said):
            read_failure(tmp_path / "f.json")


@pytest.mark.parametrize(
    ("scenario", "entry", "said"),
    [
        (
            "steady",
            {"kind": "restart", "member": 6},
            "member: there is no member 6, they are numbered from 0",
        ),
        ("steady", {"kind": "node-crash"}, "kind: node-crash can't happen in this world, expected one of"),
        ("steady", {"kind": "grow-topic", "name": "orders"}, "partitions: expected at least 1 to grow-topic"),
        *(
            (
                "growing-topics",
                {"kind": kind, "name": "nowhere", "partitions": 90},
                r"\[0\]\.name: expected a topic of the scenario, or that an entry creates "
                r"\(orders, payments, refunds\), got 'nowhere'",
            )
            for kind in ("grow-topic", "delete-topic")
        ),
        (
            "steady",
            {"kind": "create-topic", "name": "a b", "partitions": 1},
            "name: expected letters, .*'a b'",
        ),
        (
            "steady",
            {"kind": "subscribe", "topics": ["orders", "nowhere"]},
            r"\[0\]\.topics\[1\]: expected a topic of the scenario, .* got 'nowhere'",
        ),
        ("steady", {"kind": "subscribe", "pattern": "("}, r"\[0\]\.pattern: expected a regular expression"),
        ("steady", {"kind": "broker-crash", "broker": 7}, r"unknown field `broker`.*entries\[0\]"),
        (
            "steady",
            {"kind": "member-crash", "at_us": 10**12},
            r"\[0\]\.at_us: expected at most faults_end_us, \d+, when the quiet phase begins, got 10{12}$",
        ),
        (
            "steady",
            {"kind": "slow-link", "added": ["lognormal", 0, 9]},
            "added: expected a median above zero",
        ),
        ("steady", {"kind": "subscribe"}, r"entries\[0\]: expected topics or a pattern to subscribe to"),
        ("sac-churn", {"kind": "subscribe"}, "kind: subscribe can't happen in this world"),
        ("streams-failures", {"kind": "restart"}, "kind: restart can't happen in this world"),
        ("streams-failures", {"kind": "other-application"}, "kind: expected two topics with different"),
        (
            "streams-failures",
            {"kind": "thread-exception", "name": "REPLACE nowhere", "partitions": 1},
            r"name: expected a response \(any, .*, nonsense\) and a place \(any, .*\), got 'REPLACE nowhere'",
        ),
        (
            "streams-failures",
            {"kind": "thread-exception", "name": "any everywhere", "partitions": 1},
            "got 'any everywhere'",
        ),
        ("streams-failures", {"kind": "thread-exception", "partitions": 1}, "name: expected .*got ''"),
        (
            "streams-failures",
            {"kind": "thread-exception", "name": "any global", "partitions": 1},
            "name: without a global_topic there is no global thread",
        ),
        (
            "streams-failures",
            {"kind": "thread-exception", "name": "any any"},
            "partitions: expected at least 1, the number of threads that raise it, got 0",
        ),
        ("steady", {"kind": "member-freeze", "lasts_us": -1}, ">= 0.*lasts_us"),
        ("steady", {"kind": "slow-link", "added": ["often", 0, 9]}, "Invalid enum value 'often'.*added"),
    ],
)
def test_a_plan_that_cannot_be_played_is_refused(scenario: str, entry: dict[str, object], said: str) -> None:
    document = json.loads(failure_of(scenario, 1, "progress").to_json())
    document["plan"]["entries"] = [{"at_us": 5, **entry}]
    with pytest.raises(FencepostError, match=said):
        replay(json.dumps(document))


@pytest.mark.parametrize(
    ("kind", "least"), [(FaultKind.NODE_CRASH, 3), (FaultKind.NODE_LEAVE, 3), (FaultKind.NODE_SPLIT, 2)]
)
def test_nodes_suffer_what_there_are_enough_of_them_for(kind: FaultKind, least: int) -> None:
    for nodes in (1, 2, 3):
        loaded = load_any("sac-churn", overrides=[f"cluster.nodes={nodes}"])
        plan = msgspec.structs.replace(plan_of(loaded, 1), entries=(PlannedEvent(at_us=5, kind=kind),))
        told = (
            f"plan.entries[0].kind: {kind} has no effect with fewer than {least} nodes,"
            f" the scenario's cluster.nodes is {nodes}"
        )
        assert misfit(plan, loaded) == (told if nodes < least else None)


def test_a_topic_that_an_entry_creates_is_one_wherever_it_comes_from() -> None:
    """A plan that was made small may be without the step that creates what others grow and delete."""
    loaded = load_any("growing-topics")
    plan = plan_of(loaded, 1)
    made = PlannedEvent(at_us=9, kind=FaultKind.CREATE_TOPIC, name="new", partitions=1)
    for name, before in (("refunds", ()), ("new", (made,))):
        entries = (
            PlannedEvent(at_us=1, kind=FaultKind.SUBSCRIBE, topics=(name,)),
            *before,
            PlannedEvent(at_us=10, kind=FaultKind.GROW_TOPIC, name=name, partitions=2),
            PlannedEvent(at_us=20, kind=FaultKind.DELETE_TOPIC, name=name),
        )
        assert misfit(msgspec.structs.replace(plan, entries=entries), loaded) is None


@pytest.mark.parametrize(("key", "value"), [("members", 1), ("end_us", 1)])
def test_a_plan_is_for_all_members_and_ends_after_its_faults(key: str, value: int) -> None:
    document = json.loads(failure_of("churn", 1, "progress").to_json())
    document["plan"][key] = value
    with pytest.raises(FencepostError, match=rf"<text>: plan\.{key}: expected at least"):
        replay(json.dumps(document))


@pytest.mark.parametrize("scenario", [entry.name for entry in library()])
def test_what_is_drawn_can_be_played(scenario: str) -> None:
    loaded = load_any(scenario)
    for seed in range(10):
        plan = plan_of(loaded, seed)
        assert misfit(plan, loaded) is None
        assert msgspec.json.decode(msgspec.json.encode(plan), type=FaultPlan) == plan
