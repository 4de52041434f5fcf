"""Ten planted bugs are found from a seed and named; their correct twins are clean."""

from __future__ import annotations

import sys

import pytest

import fencepost
from tests.unit.simulation.world.planted import PLANTED

FIRST_SEEDS = {
    "commit-before-processing": 1,
    "no-commit-on-revoke": 1,
    "background-work-and-auto-commit": 1,
    "state-not-dropped-on-loss": 8,
    "callback-outlasts-poll-timeout": 1,
    "ignored-commit-error": 8,
    "static-id-used-twice": 1,
    "wrong-seek-after-assignment": 3,
    "sink-without-deduplication": 6,
    "shutdown-loses-last-batch": 3,
}
"""The first seed that shows each bug, with PYTHONHASHSEED=0. With another one it may be another."""
ONCE_FAILED = {
    "commit-before-processing": [272],
    "no-commit-on-revoke": [445],
    "ignored-commit-error": [248, 635, 751],
    "static-id-used-twice": [867],
    "wrong-seek-after-assignment": [138],
}
"""Seeds on which a correct twin failed.

138: an error of Metadata takes all partitions for minutes. 248 and 635: aiokafka repeats a commit after a
rebalance. 272: a generation lasts for three milliseconds, and its owner was not noted. 445: a commit meets a
rebalance. 751: aiokafka takes a refused OffsetFetch for no offsets. 867: a program was cut off and slow, and
did its next record 17 seconds after the rebalance.
"""
NAMES = [
    *[*PLANTED][::3],
    *(pytest.param(each, marks=pytest.mark.long) for each in PLANTED if each not in [*PLANTED][::3]),
]
MOST_SEEDS = 200


def first_failure(name: str) -> fencepost.WorldResult:
    """Return a run that shows the bug: of the seed in `FIRST_SEEDS`, or else of the first that does."""
    test = PLANTED[name].wrong.simulated
    expected = FIRST_SEEDS.get(name)
    for seed in dict.fromkeys([expected or 1, *range(1, MOST_SEEDS + 1)]):
        result: fencepost.WorldResult = test.run(seed)
        if not result.failed:
            continue
        if expected is None or (seed != expected and not sys.flags.hash_randomization):
            pytest.fail(f"FIRST_SEEDS has {expected} for {name}: write {seed}, which shows it")
        return result
    pytest.fail(f"no seed up to {MOST_SEEDS} shows {name}")


@pytest.mark.parametrize("name", NAMES)
def test_bug_is_found_and_named(name: str) -> None:
    result = first_failure(name)
    assert result.invariant in PLANTED[name].reported_as, result.violations


@pytest.mark.parametrize("name", NAMES)
def test_correct_twin_is_clean(name: str) -> None:
    test = PLANTED[name].right.simulated
    for seed in [1, *ONCE_FAILED.get(name, ())]:
        result = test.run(seed)
        assert not result.failed, (seed, result.violations, result.trouble)
