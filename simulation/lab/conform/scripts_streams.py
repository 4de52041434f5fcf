"""Scripted schedules of streams groups: cases that random ones rarely meet."""

from __future__ import annotations

from typing import Any

from fencepost.simulation.lab.conform.generate import MISSING, TIMEOUT_MS
from fencepost.simulation.lab.conform.schedule import (
    CommitStep,
    Configure,
    CreateTopicStep,
    DeleteGroup,
    DeleteTopicStep,
    DescribeStreams,
    Epoch,
    Fetch,
    Grow,
    List,
    Owned,
    Step,
    StreamsBeat,
    Wait,
)


def join(member: str, topology: str = "simple", **fields: Any) -> StreamsBeat:
    """Let a member join, as a process of its own unless another is named."""
    fields = {"process": f"process of {member}", "rebalance_timeout_ms": TIMEOUT_MS, **fields}
    return StreamsBeat(member=member, epoch=0, owned=Owned.EMPTY, topology=topology, **fields)


def confirm(*members: str) -> list[Step]:
    """Let each of the members report that it owns its assignment."""
    return [StreamsBeat(member=member, owned=Owned.ASSIGNED) for member in members]


def full(size: int) -> list[Step]:
    """Fill a group: it takes no more members than the broker allows; those in it may join again."""
    members = [f"M{number:02}" for number in range(size)]
    return [
        *(join(member) for member in members),
        join("Z"),
        StreamsBeat(member="Z", epoch=5),
        *confirm(members[0]),
        join(members[0]),
        DescribeStreams(),
        StreamsBeat(member=members[-1], epoch=-1),
        join("Z"),
        *confirm("Z"),
    ]


_TASKS = {"x": (0, 1, 2, 3)}

SCRIPTS: dict[str, list[Step]] = {
    "streams: the life of a group": [
        join("A", "count", tags={"zone": "a"}, endpoint="here"),
        DescribeStreams(),
        *confirm("A"),
        DescribeStreams(),
        join("B", "count", endpoint="there"),
        *confirm("A", "A", "B"),
        DescribeStreams(),
        List(types=("streams",)),
        DeleteGroup(),
        StreamsBeat(member="A", epoch=-1),
        *confirm("B", "B"),
        StreamsBeat(member="B", epoch=-1),
        DescribeStreams(),
        join("C", "count"),
        StreamsBeat(member="C", epoch=-1),
        DeleteGroup(),
        DescribeStreams(),
    ],
    "streams: a revocation step by step": [
        join("A"),
        join("B"),
        StreamsBeat(member="A", owned=Owned.NULL),
        *confirm("B"),
        StreamsBeat(member="A", owned=Owned.NULL),
        StreamsBeat(member="A", owned=Owned.BEFORE),
        DescribeStreams(),
        join("C"),
        StreamsBeat(member="A", owned=Owned.PARTIAL),
        *confirm("A", "B", "C", "A", "B", "C"),
        StreamsBeat(member="A", epoch=Epoch.PREVIOUS, owned=Owned.ASSIGNED),
        StreamsBeat(member="B", epoch=Epoch.PREVIOUS, owned=Owned.BEFORE),
        StreamsBeat(member="C", epoch=Epoch.AHEAD),
    ],
    "streams: an older topology": [
        join("A", topology_epoch=1),
        join("B", topology_epoch=0),
        *confirm("A", "B", "A", "B"),
        join("C", topology_epoch=2),
        join("C", "two", topology_epoch=1),
        DescribeStreams(),
    ],
    "streams: source topics come and go": [
        join("A", "missing"),
        DescribeStreams(),
        List(states=("not_ready",), types=("streams",)),
        CreateTopicStep(topic=MISSING, partitions=2),
        *confirm("A"),
        CreateTopicStep(topic="n", partitions=3),
        *confirm("A"),
        DescribeStreams(),
        DeleteTopicStep(topic="n"),
        *confirm("A", "A"),
        join("B", "missing"),
        DescribeStreams(),
    ],
    "streams: topics of wrong sizes": [
        join("A", "uneven"),
        DescribeStreams(),
        Grow(topic="y", partitions=4),
        *confirm("A"),
        DescribeStreams(),
    ],
    "streams: standby tasks move": [
        Configure(values={"streams.num.standby.replicas": "1"}),
        join("A", "stateful", process="p"),
        *confirm("A"),
        join("B", "stateful", process="q"),
        *confirm("A", "B", "A", "B", "A", "B"),
        DescribeStreams(),
        StreamsBeat(member="A", epoch=-1),
        *confirm("B", "B", "B"),
        join("C", "stateful", process="q"),
        *confirm("B", "C", "B", "C"),
        join("D", "stateful", process="r"),
        *confirm("B", "C", "D", "B", "C", "D", "B", "C", "D"),
        DescribeStreams(),
        Configure(values={"streams.num.standby.replicas": "0"}),
        *confirm("B", "C", "D", "B", "C", "D"),
    ],
    "streams: an application stops": [
        join("A", shutdown=True),
        *confirm("A"),
        join("B"),
        StreamsBeat(member="A", epoch=Epoch.AHEAD, shutdown=True),
        *confirm("B"),
        StreamsBeat(member="stranger", epoch=-1, shutdown=True),
        *confirm("A", "B"),
        StreamsBeat(member="A", epoch=-1, shutdown=True),
        join("C"),
        StreamsBeat(member="B", epoch=-1),
        StreamsBeat(member="C", epoch=-1),
        join("A"),
        StreamsBeat(member="A", epoch=-1),
        StreamsBeat(member="stranger", epoch=-1, shutdown=True),
        join("B"),
    ],
    "streams: offsets of members": [
        CommitStep(topics=_TASKS),
        join("A", endpoint="here"),
        CommitStep(topics=_TASKS, member="A"),
        CommitStep(topics=_TASKS),
        CommitStep(topics=_TASKS, member="A", epoch=Epoch.AHEAD),
        CommitStep(topics=_TASKS, member="A", version=8),
        CommitStep(topics=_TASKS, member="stranger", epoch=1),
        join("B"),
        *confirm("A", "A", "B"),
        CommitStep(topics={"x": (0,)}, member="A", epoch=Epoch.PREVIOUS),
        CommitStep(topics={"x": (3,)}, member="A", epoch=Epoch.PREVIOUS),
        CommitStep(topics={"y": (0,)}, member="A", epoch=Epoch.PREVIOUS),
        CommitStep(topics={"x": (3,)}, member="B", epoch=Epoch.PREVIOUS),
        Fetch(topics=_TASKS, member="A"),
        Fetch(topics=_TASKS, member="A", epoch=Epoch.PREVIOUS),
        Fetch(topics=None),
    ],
    "streams: what Kafka did not expect": [
        join("A", "index"),
        join("A", topology_epoch=-1),
        join("A", "missing", endpoint="here"),
        join("A", "missing"),
        join("B", "missing", endpoint="here"),
        *confirm("A"),
    ],
    "streams: a session ends": [
        Configure(values={"streams.session.timeout.ms": "1000", "streams.heartbeat.interval.ms": "100"}),
        join("A"),
        join("B"),
        *confirm("A", "A", "B"),
        Wait(ms=600),
        *confirm("B"),
        Wait(ms=700),
        *confirm("A", "B", "B"),
        DescribeStreams(),
    ],
}
"""All scripts except that of a full group, by name."""
