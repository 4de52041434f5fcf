"""When things of a scenario happen: its steps, and the quiet phase at the end of a run."""

from __future__ import annotations

from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.simulation.scenarios import scenario as s
from fencepost.simulation.scenarios.kinds import AnyScenario
from fencepost.simulation.scenarios.values import Moment

SLACK_US = 10_000_000
"""Time for messages, callbacks and batches, on top of the time-outs that a group may need to settle."""


def quiet_us(scenario: s.Scenario, config: GroupCoordinatorConfig) -> int:
    """How long a group may need to settle once nothing disturbs it any more, in microseconds.

    A dead member's session runs out, then a member that does not revoke is fenced, and each learns of it
    by a heartbeat; before all that a request may still time out, and a process be on its way up.
    """
    if scenario.quiet is not None:
        return scenario.quiet.us
    before_us = scenario.network.request_timeout.us + scenario.application.restart.longest_us
    return settling_ms(scenario, config) * 1_000 + before_us + SLACK_US


def settling_ms(scenario: s.Scenario, config: GroupCoordinatorConfig) -> int:
    """The session timeout, the rebalance timeout and three heartbeat intervals of the slower protocol.

    In a classic group the first of those who join wait for others; where topics change its members have to
    see that first.
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
    return max(found) + group.rebalance_timeout.ms


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
    end, members = undelayed_us(scenario, quiet), scenario.group.members
    for step in sorted(scenario.steps, key=lambda step: step.at.within(length)):
        count = 1
        if isinstance(step, s.Scale):
            before, members = members, scaled(scenario, step)
            count = abs(members - before)
        elif isinstance(step, s.RollingRestart):
            count = -(-members // batch_of(step, members))
        elif isinstance(step, s.Subscribe):
            count = share_of(step, members)
        over = getattr(step, "over", Moment())
        end = max([end, *spread(step.at, over, count, length)[-1:]])
    return end


def scaled(scenario: AnyScenario, step: s.Scale) -> int:
    """How many members there are after the step."""
    if step.members is not None:
        return step.members
    assert step.factor is not None
    return max(1, round(scenario.group.members * step.factor))


def batch_of(step: s.RollingRestart, members: int) -> int:
    """How many members restart at the same time."""
    return 1 if step.batch is None else max(1, round(members * step.batch))


def share_of(step: s.Subscribe, members: int) -> int:
    """How many members change what they subscribe to."""
    return max(1, round(members * step.share))


def spread(at: Moment, over: Moment, count: int, length: int) -> list[int]:
    """So many times, evenly over a time, at whose end one more would be."""
    begin, whole = at.within(length), over.within(length)
    return [begin + whole * index // max(count, 1) for index in range(count)]
