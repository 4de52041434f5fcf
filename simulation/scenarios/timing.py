"""When things of a scenario happen: its steps, and the quiet phase at the end of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencepost.simulation.scenarios.values import Moment

if TYPE_CHECKING:
    from fencepost.simulation.scenarios.kinds import AnyScenario
    from fencepost.simulation.scenarios.scenario import Scenario
    from fencepost.simulation.scenarios.streams import StreamsScenario

SLACK_US = 10_000_000
"""Time for messages, callbacks and batches, on top of the time-outs that a group may need to settle."""

MESSAGES = 8
"""To and from a member that finds its coordinator, joins, is told what it gets, and says that it has that."""


def slowness_us(scenario: Scenario | StreamsScenario) -> int:
    """What messages and brokers may take beyond the slack, in microseconds."""
    cluster, network = scenario.cluster, scenario.network
    brokers_us = cluster.failover.longest_us + cluster.load.longest_us + network.detection.longest_us
    messages_us = min(MESSAGES * network.latency.longest_us, network.request_timeout.us)
    return max(0, messages_us + brokers_us - SLACK_US)


def is_answered(scenario: Scenario | StreamsScenario) -> bool:
    """Whether members get through to their coordinator in time: otherwise a group may never settle."""
    return MESSAGES * scenario.network.latency.longest_us < scenario.network.request_timeout.us


def undelayed_us(scenario: AnyScenario, quiet: int) -> int:
    """When the quiet phase begins if nothing puts it off: that long before the end, in the second half."""
    return max(scenario.duration.us - quiet, scenario.duration.us // 2)


def faults_end_us(scenario: AnyScenario, quiet: int) -> int:
    """Until when faults come again and again: until the quiet phase, which waits for the last step."""
    length = scenario.duration.us
    ends = (
        step.at.within(length) + getattr(step, "over", Moment()).within(length) for step in scenario.steps
    )
    return max([undelayed_us(scenario, quiet), *ends])
