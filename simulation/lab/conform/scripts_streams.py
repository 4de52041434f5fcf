"""Scripted schedules of streams groups: cases that random ones rarely meet."""

from __future__ import annotations

from typing import Any

from fencepost.simulation.lab.conform import schedule
from fencepost.simulation.lab.conform.generate import MISSING, TIMEOUT_MS


def join(member: str, topology: str = "simple", **fields: Any) -> schedule.StreamsBeat:
    """Let a member join, as a process of its own unless another is named."""
    fields = {"process": f"process of {member}", "rebalance_timeout_ms": TIMEOUT_MS, **fields}
    return schedule.StreamsBeat(
        member=member, epoch=0, owned=schedule.Owned.EMPTY, topology=topology, **fields
    )


def confirm(*members: str) -> list[schedule.Step]:
    """Let each of the members report that it owns its assignment."""
    return [schedule.StreamsBeat(member=member, owned=schedule.Owned.ASSIGNED) for member in members]


def full(size: int) -> list[schedule.Step]:
    """Fill a group: it takes no more members than the broker allows; those in it may join again."""
    members = [f"M{number:02}" for number in range(size)]
    return [
        *(join(member) for member in members),
        join("Z"),
        schedule.StreamsBeat(member="Z", epoch=5),
        *confirm(members[0]),
        join(members[0]),
        schedule.DescribeStreams(),
        schedule.StreamsBeat(member=members[-1], epoch=-1),
        join("Z"),
        *confirm("Z"),
    ]


_TASKS = {"x": (0, 1, 2, 3)}

