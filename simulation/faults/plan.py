"""The plan that a run's seed draws in advance: each disturbance with its time, its target and its duration.

A plan is a flat list of values that can be written as JSON. It determines the run together with a scenario
and a seed. Removing entries leaves the rest unchanged, so that a failure can be shrunk.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Iterator
from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from fencepost.simulation.kernel.rng import Draws
from fencepost.simulation.scenarios import scenario as s
from fencepost.simulation.scenarios.kinds import AnyScenario
from fencepost.simulation.scenarios.sac import OperateGroups, SacFault, SacStep
from fencepost.simulation.scenarios.streams import (
    StreamsFault,
    ThreadChange,
    ThreadException,
)
from fencepost.simulation.scenarios.timing import SLACK_US, faults_end_us, undelayed_us
from fencepost.simulation.scenarios.values import Moment

_Count: TypeAlias = Annotated[int, Meta(ge=0)]
_Share: TypeAlias = Annotated[float, Meta(ge=0, le=1)]


class FaultKind(enum.StrEnum):
    """The kind of disturbance."""

    RESTART = "restart"
    START = "start"
    STOP = "stop"
    SUBSCRIBE = "subscribe"
    CREATE_TOPIC = "create-topic"
    GROW_TOPIC = "grow-topic"
    DELETE_TOPIC = "delete-topic"
    OPERATE = "operate"
    MEMBER_CRASH = "member-crash"
    MEMBER_FREEZE = "member-freeze"
    SLOW_CALLBACK = "slow-callback"
    CALLBACK_ERROR = "callback-error"
    POLL_TIMEOUT = "poll-timeout"
    PRODUCER_TAKEOVER = "producer-takeover"
    COORDINATOR_CRASH = "coordinator-crash"
    COORDINATOR_MOVE = "coordinator-move"
    COORDINATOR_UNAVAILABLE = "coordinator-unavailable"
    APPEND_FAILURE = "append-failure"
    BROKER_CRASH = "broker-crash"
    BROKER_PAUSE = "broker-pause"
    PARTITION = "partition"
    SLOW_LINK = "slow-link"
    LOSS = "loss"
    CONNECTION_LOSS = "connection-loss"
    LOST_REQUEST = "lost-request"
    LOST_RESPONSE = "lost-response"
    REQUEST_ERROR = "request-error"
    HTTP_FAULT = "http-fault"
    NODE_CRASH = "node-crash"
    NODE_LEAVE = "node-leave"
    NODE_SPLIT = "node-split"
    THREAD_EXCEPTION = "thread-exception"
    THREAD_CHANGE = "thread-change"
    CLIENT_CLOSE = "client-close"
    OTHER_APPLICATION = "other-application"


class PlannedEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One disturbance. Fields that its kind does not need keep their defaults."""

    at_us: _Count
    kind: FaultKind
    member: _Count = 0
    """Index of the member or broker, modulo the number of those that this can happen to at that time. For
    starts, stops and restarts it is the number of the member itself."""
    lasts_us: _Count = 0
    graceful: bool = True
    returns: bool = True
    epoch_moved: bool = False
    share: _Share = 0.0
    brokers: _Share = 1.0
    probability: _Share = 0.0
    added: tuple[Literal["constant", "uniform", "lognormal", "exponential"], _Count, _Count] = (
        "constant",
        0,
        0,
    )
    """For a slow link: the span of the delay that is added to each message."""
    protocol: s.GroupProtocol | Literal[""] = ""
    """The member's group.protocol afterwards; empty leaves it unchanged."""
    strategies: tuple[s.AssignmentStrategy, ...] = ()
    """The assignors that a classic member offers afterwards; empty leaves them unchanged."""
    name: str = ""
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: _Count = 0
    records_per_second: Annotated[float, Meta(ge=0)] = 0.0


class FaultPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The plan of a run's faults and steps. The quiet phase begins at `faults_end_us`; the run ends at
    `end_us`."""

    entries: tuple[PlannedEvent, ...]
    faults_end_us: _Count
    end_us: _Count
    members: Annotated[int, Meta(ge=1)]
    """The largest number of hosts."""


def draw_plan(scenario: AnyScenario, draws: Draws, quiet_us: int) -> FaultPlan:
    """Draw the plan of a seed. Each fault and each step of the scenario has its own random stream."""
    length = scenario.duration.us
    undelayed = faults_end = undelayed_us(scenario, quiet_us)
    again_until = faults_end_us(scenario, quiet_us)
    swarm = draws.random("plan/swarm")
    entries: list[PlannedEvent] = []
    members = scenario.group.members
    for index, step in enumerate(sorted(scenario.steps, key=lambda step: step.at.within(length))):
        rng = draws.random(f"plan/step/{index}")
        if scenario.swarm and swarm.random() < 0.5:
            continue
        if isinstance(step, s.Scale):
            target = _scaled(scenario, step)
            entries += _scale(step, members, target, length)
            members = target
        else:
            entries += _step_entries(step, members, length, rng)
    for index, fault in enumerate(scenario.faults):
        rng = draws.random(f"plan/fault/{index}")
        left_out = scenario.swarm and swarm.random() < 0.5
        if rng.random() < fault.likely and not left_out:
            drawn = [_fault_entry(fault, at, rng) for at in _times(fault, length, again_until, rng)]
            entries += drawn
            if fault.at is not None:
                late = [_end(entry, scenario) for entry in drawn if entry.at_us >= undelayed]
                faults_end = max([faults_end, *late])
    faults_end = max([faults_end, *(entry.at_us for entry in entries)])
    entries.sort(key=lambda entry: entry.at_us)
    most = max(
        [scenario.group.members, *(_scaled(scenario, t) for t in scenario.steps if isinstance(t, s.Scale))]
    )
    if any(isinstance(step, s.RollingRestart) and step.overlap is not None for step in scenario.steps):
        most *= 2
    return FaultPlan(
        entries=tuple(entries), faults_end_us=faults_end, end_us=faults_end + quiet_us, members=most
    )


def _scaled(scenario: AnyScenario, step: s.Scale) -> int:
    if step.members is not None:
        return step.members
    assert step.factor is not None
    return max(1, round(scenario.group.members * step.factor))


def _spread(at: Moment, over: Moment, count: int, length: int) -> list[int]:
    """Return `count` times, spread evenly over a time span; the end of the span would be the next one."""
    begin, whole = at.within(length), over.within(length)
    return [begin + whole * index // max(count, 1) for index in range(count)]


def _scale(step: s.Scale, before: int, after: int, length: int) -> list[PlannedEvent]:
    kind = FaultKind.START if after > before else FaultKind.STOP
    numbers = range(before, after) if after > before else range(before - 1, after - 1, -1)
    times = _spread(step.at, step.over, len(numbers), length)
    return [
        PlannedEvent(at_us=at, kind=kind, member=number) for at, number in zip(times, numbers, strict=True)
    ]


def _replaced(step: s.RollingRestart, at_us: int, number: int, members: int) -> Iterator[PlannedEvent]:
    """Yield the start of a new member, and the stop of the old one that it replaces."""
    assert step.overlap is not None
    yield PlannedEvent(
        at_us=at_us,
        kind=FaultKind.START,
        member=members + number,
        protocol=step.protocol or "",
        strategies=step.partition_assignment_strategy,
    )
    at_us += step.overlap.us
    yield PlannedEvent(at_us=at_us, kind=FaultKind.STOP, member=number, graceful=step.graceful)


def _step_entries(
    step: s.Step | SacStep, members: int, length: int, rng: random.Random
) -> list[PlannedEvent]:
    at = step.at.within(length)
    if isinstance(step, s.RollingRestart):
        batch = 1 if step.batch is None else max(1, round(members * step.batch))
        times = _spread(step.at, step.over, -(-members // batch), length)
        if step.overlap is not None:
            return [
                each
                for number in range(members)
                for each in _replaced(step, times[number // batch], number, members)
            ]
        return [
            PlannedEvent(
                at_us=times[number // batch],
                kind=FaultKind.RESTART,
                member=number,
                graceful=step.graceful,
                protocol=step.protocol or "",
                strategies=step.partition_assignment_strategy,
            )
            for number in range(members)
        ]
    if isinstance(step, s.ChangeSubscription):
        chosen = sorted(rng.sample(range(members), max(1, round(members * step.share))))
        times = _spread(step.at, step.over, len(chosen), length)
        return [
            PlannedEvent(
                at_us=t, kind=FaultKind.SUBSCRIBE, member=number, topics=step.topics, pattern=step.pattern
            )
            for number, t in zip(chosen, times, strict=True)
        ]
    if isinstance(step, s.Operate):
        event = PlannedEvent(
            at_us=0, kind=FaultKind.OPERATE, name=step.request, topics=step.topics, share=step.share
        )
        times = _spread(step.at, step.over, step.times, length)
        return [msgspec.structs.replace(event, at_us=t) for t in times]
    if isinstance(step, OperateGroups):
        times = _spread(step.at, step.over, step.times, length)
        return [PlannedEvent(at_us=t, kind=FaultKind.OPERATE, name=step.request) for t in times]
    if isinstance(step, s.CreateTopic):
        return [
            PlannedEvent(
                at_us=at,
                kind=FaultKind.CREATE_TOPIC,
                name=step.name,
                partitions=step.partitions,
                records_per_second=step.records_per_second,
            )
        ]
    if isinstance(step, s.GrowTopic):
        return [PlannedEvent(at_us=at, kind=FaultKind.GROW_TOPIC, name=step.name, partitions=step.partitions)]
    assert isinstance(step, s.DeleteTopic)
    return [PlannedEvent(at_us=at, kind=FaultKind.DELETE_TOPIC, name=step.name)]


def _times(
    fault: s.Fault | s.RequestError | s.HttpFault | SacFault | StreamsFault,
    length: int,
    faults_end: int,
    rng: random.Random,
) -> list[int]:
    """Return the times of a fault: its moment, or several times in its window and before the quiet phase."""
    if fault.at is not None:
        return [fault.at.within(length)]
    assert fault.every is not None
    begin, end = fault.start.within(length), min(fault.until.within(length), faults_end)
    times = []
    at = begin + round(rng.expovariate(1 / fault.every.us))
    while at < end:
        times.append(at)
        at += 1 + round(rng.expovariate(1 / fault.every.us))
    return times


def _end(entry: PlannedEvent, scenario: AnyScenario) -> int:
    """Return the end of a fault, as far as it delays the quiet phase."""
    end = entry.at_us + entry.lasts_us
    if entry.kind is FaultKind.POLL_TIMEOUT:
        end += scenario.max_poll_interval_us
    if entry.kind in (FaultKind.LOST_REQUEST, FaultKind.LOST_RESPONSE):
        end += SLACK_US
    return end


_COPIED: Final = ("share", "brokers", "probability", "epoch_moved")
"""Fields of faults that their entries have, too."""


def _fault_entry(
    fault: s.Fault | s.RequestError | s.HttpFault | SacFault | StreamsFault, at: int, rng: random.Random
) -> PlannedEvent:
    tag = fault.__struct_config__.tag
    lasts = getattr(fault, "lasts", None)
    entry = PlannedEvent(
        at_us=at,
        kind=FaultKind(str(tag)),
        member=rng.randrange(1 << 30),
        lasts_us=0 if lasts is None else rng.choice(lasts.quantiles),
    )
    more: dict[str, object] = {name: getattr(fault, name) for name in _COPIED if hasattr(fault, name)}
    if isinstance(fault, s.MemberCrash):
        more["returns"] = rng.random() < fault.returns
    elif isinstance(fault, ThreadException):
        more = {"name": f"{fault.response} {fault.where}", "partitions": fault.threads}
    elif isinstance(fault, ThreadChange):
        more["share"] = rng.random()
    elif isinstance(fault, s.SlowLink):
        more["added"] = fault.latency.kind, fault.latency.low, fault.latency.high
    elif isinstance(fault, s.RequestError | s.HttpFault):
        more["name"] = rng.choice(fault.errors if isinstance(fault, s.RequestError) else fault.kinds)
    return msgspec.structs.replace(entry, **more) if more else entry
