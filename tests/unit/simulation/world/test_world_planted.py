"""Ten planted bugs are found from a seed, shrunk to a few faults and named; their correct twins are clean."""

from __future__ import annotations

from pathlib import Path

import pytest

import fencepost
from fencepost.simulation.world.failure import WorldFailure, explain, read_world_failure
from tests.unit.simulation.world.planted import PLANTED

FIRST_SEEDS = {
    "commit-before-processing": 1,
    "no-commit-on-revoke": 1,
    "background-work-and-auto-commit": 1,
    "state-not-dropped-on-loss": 8,
    "callback-outlasts-poll-timeout": 1,
    "ignored-commit-error": 1,
    "static-id-used-twice": 1,
    "wrong-seek-after-assignment": 3,
    "sink-without-deduplication": 1,
    "shutdown-loses-last-batch": 3,
}
"""The first seed that shows each bug. Others take its place if the faults are drawn in another way."""
MOST_SEEDS = 200
MOST_FAULTS = 3


def first_failure(name: str, hint: int = 1) -> fencepost.WorldResult:
    test = PLANTED[name].wrong.simulated
    for seed in [hint, *range(1, MOST_SEEDS + 1)]:
        result: fencepost.WorldResult = test.run(seed)
        if result.failed:
            return result
    pytest.fail(f"no seed up to {MOST_SEEDS} shows {name}")


@pytest.mark.parametrize("name", PLANTED)
def test_bug_is_found_and_named(name: str) -> None:
    result = first_failure(name, FIRST_SEEDS[name])
    assert result.invariant in PLANTED[name].reported_as, result.violations


@pytest.mark.long
@pytest.mark.parametrize("name", ["state-not-dropped-on-loss"])
def test_bug_is_shrunk_to_a_few_faults(name: str, tmp_path: Path) -> None:
    result = first_failure(name, FIRST_SEEDS[name])
    test = PLANTED[name].wrong.simulated
    explain(test.function, test.settings, result, command="pytest", folder=tmp_path)
    (document,) = tmp_path.glob("*.json")
    small: WorldFailure = read_world_failure(str(document))
    assert small.invariant == result.invariant
    assert len(small.plan.entries) <= MOST_FAULTS, small.plan.entries


@pytest.mark.parametrize("name", PLANTED)
def test_correct_twin_is_clean(name: str) -> None:
    test = PLANTED[name].right.simulated
    for seed in range(1, 4):
        result = test.run(seed)
        assert not result.failed, (seed, result.violations, result.trouble)
