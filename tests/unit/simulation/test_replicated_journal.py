"""The journal of the simulated cluster: compacted now and then, and not while appends fail."""

from __future__ import annotations

import pytest

from fencepost.coordinator.host import AppendFailed
from fencepost.coordinator.protocol import records as r
from fencepost.simulation.kafka.cluster import ReplicatedJournal

KEY = r.ConsumerGroupMetadataKey("g")


def record(epoch: int) -> r.Record:
    return r.Record(KEY, r.ConsumerGroupMetadataValue(epoch, 0))


def test_it_keeps_the_newest_of_a_key_once_it_is_long() -> None:
    journal = ReplicatedJournal()
    for epoch in range(2_000):
        journal.append((record(epoch),))
    assert len(journal) == 2_000
    journal.append((record(2_000),))
    assert list(journal) == [record(2_000)]


def test_it_takes_nothing_while_a_fault_makes_appends_fail() -> None:
    journal = ReplicatedJournal()
    journal.failing = 1
    with pytest.raises(AppendFailed):
        journal.append((record(1),))
    assert not list(journal)
