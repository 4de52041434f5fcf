"""The mutants: what they replace exists, they leave nothing behind, and they cover what they must."""

from __future__ import annotations

import signal
from typing import NoReturn

import pytest

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.analyses.comparison import share_interval
from fencepost.simulation.judge.catalogue import INVARIANTS
from fencepost.simulation.kernel.observers import Violation
from fencepost.simulation.lab import hunt as hunting
from fencepost.simulation.lab.hunt import MutantResult, hunt, hunt_all
from fencepost.simulation.mutants.mutant import Mutant, instead_of
from fencepost.simulation.mutants.registry import MUTANTS
from fencepost.simulation.scenarios.load import load_any
from tests.unit.simulation.ends import All
from tests.unit.simulation.invariants_page import names_in, rows

FEW = 20
"""Number of seeds within which each invariant that is said to report a mutant must report it."""
SHOWN_BY = {
    "any-generation": (5,),
    "commits-to-the-wrong-broker": (1,),
    "commits-unfenced": (1,),
    "connection-back-means-running": (1,),
    "decided-and-forgotten": (15,),
    "epoch-given-twice": (1,),
    "epoch-moves-in-revocation": (2,),
    "errors-swallowed": (6,),
    "expressions-kept": (4,),
    "failed-batch-committed": (4,),
    "failed-commit-never-ends": (1,),
    "fenced-and-joining": (2,),
    "fenced-for-good": (1,),
    "first-joiner-takes-all": (3,),
    "foreign-partitions-accepted": (1,),
    "half-sessions": (1,),
    "heartbeats-overlap": (8,),
    "keepalive-after-lost-reply": (16, 1),
    "last-assignment-written": (1,),
    "lost-assignment-not-repeated": (8,),
    "members-rewritten": (1,),
    "never-downgraded": (3,),
    "null-releases": (5,),
    "offset-one-too-far": (18,),
    "owner-by-epoch": (17, 2),
    "owner-entry-lost": (4,),
    "polls-missed-late": (5,),
    "ready-group-not-described": (2,),
    "rejoin-fenced": (6,),
    "released-and-still-listed": (7,),
    "released-before-the-response": (14,),
    "replaced-producer-accepted": (4,),
    "retry-overtakes": (5,),
    "returned-leader-assigns": (7,),
    "sac-disconnected-ignored": (1,),
    "sac-forgotten-not-asked": (1,),
    "sac-leader-forgets": (3,),
    "sac-lost-is-gone": (1,),
    "sac-lost-step-down-waits": (6,),
    "sac-return-not-evaluated": (4,),
    "sac-return-not-indexed": (7,),
    "sac-stale-kept": (1,),
    "shutdown-told-once": (1,),
    "shutdown-without-carrier": (1,),
    "stable-too-soon": (5,),
    "staged-offsets-expire": (9,),
    "stale-instance-entry": (7,),
    "steps-last-to-first": (4,),
    "stopped-by-callback": (4,),
    "subscribed-offsets-expire": (6,),
    "timeout-lost-with-its-record": (5,),
    "unstable-not-told": (10,),
    "unstable-taken": (3,),
    "waits-for-itself": (4,),
}
"""Seeds whose runs show all that is said of a mutant, if the run of seed 0 does not."""
QUICK = frozenset(
    {
        "eager-keeps-partitions",
        "half-sessions",
        "keepalive-after-lost-reply",
        "partition-forgotten",
        "sac-no-handover",
        "shutdown-lost-with-its-requester",
        "staged-after-plain",
        "target-told-early",
        "task-given-too-soon",
    }
)
"""One mutant of each room."""


def test_a_mutant_replaces_what_exists_and_puts_it_back():
    for name, mutant in MUTANTS.items():
        originals = [each.original for each in mutant.replacements]
        assert originals, name
        with mutant.apply():
            for each, original in zip(mutant.replacements, originals, strict=True):
                assert each.original is not original, name
        assert [each.original for each in mutant.replacements] == originals, name


def test_a_mutant_names_real_invariants_and_scenarios():
    for name, mutant in MUTANTS.items():
        assert mutant.expected, name
        assert set(mutant.expected) <= set(INVARIANTS), name
        assert mutant.scenarios, name
        for scenario in mutant.scenarios:
            load_any(scenario, overrides=mutant.overrides)
        assert mutant.bug, name
        assert mutant.summary.endswith("."), name


def test_every_judge_has_a_mutant_that_must_wake_it():
    """No other judge counts for it: each that a mutant names has to report it, see below."""
    woken = {name for mutant in MUTANTS.values() for name in mutant.expected}
    assert woken == set(INVARIANTS)


def test_the_bugs_that_must_be_there_are():
    bugs = " ".join(mutant.bug for mutant in MUTANTS.values())
    for bug in ("KAFKA-16147", "KAFKA-19233", "kfake #1438", "crabka #521"):
        assert bug in bugs
    assert {"lost-reply-fenced", "lost-assignment-not-repeated", "keepalive-after-lost-reply"} <= set(MUTANTS)


def test_what_tests_know_of_mutants_is_of_mutants_that_there_are():
    assert SHOWN_BY.keys() | QUICK <= MUTANTS.keys()


