"""Scripted schedules: cases that random ones rarely meet, and cases that take time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.simulation.lab.conform import scripts_classic, scripts_migration, scripts_streams
from fencepost.simulation.lab.conform.generate import MISSING, TIMEOUT_MS, TOPICS
from fencepost.simulation.lab.conform.schedule import (
    Beat,
    CommitStep,
    Configure,
    CreateTopicStep,
    DeleteGroup,
    DeleteTopicStep,
    Describe,
    DescribeClassic,
    DescribeStreams,
    Epoch,
    Fetch,
    Forget,
    Grow,
    List,
    Owned,
    Remove,
    Removed,
    Schedule,
    Step,
    Wait,
)

SHORT_MS = 1_000
"""A session timeout that is short enough to wait for, in ms."""
_MARGIN_MS = 300
_LONG_MS = 45_000
"""A session timeout that expires in no schedule, in ms."""
_REGEX_SPACING_MS = 10_000
_FULL_AT_MOST = 20
_STREAMS = "streams"

_ONE_OF_X = {"x": (0,)}
_TWO_OF_X = {"x": (0, 1)}
_FULL: dict[str, Any] = {"names": ("x",), "rebalance_timeout_ms": TIMEOUT_MS}
"""The fields of a full heartbeat."""
_I1: dict[str, Any] = {"instance": "i1"}
_SHORT = Configure(values={"consumer.session.timeout.ms": str(SHORT_MS)})
_HALF, _WHOLE = Wait(ms=SHORT_MS // 2), Wait(ms=SHORT_MS + _MARGIN_MS)


def join(member: str, *names: str, **fields: Any) -> Beat:
    """Let a member join, with these topics or with what the fields say."""
    fields = {"rebalance_timeout_ms": TIMEOUT_MS, "assignor": "range", **fields}
    if names or "regex" not in fields:
        fields["names"] = names
    return Beat(member=member, epoch=0, owned=Owned.EMPTY, **fields)


def confirm(*members: str) -> list[Step]:
    """Let each of the members report that it owns its assignment."""
    return [Beat(member=member, owned=Owned.ASSIGNED) for member in members]


_SPACING: dict[str, list[Step]] = {
    "expressions are resolved every ten seconds": [
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
    ],
}

_SESSIONS: dict[str, list[Step]] = {
    "a session ends": [
        _SHORT,
        join("A", "x"),
        join("B", "x"),
        _HALF,
        *confirm("A"),
        _HALF,
        *confirm("A"),
        _HALF,
        Describe(),
        *confirm("A", "B"),
        _WHOLE,
        Describe(),
        *confirm("A"),
        join("A", "x"),
    ],
    "commits keep nobody alive": [
        _SHORT,
        join("A", "x"),
        Wait(ms=SHORT_MS * 7 // 10),
        CommitStep(member="A", topics={"x": (0,)}),
        Wait(ms=SHORT_MS * 7 // 10),
        CommitStep(member="A", topics={"x": (0,)}),
        Describe(),
    ],
    "a static member does not return": [
        _SHORT,
        join("A", "x", instance="i1"),
        join("B", "x"),
        *confirm("A", "B", "A", "B"),
        _HALF,
        Beat(member="A", epoch=-2, instance="i1"),
        *confirm("B"),
        Describe(),
        Wait(ms=SHORT_MS // 2 + _MARGIN_MS),
        Describe(),
        *confirm("B"),
        join("C", "x", instance="i1"),
    ],
    "a static member returns in time": [
        _SHORT,
        join("A", "x", instance="i1"),
        _HALF,
        Beat(member="A", epoch=-2, instance="i1"),
        Wait(ms=SHORT_MS // 5),
        join("B", "x", instance="i1"),
        _HALF,
        *confirm("B"),
        Wait(ms=SHORT_MS // 5),
        Describe(),
        Beat(member="A", owned=Owned.ASSIGNED, instance="i1"),
    ],
    "an expression matches nothing until sessions end": [
        _SHORT,
        join("A", regex="[xy]"),
        join("B", "x", "y"),
        *confirm("A", "B", "A", "B"),
        Beat(member="A", regex="x.+"),
        *confirm("A"),
    ],
}

_TIMED: dict[str, list[Step]] = {
    "rebalance time-out": [
        join("A", "x", "y", rebalance_timeout_ms=500),
        join("B", "x", "y"),
        *confirm("A"),
        Beat(member="A"),
        Wait(ms=500 + _MARGIN_MS),
        Describe(),
        *confirm("A", "B"),
        join("A", "x", "y"),
    ],
    "rebalance time-out, in time": [
        join("A", "x", "y", rebalance_timeout_ms=800),
        join("B", "x", "y"),
        Beat(member="A"),
        Wait(ms=300),
        *confirm("A"),
        Wait(ms=800),
        *confirm("A", "B"),
    ],
    "targets are batched": [
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
    ],
}

SCRIPTS: dict[str, list[Step]] = {
    "offsets without a group": [
        CommitStep(topics=_TWO_OF_X, epoch=3),
        CommitStep(topics=_TWO_OF_X, epoch=3, version=8),
        CommitStep(topics={"x": (0,), MISSING: (0,), "z": (7,)}, offset=5),
        Fetch(topics={"x": (0, 1), "z": (7,), MISSING: (0,)}),
        Fetch(),
        List(),
        List(types=("classic",)),
        List(types=("consumer",)),
        List(states=("EMPTY",)),
        Describe(),
        CommitStep(topics=_TWO_OF_X, member="A", epoch=3),
        CommitStep(topics=_TWO_OF_X, version=2, offset=6),
        Fetch(topics=_TWO_OF_X, member="A", epoch=-1),
        Fetch(topics=_TWO_OF_X, member="A", epoch=3),
        Forget(topics={"x": (1, 9), MISSING: (0,), "y": (0,)}),
        Fetch(),
        DeleteGroup(),
        DeleteGroup(),
        Fetch(),
        Forget(topics=_TWO_OF_X),
    ],
    "a simple group becomes a consumer group": [
        CommitStep(topics={"x": (0,), "y": (0,)}, offset=5),
        join("A", "x"),
        Describe(),
        Fetch(member="A"),
        CommitStep(topics={"x": (0,)}),
        CommitStep(topics={"x": (0,)}, member="A", epoch=Epoch.AHEAD),
        CommitStep(topics={"x": (0,)}, member="A", offset=7),
        Forget(topics={"x": (0,), "y": (0,)}),
        Fetch(member="A"),
        Beat(member="A", epoch=-1),
        Fetch(),
        CommitStep(topics={"x": (0,)}, offset=9),
        Forget(topics={"x": (0, 1)}),
        Describe(),
        DeleteGroup(),
        List(),
    ],
    # Commits and fetches of a member, at all epochs and versions.
    "offsets of members": [
        join("A", "x"),
        *(
            CommitStep(topics=_ONE_OF_X, member="A", version=version, offset=version)
            for version in (2, 5, 6, 7, 8, 9, 10)
        ),
        *(CommitStep(topics=_ONE_OF_X, member="A", epoch=epoch) for epoch in (-1, 0, 1, 99)),
        CommitStep(topics=_ONE_OF_X, member="B", epoch=2),
        CommitStep(topics=_ONE_OF_X, member="A", instance="nobody"),
        CommitStep(topics={"x": (0, 9), "y": (0,)}, member="A"),
        CommitStep(topics={"x": (0,), MISSING: (0,)}, member="A", version=10),
        CommitStep(topics=_ONE_OF_X, member="A", metadata_bytes=4096),
        CommitStep(topics=_ONE_OF_X, member="A", metadata_bytes=4097),
        *(Fetch(topics=_ONE_OF_X, member="A", epoch=epoch) for epoch in (Epoch.LAST, -1, 0, 1, 99)),
        Fetch(topics=_ONE_OF_X, member="B", epoch=2),
        *(Fetch(topics=_ONE_OF_X, version=version) for version in (1, 2, 6, 7, 8, 9, 10)),
        *(Fetch(version=version) for version in (2, 7, 8, 10)),
        Fetch(topics=_ONE_OF_X, stable=True),
    ],
    # KIP-1251: an older epoch may commit what has been held since then.
    "old epochs commit what they hold": [
        join("A", "x", "y"),
        join("B", "x"),
        *confirm("A", "B"),
        Beat(member="A", owned=Owned.ASSIGNED),
        CommitStep(topics={"x": (0,)}, member="A", epoch=Epoch.PREVIOUS),
        CommitStep(topics={"x": (3,)}, member="A", epoch=Epoch.PREVIOUS),
        CommitStep(topics={"x": (0, 3)}, member="A", epoch=Epoch.PREVIOUS),
        CommitStep(topics={"x": (0,)}, member="A", epoch=1),
        Beat(member="B", epoch=-1),
        *confirm("A", "A"),
        CommitStep(topics={"x": (3,)}, member="A", epoch=Epoch.PREVIOUS),
        CommitStep(topics={"x": (3,)}, member="A", epoch=Epoch.OLDER),
        CommitStep(topics={"x": (0,)}, member="A", epoch=Epoch.OLDER),
        CommitStep(topics={"x": (3,)}, member="A"),
    ],
    # KIP-848, the way of a partition from one member to another.
    "a revocation step by step": [
        join("A", "x"),
        join("B", "x"),
        Beat(member="A"),
        Describe(),
        Beat(member="A"),
        Beat(member="A", owned=Owned.BEFORE),
        Beat(member="B"),
        CommitStep(topics={"x": (3,)}, member="A"),
        Beat(member="A", owned=Owned.ASSIGNED),
        Beat(member="B"),
        Beat(member="B", owned=Owned.ASSIGNED),
        Describe(),
    ],
    "a target changes while a member revokes": [
        join("A", "x", "w"),
        join("B", "x", "w"),
        Beat(member="A"),
        join("C", "x", "w"),
        Beat(member="A"),
        Beat(member="A", owned=Owned.PARTIAL),
        Beat(member="A", names=("w",)),
        Describe(),
        Beat(member="A", owned=Owned.ASSIGNED),
        Beat(member="B", epoch=-1),
        *confirm("A", "C", "A", "C", "A"),
    ],
    "a member that revoked waits for another": [
        join("A", "x"),
        join("D", "w"),
        join("B", "x"),
        Beat(member="A"),
        Beat(member="A", names=("x", "w")),
        Beat(member="A", owned=Owned.ASSIGNED),
        Describe(),
        Beat(member="D"),
        *confirm("A", "D", "A", "B"),
    ],
    "a static member goes while it revokes": [
        join("A", "x", instance="i1"),
        join("B", "x"),
        Beat(member="A", instance="i1"),
        Describe(),
        Beat(member="A", epoch=-2, instance="i1"),
        Describe(),
        *confirm("B", "B"),
        join("C", "x", instance="i1"),
        *confirm("C", "B"),
    ],
    # A member repeats itself because it got no response.
    "lost answers": [
        join("A", "x", lost=True),
        join("A", "x"),
        join("B", "x"),
        Beat(member="A", owned=Owned.EMPTY, lost=True),
        Beat(member="A"),
        Beat(member="A", owned=Owned.ASSIGNED),
        Beat(member="A", owned=Owned.EMPTY),
        Beat(member="A", owned=Owned.EMPTY, **_FULL),
        *confirm("A", "B"),
        join("C", "x"),
        Beat(member="B", owned=Owned.EMPTY, lost=True),
        Beat(member="B", epoch=Epoch.PREVIOUS, owned=Owned.EMPTY, **_FULL),
        Beat(member="B", owned=Owned.EMPTY, lost=True),
        Beat(member="B", owned=Owned.EMPTY, lost=True),
        Beat(member="B"),
        Beat(member="B", epoch=-1, lost=True),
        Beat(member="B", epoch=-1),
    ],
    # KIP-848, static membership.
    "static members come and go": [
        join("A", "x", **_I1),
        join("A", "x", **_I1),
        join("B", "x", **_I1),
        join("B", "x", instance="i2"),
        Beat(member="A", owned=Owned.ASSIGNED),
        Beat(member="A", owned=Owned.ASSIGNED, **_I1),
        Beat(member="A", owned=Owned.ASSIGNED, instance="i2"),
        Beat(member="A", owned=Owned.ASSIGNED, instance="i3"),
        Beat(member="A", epoch=-2),
        Beat(member="A", epoch=-2, instance="i3"),
        Beat(member="A", epoch=-2, instance="i2"),
        Beat(member="A", epoch=-1, instance="i2"),
        join("C", "x"),
        Beat(member="A"),
        Describe(),
        Beat(member="A", epoch=-2, **_I1),
        Beat(member="A", epoch=-2, **_I1),
        Beat(member="A", **_I1),
        CommitStep(topics={"x": (0,)}, member="A", epoch=2),
        Describe(),
        *confirm("B", "C"),
        join("D", "x", **_I1),
        *confirm("D", "B", "C", "D"),
        Beat(member="A", epoch=3, **_I1),
        Beat(member="D", epoch=-2, **_I1),
        join("D", "x", **_I1),
        Beat(member="D", epoch=-2, **_I1),
        join("E", "x", "y", **_I1),
        *confirm("E", "B", "C"),
        Beat(member="E", epoch=-1),
        join("F", "x", **_I1),
    ],
    "expressions": [
        join("A", regex="[xy]"),
        *confirm("A", "A"),
        join("B", regex="[xy]"),
        *confirm("A", "B", "A", "B"),
        Beat(member="A", regex="("),
        Beat(member="A", regex="[xy]", names=("z",)),
        Beat(member="B", regex=""),
        *confirm("A", "B"),
        Beat(member="B", regex="[xy]"),
        *confirm("A", "B", "A", "B"),
        Beat(member="B", names=()),
        Beat(member="A", regex=""),
        Beat(member="A", names=(), regex=""),
        *confirm("A", "B"),
        Beat(member="B", regex="nothing"),
        *confirm("B", "A", "B"),
        Beat(member="B", epoch=-1),
        join("C", "x", regex="[xy]", version=1),
        *confirm("C"),
        Beat(member="C", names=(), regex=""),
        *confirm("C", "C"),
        Beat(member="C", owned=Owned.ASSIGNED, regex="y|z"),
        Beat(member="C", epoch=Epoch.PREVIOUS, owned=Owned.ASSIGNED, names=("x",)),
        join("D", MISSING),
        *confirm("D", "D"),
        Beat(member="D", owned=Owned.ASSIGNED, regex="y|w"),
        Beat(member="D", epoch=Epoch.PREVIOUS, owned=Owned.ASSIGNED),
        Beat(member="C", names=(), regex=""),
        *confirm("C", "C"),
        Beat(member="C", regex="z|w"),
        Beat(member="C"),
    ],
    # A member with an expression takes over from one that is away, and has another expression.
    "an expression instead of another's names": [
        join("A", regex=".*", instance="i1"),
        join("B", "x", "y", instance="i2"),
        Beat(member="B", epoch=-2, instance="i2"),
        join("A", regex="[wm]", instance="i2"),
        Beat(member="A", owned=Owned.ASSIGNED, instance="i2"),
    ],
    "topics come and go": [
        join("A", "x", MISSING),
        join("B", regex="[xm].*"),
        *confirm("A", "B", "A", "B"),
        CreateTopicStep(topic=MISSING, partitions=2),
        CreateTopicStep(topic=MISSING, partitions=2),
        *confirm("A", "B", "A", "B"),
        CommitStep(topics={"x": (0,), MISSING: (1,)}, member="A"),
        Grow(topic="x", partitions=6),
        Grow(topic="x", partitions=6),
        *confirm("B", "A", "B", "A"),
        DeleteTopicStep(topic=MISSING),
        DeleteTopicStep(topic=MISSING),
        Describe(),
        *confirm("A", "B"),
        Fetch(),
        CreateTopicStep(topic=MISSING, partitions=1),
        *confirm("B", "A"),
        Fetch(topics={MISSING: (0, 1)}),
        Fetch(topics={MISSING: (0,)}, version=10),
        DeleteTopicStep(topic="x"),
        *confirm("A", "B", "A"),
    ],
    # LeaveGroup by an administrator.
    "administrators remove members": [
        Remove(members=(Removed(member="A"),)),
        join("A", "x"),
        join("B", "x", instance="i1"),
        join("C", "x", instance="i2"),
        join("D", "x"),
        Remove(
            members=(Removed(member="nobody"), Removed(instance="i9"), Removed(member="A", instance="i1"))
        ),
        Remove(members=(Removed(instance="i1"), Removed(member="C", instance="i2"), Removed(member="A"))),
        Describe(),
        *confirm("D", "A"),
        Remove(members=(Removed(member="D"),), version=2),
        Remove(members=(Removed(member="D"),), version=2),
        Describe(),
    ],
    "a member prefers another assignor": [
        join("A", "x"),
        Beat(member="A", assignor="uniform"),
        *confirm("A"),
        join("B", "x", assignor="uniform"),
        *confirm("A", "B"),
    ],
    "the life of a group": [
        Describe(),
        DescribeClassic(),
        List(),
        DeleteGroup(),
        Beat(member="A", epoch=1),
        Beat(member="A", epoch=-1),
        join("A", "x"),
        DescribeClassic(),
        DescribeClassic(version=5),
        DeleteGroup(),
        *confirm("A"),
        Describe(version=0),
        Beat(member="A", epoch=-1),
        Describe(),
        Beat(member="A", epoch=-1),
        join("B", "x"),
        Describe(),
        Beat(member="B", epoch=-1),
        DeleteGroup(),
        Describe(),
        join("C", "x"),
    ],
}
"""Scripts that wait for nothing."""


def full(size: int) -> list[Step]:
    """Fill a group: it takes no more members than the broker allows."""
    joins = [join(f"M{number:02}", "x") for number in range(size - 1)]
    return [
        *joins,
        join("S", "x", instance="i1"),
        join("Z", "x"),
        Beat(member="Z", epoch=5),
        join("M00", "x"),
        Beat(member="S", epoch=-2, instance="i1"),
        join("T", "x", instance="i1"),
        join("Z", "x"),
        Beat(member="M00", epoch=-1),
        join("Z", "x"),
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


def classic(config: GroupCoordinatorConfig) -> Iterator[Schedule]:
    """Yield the schedules of the classic protocol, and of groups that are migrated."""
    parts = scripts_classic, scripts_migration
    found = {name: steps for part in parts for name, steps in (*part.TIMED.items(), *part.SCRIPTS.items())}
    if max(config.group_consumer_min_session_timeout_ms, config.group_min_session_timeout_ms) <= SHORT_MS:
        found |= scripts_classic.SESSIONS | scripts_migration.SESSIONS
    if config.group_max_size <= _FULL_AT_MOST:
        found["classic: a full group"] = scripts_classic.full(config.group_max_size)
    for name, steps in found.items():
        yield Schedule(name=name, topics=TOPICS, steps=(*steps, Describe(), DescribeClassic(), List()))


def scripted(config: GroupCoordinatorConfig) -> Iterator[Schedule]:
    """Yield the schedules that a broker with this configuration can run; long ones first."""
    found = {**_SPACING}
    if config.group_consumer_min_session_timeout_ms <= SHORT_MS:
        found |= _SESSIONS
    found |= {**_TIMED, "settings of a group": _settings(config), **SCRIPTS}
    if config.group_consumer_max_size <= _FULL_AT_MOST:
        found["a full group"] = full(config.group_consumer_max_size)
    for name, steps in found.items():
        yield Schedule(name=name, topics=TOPICS, steps=(*steps, Describe(), List()))
    yield from classic(config)
    if _STREAMS in config.group_coordinator_rebalance_protocols:
        made = {**scripts_streams.SCRIPTS}
        if config.group_streams_max_size <= _FULL_AT_MOST:
            made["streams: a full group"] = scripts_streams.full(config.group_streams_max_size)
        for name, steps in made.items():
            yield Schedule(name=name, topics=TOPICS, steps=(*steps, DescribeStreams(), List()))
