"""Streams groups in schedules: topologies by name, what members know of their tasks, and their requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from fencepost.coordinator.protocol import streams
from fencepost.simulation.lab.conform.knowledge import Knowledge
from fencepost.simulation.lab.conform.schedule import Owned, StreamsBeat

Named = Callable[[str], str]
"""Returns a topic's name in the cluster for its name in the schedule."""


_REPARTITION = streams.TopicInfo("repartition")
_TO_REPARTITION = streams.Subtopology("0", ("y",), repartition_sink_topics=("repartition",))
_BESIDE_REPARTITION = streams.CopartitionGroup((0,), (), (0,))

TOPOLOGIES: Mapping[str, tuple[streams.Subtopology, ...]] = {
    "simple": (streams.Subtopology("0", ("x",)),),
    "two": (streams.Subtopology("0", ("x",)), streams.Subtopology("1", ("y",))),
    "missing": (streams.Subtopology("0", ("m", "n")),),
    "stateful": (
        streams.Subtopology(
            "0",
            ("x",),
            state_changelog_topics=(
                streams.TopicInfo("changelog", configs=(("cleanup.policy", "compact"),)),
            ),
        ),
    ),
    "count": (
        _TO_REPARTITION,
        streams.Subtopology(
            "1",
            state_changelog_topics=(streams.TopicInfo("changelog"),),
            repartition_source_topics=(_REPARTITION,),
        ),
    ),
    # A repartition topic that is read together with a topic, and takes its number of partitions.
    "joined": (
        _TO_REPARTITION,
        streams.Subtopology(
            "1",
            ("w",),
            repartition_source_topics=(_REPARTITION,),
            copartition_groups=(_BESIDE_REPARTITION,),
        ),
    ),
    # Two topics that must be alike, and are not.
    "uneven": (streams.Subtopology("0", ("x", "y"), copartition_groups=(streams.CopartitionGroup((0, 1)),)),),
    # A repartition topic with its own number of partitions, different from that of the topic next to it.
    "fixed": (
        _TO_REPARTITION,
        streams.Subtopology(
            "1",
            ("x",),
            repartition_source_topics=(streams.TopicInfo("repartition", 3),),
            copartition_groups=(_BESIDE_REPARTITION,),
        ),
    ),
    "loop": (
        streams.Subtopology(
            "0", repartition_sink_topics=("repartition",), repartition_source_topics=(_REPARTITION,)
        ),
    ),
    "unfed": (streams.Subtopology("0", ("x",), repartition_source_topics=(_REPARTITION,)),),
    "nothing": (streams.Subtopology("0"),),
    "sized": (streams.Subtopology("0", ("x",), state_changelog_topics=(streams.TopicInfo("changelog", 4),)),),
    "internal": (streams.Subtopology("0", ("__consumer_offsets",)),),
    "misnamed": (streams.Subtopology("0", ("a b",)),),
    "regex": (streams.Subtopology("0", (), (".*",)),),
    "index": (streams.Subtopology("0", ("x",), copartition_groups=(streams.CopartitionGroup((0, 7)),)),),
}
"""Topologies by name, over the topics x, y, w that exist and m, n that do not, as the schedule calls them."""


def _in_cluster(part: streams.Subtopology, topic: Named) -> streams.Subtopology:
    """Return the part with the names that its topics have in the cluster; Kafka's own keep theirs."""

    def infos(topics: Iterable[streams.TopicInfo]) -> tuple[streams.TopicInfo, ...]:
        return tuple(msgspec.structs.replace(each, name=topic(each.name)) for each in topics)

    return msgspec.structs.replace(
        part,
        source_topics=tuple(name if name.startswith("__") else topic(name) for name in part.source_topics),
        source_topic_regex=tuple(map(topic, part.source_topic_regex)),
        state_changelog_topics=infos(part.state_changelog_topics),
        repartition_sink_topics=tuple(map(topic, part.repartition_sink_topics)),
        repartition_source_topics=infos(part.repartition_source_topics),
    )


def heartbeat(
    step: StreamsBeat, group_id: str, members: Mapping[str, Knowledge[streams.Tasks]], topic: Named
) -> streams.StreamsGroupHeartbeatRequest:
    """Return the request of a step. `members` holds its member."""
    member = members[step.member]
    owned = _owned(step.owned, member, members)
    topology = None
    if step.topology is not None:
        parts = tuple(_in_cluster(part, topic) for part in TOPOLOGIES[step.topology])
        topology = streams.Topology(step.topology_epoch, parts)
    return streams.StreamsGroupHeartbeatRequest(
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
        user_endpoint=None if step.endpoint is None else streams.Endpoint(step.endpoint, 9000),
        client_tags=step.tags,
        shutdown_application=step.shutdown,
    )


def _owned(
    owned: Owned, member: Knowledge[streams.Tasks], members: Mapping[str, Knowledge[streams.Tasks]]
) -> streams.Tasks | None:
    match owned:
        case Owned.NULL:
            return None
        case Owned.EMPTY:
            return streams.NO_TASKS
        case Owned.PARTIAL:
            return streams.Tasks(_less_one(member.assigned.active), member.assigned.standby)
        case Owned.BEFORE:
            return member.before
        case Owned.FOREIGN:
            every: dict[str, set[int]] = {}
            for other in members.values():
                for subtopology, numbers in other.assigned.active.items():
                    every.setdefault(subtopology, set()).update(numbers)
            active = {one: tuple(sorted(numbers)) for one, numbers in sorted(every.items())}
            return streams.Tasks(active, member.assigned.standby)
        case Owned.UNKNOWN:
            return streams.Tasks({**member.assigned.active, "9": (0,)}, member.assigned.standby)
        case _:
            return member.assigned


def _less_one(tasks: streams.TaskIds) -> streams.TaskIds:
    """Return the tasks without the first one."""
    if not tasks:
        return tasks
    first = min(tasks)
    rest = {one: numbers for one, numbers in tasks.items() if one != first}
    return {first: tasks[first][1:], **rest} if tasks[first][1:] else rest
