"""When things of a scenario happen: its steps, and the quiet phase at the end of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.simulation.scenarios import scenario as s
from fencepost.simulation.scenarios.values import Moment

if TYPE_CHECKING:
    from fencepost.simulation.scenarios.kinds import AnyScenario
    from fencepost.simulation.scenarios.streams import StreamsScenario

SLACK_US = 10_000_000
"""Time for messages, callbacks and batches, on top of the time-outs that a group may need to settle."""

MESSAGES = 8
"""To and from a member that finds its coordinator, joins, is told what it gets, and says that it has that."""


def quiet_us(scenario: s.Scenario, config: GroupCoordinatorConfig) -> int:
    """How long a group may need to settle once nothing disturbs it any more, in microseconds.

    A dead member's session runs out, then a member that does not revoke is fenced, and each learns of it
    by a heartbeat; before all that a request may still time out, and a process be on its way up.
    """
    if scenario.quiet is not None:
        return scenario.quiet.us
    before_us = scenario.network.request_timeout.us + scenario.application.restart.longest_us
    return settling_ms(scenario, config) * 1_000 + before_us + SLACK_US


def slowness_us(scenario: s.Scenario | StreamsScenario) -> int:
    """What messages and brokers may take beyond the slack, in microseconds."""
    cluster, network = scenario.cluster, scenario.network
    brokers_us = cluster.failover.longest_us + cluster.load.longest_us + network.detection.longest_us
    messages_us = min(MESSAGES * network.latency.longest_us, network.request_timeout.us)
    return max(0, messages_us + brokers_us - SLACK_US)


def is_answered(scenario: s.Scenario | StreamsScenario) -> bool:
    """Whether members get through to their coordinator in time: otherwise a group may never settle."""
    return MESSAGES * scenario.network.latency.longest_us < scenario.network.request_timeout.us


def is_kept(scenario: s.Scenario, config: GroupCoordinatorConfig) -> bool:
    """Whether members are heard before their session or rebalance timeout ends: otherwise they come and go.

    In a rebalance they are told, commit, run a callback, and answer when no heartbeat is under way any more.
    What a callback takes beyond a heartbeat interval disturbs the group, and is known to.
    """
    group, callback = scenario.group, scenario.application.callback
    answer_us = 2 * scenario.network.latency.longest_us + scenario.cluster.replication.longest_us
    timings = []
    if "consumer" in scenario.protocols:
        interval_ms = config.group_consumer_heartbeat_interval_ms
        timings.append((interval_ms * 1_000, config.group_consumer_session_timeout_ms * 1_000))
    if "classic" in scenario.protocols:
        timings.append((group.heartbeat_interval.us, group.session_timeout.us))
    return all(
        interval_us + answer_us < session_us
        and interval_us + 3 * answer_us + min(callback.longest_us, interval_us) < group.rebalance_timeout.us
        for interval_us, session_us in timings
    )


def settling_ms(scenario: s.Scenario, config: GroupCoordinatorConfig) -> int:
    """The session timeout, the rebalance timeout and three heartbeat intervals of the slower protocol.

    What messages and brokers take beyond the slack is added. In a classic group the first of those who join
    wait for others; where topics change its members have to see that first.
    """
    group, found = scenario.group, []
    if "consumer" in scenario.protocols:
        heartbeats = 3 * config.group_consumer_heartbeat_interval_ms
        found.append(config.group_consumer_session_timeout_ms + heartbeats)
    if "classic" in scenario.protocols:
        changes = any(
            isinstance(step, s.CreateTopic | s.GrowTopic | s.DeleteTopic) for step in scenario.steps
        )
        seen = group.metadata_max_age.ms if changes else 0
        heartbeats = 3 * group.heartbeat_interval.ms
        found.append(group.session_timeout.ms + heartbeats + config.group_initial_rebalance_delay_ms + seen)
    return max(found) + group.rebalance_timeout.ms + slowness_us(scenario) // 1_000


def quiet_of(scenario: AnyScenario) -> int:
    """As `quiet_us`, of a scenario of any kind with the configuration of its own."""
    if isinstance(scenario, s.Scenario):
        return quiet_us(scenario, GroupCoordinatorConfig.from_properties(scenario.config))
    return scenario.quiet_us


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
