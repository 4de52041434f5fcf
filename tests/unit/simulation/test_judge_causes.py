"""Epochs, targets and reconciliations: each for a reason, and each in time."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.coordinator.config import ReleaseVersion
from fencepost.coordinator.protocol import records as r
from fencepost.coordinator.protocol.consumer import ConsumerGroupHeartbeatResponse
from fencepost.coordinator.protocol.outcome import (
    DeadlineReached,
    Outcome,
    RebalanceRequested,
    RegularExpressionsResolved,
    TopicsChanged,
)
from fencepost.coordinator.protocol.topics import Topic, TopicsImage
from tests.unit.simulation.judged_steps import ConsumerScene, Tamper, beat, changed, without

X = "X" * 22
RESOLVED = RegularExpressionsResolved(group_id="g", topics={"x": ("x",)}, image_version=1)
GROWN = TopicsImage.of([Topic(topic_id=X, name="x", partitions=4)])
SAID: dict[str, dict[str, Any]] = {
    "topics": {"subscribed_topic_names": ("y",)},
    "nothing": {"subscribed_topic_names": ()},
    "rack": {"rack_id": "r"},
    "timeout": {"rebalance_timeout_ms": 1},
    "client": {"client_id": "c"},
    "same": {},
}
PAIR = "join A a; at 1; join B b"
"""A and B are static. A has yet to release a partition."""


class Scene(ConsumerScene):
    """Records that are written by hand."""

    def records(self, words: tuple[str, ...]) -> tuple[r.Record, ...]:
        """A member that says something, and a group epoch that is raised (`+1`)."""
        found = []
        for word in words:
            if word[0] == "+":
                value: Any = r.ConsumerGroupMetadataValue(
                    self.group.group_epoch + int(word), self.group.metadata_hash
                )
                found.append(r.Record(r.ConsumerGroupMetadataKey("g"), value))
            else:
                known = self.group.members["A"].metadata_record("g")
                found.append(r.Record(known.key, changed(**SAID[word])(known.value)))
        return tuple(found)

    def late(self, *words: str) -> None:
        """Time writes them."""
        self.take(DeadlineReached(), Outcome(records=self.records(words)))

    def says(self, *words: str) -> None:
        """A heartbeat of A without a reply writes them."""
        self.take(beat("A"), Outcome(records=self.records(words)))

    def asked(self, *words: str) -> None:
        """A request for a rebalance does."""
        self.take(RebalanceRequested(group_id="g"), Outcome(records=self.records(words)))

    def returns(self, *words: str) -> None:
        """C joins again under B's instance id, and this writes them."""
        self.take(beat("C", 0, instance_id="b"), Outcome(records=self.records(words)))

    def stays(self, member_id: str, epoch: str, owned: str = "", *words: str) -> None:
        """A heartbeat is answered, and moves nothing."""
        reply = ConsumerGroupHeartbeatResponse(
            member_id=member_id, member_epoch=int(epoch), heartbeat_interval_ms=5_000
        )
        request = beat(member_id, int(epoch), None if owned in ("", "-") else owned)
        self.take(request, Outcome(records=self.records(words), reply=reply))

    def target(self, epoch: str, dated_ms: str) -> None:
        self.take(DeadlineReached(), Outcome(records=(target(int(epoch), int(dated_ms)),)))

    def grow(self) -> None:
        self.step(TopicsChanged(image=GROWN))

    def resolve(self) -> None:
        self.step(RESOLVED)

    def matches_nothing(self) -> None:
        """The expression is written again, with another result."""
        key = r.ConsumerGroupRegularExpressionKey("g", "x")
        value = r.ConsumerGroupRegularExpressionValue((), 1, self.now_ms)
        self.take(RESOLVED, Outcome(records=(r.Record(key, value),)))

    def by_expression(self) -> None:
        self.beat("A", "i=a", subscribed_topic_names=(), subscribed_topic_regex="x")

    def epochs(self, group: str, assignment: str = "") -> None:
        assert self.group.group_epoch == int(group)
        assert not assignment or self.group.assignment_epoch == int(assignment)


