"""A batch of several outcomes is never cut within one: seen on the journals of simulated coordinators."""

from __future__ import annotations

from functools import cache
from itertools import accumulate

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.coordinator.protocol.records import OffsetCommitKey, Record
from fencepost.simulation.kernel.observers import FindingReport, Observer, WorldView
from fencepost.simulation.lab.chaos.group_log_tail import LoggedRecord
from fencepost.simulation.lab.chaos.outcomes import outcomes
from fencepost.simulation.run import run
from fencepost.simulation.scenarios.load import load

SCENARIOS = ("static-rolling-deploy", "regex-subscriptions", "swarm")
ALONE = "rolling-deploy"
"""Of one member, by the rules of Kafka 4.4, which writes more where the last member leaves."""


class Journal(Observer):
    """Keeps the journal's batches, each of which is one outcome."""

    batches: tuple[tuple[Record, ...], ...] = ()

    def attach(self, world: WorldView, report: FindingReport) -> None:
        self.world = world

    def on_end(self, now_us: int) -> None:
        self.batches = tuple(self.world.journal.batches())


@cache
def journal(name: str) -> tuple[tuple[Record, ...], ...]:
    watching = Journal()
    scenario = load(name, members=1 if name == ALONE else 5)
    if name == ALONE:
        scenario = msgspec.structs.replace(scenario, config={"release.version": "4.4"})
    run(scenario, 3, judges=[watching])
    assert len(watching.batches) > (50 if name == ALONE else 100)
    return watching.batches


def logged(batches: tuple[tuple[Record, ...], ...]) -> list[LoggedRecord]:
    return [LoggedRecord(at, 0, record) for at, record in enumerate(r for batch in batches for r in batch)]


def cuts(pieces: list[tuple[LoggedRecord, ...]]) -> list[int]:
    return list(accumulate(map(len, pieces)))


@given(st.sampled_from((*SCENARIOS, ALONE)), st.data())
def test_a_cut_is_never_within_an_outcome(name: str, data: st.DataObject) -> None:
    batches = journal(name)
    first = data.draw(st.integers(0, len(batches) - 1))
    together = batches[first : first + data.draw(st.integers(1, 8))]
    found = cuts(list(outcomes(logged(together))))
    assert set(found) <= set(accumulate(map(len, together)))
    assert found[-1] == sum(map(len, together))


@pytest.mark.parametrize("name", [*SCENARIOS, ALONE])
def test_most_outcomes_are_told_apart(name: str) -> None:
    """Commits that follow each other are not, and need not be."""
    batches = tuple(each for each in journal(name) if not isinstance(each[0].key, OffsetCommitKey))
    pieces = list(outcomes(logged(batches)))
    assert len(pieces) > 0.8 * len(batches)


def test_another_time_is_another_outcome() -> None:
    (batch, *_) = journal("static-rolling-deploy")
    twice = [LoggedRecord(at, ms, record) for ms in (1, 2) for at, record in enumerate(batch)]
    assert cuts(list(outcomes(twice))) == [len(batch), 2 * len(batch)]
