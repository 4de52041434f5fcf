"""Who in a group of Kafka Streams works on which task: evenly, and where it was before if that can be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fencepost.coordinator.protocol.ids import MemberId, TopicPartition
from fencepost.member.classic.assignors.task_ids import TaskId

Tasks = Mapping[TaskId, tuple[TopicPartition, ...]]


def tasks_of(subtopologies: Sequence[Sequence[str]], partitions: Mapping[str, int]) -> Tasks:
    """A task for each number of a partition that a source topic of the subtopology has.

    `partitions` are the sizes of topics. Subtopologies have their position for an id.
    """
    tasks: dict[TaskId, tuple[TopicPartition, ...]] = {}
    for subtopology, topics in enumerate(subtopologies):
        for number in range(max((partitions.get(topic, 0) for topic in topics), default=0)):
            tasks[TaskId(subtopology, number)] = tuple(
                TopicPartition(topic, number) for topic in sorted(topics) if number < partitions.get(topic, 0)
            )
    return tasks


def share(
    tasks: Sequence[TaskId],
    members: Mapping[MemberId, str],
    before: Mapping[TaskId, MemberId],
    stateful: Mapping[TaskId, Sequence[str]],
) -> dict[MemberId, list[TaskId]]:
    """Tasks by member; no member has two more than another.

    `members` names the process of each; `before` who worked on a task last, as far as that is known;
    `stateful` processes that have state of a task, those that are furthest first.
    """
    given: dict[MemberId, list[TaskId]] = {member: [] for member in sorted(members)}
    fewest, more = divmod(len(tasks), len(given)) if given else (0, 0)
    left: list[TaskId] = []
    for task in tasks:
        mine = given.get(before.get(task, ""))
        if mine is not None and len(mine) < fewest:
            mine.append(task)
        elif mine is not None and len(mine) == fewest and more:
            mine.append(task)
            more -= 1
        else:
            left.append(task)
    for task in left:
        homes = [*stateful.get(task, ())]
        if task in before and before[task] in members:
            homes.insert(0, members[before[task]])

        def cost(member: MemberId, homes: Sequence[str] = tuple(homes)) -> tuple[int, int]:
            process = members[member]
            return len(given[member]), homes.index(process) if process in homes else len(homes)

        given[min(given, key=cost)].append(task)
    return given
