"""The mutants: what they replace exists, they leave nothing behind, and they cover what they must."""

from __future__ import annotations

import pytest

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.analyses.comparison import share_interval
from fencepost.simulation.judge.catalogue import INVARIANTS
from fencepost.simulation.kernel.observers import Violation
from fencepost.simulation.lab import hunt as hunting
from fencepost.simulation.lab.hunt import MutantResult, Survivors, hunt, hunt_all
from fencepost.simulation.mutants.mutant import Mutant, instead_of
from fencepost.simulation.mutants.registry import MUTANTS
from fencepost.simulation.scenarios.load import load_any
from tests.unit.simulation.invariants_page import names_in, rows

FEW = 20
"""Seeds in which each invariant that is said to report a mutant has to."""
SHOWN_BY = {
    "any-generation": 5,
    "connection-back-means-running": 1,
    "expressions-kept": 4,
    "null-releases": 5,
    "owner-entry-lost": 4,
    "regex-topics-unnoticed": 5,
    "rejoin-fenced": 6,
    "released-and-still-listed": 7,
    "sac-return-not-evaluated": 4,
    "shutdown-told-once": 1,
    "staged-offsets-expire": 9,
    "subscribed-offsets-expire": 6,
    "unstable-not-told": 10,
    "unstable-taken": 3,
    "waits-for-itself": 4,
}
"""Of mutants of which the first seeds do not show all: one that shows the rest, to begin with."""
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


@pytest.fixture(scope="module")
def survivors() -> Survivors:
    """Runs of healthy code, which the hunts of one process share."""
    return {}


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in MUTANTS]
)
def test_a_mutant_is_reported_as_all_that_is_said_of_it(name, survivors):
    """By itself, and by its row in the docs."""
    mutant = MUTANTS[name]
    seeds = sorted(range(FEW), key=lambda seed: seed != SHOWN_BY.get(name, 0))
    said, seen = set(mutant.expected) | names_in(rows()[name][4]), set[str]()
    for seed in seeds:
        result = hunt(mutant, [seed], survivors=survivors)
        assert result.healthy, result
        assert name not in SHOWN_BY or seed != seeds[0] or result.hits, "SHOWN_BY: that seed shows it no more"
        seen |= set(result.by)
        if said <= seen:
            break
    assert said <= seen


def test_a_lost_owner_is_caught():
    result = hunt_all(range(10), names=["owner-entry-lost"])["owner-entry-lost"]
    assert result.caught, result
    assert "owners-map" in result.by


def test_a_hunt_ends_with_enough_hits_and_each_run_with_its_first():
    mutant = MUTANTS["owner-entry-lost"]
    whole, short = hunt(mutant, range(20)), hunt(mutant, range(20), enough=3)
    assert short.caught
    assert (short.hits, short.message) == (3, whole.message)
    assert short.seeds < whole.seeds == 20


@pytest.mark.processes
def test_several_processes_hunt_as_one_does():
    names = ["owner-entry-lost", "epoch-moves-in-revocation"]
    assert hunt_all(range(4), names=names, processes=2) == hunt_all(range(4), names=names)