SCRIPTS: dict[str, list[schedule.Step]] = {
    "streams: the life of a group": [
        join("A", "count", tags={"zone": "a"}, endpoint="here"),
        schedule.DescribeStreams(),
        *confirm("A"),
        schedule.DescribeStreams(),
        join("B", "count", endpoint="there"),
        *confirm("A", "A", "B"),
        schedule.DescribeStreams(),
        schedule.List(types=("streams",)),
        schedule.DeleteGroup(),
        schedule.StreamsBeat(member="A", epoch=-1),
        *confirm("B", "B"),
        schedule.StreamsBeat(member="B", epoch=-1),
        schedule.DescribeStreams(),
        join("C", "count"),
        schedule.StreamsBeat(member="C", epoch=-1),
        schedule.DeleteGroup(),
        schedule.DescribeStreams(),
    ],
    "streams: a revocation step by step": [
        join("A"),
        join("B"),
        schedule.StreamsBeat(member="A", owned=schedule.Owned.NULL),
        *confirm("B"),
        schedule.StreamsBeat(member="A", owned=schedule.Owned.NULL),
        schedule.StreamsBeat(member="A", owned=schedule.Owned.BEFORE),
        schedule.DescribeStreams(),
        join("C"),
        schedule.StreamsBeat(member="A", owned=schedule.Owned.PARTIAL),
        *confirm("A", "B", "C", "A", "B", "C"),
        schedule.StreamsBeat(member="A", epoch=schedule.Epoch.PREVIOUS, owned=schedule.Owned.ASSIGNED),
        schedule.StreamsBeat(member="B", epoch=schedule.Epoch.PREVIOUS, owned=schedule.Owned.BEFORE),
        schedule.StreamsBeat(member="C", epoch=schedule.Epoch.AHEAD),
    ],
    "streams: an older topology": [
        join("A", topology_epoch=1),
        join("B", topology_epoch=0),
        *confirm("A", "B", "A", "B"),
        join("C", topology_epoch=2),
        join("C", "two", topology_epoch=1),
        schedule.DescribeStreams(),
    ],
    "streams: source topics come and go": [
        join("A", "missing"),
        schedule.DescribeStreams(),
        schedule.List(states=("not_ready",), types=("streams",)),
        schedule.CreateTopicStep(topic=MISSING, partitions=2),
        *confirm("A"),
        schedule.CreateTopicStep(topic="n", partitions=3),
        *confirm("A"),
        schedule.DescribeStreams(),
        schedule.DeleteTopicStep(topic="n"),
        *confirm("A", "A"),
        join("B", "missing"),
        schedule.DescribeStreams(),
    ],
    "streams: topics of wrong sizes": [
        join("A", "uneven"),
        schedule.DescribeStreams(),
        schedule.Grow(topic="y", partitions=4),
        *confirm("A"),
        schedule.DescribeStreams(),
    ],
    "streams: standby tasks move": [
        schedule.Configure(values={"streams.num.standby.replicas": "1"}),
        join("A", "stateful", process="p"),
        *confirm("A"),
        join("B", "stateful", process="q"),
        *confirm("A", "B", "A", "B", "A", "B"),
        schedule.DescribeStreams(),
        schedule.StreamsBeat(member="A", epoch=-1),
        *confirm("B", "B", "B"),
        join("C", "stateful", process="q"),
        *confirm("B", "C", "B", "C"),
        join("D", "stateful", process="r"),
        *confirm("B", "C", "D", "B", "C", "D", "B", "C", "D"),
        schedule.DescribeStreams(),
        schedule.Configure(values={"streams.num.standby.replicas": "0"}),
        *confirm("B", "C", "D", "B", "C", "D"),
    ],
    "streams: an application stops": [
        join("A", shutdown=True),
        *confirm("A"),
        join("B"),
        schedule.StreamsBeat(member="A", epoch=schedule.Epoch.AHEAD, shutdown=True),
        *confirm("B"),
        schedule.StreamsBeat(member="stranger", epoch=-1, shutdown=True),
        *confirm("A", "B"),
        schedule.StreamsBeat(member="A", epoch=-1, shutdown=True),
        join("C"),
        schedule.StreamsBeat(member="B", epoch=-1),
        schedule.StreamsBeat(member="C", epoch=-1),
        join("A"),
        schedule.StreamsBeat(member="A", epoch=-1),
        schedule.StreamsBeat(member="stranger", epoch=-1, shutdown=True),
        join("B"),
    ],
    "streams: offsets of members": [
        schedule.CommitStep(topics=_TASKS),
        join("A", endpoint="here"),
        schedule.CommitStep(topics=_TASKS, member="A"),
        schedule.CommitStep(topics=_TASKS),
        schedule.CommitStep(topics=_TASKS, member="A", epoch=schedule.Epoch.AHEAD),
        schedule.CommitStep(topics=_TASKS, member="A", version=8),
        schedule.CommitStep(topics=_TASKS, member="stranger", epoch=1),
        join("B"),
        *confirm("A", "A", "B"),
        schedule.CommitStep(topics={"x": (0,)}, member="A", epoch=schedule.Epoch.PREVIOUS),
        schedule.CommitStep(topics={"x": (3,)}, member="A", epoch=schedule.Epoch.PREVIOUS),
        schedule.CommitStep(topics={"y": (0,)}, member="A", epoch=schedule.Epoch.PREVIOUS),
        schedule.CommitStep(topics={"x": (3,)}, member="B", epoch=schedule.Epoch.PREVIOUS),
        schedule.Fetch(topics=_TASKS, member="A"),
        schedule.Fetch(topics=_TASKS, member="A", epoch=schedule.Epoch.PREVIOUS),
        schedule.Fetch(topics=None),
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
        schedule.Configure(
            values={"streams.session.timeout.ms": "1000", "streams.heartbeat.interval.ms": "100"}
        ),
        join("A"),
        join("B"),
        *confirm("A", "A", "B"),
        schedule.Wait(ms=600),
        *confirm("B"),
        schedule.Wait(ms=700),
        *confirm("A", "B", "B"),
        schedule.DescribeStreams(),
    ],
}
"""All scripts except that of a full group, by name."""
