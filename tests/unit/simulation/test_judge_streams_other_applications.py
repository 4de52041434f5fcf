"""Other applications: all goes as it must, and each kind of broken rule of the coordinator is found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from fencepost.coordinator.epoch_groups import EpochGroupSoftState
from fencepost.coordinator.protocol.streams import DescribedStreamsGroup
from fencepost.coordinator.streams import describe, heartbeat, offset_fencing, validation
from fencepost.coordinator.streams.groups import StreamsGroups
from fencepost.coordinator.streams.partition_counts import DecidedPartitionCounts
from fencepost.coordinator.streams.soft import StreamsSoftState
from fencepost.simulation.run import RunResult, run
from fencepost.simulation.scenarios.load import load_any
from fencepost.simulation.streams.foreign_requests import foreign_topologies
from fencepost.simulation.trace.schema import Row

NAME = "streams-other-applications"
FEW = [f"faults.{number}.likely=0.001" for number in range(1, 7)]


class Lives:
    """The ends of all lives."""

    def __init__(self) -> None:
        self.ends: list[str] = []

    def write(self, rows: Sequence[Row]) -> None:
        rows = [Row(*row) for row in rows]
        self.ends += [row.detail for row in rows if "of its life" in row.detail]


def played(seed: int = 1, until: str = "") -> tuple[RunResult, Lives]:
    """A run in which hardly anything but other applications disturbs the cluster, or its begin."""
    lives = Lives()
    return run(load_any(NAME, overrides=FEW), seed, trace=lives, until=(until,)), lives


def test_each_topology_lives_its_whole_life() -> None:
    names = {each.name for each in foreign_topologies("g", ("orders", 4), ("payments", 6))}
    ends: list[str] = []
    for seed in (1, 2):
        result, lives = played(seed)
        assert result.violations == []
        ends += lives.ends
    whole = {end.split(", ", 1)[1].rsplit(": ", 1)[0] for end in ends if "all of its life" in end}
    assert whole == names


def test_topics_have_unequal_numbers() -> None:
    with pytest.raises(ValueError, match="orders and payments have 4 partitions each"):
        foreign_topologies("g", ("orders", 4), ("payments", 4))


def nothing(*_: Any, **__: Any) -> None: ...


def never_stale(original: Any) -> Any:
    def tell(step: Any, code: Any, detail: str) -> None:
        if code.name != "STALE_TOPOLOGY":
            original(step, code, detail)

    return tell


@pytest.mark.parametrize(
    ("owner", "name", "replacement", "invariant"),
    [
        (validation, "_check_supported", nothing, "streams-answers"),
        (validation, "check_tasks", nothing, "streams-answers"),
        (validation, "check_epoch", nothing, "streams-answers"),
        (StreamsGroups, "end_of_empty", nothing, "streams-answers"),
        (DecidedPartitionCounts, "_copartition", nothing, "streams-topics"),
        (heartbeat._Step, "tell", never_stale(heartbeat._Step.tell), "streams-replies"),
        (EpochGroupSoftState, "request_metadata_refresh", nothing, "streams-replies"),
        (StreamsSoftState, "_arm_rebalance", nothing, "streams-sessions"),
        (offset_fencing, "check_commit", nothing, "streams-commits"),
        (
            describe,
            "missing",
            lambda group_id, _: DescribedStreamsGroup(group_id=group_id),
            "streams-described",
        ),
    ],
)
def test_a_broken_rule_is_found(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, replacement: Any, invariant: str
) -> None:
    monkeypatch.setattr(owner, name, replacement)
    result, _ = played(until=invariant)
    assert invariant in {violation.invariant for violation in result.violations}


def test_only_tasks_that_follow_from_the_topics_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """The internal topics are right, and the coordinator deals one task of each part."""
    monkeypatch.setattr(DecidedPartitionCounts, "tasks", lambda *_: 1)
    result, _ = played(until="streams-target")
    assert "streams-target" in {violation.invariant for violation in result.violations}
