"""Steps of a coordinator's host whose time is moved by the test."""

from __future__ import annotations

from typing import Any

from fencepost.coordinator.host import CoordinatorHost
from fencepost.coordinator.protocol.outcome import DeadlineReached
from fencepost.coordinator.sac.coordinator import SacOutcome


def steps_due(host: CoordinatorHost[Any], now_ms: int) -> list[Any]:
    """Run all timers that are due; return the outcomes that wrote or did something, and all of SAC groups."""
    outcomes = []
    while (due_ms := host.coordinator.next_deadline()) is not None and due_ms <= now_ms:
        outcome = host.step(DeadlineReached(due_ms), now_ms)
        if outcome.records or outcome.effects or isinstance(outcome, SacOutcome):
            outcomes.append(outcome)
    return outcomes
