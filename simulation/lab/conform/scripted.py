"""Schedules by hand that wait: for sessions, time-outs and intervals; and the table of all of them."""

from __future__ import annotations

from collections.abc import Iterator

from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.simulation.lab.conform import scripts
from fencepost.simulation.lab.conform.generate import TOPICS
from fencepost.simulation.lab.conform.schedule import (
    Beat,
    CommitStep,
    Configure,
    Describe,
    DescribeStreams,
    List,
    Owned,
    Schedule,
    Step,
    Wait,
)
from fencepost.simulation.lab.conform.scripts import confirm, join
from fencepost.simulation.lab.conform.scripts_streams import full as full_streams
from fencepost.simulation.lab.conform.scripts_streams import streams

SHORT_MS = 1_000
"""A session that is worth waiting for."""
_MARGIN_MS = 300
_LONG_MS = 45_000
"""A session that ends in no schedule."""
_REGEX_SPACING_MS = 10_000
_FULL_AT_MOST = 20
_STREAMS = "streams"


def scripted(config: GroupCoordinatorConfig) -> Iterator[Schedule]:
    """The schedules that a broker of this configuration can run; long ones first."""
    found: dict[str, list[Step]] = {"expressions are resolved every ten seconds": _spacing()}
    if config.group_consumer_min_session_timeout_ms <= SHORT_MS:
        found |= _sessions()
    found |= {
        "rebalance time-out": _rebalance_timeout(),
        "rebalance time-out, in time": _in_time(),
        "targets are batched": _batches(),
        "settings of a group": _settings(config),
        "offsets without a group": scripts.simple_group(),
        "a simple group becomes a consumer group": scripts.simple_then_join(),
        "offsets of members": scripts.offsets(),
        "old epochs commit what they hold": scripts.old_epochs(),
        "a revocation step by step": scripts.revocation(),
        "a target changes while a member revokes": scripts.changed_target(),
        "a member that revoked waits for another": scripts.waits_after_revoking(),
        "a static member goes while it revokes": scripts.goes_while_revoking(),
        "lost answers": scripts.lost_answers(),
        "static members come and go": scripts.static(),
        "expressions": scripts.expressions(),
        "an expression instead of another's names": scripts.expression_of_another(),
        "topics come and go": scripts.topics(),
        "administrators remove members": scripts.removals(),
        "the life of a group": scripts.life(),
    }
    if config.group_consumer_max_size <= _FULL_AT_MOST:
        found["a full group"] = scripts.full(config.group_consumer_max_size)
    for name, steps in found.items():
        ending: list[Step] = [Describe(), List()]
        yield Schedule(name=name, topics=TOPICS, steps=(*steps, *ending))
    if _STREAMS in config.group_coordinator_rebalance_protocols:
        made = streams()
        if config.group_streams_max_size <= _FULL_AT_MOST:
            made["streams: a full group"] = full_streams(config.group_streams_max_size)
        for name, steps in made.items():
            yield Schedule(name=name, topics=TOPICS, steps=(*steps, DescribeStreams(), List()))


