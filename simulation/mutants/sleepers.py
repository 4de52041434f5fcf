"""Slips for checkers that no other mutant wakes: states, requests and offsets that the code itself guards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

import fencepost.coordinator.consumer.reconcile as reconciliation
from fencepost.coordinator.consumer.member import ConsumerGroupMember
from fencepost.coordinator.consumer.states import ConsumerGroupMemberState
from fencepost.coordinator.consumer.subscription import SubscriptionCounts
from fencepost.coordinator.offsets import expiry
from fencepost.coordinator.protocol.records import Record
from fencepost.member.consumer.actions import ConsumerMoved
from fencepost.member.consumer.machine import ConsumerMember
from fencepost.member.consumer.states import ConsumerMemberEvent, ConsumerMemberState
from fencepost.simulation.mutants.coordinators import CHURN, LOSSES
from fencepost.simulation.mutants.mutant import Mutant, Patch
from fencepost.simulation.mutants.slips import NOBODY

_Function = Callable[..., Any]


def _never_waits(original: _Function) -> _Function:
    """A member whose target others still hold is settled with what is free of it."""

    def next_step(*arguments: Any) -> ConsumerGroupMember:
        found: ConsumerGroupMember = original(*arguments)
        if found.state is not ConsumerGroupMemberState.UNRELEASED_PARTITIONS:
            return found
        return msgspec.structs.replace(found, state=ConsumerGroupMemberState.STABLE)

    return next_step


def _last_one_still_counts(original: _Function) -> _Function:
    """What a member subscribed to is counted as long as nobody else comes."""

    def replace(self: SubscriptionCounts, old: Any, new: Any) -> None:
        last = self.by_name.copy()
        original(self, old, new)
        if new is None and not self.by_name:
            self.by_name = last

    return replace


def _nobody_subscribes(original: _Function) -> _Function:
    def expired(*arguments: Any, **named: Any) -> tuple[Record, ...]:
        found: tuple[Record, ...] = original(*arguments, **{**named, "is_subscribed": lambda topic: False})
        return found

    return expired


def _fenced_is_joining(original: _Function) -> _Function:
    """A fenced member asks to join at once; the table would not let it."""

    def move(self: Any, event: ConsumerMemberEvent, target: ConsumerMemberState) -> None:
        if event is not ConsumerMemberEvent.FENCED or target is not ConsumerMemberState.FENCED:
            original(self, event, target)
            return
        self.out.put(ConsumerMoved(event, self.state, ConsumerMemberState.JOINING))
        self.state = ConsumerMemberState.JOINING

    return move


def _does_not_wait_for_answers(original: _Function) -> _Function:
    """A heartbeat that is due goes out although the last one was not answered."""

    def heartbeat_due_ms(self: Any, now_ms: int) -> int | None:
        heartbeats = self.heartbeats
        waits_for, heartbeats.in_flight = heartbeats.in_flight, None
        due_ms: int | None = original(self, now_ms)
        heartbeats.in_flight = waits_for
        is_due = due_ms is not None and now_ms >= due_ms
        return due_ms if waits_for is None or is_due else None

    return heartbeat_due_ms


SLEEPERS: Final = (
    Mutant(
        "stable-too-soon",
        NOBODY,
        "A member is STABLE as soon as it has what is free of its target.",
        ("stable-owns-target",),
        CHURN,
        (Patch(reconciliation, "_next", _never_waits),),
    ),
    Mutant(
        "last-subscription-kept",
        NOBODY,
        "The last member to go leaves its subscription behind.",
        ("empty-group",),
        ("rolling-deploy", "crash-and-return"),
        (Patch(SubscriptionCounts, "replace", _last_one_still_counts),),
        ("group.members=1",),
    ),
    Mutant(
        "subscribed-offsets-expire",
        "KAFKA-4682",
        "Offsets expire although members subscribe to their topics.",
        ("offsets-kept",),
        ("rolling-deploy", "steady"),
        (Patch(expiry, "expired", _nobody_subscribes),),
        (
            "duration=5m",
            "config.offsets.retention.minutes=1",
            "config.offsets.retention.check.interval.ms=30000",
        ),
    ),
    Mutant(
        "fenced-and-joining",
        NOBODY,
        "A fenced member asks to join before it has let go of what it owned.",
        ("transitions",),
        ("frozen-members", *LOSSES),
        (Patch(ConsumerMember, "_move", _fenced_is_joining),),
    ),
    Mutant(
        "heartbeats-overlap",
        NOBODY,
        "A heartbeat that is due does not wait for the answer to the one before.",
        ("one-in-flight",),
        LOSSES,
        (Patch(ConsumerMember, "_heartbeat_due_ms", _does_not_wait_for_answers),),
    ),
)
