"""Streams groups in schedules: topologies by name, what members know of their tasks, and their requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import MemberId
from fencepost.coordinator.protocol.streams import (
    NO_TASKS,
    CopartitionGroup,
    Endpoint,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    Subtopology,
    TaskIds,
    Tasks,
    TopicInfo,
    Topology,
)
from fencepost.simulation.lab.conform.schedule import Epochs, Owned, StreamsBeat

Named = Callable[[str], str]
"""From a topic's name in the schedule to that in the cluster."""


def _simple(topic: Named) -> tuple[Subtopology, ...]:
    return (Subtopology("0", (topic("x"),)),)


def _two(topic: Named) -> tuple[Subtopology, ...]:
    return (Subtopology("0", (topic("x"),)), Subtopology("1", (topic("y"),)))


def _missing(topic: Named) -> tuple[Subtopology, ...]:
    return (Subtopology("0", (topic("m"), topic("n"))),)


def _stateful(topic: Named) -> tuple[Subtopology, ...]:
    changelog = TopicInfo(topic("changelog"), configs=(("cleanup.policy", "compact"),))
    return (Subtopology("0", (topic("x"),), state_changelog_topics=(changelog,)),)


def _count(topic: Named) -> tuple[Subtopology, ...]:
    return (
        Subtopology("0", (topic("y"),), repartition_sink_topics=(topic("repartition"),)),
        Subtopology(
            "1",
            state_changelog_topics=(TopicInfo(topic("changelog")),),
            repartition_source_topics=(TopicInfo(topic("repartition")),),
        ),
    )


def _joined(topic: Named) -> tuple[Subtopology, ...]:
    """A repartition topic that is read together with a topic, and takes its number of partitions."""
    return (
        Subtopology("0", (topic("y"),), repartition_sink_topics=(topic("repartition"),)),
        Subtopology(
            "1",
            (topic("w"),),
            repartition_source_topics=(TopicInfo(topic("repartition")),),
            copartition_groups=(CopartitionGroup((0,), (), (0,)),),
        ),
    )


def _uneven(topic: Named) -> tuple[Subtopology, ...]:
    """Two topics that must be alike, and are not."""
    return (Subtopology("0", (topic("x"), topic("y")), copartition_groups=(CopartitionGroup((0, 1)),)),)


def _fixed(topic: Named) -> tuple[Subtopology, ...]:
    """A repartition topic with a number of its own, which is not that of the topic beside it."""
    return (
        Subtopology("0", (topic("y"),), repartition_sink_topics=(topic("repartition"),)),
        Subtopology(
            "1",
            (topic("x"),),
            repartition_source_topics=(TopicInfo(topic("repartition"), 3),),
            copartition_groups=(CopartitionGroup((0,), (), (0,)),),
        ),
    )


def _loop(topic: Named) -> tuple[Subtopology, ...]:
    return (
        Subtopology(
            "0",
            repartition_sink_topics=(topic("repartition"),),
            repartition_source_topics=(TopicInfo(topic("repartition")),),
        ),
    )


def _unfed(topic: Named) -> tuple[Subtopology, ...]:
    return (Subtopology("0", (topic("x"),), repartition_source_topics=(TopicInfo(topic("repartition")),)),)


def _nothing(topic: Named) -> tuple[Subtopology, ...]:
    return (Subtopology("0"),)


def _sized(topic: Named) -> tuple[Subtopology, ...]:
    return (Subtopology("0", (topic("x"),), state_changelog_topics=(TopicInfo(topic("changelog"), 4),)),)


def _internal(topic: Named) -> tuple[Subtopology, ...]:
    return (Subtopology("0", ("__consumer_offsets",)),)


def _misnamed(topic: Named) -> tuple[Subtopology, ...]:
    return (Subtopology("0", (topic("a b"),)),)


def _regex(topic: Named) -> tuple[Subtopology, ...]:
    return (Subtopology("0", (), (topic(".*"),)),)


