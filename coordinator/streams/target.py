"""The target assignment of a group: the assignor's input, and the records of its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import msgspec

from fencepost.coordinator.assign.java_order import timeline_order
from fencepost.coordinator.assign.tasks import TaskGroupSpec, TaskMember
from fencepost.coordinator.protocol.ids import MemberId
from fencepost.coordinator.protocol.records import Record
from fencepost.coordinator.protocol.streams import NO_TASKS, Tasks
from fencepost.coordinator.streams.group import StreamsGroup
from fencepost.coordinator.streams.member import StreamsGroupMember
from fencepost.coordinator.streams.topology import ConfiguredTopology

NUM_STANDBY_REPLICAS = "num.standby.replicas"
TaskAssignor: TypeAlias = Callable[[TaskGroupSpec], Mapping[MemberId, Tasks]]


class StreamsTarget(msgspec.Struct, frozen=True):
    """The target that a member is reconciled to, and the records that a new one needs."""

    epoch: int
    tasks: Tasks
    records: tuple[Record, ...] = ()


def compute_target(
    group: StreamsGroup,
    member: StreamsGroupMember | None,
    topology: ConfiguredTopology,
    *,
    epoch: int,
    configs: Mapping[str, str],
    assignor: TaskAssignor,
    now_ms: int,
) -> StreamsTarget:
    """Compute a new target for the group, with `member`, if any, in place of the group's version of it.

    No member has tasks while the topology is not ready. The records hold each target that changed, by member
    id, then the epoch. The target's tasks are the member's.
    """
    members: dict[MemberId, StreamsGroupMember] = {
        one: group.members[one] for one in timeline_order(group.members)
    }
    if member is not None:
        members[member.member_id] = member
    answer = _assigned(group, members, topology, configs, assignor)
    tasks = NO_TASKS if member is None else answer[member.member_id]
    records = group.target_records(group.targets, dict(sorted(answer.items())), epoch, now_ms)
    return StreamsTarget(epoch, tasks, records)


def _assigned(
    group: StreamsGroup,
    members: Mapping[MemberId, StreamsGroupMember],
    topology: ConfiguredTopology,
    configs: Mapping[str, str],
    assignor: TaskAssignor,
) -> Mapping[MemberId, Tasks]:
    if not topology.is_ready or topology.subtopologies is None:
        return dict.fromkeys(members, NO_TASKS)
    subtopologies = topology.subtopologies
    return assignor(
        TaskGroupSpec(
            members={
                member_id: TaskMember(member.process_id, group.target(member_id))
                for member_id, member in members.items()
            },
            tasks={one: subtopology.tasks for one, subtopology in subtopologies.items()},
            stateful=frozenset(
                one for one, subtopology in subtopologies.items() if subtopology.state_changelog_topics
            ),
            num_standby_replicas=int(configs.get(NUM_STANDBY_REPLICAS, "0")),
        )
    )
