"""Scripted schedules of the classic protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fencepost.simulation.lab.conform import schedule

ANSWERED = schedule.AwaitStep(ms=10_000)
"""A wait that is longer than a group waits for its first members by default."""
SHORT_MS, MARGIN_MS = 600, 300
EVERYTHING = {"x": (0, 1, 2, 3)}
HALVES: dict[str, dict[str, tuple[int, ...]]] = {"A": {"x": (0, 1)}, "B": {"x": (2, 3)}}

_Given = Mapping[str, Mapping[str, tuple[int, ...]]]


def rejoin(*members: str, **fields: Any) -> list[schedule.Step]:
    """Let each of the members join with the id that it has."""
    return [schedule.ClassicJoinStep(member=member, **fields) for member in members]


def enter(member: str, **fields: Any) -> list[schedule.Step]:
    """Let a dynamic member ask for its id, and join with it."""
    return rejoin(member, member, **fields)


def sync(*members: str, gives: _Given | None = None, **fields: Any) -> list[schedule.Step]:
    """Let each of the members ask for its assignment; what the leader gives counts."""
    return [schedule.ClassicSyncStep(member=member, gives=gives or {}, **fields) for member in members]


def alive(*members: str, **fields: Any) -> list[schedule.Step]:
    """Let each of the members send a heartbeat."""
    return [schedule.ClassicBeat(member=member, **fields) for member in members]


def leave(*members: str) -> schedule.Remove:
    """Let the members leave, in one request."""
    return schedule.Remove(members=tuple(schedule.Removed(member=member) for member in members))


def pair(**fields: Any) -> list[schedule.Step]:
    """Make two dynamic members in generation 2, of which the first one leads, before their assignment."""
    return [
        *enter("A", **fields),
        ANSWERED,
        *sync("A"),
        *enter("B", **fields),
        *alive("A"),
        *rejoin("A", **fields),
        ANSWERED,
    ]


def stable(**fields: Any) -> list[schedule.Step]:
    """Make the same members with an assignment: the first two partitions of x, and the others."""
    return [*pair(**fields), *sync("A", "B", gives=HALVES)]


def modern(member: str = "M", **fields: Any) -> schedule.Beat:
    """Let a consumer join with the newer protocol."""
    fields = {"names": ("x",), "rebalance_timeout_ms": 30_000, "assignor": "range", **fields}
    return schedule.Beat(member=member, epoch=0, owned=schedule.Owned.EMPTY, **fields)


def _ties(first: tuple[str, ...], second: tuple[str, ...]) -> list[schedule.Step]:
    return [
        *enter("A", protocols=first),
        ANSWERED,
        *sync("A"),
        *enter("B", protocols=second),
        *alive("A"),
        *rejoin("A", protocols=first),
        *sync("B", "A"),
    ]


def static(*members: str, instances: Mapping[str, str], **fields: Any) -> list[schedule.Step]:
    """Let static members join, each with its instance id and without an id of its own at first."""
    return [
        schedule.ClassicJoinStep(member=member, instance=instances[member], **fields) for member in members
    ]


INSTANCES = {"A": "i1", "B": "i2", "C": "i1", "D": "i2", "E": "i1"}
"""Instance ids: C and E come back for A, and D for B."""


def static_pair() -> list[schedule.Step]:
    """Make two static members with an assignment, of which the first one leads."""
    return [
        *static("A", instances=INSTANCES),
        ANSWERED,
        *sync("A", instance="i1"),
        *static("B", instances=INSTANCES),
        *alive("A", instance="i1"),
        *static("A", instances=INSTANCES),
        ANSWERED,
        *sync("A", instance="i1", gives=HALVES),
        *sync("B", instance="i2"),
    ]


SCRIPTS: dict[str, list[schedule.Step]] = {
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
        ANSWERED,
        *sync("A", member_id="stranger"),
        *rejoin("B", protocols=("sticky",)),
        *rejoin("B", protocol_type="connect"),
        *rejoin("B", member_id="stranger"),
        *rejoin("B", instance="i1", member_id="stranger"),
        *alive("A", instance="i1"),
        *sync("A", instance="i1"),
        schedule.Remove(members=(schedule.Removed(member="stranger"), schedule.Removed(instance="i9"))),
        schedule.DeleteGroup(),
        schedule.Describe(),
        schedule.List(types=("classic",)),
        schedule.List(states=("PreparingRebalance", "CompletingRebalance")),
    ],
    "classic: generations": [
        *pair(),
        schedule.DescribeClassic(),
        schedule.CommitStep(member="A", topics={"x": (0,)}),
        *alive("A"),
        *sync("B"),
        *sync("A", gives=HALVES),
        schedule.DescribeClassic(),
        *alive("A", generation=schedule.Epoch.PREVIOUS),
        *alive("A", generation=schedule.Epoch.AHEAD),
        *alive("A", instance="i"),
        *sync("A", generation=schedule.Epoch.PREVIOUS),
        *sync("A", protocol="sticky"),
        *sync("A", protocol_type=None),
        *sync("A", "B"),
        schedule.CommitStep(member="A", topics={"x": (0,)}),
        schedule.CommitStep(member="A", topics={"x": (0,)}, epoch=schedule.Epoch.PREVIOUS),
        schedule.CommitStep(member="A", topics={"x": (0,)}, version=8),
        schedule.CommitStep(member="A", topics={"x": (0,)}, instance="nobody"),
        schedule.CommitStep(member="stranger", topics={"x": (0,)}, epoch=2),
        schedule.CommitStep(topics={"x": (0,)}),
        schedule.Fetch(),
        schedule.Fetch(topics={"x": (0,)}, member="A"),
        schedule.Forget(topics={"x": (0,), "y": (0,)}),
        *rejoin("B"),
        *rejoin("C", protocols=("sticky",)),
        schedule.Remove(members=(schedule.Removed(member="B"), schedule.Removed(member="B"))),
        *alive("A"),
        schedule.CommitStep(member="A", topics={"x": (0,)}),
        *rejoin("A"),
        *sync("A"),
        leave("A"),
        schedule.DescribeClassic(),
        schedule.CommitStep(topics={"x": (0,)}),
        *alive("A"),
        schedule.List(),
        schedule.DeleteGroup(),
        schedule.DescribeClassic(),
    ],
    "classic: what members had is shown until the next generation": [
        *stable(),
        *rejoin("A"),
        *alive("B"),
        schedule.DescribeClassic(),
        schedule.DescribeClassic(version=5),
        *rejoin("B"),
        schedule.DescribeClassic(),
        *sync("B"),
        *sync("A", gives={"B": EVERYTHING}),
        schedule.DescribeClassic(),
    ],
    "classic: an id that was given out": [
        *static("A", instances=INSTANCES),
        ANSWERED,
        *rejoin("B"),
        schedule.Remove(members=(schedule.Removed(member="A", instance="i1"),)),
        schedule.Wait(ms=SHORT_MS),
        schedule.DescribeClassic(),
        leave("B"),
        schedule.DescribeClassic(),
        *enter("C"),
        ANSWERED,
        *sync("C"),
        *rejoin("D"),
        *rejoin("C", topics=("y",)),
        schedule.DescribeClassic(),
        leave("D"),
        ANSWERED,
        schedule.DescribeClassic(),
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
        *static_pair(),
        schedule.DescribeClassic(),
        *static("D", instances=INSTANCES),
        *sync("D", instance="i2"),
        *alive("B", instance="i2"),
        *alive("B", instance="i1"),
        *sync("A", instance="i2"),
        *static("A", instances={"A": "i2"}),
        schedule.CommitStep(member="A", topics={"x": (0,)}, instance="i2"),
        *static("C", instances=INSTANCES),
        *static("E", instances=INSTANCES, version=8),
        schedule.DescribeClassic(),
        schedule.Remove(
            members=(schedule.Removed(instance="i2"), schedule.Removed(member="stranger", instance="i1"))
        ),
        *alive("E", instance="i1"),
    ],
    "classic: a static member returns with something else": [
        *static_pair(),
        *static("D", instances=INSTANCES, protocols=("range", "sticky")),
        *sync("D", instance="i2"),
        *static("E", instances=INSTANCES, topics=("y",)),
        *static("D", instances=INSTANCES, protocols=("sticky", "range")),
        *sync("D", "E", instance="i2"),
        *static("F", instances={"F": "i1"}, protocols=("sticky",)),
        *static("G", instances={"G": "i2"}, protocols=("sticky",)),
        schedule.DescribeClassic(),
        *static("H", instances={"H": "i1"}, protocols=("sticky",)),
        schedule.DescribeClassic(),
    ],
    "classic: old versions": [
        *rejoin("A", version=0),
        ANSWERED,
        *sync("A", version=0),
        *alive("A", version=0),
        *rejoin("B", version=3),
        *alive("A", version=2),
        *rejoin("A", version=1),
        *sync("A", version=4, gives=HALVES),
        *sync("B", version=3),
        schedule.CommitStep(member="A", topics={"x": (0,)}, version=2),
        schedule.CommitStep(member="B", topics={"x": (1,)}, version=7),
        schedule.DescribeClassic(version=4),
        *static("C", instances={"C": "i1"}, version=5),
        *rejoin("A", "B", version=6),
        schedule.Remove(members=(schedule.Removed(member="B"),), version=2),
        *rejoin("A", "C", version=7),
        schedule.Remove(members=(schedule.Removed(member="stranger"),), version=1),
    ],
    "classic: another protocol type": [
        *enter("A", protocol_type="connect", protocols=("default",), malformed=True),
        ANSWERED,
        *sync("A", protocol_type="connect", gives={"A": EVERYTHING}),
        schedule.DescribeClassic(),
        schedule.List(),
        modern(),
        schedule.CommitStep(member="A", topics={"x": (0,)}),
        schedule.Forget(topics={"x": (0,)}),
        leave("A"),
        schedule.DescribeClassic(),
        schedule.Forget(topics={"x": (0,)}),
    ],
    "classic: a member waits twice": [
        *enter("A"),
        ANSWERED,
        *sync("A"),
        *enter("B"),
        *rejoin("B", topics=("x", "y")),
        *rejoin("A"),
        *sync("B"),
        *sync("B"),
        *sync("A", gives=HALVES),
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
        *sync("B", "C", "D", gives={"C": EVERYTHING}),
        schedule.DescribeClassic(),
    ],
    "classic: a static member takes over while it waits": [
        *static_pair(),
        *rejoin("A", instance="i1", topics=("y",)),
        *static("C", instances=INSTANCES),
        *rejoin("B", instance="i2"),
        *sync("B", instance="i2"),
        *static("D", instances=INSTANCES),
        *rejoin("C", instance="i1"),
        schedule.DescribeClassic(),
    ],
}
"""Scripts that take no time, unless the broker makes a group wait for its first members."""

TIMED: dict[str, list[schedule.Step]] = {
    "classic: time to join is over": [
        *stable(rebalance_timeout_ms=SHORT_MS),
        *rejoin("A", rebalance_timeout_ms=SHORT_MS),
        schedule.Wait(ms=SHORT_MS + MARGIN_MS),
        schedule.DescribeClassic(),
        *alive("A", "B"),
        *sync("A", gives={"A": EVERYTHING}),
    ],
    "classic: time to join is over for a leader": [
        *stable(rebalance_timeout_ms=SHORT_MS),
        *enter("C", rebalance_timeout_ms=SHORT_MS),
        *rejoin("B", rebalance_timeout_ms=SHORT_MS),
        schedule.Wait(ms=SHORT_MS + MARGIN_MS),
        *alive("A", "B", "C"),
        schedule.DescribeClassic(),
    ],
    "classic: time to sync is over": [
        *pair(rebalance_timeout_ms=SHORT_MS),
        *sync("B"),
        schedule.Wait(ms=SHORT_MS + MARGIN_MS),
        schedule.DescribeClassic(),
        *alive("A", "B"),
        *rejoin("B", rebalance_timeout_ms=SHORT_MS),
        ANSWERED,
    ],
}

SESSIONS: dict[str, list[schedule.Step]] = {
    "classic: a session ends": [
        *stable(session_timeout_ms=1_000),
        schedule.Wait(ms=500),
        *alive("A"),
        schedule.Wait(ms=700),
        schedule.DescribeClassic(),
        *alive("A", "B"),
        *rejoin("A"),
        *sync("A"),
    ],
    "classic: a session of an id that was given out ends": [
        *enter("A"),
        ANSWERED,
        *sync("A"),
        *rejoin("B", session_timeout_ms=500),
        *rejoin("A", topics=("y",)),
        schedule.Wait(ms=800),
        schedule.DescribeClassic(),
    ],
}
"""Scripts that need short sessions."""


def full(size: int) -> list[schedule.Step]:
    """Fill a classic group: it takes no more members than the broker allows."""
    members = [f"M{number:02}" for number in range(size)]
    others = members[1:]
    return [
        *enter(members[0]),
        ANSWERED,
        *sync(members[0]),
        *(step for member in others for step in enter(member)),
        *rejoin(members[0]),
        *sync(*others),
        *sync(members[0]),
        *enter("Z"),
        *static("S", instances={"S": "i1"}),
        *rejoin(members[0]),
        *enter("Z"),
        schedule.DescribeClassic(),
    ]
