"""Times of a scenario: its steps, and the quiet phase at the end of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencepost.simulation.scenarios.values import Moment

if TYPE_CHECKING:
    from fencepost.simulation.scenarios.kinds import AnyScenario
    from fencepost.simulation.scenarios.scenario import Scenario
    from fencepost.simulation.scenarios.streams import StreamsScenario

SLACK_US = 10_000_000
"""Time for messages, callbacks and batches, in addition to the timeouts that a group may need to settle."""

MESSAGES = 8
"""Messages to and from a member that finds its coordinator, joins, gets its assignment, and confirms it."""


def slowness_us(scenario: Scenario | StreamsScenario) -> int:
    """Return the time that messages and brokers may take beyond the slack, in microseconds."""
    cluster, network = scenario.cluster, scenario.network
    brokers_us = cluster.failover.longest_us + cluster.load.longest_us + network.detection.longest_us
    messages_us = min(MESSAGES * network.latency.longest_us, network.request_timeout.us)
    return max(0, messages_us + brokers_us - SLACK_US)


def is_answered(scenario: Scenario | StreamsScenario) -> bool:
    """Return true if members reach their coordinator in time. Otherwise a group may never settle."""
    return MESSAGES * scenario.network.latency.longest_us < scenario.network.request_timeout.us


def undelayed_us(scenario: AnyScenario, quiet: int) -> int:
    """Return the start of the quiet phase if nothing delays it: `quiet` before the end, from half on."""
    return max(scenario.duration.us - quiet, scenario.duration.us // 2)


def faults_end_us(scenario: AnyScenario, quiet: int) -> int:
    """Return the time until which faults recur: until the quiet phase, which waits for the last step."""
    length = scenario.duration.us
    ends = (
        step.at.within(length) + getattr(step, "over", Moment()).within(length) for step in scenario.steps
    )
    return max([undelayed_us(scenario, quiet), *ends])
