"""What a simulated application takes in its polls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest

from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.simulation.kernel.observers import Observer
from fencepost.simulation.run import run
from fencepost.simulation.scenarios.load import loads

SECOND = 1_000_000
OVERLOADED = """
duration = "2m"
quiet = "1m"
[group]
members = 1
[application]
poll = "5s"
max_poll_records = 10
processing = "{processing}"
[[topics]]
name = "orders"
partitions = 4
records_per_second = 40
"""


class Deliveries(Observer):
    def __init__(self) -> None:
        self.records: Counter[TopicPartition] = Counter()
        self.times_us: list[int] = []

    def on_records_delivered(
        self, host: str, partition: TopicPartition, first: int, last_exclusive: int, now_us: int
    ) -> None:
        self.records[partition] += last_exclusive - first
        self.times_us.append(now_us)


class Callbacks(Observer):
    def __init__(self) -> None:
        self.longest_us = 0
        self._since_us: dict[str, int] = {}

    def on_callback(
        self, host: str, kind: str, phase: str, partitions: Iterable[TopicPartition], now_us: int
    ) -> None:
        since_us = self._since_us.setdefault(host, now_us)
        if phase == "end":
            self.longest_us = max(self.longest_us, now_us - since_us)
            del self._since_us[host]


def delivered(processing: str) -> Deliveries:
    deliveries = Deliveries()
    run(loads(OVERLOADED.format(processing=processing)), 1, judges=[deliveries])
    return deliveries


def test_an_application_that_cannot_keep_up_serves_all_its_partitions():
    """As a fetcher does, which goes on with the partition that has waited longest."""
    records = delivered("50ms").records
    assert len(records) == 4
    assert max(records.values()) - min(records.values()) <= 10


def test_after_a_full_poll_the_next_returns_at_once():
    """What gathered while it was busy is in the client already: 40 records a second in polls of 10."""
    deliveries = delivered("1ms")
    assert sum(deliveries.records.values()) > 0.9 * 40 * 110


@pytest.mark.parametrize("commit", ["sync", "async"])
def test_an_application_commits_what_it_has_processed_while_more_is_waiting(commit: str):
    """A commit that nobody waits for, and one of a callback, may find the application in the next batch."""
    scenario = loads(
        OVERLOADED.format(processing="20ms"),
        overrides=(f"application.commit={commit}", "group.members=4", "group.start=0s..50s"),
    )
    assert not run(scenario, 1).violations


def test_commits_that_nobody_waits_for_do_not_queue_up():
    """Where answers take longer than batches, a rebalance would wait for each of them in turn."""
    scenario = loads(
        OVERLOADED.format(processing="1ms"),
        overrides=(
            "application.commit=async",
            "application.poll=100ms",
            "cluster.replication=2s",
            "group.members=4",
            "group.start=0s..50s",
        ),
    )
    callbacks = Callbacks()
    run(scenario, 1, judges=[callbacks])
    assert 2 * SECOND < callbacks.longest_us < 6 * SECOND
