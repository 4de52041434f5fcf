"""Schedules by hand about the classic protocol, and about groups that go from one protocol to the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fencepost.simulation.lab.conform.schedule import (
    AwaitStep,
    Beat,
    ClassicBeat,
    ClassicJoinStep,
    ClassicSyncStep,
    CommitStep,
    Configure,
    DeleteGroup,
    Describe,
    DescribeClassic,
    Epoch,
    Fetch,
    Forget,
    Grow,
    List,
    Owned,
    Remove,
    Removed,
    Step,
    Wait,
)

_ANSWERED = AwaitStep(ms=10_000)
"""Longer than a group waits for its first members by default."""
_SHORT_MS, _MARGIN_MS = 600, 300
_EVERYTHING = {"x": (0, 1, 2, 3)}
_HALVES: dict[str, dict[str, tuple[int, ...]]] = {"A": {"x": (0, 1)}, "B": {"x": (2, 3)}}

_Given = Mapping[str, Mapping[str, tuple[int, ...]]]


def rejoin(*members: str, **fields: Any) -> list[Step]:
    """Each of the members joins with the id that it has."""
    return [ClassicJoinStep(member=member, **fields) for member in members]


def enter(member: str, **fields: Any) -> list[Step]:
    """A dynamic member asks for its id, and joins with it."""
    return rejoin(member, member, **fields)


def sync(*members: str, gives: _Given | None = None, **fields: Any) -> list[Step]:
    """Each of the members asks for its assignment; what the leader gives counts."""
    return [ClassicSyncStep(member=member, gives=gives or {}, **fields) for member in members]


def alive(*members: str, **fields: Any) -> list[Step]:
    """Each of the members is alive."""
    return [ClassicBeat(member=member, **fields) for member in members]


def leave(*members: str) -> Remove:
    """The members leave, in one request."""
    return Remove(members=tuple(Removed(member=member) for member in members))


def pair(**fields: Any) -> list[Step]:
    """Two dynamic members in generation 2, of which the first one leads, before their assignment."""
    return [
        *enter("A", **fields),
        _ANSWERED,
        *sync("A"),
        *enter("B", **fields),
        *alive("A"),
        *rejoin("A", **fields),
        _ANSWERED,
    ]


def stable(**fields: Any) -> list[Step]:
    """The same with an assignment: the first two partitions of x, and the others."""
    return [*pair(**fields), *sync("A", "B", gives=_HALVES)]


def modern(member: str = "M", **fields: Any) -> Beat:
    """A consumer joins with the newer protocol."""
    fields = {"names": ("x",), "rebalance_timeout_ms": 30_000, "assignor": "range", **fields}
    return Beat(member=member, epoch=0, owned=Owned.EMPTY, **fields)


def follow(*members: str, **fields: Any) -> list[Step]:
    """Classic members of a consumer group do what they are told: they ask, join, and take their share."""
    return [
        step
        for member in members
        for step in (*alive(member), *rejoin(member, **fields), *sync(member), *alive(member))
    ]


def _ties(first: tuple[str, ...], second: tuple[str, ...]) -> list[Step]:
    return [
        *enter("A", protocols=first),
        _ANSWERED,
        *sync("A"),
        *enter("B", protocols=second),
        *alive("A"),
        *rejoin("A", protocols=first),
        *sync("B", "A"),
    ]


def _static(*members: str, instances: Mapping[str, str], **fields: Any) -> list[Step]:
    return [ClassicJoinStep(member=member, instance=instances[member], **fields) for member in members]


_I = {"A": "i1", "B": "i2", "C": "i1", "D": "i2", "E": "i1"}
"""Instance ids: C and E come back for A, and D for B."""


def _static_pair() -> list[Step]:
    return [
        *_static("A", instances=_I),
        _ANSWERED,
        *sync("A", instance="i1"),
        *_static("B", instances=_I),
        *alive("A", instance="i1"),
        *_static("A", instances=_I),
        _ANSWERED,
        *sync("A", instance="i1", gives=_HALVES),
        *sync("B", instance="i2"),
    ]


SCRIPTS: dict[str, list[Step]] = {
    "classic: who is refused": [
        *rejoin("A", group=""),
        *rejoin("A", session_timeout_ms=1),
        *rejoin("A", member_id="stranger"),
        *rejoin("A", protocols=()),
        *rejoin("A", protocol_type=""),
        *sync("A", member_id="stranger"),
        *sync("A", member_id="stranger", protocol="range"),
        *sync("A", group="", protocol="range"),
        *alive("A", group=""),
        *alive("A"),
        leave("stranger"),
        *enter("A"),
        _ANSWERED,
        *sync("A", member_id="stranger"),
        *rejoin("B", protocols=("sticky",)),
        *rejoin("B", protocol_type="connect"),
        *rejoin("B", member_id="stranger"),
        *rejoin("B", instance="i1", member_id="stranger"),
        *alive("A", instance="i1"),
        *sync("A", instance="i1"),
        Remove(members=(Removed(member="stranger"), Removed(instance="i9"))),
        DeleteGroup(),
        Describe(),
        List(types=("classic",)),
        List(states=("PreparingRebalance", "CompletingRebalance")),
    ],
    "classic: generations": [
        *pair(),
        DescribeClassic(),
        CommitStep(member="A", topics={"x": (0,)}),
        *alive("A"),
        *sync("B"),
        *sync("A", gives=_HALVES),
        DescribeClassic(),
        *alive("A", generation=Epoch.PREVIOUS),
        *alive("A", generation=Epoch.AHEAD),
        *alive("A", instance="i"),
        *sync("A", generation=Epoch.PREVIOUS),
        *sync("A", protocol="sticky"),
        *sync("A", protocol_type=None),
        *sync("A", "B"),
        CommitStep(member="A", topics={"x": (0,)}),
        CommitStep(member="A", topics={"x": (0,)}, epoch=Epoch.PREVIOUS),
        CommitStep(member="A", topics={"x": (0,)}, version=8),
        CommitStep(member="A", topics={"x": (0,)}, instance="nobody"),
        CommitStep(member="stranger", topics={"x": (0,)}, epoch=2),
        CommitStep(topics={"x": (0,)}),
        Fetch(),
        Fetch(topics={"x": (0,)}, member="A"),
        Forget(topics={"x": (0,), "y": (0,)}),
        *rejoin("B"),
        *rejoin("C", protocols=("sticky",)),
        Remove(members=(Removed(member="B"), Removed(member="B"))),
        *alive("A"),
        CommitStep(member="A", topics={"x": (0,)}),
        *rejoin("A"),
        *sync("A"),
        leave("A"),
        DescribeClassic(),
        CommitStep(topics={"x": (0,)}),
        *alive("A"),
        List(),
        DeleteGroup(),
        DescribeClassic(),
    ],
    "classic: what members had is shown until the next generation": [
        *stable(),
        *rejoin("A"),
        *alive("B"),
        DescribeClassic(),
        DescribeClassic(version=5),
        *rejoin("B"),
        DescribeClassic(),
        *sync("B"),
        *sync("A", gives={"B": _EVERYTHING}),
        DescribeClassic(),
    ],
    "classic: an id that was given out": [
        *_static("A", instances=_I),
        _ANSWERED,
        *rejoin("B"),
        Remove(members=(Removed(member="A", instance="i1"),)),
        Wait(ms=_SHORT_MS),
        DescribeClassic(),
        leave("B"),
        DescribeClassic(),
        *enter("C"),
        _ANSWERED,
        *sync("C"),
        *rejoin("D"),
        *rejoin("C", topics=("y",)),
        DescribeClassic(),
        leave("D"),
        _ANSWERED,
        DescribeClassic(),
    ],
    "classic: a tie of range and sticky": _ties(("range", "sticky"), ("sticky", "range")),
    "classic: a tie of cooperative-sticky and range": _ties(
        ("cooperative-sticky", "range"), ("range", "cooperative-sticky")
    ),
    "classic: a tie of roundrobin and cooperative-sticky": _ties(
        ("roundrobin", "cooperative-sticky"), ("cooperative-sticky", "roundrobin")
    ),
    "classic: a tie of three": _ties(("b", "a", "c"), ("c", "a", "b")),
    "classic: static members": [
        *_static_pair(),
        DescribeClassic(),
        *_static("D", instances=_I),
        *sync("D", instance="i2"),
        *alive("B", instance="i2"),
        *alive("B", instance="i1"),
        *sync("A", instance="i2"),
        *_static("A", instances={"A": "i2"}),
        CommitStep(member="A", topics={"x": (0,)}, instance="i2"),
        *_static("C", instances=_I),
        *_static("E", instances=_I, version=8),
        DescribeClassic(),
        Remove(members=(Removed(instance="i2"), Removed(member="stranger", instance="i1"))),
        *alive("E", instance="i1"),
    ],
    "classic: a static member returns with something else": [
        *_static_pair(),
        *_static("D", instances=_I, protocols=("range", "sticky")),
        *sync("D", instance="i2"),
        *_static("E", instances=_I, topics=("y",)),
        *_static("D", instances=_I, protocols=("sticky", "range")),
        *sync("D", "E", instance="i2"),
        *_static("F", instances={"F": "i1"}, protocols=("sticky",)),
        *_static("G", instances={"G": "i2"}, protocols=("sticky",)),
        DescribeClassic(),
        *_static("H", instances={"H": "i1"}, protocols=("sticky",)),
        DescribeClassic(),
    ],
    "classic: old versions": [
        *rejoin("A", version=0),
        _ANSWERED,
        *sync("A", version=0),
        *alive("A", version=0),
        *rejoin("B", version=3),
        *alive("A", version=2),
        *rejoin("A", version=1),
        *sync("A", version=4, gives=_HALVES),
        *sync("B", version=3),
        CommitStep(member="A", topics={"x": (0,)}, version=2),
        CommitStep(member="B", topics={"x": (1,)}, version=7),
        DescribeClassic(version=4),
        *_static("C", instances={"C": "i1"}, version=5),
        *rejoin("A", "B", version=6),
        Remove(members=(Removed(member="B"),), version=2),
        *rejoin("A", "C", version=7),
        Remove(members=(Removed(member="stranger"),), version=1),
    ],
    "classic: another protocol type": [
        *enter("A", protocol_type="connect", protocols=("default",), malformed=True),
        _ANSWERED,
        *sync("A", protocol_type="connect", gives={"A": _EVERYTHING}),
        DescribeClassic(),
        List(),
        modern(),
        CommitStep(member="A", topics={"x": (0,)}),
        Forget(topics={"x": (0,)}),
        leave("A"),
        DescribeClassic(),
        Forget(topics={"x": (0,)}),
    ],
    "classic: a member waits twice": [
        *enter("A"),
        _ANSWERED,
        *sync("A"),
        *enter("B"),
        *rejoin("B", topics=("x", "y")),
        *rejoin("A"),
        *sync("B"),
        *sync("B"),
        *sync("A", gives=_HALVES),
    ],
    "classic: a member leaves while it waits": [
        *pair(),
        *sync("B"),
        leave("B"),
        *rejoin("A"),
        *enter("C"),
        leave("C"),
        *alive("A"),
    ],
    "classic: a leader leaves": [
        *stable(),
        *enter("C"),
        *enter("D"),
        *rejoin("A", "B"),
        *sync("B", "C", "D"),
        leave("A"),
        *rejoin("B", "C", "D"),
        *sync("B", "C", "D", gives={"C": _EVERYTHING}),
        DescribeClassic(),
    ],
    "classic: a static member takes over while it waits": [
        *_static_pair(),
        *rejoin("A", instance="i1", topics=("y",)),
        *_static("C", instances=_I),
        *rejoin("B", instance="i2"),
        *sync("B", instance="i2"),
        *_static("D", instances=_I),
        *rejoin("C", instance="i1"),
        DescribeClassic(),
    ],
    "migration: there and back": [
        *stable(),
        modern(),
        DescribeClassic(),
        Describe(),
        List(types=("consumer",)),
        *alive("A", "B"),
        CommitStep(member="A", topics={"x": (0,)}),
        *alive("A", generation=Epoch.AHEAD),
        *sync("A", protocol="sticky"),
        *sync("A"),
        *alive("A", member_id="M"),
        *rejoin("C", protocols=("sticky",)),
        *rejoin("C", member_id="M"),
        *follow("A", "B"),
        Beat(member="M", owned=Owned.ASSIGNED),
        *follow("A", "B"),
        Beat(member="M", owned=Owned.ASSIGNED),
        Describe(),
        *enter("C"),
        *sync("C"),
        *follow("A", "B", "C"),
        Beat(member="M", owned=Owned.ASSIGNED),
        *follow("A", "B", "C"),
        CommitStep(member="C", topics={"x": (0,)}),
        CommitStep(member="C", topics={"x": (0,)}, epoch=Epoch.AHEAD),
        leave("C"),
        *follow("A", "B"),
        Beat(member="M", epoch=-1),
        DescribeClassic(),
        *alive("A", "B"),
        *rejoin("A", "B"),
        *sync("A", "B", gives=_HALVES),
        DescribeClassic(),
    ],
    "migration: an administrator ends it": [
        *enter("A"),
        _ANSWERED,
        *sync("A", gives={"A": _EVERYTHING}),
        modern("M"),
        modern("N"),
        *follow("A"),
        leave("M", "N"),
        DescribeClassic(),
        *alive("A"),
        *rejoin("A"),
        *sync("A"),
    ],
    "migration: cooperative members": [
        *enter("A", protocols=("cooperative-sticky",), topics=("x", "y")),
        _ANSWERED,
        *sync("A", gives={"A": {"x": (0, 1, 2, 3), "y": (0, 1, 2)}}),
        modern(names=("x", "y")),
        *alive("A"),
        *rejoin("A", protocols=("cooperative-sticky",), topics=("x", "y"), owned=Owned.ASSIGNED),
        *sync("A"),
        *alive("A"),
        *rejoin("A", protocols=("cooperative-sticky",), topics=("x", "y"), owned=Owned.BEFORE),
        *rejoin("A", protocols=("cooperative-sticky",), topics=("x", "y"), owned=Owned.ASSIGNED),
        *sync("A"),
        Beat(member="M", owned=Owned.ASSIGNED),
        *alive("A"),
        *rejoin("A", protocols=("cooperative-sticky",), topics=("y",), owned=Owned.ASSIGNED),
        *sync("A"),
        Describe(),
    ],
    "migration: what a cooperative member still has": [
        *enter("A"),
        _ANSWERED,
        *sync("A", gives={"A": _EVERYTHING}),
        *enter("B"),
        *alive("A"),
        *rejoin("A", owned=Owned.ASSIGNED),
        *sync("A", gives={"A": {"x": (0, 1)}}),
        *sync("B"),
        *rejoin("A", owned=Owned.BEFORE),
        *alive("B"),
        modern(),
        CommitStep(member="A", topics={"x": (2, 3)}),
        *rejoin("A", owned=Owned.BEFORE),
        *sync("A"),
        Beat(member="M"),
    ],
    "migration: a round was broken off": [
        *stable(),
        *rejoin("B", owned=Owned.ASSIGNED),
        *rejoin("A", owned=Owned.ASSIGNED),
        *rejoin("B", owned=Owned.ASSIGNED, topics=("x", "other")),
        *alive("A"),
        modern(),
        *alive("A"),
        Describe(),
    ],
    "migration: members wait": [
        *stable(),
        *rejoin("B", topics=("x", "y")),
        modern(),
        *follow("A", "B"),
        Beat(member="M", epoch=-1),
        *rejoin("A", "B"),
        *sync("B"),
        modern("N"),
        *alive("A", "B"),
        Describe(),
    ],
    "migration: a static member goes to the newer protocol and back": [
        *_static_pair(),
        modern("M", instance="i1"),
        DescribeClassic(),
        Describe(),
        *alive("B", instance="i2"),
        *alive("A", instance="i1"),
        Beat(member="M", owned=Owned.ASSIGNED),
        modern("N", instance="i2"),
        *alive("B", instance="i2"),
        Beat(member="N", epoch=-2, instance="i2"),
        *_static("D", instances=_I),
        *sync("D", instance="i2"),
        *alive("D", instance="i2"),
        Beat(member="M", epoch=-2, instance="i1"),
        *_static("C", instances=_I),
        DescribeClassic(),
        *sync("C", instance="i1"),
        *alive("D", instance="i2"),
    ],
    "migration: a static member ends a round": [
        *_static_pair(),
        *rejoin("B", instance="i2", topics=("x", "y")),
        *rejoin("A", instance="i1"),
        modern("M", instance="i1"),
        *alive("B", instance="i2"),
    ],
    "migration: a static member finds a grown topic": [
        *_static("A", instances=_I),
        _ANSWERED,
        *sync("A", instance="i1", gives={"A": _EVERYTHING}),
        Grow(topic="x", partitions=6),
        modern("M", instance="i1"),
        Beat(member="M", owned=Owned.ASSIGNED),
    ],
    "migration: a static member returns while members wait": [
        modern("M", instance="i1"),
        *_static("B", instances=_I),
        *sync("B", instance="i2"),
        modern("N"),
        Beat(member="N", epoch=-1),
        Beat(member="M", epoch=-2, instance="i1"),
        *_static("C", instances=_I),
        *alive("B", instance="i2"),
    ],
    "migration: data of an assignor": [
        *enter("A"),
        _ANSWERED,
        *sync("A", gives={"A": _EVERYTHING}, user_data=True),
        modern(),
        *alive("A"),
        DescribeClassic(),
    ],
    "migration: one partition for two members": [
        *pair(),
        *sync("B"),
        *sync("A", gives={"A": _EVERYTHING, "B": _EVERYTHING}),
        modern(),
        *alive("A"),
    ],
    "migration: no protocol yet": [
        *enter("A"),
        _ANSWERED,
        *enter("B"),
        *sync("A"),
        modern(),
        Describe(),
    ],
    "migration: a subscription that can't be read": [
        modern(),
        *enter("A", malformed=True),
    ],
    "migration: empty groups give way": [
        *enter("A"),
        _ANSWERED,
        CommitStep(topics={"x": (0,)}),
        leave("A"),
        modern(),
        Describe(),
        Fetch(),
        Beat(member="M", epoch=-1),
        Describe(),
        *enter("B"),
        _ANSWERED,
        DescribeClassic(),
        *sync("B"),
        leave("B"),
        DescribeClassic(),
        Describe(),
    ],
    "migration: a consumer group takes in classic members": [
        modern("M", names=("x", "y")),
        *rejoin("A", protocol_type="connect"),
        *rejoin("A", session_timeout_ms=1),
        *rejoin("A", member_id="stranger", instance="i9"),
        *rejoin("A", version=3, topics=("x", "y")),
        *sync("A"),
        Beat(member="M", owned=Owned.ASSIGNED),
        *alive("A"),
        *follow("A", topics=("x", "y")),
        *_static("B", instances=_I, topics=("x",)),
        *sync("B", instance="i2"),
        *_static("D", instances=_I, topics=("x",)),
        *alive("B", instance="i2"),
        *alive("D", instance="i2"),
        *alive("D", instance="i9"),
        *sync("D", instance="i9"),
        *sync("B", instance="i2"),
        Remove(members=(Removed(instance="i2"),)),
        Beat(member="M", owned=Owned.ASSIGNED),
        Describe(),
        CommitStep(member="A", topics={"x": (0,)}),
        CommitStep(member="A", topics={"x": (0,)}, version=8),
    ],
}
"""Those that take no time, unless the broker has a group wait for its first members."""

TIMED: dict[str, list[Step]] = {
    "classic: time to join is over": [
        *stable(rebalance_timeout_ms=_SHORT_MS),
        *rejoin("A", rebalance_timeout_ms=_SHORT_MS),
        Wait(ms=_SHORT_MS + _MARGIN_MS),
        DescribeClassic(),
        *alive("A", "B"),
        *sync("A", gives={"A": _EVERYTHING}),
    ],
    "classic: time to join is over for a leader": [
        *stable(rebalance_timeout_ms=_SHORT_MS),
        *enter("C", rebalance_timeout_ms=_SHORT_MS),
        *rejoin("B", rebalance_timeout_ms=_SHORT_MS),
        Wait(ms=_SHORT_MS + _MARGIN_MS),
        *alive("A", "B", "C"),
        DescribeClassic(),
    ],
    "classic: time to sync is over": [
        *pair(rebalance_timeout_ms=_SHORT_MS),
        *sync("B"),
        Wait(ms=_SHORT_MS + _MARGIN_MS),
        DescribeClassic(),
        *alive("A", "B"),
        *rejoin("B", rebalance_timeout_ms=_SHORT_MS),
        _ANSWERED,
    ],
    "migration: classic members keep nobody waiting": [
        *enter("A", rebalance_timeout_ms=_SHORT_MS),
        _ANSWERED,
        *sync("A", gives={"A": _EVERYTHING}),
        modern(),
        *alive("A"),
        Wait(ms=_SHORT_MS + _MARGIN_MS),
        Describe(),
        *alive("A"),
        Beat(member="M", owned=Owned.ASSIGNED),
        *enter("B", rebalance_timeout_ms=_SHORT_MS),
        Wait(ms=_SHORT_MS + _MARGIN_MS),
        Describe(),
    ],
}

SESSIONS: dict[str, list[Step]] = {
    "classic: a session ends": [
        *stable(session_timeout_ms=1_000),
        Wait(ms=500),
        *alive("A"),
        Wait(ms=700),
        DescribeClassic(),
        *alive("A", "B"),
        *rejoin("A"),
        *sync("A"),
    ],
    "classic: a session of an id that was given out ends": [
        *enter("A"),
        _ANSWERED,
        *sync("A"),
        *rejoin("B", session_timeout_ms=500),
        *rejoin("A", topics=("y",)),
        Wait(ms=800),
        DescribeClassic(),
    ],
    "migration: the last session of the newer protocol ends": [
        Configure(values={"consumer.session.timeout.ms": "1000"}),
        *enter("A"),
        _ANSWERED,
        *sync("A", gives={"A": _EVERYTHING}),
        modern(),
        *follow("A"),
        Wait(ms=1_300),
        DescribeClassic(),
        *alive("A"),
        *rejoin("A"),
        *sync("A"),
    ],
}
"""Those that need short sessions."""


def full(size: int) -> list[Step]:
    """A classic group takes no more members than the broker allows."""
    members = [f"M{number:02}" for number in range(size)]
    others = members[1:]
    return [
        *enter(members[0]),
        _ANSWERED,
        *sync(members[0]),
        *(step for member in others for step in enter(member)),
        *rejoin(members[0]),
        *sync(*others),
        *sync(members[0]),
        *enter("Z"),
        *_static("S", instances={"S": "i1"}),
        *rejoin(members[0]),
        *enter("Z"),
        DescribeClassic(),
    ]
