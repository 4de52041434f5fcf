"""Plays a scenario faster: the plan that its seed draws in simulation, in less time, on a real broker.

Everything that the scenario says about time is multiplied by one factor: when things happen and how long they
take, including timeouts of clients. Rates of records are divided by it. So the run has the same disturbances,
in the same order, hitting the same members for the same share of the run, and as many records. What belongs
to the broker stays unchanged: heartbeats, sessions, failover.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.faults.plan import FaultPlan, PlannedEvent, draw_plan
from fencepost.simulation.kernel.rng import Draws
from fencepost.simulation.scenarios.scenario import Scenario
from fencepost.simulation.scenarios.streams import StreamsScenario
from fencepost.simulation.scenarios.timing import SLACK_US
from fencepost.simulation.scenarios.values import Duration, Moment, Span

DEFAULT_US = 60_000_000
"""Default length of a run, in microseconds."""

_LEAST_FACTOR = 0.04
"""Minimum factor: 25 times as fast. Beyond it, a rebalance timeout of a minute is shorter than a busy
machine's hiccups."""

T = TypeVar("T")
S = TypeVar("S", bound=Scenario | StreamsScenario)


class TimeScale(msgspec.Struct, Generic[S], frozen=True, kw_only=True):
    """A scenario and its plan as they are played."""

    scenario: S
    plan: FaultPlan
    factor: float
    """Factor by which each time was multiplied; 0.125 is eight times as fast."""
    quiet_us: int
    """Length of the quiet phase, in microseconds."""


def tempo(scenario: S, seed: int, config: GroupCoordinatorConfig, duration_us: int) -> TimeScale[S]:
    """Return the scenario and the seed's plan, played within that time on a broker with that configuration.

    :raises FencepostError: if that time is too short for it.
    """
    plan = draw_plan(scenario, Draws(seed), scenario.quiet_us)
    fixed, played = _quiet_us(scenario, config, None)
    factor = min(1.0, (duration_us - fixed) / (plan.faults_end_us + played))
    least_us = _least_session_us(scenario, config)
    raised = least_us is not None and factor * scenario.group.session_timeout.us < least_us
    if raised:
        fixed, played = _quiet_us(scenario, config, least_us)
        factor = min(1.0, (duration_us - fixed) / (plan.faults_end_us + played))
    if factor < _LEAST_FACTOR:
        least = fixed + round(_LEAST_FACTOR * (plan.faults_end_us + played))
        session_ms = scenario.broker_timeouts_ms(config)[0]
        raise FencepostError(
            f"--duration {Duration(duration_us)}: {scenario.name} needs at least"
            f" {-(-least // 1_000_000)}s on this broker, whose session timeout is"
            f" {session_ms / 1000:g} s"
        )
    quiet_us = fixed + round(factor * played)
    scaled = faster(scenario, factor)
    return TimeScale(
        scenario=_with_session(scaled, least_us) if raised else scaled,
        plan=faster_plan(plan, factor, quiet_us),
        factor=factor,
        quiet_us=quiet_us,
    )


def _quiet_us(
    scenario: Scenario | StreamsScenario, config: GroupCoordinatorConfig, session_us: int | None
) -> tuple[int, int]:
    """Return the part of the quiet phase that stays unchanged, and the part that is played faster.

    The broker's timeouts stay, the clients' are played faster. Sessions of classic members are the clients',
    unless the broker demands longer ones, `session_us`.
    """
    if scenario.quiet is not None:
        return 0, scenario.quiet_us
    fixed = SLACK_US
    played = (
        scenario.group.rebalance_timeout.us
        + scenario.network.request_timeout.us
        + scenario.application.restart.longest_us
    )
    protocols = scenario.protocols if isinstance(scenario, Scenario) else ("consumer",)
    if "consumer" in protocols:
        session_ms, interval_ms = scenario.broker_timeouts_ms(config)
        fixed += 1_000 * (session_ms + 3 * interval_ms)
    if "classic" in protocols:
        fixed += 1_000 * config.group_initial_rebalance_delay_ms + (session_us or 0)
        played += 3 * scenario.group.heartbeat_interval.us
        played += scenario.group.session_timeout.us if session_us is None else 0
    return fixed, played


def _least_session_us(scenario: Scenario | StreamsScenario, config: GroupCoordinatorConfig) -> int | None:
    """Return the shortest session that a broker lets classic members have; None without such members."""
    is_classic = isinstance(scenario, Scenario) and "classic" in scenario.protocols
    return 1_000 * config.group_min_session_timeout_ms if is_classic else None


def _with_session(scenario: S, session_us: int | None) -> S:
    group: Any = scenario.group
    longer = msgspec.structs.replace(group, session_timeout=Duration(session_us or 0))
    return msgspec.structs.replace(scenario, group=longer)


def faster(value: T, factor: float) -> T:
    """Return a scenario, or a part of one, with each time in it multiplied, and each rate divided."""
    result: Any = value
    if isinstance(value, Duration):
        result = Duration(max(1_000, round(value.us * factor)) if value.us else 0)
    elif isinstance(value, Moment):
        result = value if value.share is not None else Moment(round(value.us * factor))
    elif isinstance(value, Span):
        result = _span(value, factor)
    elif isinstance(value, tuple):
        result = tuple(faster(each, factor) for each in value)
    elif isinstance(value, msgspec.Struct):
        fields = {name: faster(getattr(value, name), factor) for name in value.__struct_fields__}
        if "records_per_second" in fields:
            fields["records_per_second"] = fields["records_per_second"] / factor
        result = type(value)(**fields)
    return result  # type: ignore[no-any-return]


def _span(span: Span, factor: float) -> Span:
    low, high = round(span.low * factor), round(span.high * factor)
    return Span(span.kind, max(low, 1) if span.kind == "lognormal" else low, max(high, 1) if span.high else 0)


def faster_plan(plan: FaultPlan, factor: float, quiet: int) -> FaultPlan:
    """Return a plan with each time in it multiplied, and a quiet phase of that length."""
    faults_end = round(plan.faults_end_us * factor)
    return msgspec.structs.replace(
        plan,
        entries=tuple(_entry(entry, factor) for entry in plan.entries),
        faults_end_us=faults_end,
        end_us=faults_end + quiet,
    )


def _entry(entry: PlannedEvent, factor: float) -> PlannedEvent:
    kind, low, high = entry.added
    return msgspec.structs.replace(
        entry,
        at_us=round(entry.at_us * factor),
        lasts_us=round(entry.lasts_us * factor),
        added=(kind, round(low * factor), round(high * factor)),
        records_per_second=entry.records_per_second / factor,
    )