def _index(topic: Named) -> tuple[Subtopology, ...]:
    return (Subtopology("0", (topic("x"),), copartition_groups=(CopartitionGroup((0, 7)),)),)


TOPOLOGIES: Mapping[str, Callable[[Named], tuple[Subtopology, ...]]] = {
    "simple": _simple,
    "two": _two,
    "missing": _missing,
    "stateful": _stateful,
    "count": _count,
    "joined": _joined,
    "uneven": _uneven,
    "fixed": _fixed,
    "loop": _loop,
    "unfed": _unfed,
    "nothing": _nothing,
    "sized": _sized,
    "internal": _internal,
    "misnamed": _misnamed,
    "regex": _regex,
    "index": _index,
}
"""By name; over the topics x, y, w that exist and m, n that do not."""


class StreamsKnowledge:
    """What one member of a streams group was told."""

    def __init__(self, member_id: MemberId) -> None:
        self.member_id = member_id
        self.epochs = Epochs()
        self.assigned = NO_TASKS
        self.before = NO_TASKS

    def hear(self, answer: StreamsGroupHeartbeatResponse) -> None:
        """An answer arrived."""
        if answer.error_code is not ErrorCode.NONE:
            return
        if not self.epochs.hear(answer.member_epoch):
            self.assigned = self.before = NO_TASKS
        elif answer.tasks is not None and answer.tasks != self.assigned:
            self.before, self.assigned = self.assigned, answer.tasks


def heartbeat(
    step: StreamsBeat, group_id: str, members: Mapping[str, StreamsKnowledge], topic: Named
) -> StreamsGroupHeartbeatRequest:
    """The request of a step. `members` holds its member."""
    member = members[step.member]
    owned = _owned(step.owned, member, members)
    topology = None
    if step.topology is not None:
        topology = Topology(step.topology_epoch, TOPOLOGIES[step.topology](topic))
    return StreamsGroupHeartbeatRequest(
        group_id=group_id,
        member_id=member.member_id if step.member_id is None else step.member_id,
        member_epoch=member.epochs.of(step.epoch),
        endpoint_information_epoch=step.endpoint_epoch,
        instance_id=step.instance,
        rack_id=step.rack,
        rebalance_timeout_ms=step.rebalance_timeout_ms,
        topology=topology,
        active_tasks=None if owned is None else owned.active,
        standby_tasks=None if owned is None or step.incomplete else owned.standby,
        warmup_tasks=None if owned is None else owned.warmup,
        process_id=step.process,
        user_endpoint=None if step.endpoint is None else Endpoint(step.endpoint, 9000),
        client_tags=step.tags,
        shutdown_application=step.shutdown,
    )


def _owned(owned: Owned, member: StreamsKnowledge, members: Mapping[str, Any]) -> Tasks | None:
    match owned:
        case Owned.NULL:
            return None
        case Owned.EMPTY:
            return NO_TASKS
        case Owned.PARTIAL:
            return Tasks(_less_one(member.assigned.active), member.assigned.standby)
        case Owned.BEFORE:
            return member.before
        case Owned.FOREIGN:
            every: dict[str, set[int]] = {}
            for other in members.values():
                for subtopology, numbers in other.assigned.active.items():
                    every.setdefault(subtopology, set()).update(numbers)
            active = {one: tuple(sorted(numbers)) for one, numbers in sorted(every.items())}
            return Tasks(active, member.assigned.standby)
        case Owned.UNKNOWN:
            return Tasks({**member.assigned.active, "9": (0,)}, member.assigned.standby)
        case _:
            return member.assigned


def _less_one(tasks: TaskIds) -> TaskIds:
    """Without the first task."""
    if not tasks:
        return tasks
    first = min(tasks)
    rest = {one: numbers for one, numbers in tasks.items() if one != first}
    return {first: tasks[first][1:], **rest} if tasks[first][1:] else rest