def test_a_renamed_function_breaks_its_mutant_loudly():
    class Renamed:
        def new_name(self) -> None: ...

    gone = instead_of(Renamed, "old_name", lambda original: original)
    mutant = Mutant("m", "b", "s.", ("one-owner",), ("steady",), (gone,))
    with pytest.raises(KeyError), mutant.apply():
        pass


def found(*names):
    return [Violation(invariant=name, seq=1, t_us=1, message=f"{name} broke") for name in names]


@pytest.fixture
def script(monkeypatch):
    """Runs answer from a script: by seed, what healthy and what mutated code breaks."""

    def make(healthy, mutated):
        switch = {"on": False}
        nothing = instead_of(switch, "x", lambda original: original)

        class Scripted(Mutant):
            def apply(self):
                import contextlib

                @contextlib.contextmanager
                def on():
                    switch["on"] = True
                    yield
                    switch["on"] = False

                return on()

        def violations_of(scenario, seed, overrides=(), *, until=()):
            return (mutated if switch["on"] else healthy).get(seed, [])

        monkeypatch.setattr(hunting, "violations_of", violations_of)
        return Scripted("m", "b", "s.", ("one-owner",), ("a", "b"), (nothing,))

    return make


def test_a_hunt_counts_the_seeds_that_show_the_bug(script):
    mutated = {2: found("epochs-ordered"), 3: found("owners-map", "one-owner"), 7: found("one-owner")}
    result = hunt(script({}, mutated), range(10))
    low, high = share_interval(2, 10)
    assert result == MutantResult(
        mutant="m",
        caught=True,
        seeds=10,
        hits=2,
        share=0.2,
        share_low=low,
        share_high=high,
        by=("one-owner", "owners-map"),
        scenario="b",
        seed=3,
        message="one-owner broke",
    )


def test_a_bug_that_less_than_a_tenth_of_the_seeds_show_is_not_caught(script):
    result = hunt(script({}, {3: found("one-owner")}), range(11))
    assert (result.caught, result.hits, result.seeds, result.healthy) == (False, 1, 11, True)
    assert hunt(script({}, {3: found("one-owner")}), range(10)).caught


def test_a_hunt_without_a_catch_says_so(script):
    result = hunt(script({}, {}), range(7))
    assert (result.caught, result.hits, result.seed, result.healthy) == (False, 0, -1, True)


def test_a_judge_that_healthy_code_wakes_proves_nothing(script):
    result = hunt(script({0: found("one-owner")}, {0: found("one-owner")}), range(7))
    assert (result.caught, result.hits, result.healthy) == (False, 1, False)


def test_an_unknown_mutant_is_refused():
    with pytest.raises(FencepostError, match="there is no mutant nobody"):
        hunt_all(range(1), names=["nobody"])


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in MUTANTS]
)
def test_a_mutant_is_reported_as_all_that_is_said_of_it(name):
    """By itself, and by its row in the docs."""
    mutant = MUTANTS[name]
    missing = set(mutant.expected) | names_in(rows()[name][4])
    for seed in dict.fromkeys([*SHOWN_BY.get(name, (0,)), *range(FEW)]):
        run = mutant.scenarios[seed % len(mutant.scenarios)], seed, mutant.overrides
        with mutant.apply():
            seen = {each.invariant for each in hunting.violations_of(*run, until=All(missing))}
        missing -= seen
        if not missing:
            break
    assert not missing


HEALTHY = {
    (mutant.scenarios[seed % len(mutant.scenarios)], seed, mutant.overrides): None
    for name, mutant in MUTANTS.items()
    for seed in SHOWN_BY.get(name, (0,))
}
"""Runs that show mutants, each once. Without mutants nothing may be reported in them."""


@pytest.mark.long
@pytest.mark.parametrize("scenario", sorted({scenario for scenario, _, _ in HEALTHY}))
def test_healthy_code_breaks_nothing_in_the_runs_that_show_mutants(scenario):
    for run in HEALTHY:
        if run[0] == scenario:
            assert hunting.violations_of(*run) == [], run


def test_a_hunt_ends_with_enough_hits_and_each_run_with_its_first(script, monkeypatch):
    hits = dict.fromkeys([0, 1, 4, 5], found("one-owner"))
    result = hunt(script({}, hits), range(20), enough=3)
    assert (result.caught, result.hits, result.seeds) == (True, 3, 5)
    ends = []
    monkeypatch.setattr(hunting, "violations_of", lambda *_, until=(): ends.append(until) or [])
    hunt(MUTANTS["owner-entry-lost"], range(1), enough=3)
    assert ends == [(), MUTANTS["owner-entry-lost"].expected]


@pytest.mark.processes
def test_several_processes_hunt_as_one_does():
    names = ["owner-entry-lost", "epoch-moves-in-revocation"]
    assert hunt_all(range(2), names=names, processes=2) == hunt_all(range(2), names=names)


def first_or_never(number: int) -> int:
    while number:
        signal.pause()
    return number


@pytest.mark.processes
def test_processes_that_are_no_longer_needed_end_without_a_word(capfd: pytest.CaptureFixture[str]) -> None:
    def terminated(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, terminated)
    try:
        found = hunting.process_map(first_or_never, [0, 1, 1], 3)
        assert next(found) == 0
        found.close()  # type: ignore[attr-defined]
    finally:
        signal.signal(signal.SIGTERM, before)
    assert capfd.readouterr().err == ""