def _spacing() -> list[Step]:
    return [
        Configure(values={"consumer.session.timeout.ms": str(_LONG_MS)}),
        join("A", regex="x"),
        *confirm("A"),
        join("B", regex="[xy]"),
        *confirm("B", "A"),
        Describe(),
        Wait(ms=_REGEX_SPACING_MS // 4),
        *confirm("A", "B"),
        Wait(ms=_REGEX_SPACING_MS // 4),
        *confirm("A", "B"),
        Wait(ms=_REGEX_SPACING_MS // 4),
        *confirm("A", "B"),
        Wait(ms=_REGEX_SPACING_MS // 4 + _MARGIN_MS),
        *confirm("A", "B", "A", "B", "A"),
    ]


def _sessions() -> dict[str, list[Step]]:
    short = Configure(values={"consumer.session.timeout.ms": str(SHORT_MS)})
    half, whole = Wait(ms=SHORT_MS // 2), Wait(ms=SHORT_MS + _MARGIN_MS)
    return {
        "a session ends": [
            short,
            join("A", "x"),
            join("B", "x"),
            half,
            *confirm("A"),
            half,
            *confirm("A"),
            half,
            Describe(),
            *confirm("A", "B"),
            whole,
            Describe(),
            *confirm("A"),
            join("A", "x"),
        ],
        "commits keep nobody alive": [
            short,
            join("A", "x"),
            Wait(ms=SHORT_MS * 7 // 10),
            CommitStep(member="A", topics={"x": (0,)}),
            Wait(ms=SHORT_MS * 7 // 10),
            CommitStep(member="A", topics={"x": (0,)}),
            Describe(),
        ],
        "a static member does not return": [
            short,
            join("A", "x", instance="i1"),
            join("B", "x"),
            *confirm("A", "B", "A", "B"),
            half,
            Beat(member="A", epoch=-2, instance="i1"),
            *confirm("B"),
            Describe(),
            Wait(ms=SHORT_MS // 2 + _MARGIN_MS),
            Describe(),
            *confirm("B"),
            join("C", "x", instance="i1"),
        ],
        "a static member returns in time": [
            short,
            join("A", "x", instance="i1"),
            half,
            Beat(member="A", epoch=-2, instance="i1"),
            Wait(ms=SHORT_MS // 5),
            join("B", "x", instance="i1"),
            half,
            *confirm("B"),
            Wait(ms=SHORT_MS // 5),
            Describe(),
            Beat(member="A", owned=Owned.ASSIGNED, instance="i1"),
        ],
        "an expression matches nothing until sessions end": [
            short,
            join("A", regex="[xy]"),
            join("B", "x", "y"),
            *confirm("A", "B", "A", "B"),
            Beat(member="A", regex="x.+"),
            *confirm("A"),
        ],
    }


def _rebalance_timeout() -> list[Step]:
    return [
        join("A", "x", "y", rebalance_timeout_ms=500),
        join("B", "x", "y"),
        *confirm("A"),
        Beat(member="A"),
        Wait(ms=500 + _MARGIN_MS),
        Describe(),
        *confirm("A", "B"),
        join("A", "x", "y"),
    ]


def _in_time() -> list[Step]:
    return [
        join("A", "x", "y", rebalance_timeout_ms=800),
        join("B", "x", "y"),
        Beat(member="A"),
        Wait(ms=300),
        *confirm("A"),
        Wait(ms=800),
        *confirm("A", "B"),
    ]


def _batches() -> list[Step]:
    return [
        Configure(values={"consumer.assignment.interval.ms": "1000"}),
        join("A", "x"),
        join("B", "x"),
        Describe(),
        List(states=("assigning",)),
        *confirm("A", "B"),
        join("C", "x", instance="i1"),
        Beat(member="B", epoch=-1),
        Wait(ms=1_000 + _MARGIN_MS),
        *confirm("A", "C", "A", "C"),
        Beat(member="A", names=("y",)),
        Beat(member="C", epoch=-2, instance="i1"),
        join("D", "x", instance="i1"),
        Describe(),
        Wait(ms=1_000 + _MARGIN_MS),
        *confirm("D", "A", "A"),
        *(Beat(member=name, epoch=-1) for name in "AD"),
        Describe(),
        join("E", "x"),
        Describe(),
    ]


def _settings(config: GroupCoordinatorConfig) -> list[Step]:
    low, high = (
        config.group_consumer_min_heartbeat_interval_ms,
        config.group_consumer_max_heartbeat_interval_ms,
    )
    name = "consumer.heartbeat.interval.ms"
    return [
        join("A", "x"),
        Configure(values={name: str(low)}),
        *confirm("A"),
        Configure(values={name: str(low - 1)}),
        Configure(values={name: str(high + 1)}),
        Configure(values={name: "soon"}),
        Configure(values={"consumer.session.timeout.ms": "60001"}),
        *confirm("A"),
    ]