def target(epoch: int, dated_ms: int) -> r.Record:
    key = r.ConsumerGroupTargetAssignmentMetadataKey("g")
    return r.Record(key, r.ConsumerGroupTargetAssignmentMetadataValue(epoch, dated_ms))


def target_of_nobody(dated_ms: int) -> Tamper:
    def tamper(outcome: Any) -> Any:
        others = without(r.ConsumerGroupTargetAssignmentMetadataKey)(outcome).records
        return changed(records=(*others, target(3, dated_ms)))(outcome)

    return tamper


CAUSED, MOVES, DUE = "epoch-caused", "heartbeat-reconciles", "target-due"
UNCAUSED = f"{CAUSED} {MOVES}"
"""A heartbeat of `says` has no reply, so that it moves nothing."""
SLOW = {"group_consumer_assignment_interval_ms": 5_000}
WAITS = "at 1; join A; at 2; join B; epochs 3 2"
"""The target of B's epoch waits for the interval to pass."""
V4_4 = {"release_version": ReleaseVersion.V4_4}
LEAVES = "at 1; join A; at 2; beat A e=-1"


@pytest.mark.parametrize(
    ("settings", "script", "tamper", "broken"),
    [
        # An epoch is raised once for a change of an input.
        ({}, PAIR + "; late +1", None, CAUSED),
        ({}, PAIR + "; late +2", None, CAUSED),
        ({}, PAIR + "; says topics", None, f"{UNCAUSED} subscription-raises-epoch"),
        ({}, PAIR + "; says topics +1", None, MOVES),
        ({}, PAIR + "; says topics +2", None, UNCAUSED),
        *(({}, f"{PAIR}; says {word}", None, MOVES) for word in ("rack", "timeout", "client")),
        *(({}, f"{PAIR}; says {word} +1", None, UNCAUSED) for word in ("rack", "timeout", "client")),
        ({}, PAIR + "; asked same", None, CAUSED),
        ({}, PAIR + "; asked same +1", None, ""),
        ({}, PAIR + "; grow; at 2; beat A; rebalance; epochs 5", None, ""),
        # A static member that comes back as it was is no cause, an expression that matches others is one.
        ({}, PAIR + "; beat B e=-2 i=b; join C b; epochs 3; returns +1", None, CAUSED),
        ({}, PAIR + "; by_expression; resolve; matches_nothing", None, f"{CAUSED} expressions-resolved"),
        # A target comes after the interval, for the newest epoch, and at once if it is due.
        (SLOW, WAITS + "; at 6; beat A; epochs 3 3", None, ""),
        (SLOW, WAITS + "; at 5.999; target 3 5999", None, f"{DUE} target-balanced"),
        (SLOW, WAITS + "; at 6; target 3 5000", None, f"{DUE} target-balanced"),
        (SLOW, WAITS + "; at 6; target 2 6000", None, f"{DUE} target-balanced"),
        (SLOW, WAITS + "; at 5.999; stays A 2", None, ""),
        (SLOW, WAITS + "; at 6; stays A 2", None, DUE),
        # A group without members has a target in newer releases only.
        ({}, LEAVES, target_of_nobody(0), DUE),
        (V4_4, LEAVES, target_of_nobody(2_000), DUE),
        (V4_4, LEAVES, target_of_nobody(0), ""),
        # A has to release a partition, is asked to, and is not given up before it does.
        ({}, PAIR + "; stays A 2", None, MOVES),
        ({}, PAIR + "; beat A 01; stays A 2 01", None, ""),
        ({}, PAIR + "; beat A 01; stays A 2 0", None, MOVES),
        # B gets what is free, and nothing before.
        ({}, PAIR + "; beat B; stays B 3", None, ""),
        ({}, PAIR + "; beat B; beat A 01; beat A 0; stays B 3", None, MOVES),
        # A topic that was just dropped is not kept.
        (
            {}, PAIR + "; beat A 01; beat A 0; stays A 3 - nothing +1", None,
            f"{MOVES} heartbeat-recorded {DUE}",
        ),
    ],
)  # fmt: skip
def test_what_has_no_cause_or_is_late(
    settings: dict[str, Any], script: str, tamper: Tamper | None, broken: str
) -> None:
    found = Scene(**settings).play_wrongly(script, tamper)
    assert found == set(broken.split())
