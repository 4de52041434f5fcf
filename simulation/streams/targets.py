"""Checks targets of a streams group: all tasks, balanced, and with as few moves as possible."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from fencepost.coordinator.protocol.ids import MemberId
from fencepost.coordinator.protocol.streams import (
    NO_TASKS,
    StatusCode,
    StreamsGroupHeartbeatRequest,
    Tasks,
    Topology,
)
from fencepost.coordinator.protocol.topics import TopicsImage
from fencepost.coordinator.streams.member import StreamsGroupMember
from fencepost.simulation.judge.base import Finding
from fencepost.simulation.streams.placements import Placement, Task, each


class ExpectedTopics(NamedTuple):
    """The topics that a topology needs, as far as scenarios use topologies: sources and changelogs."""

    tasks: Mapping[str, int]
    """Number of tasks of each subtopology; empty if source topics are missing."""
    stateful: frozenset[str]
    missing: frozenset[tuple[str, int]]
    """Internal topics that have to be created, with their partitions."""
    problem: StatusCode | None

    def has(self, request: StreamsGroupHeartbeatRequest) -> bool:
        """Return true if there are all tasks that a member lists: after a reset, a topic may be smaller."""
        listed = (request.active_tasks, request.standby_tasks, request.warmup_tasks)
        return all(
            0 <= number < self.tasks.get(one, 0)
            for tasks in listed
            for one, numbers in (tasks or {}).items()
            for number in numbers
        )


def expected_topics(topology: Topology, image: TopicsImage) -> ExpectedTopics:
    """Return what follows from the existing topics: a task for each partition of the largest source."""
    tasks: dict[str, int] = {}
    missing: set[tuple[str, int]] = set()
    problem: StatusCode | None = None
    for one in topology.subtopologies:
        sources = [image.by_name.get(name) for name in one.source_topics]
        if None in sources:
            return ExpectedTopics({}, frozenset(), frozenset(), StatusCode.MISSING_SOURCE_TOPICS)
        count = tasks[one.subtopology_id] = max((each.partitions for each in sources if each), default=0)
        for changelog in one.state_changelog_topics:
            found = image.by_name.get(changelog.name)
            if found is None:
                missing.add((changelog.name, count))
                problem = problem or StatusCode.MISSING_INTERNAL_TOPICS
            elif found.partitions != count:
                problem = StatusCode.INCORRECTLY_PARTITIONED_TOPICS
    stateful = frozenset(one.subtopology_id for one in topology.subtopologies if one.state_changelog_topics)
    if problem is StatusCode.INCORRECTLY_PARTITIONED_TOPICS:
        missing.clear()
    return ExpectedTopics(tasks, stateful, frozenset(missing), problem)


class TargetInput(NamedTuple):
    """The input from which a target was computed, and the target."""

    members: Mapping[MemberId, StreamsGroupMember]
    before: Mapping[MemberId, Tasks]
    old_members: Mapping[MemberId, StreamsGroupMember]
    after: Mapping[MemberId, Tasks]
    topics: ExpectedTopics
    standbys: int


def targets(given: TargetInput) -> Iterator[Finding]:
    """Yield what is wrong with a new target."""
    after = {one: given.after.get(one, NO_TASKS) for one in given.members}
    strangers = [one for one, tasks in given.after.items() if one not in given.members and tasks]
    if strangers:
        yield "streams-target", f"{', '.join(strangers)} have a target, and are no members"
    if any(tasks.warmup for tasks in after.values()):
        yield "streams-target", "there are warm-up tasks, and no member can have any yet"
    if given.topics.problem is not None:
        if any(after.values()):
            yield "streams-target", "members have tasks although topics are missing"
        return
    incomplete = list(_complete(given, after))
    yield from incomplete
    yield from _balanced(given, after)
    yield from _sticky(given, after)
    yield from _standbys(given, after)
    if not incomplete:
        yield from _placed(given, after)


def _all(given: TargetInput) -> set[Task]:
    return {(one, number) for one, count in given.topics.tasks.items() for number in range(count)}


def _complete(given: TargetInput, after: Mapping[MemberId, Tasks]) -> Iterator[Finding]:
    count = Counter(task for tasks in after.values() for task in each(tasks.active))
    wrong = sorted(task for task in _all(given) | count.keys() if count[task] != (task in _all(given)))
    if wrong:
        yield "streams-target", f"tasks {wrong[:6]} are active not exactly once"


def _balanced(given: TargetInput, after: Mapping[MemberId, Tasks]) -> Iterator[Finding]:
    """Yield members with more than their share of active tasks."""
    most = -(-len(_all(given)) // len(after))
    for member_id, tasks in after.items():
        if len(each(tasks.active)) > most:
            yield (
                "streams-target",
                f"{member_id} has {len(each(tasks.active))} active tasks, its share is {most}",
            )


def _sticky(given: TargetInput, after: Mapping[MemberId, Tasks]) -> Iterator[Finding]:
    """Yield needless moves: members keep their tasks up to their share."""
    tasks = _all(given)
    least = len(tasks) // len(after)
    for member_id, now in after.items():
        before = given.before.get(member_id, NO_TASKS)
        had = [task for task in each(before.active) if task in tasks]
        taken = set(had) - set(each(now.active))
        if len(had) <= least and taken:
            yield "streams-sticky", f"{member_id} had {len(had)} tasks, and loses {sorted(taken)[:6]}"
        elif len(had) - len(taken) < min(len(had), least):
            yield "streams-sticky", f"{member_id} keeps {len(had) - len(taken)} of {len(had)} tasks"


def _placed(given: TargetInput, after: Mapping[MemberId, Tasks]) -> Iterator[Finding]:
    """Yield tasks that are with the wrong process or member.

    If only some tasks have state, Kafka 4.3 shares them all out at once, and later versions those with state
    first: nothing is judged then.
    """
    topics = given.topics
    if topics.stateful and topics.stateful != topics.tasks.keys():
        return
    processes = {member_id: member.process_id for member_id, member in given.members.items()}
    standbys = given.standbys if topics.stateful else 0
    yield from Placement(processes, given.before, after, _all(given), standbys=standbys).findings()


def _standbys(given: TargetInput, after: Mapping[MemberId, Tasks]) -> Iterator[Finding]:
    """Yield tasks with a wrong number of standbys, or twice in one process."""
    active: dict[Task, set[str]] = {}
    standby: dict[Task, list[str]] = {}
    for member_id, tasks in after.items():
        process = given.members[member_id].process_id
        for task in each(tasks.active):
            active.setdefault(task, set()).add(process)
        for task in each(tasks.standby):
            standby.setdefault(task, []).append(process)
    processes = {member.process_id for member in given.members.values()}
    wanted = min(given.standbys, len(processes) - 1)
    for task in sorted(_all(given) | standby.keys()):
        found = standby.get(task, [])
        right = wanted if task[0] in given.topics.stateful else 0
        if len(found) != right:
            yield "streams-standby", f"{len(found)} stand by for {task}, expected {right}"
        elif len(set(found)) != len(found) or active.get(task, set()) & set(found):
            yield "streams-standby", f"a process has {task} twice"
    yield from _standbys_sticky(given, after, standby)


def _standbys_sticky(
    given: TargetInput, after: Mapping[MemberId, Tasks], standby: Mapping[Task, list[str]]
) -> Iterator[Finding]:
    """Yield a process that begins to restore another one's store, in a group whose members are the same.

    If the spread was uneven before, a standby task may move to a process with less to do. Of several standbys
    of a task, Kafka 4.3 looks for the place of the first only (KAFKA-20899).
    """
    if given.standbys > 1:
        return
    same = given.old_members.keys() == given.members.keys() == given.before.keys() and all(
        given.old_members[one].process_id == member.process_id for one, member in given.members.items()
    )
    if not same or any(given.before[one].active != now.active for one, now in after.items()):
        return
    had: dict[Task, list[str]] = {}
    load: Counter[str] = Counter()
    threads = Counter(member.process_id for member in given.members.values())
    for member_id, tasks in given.before.items():
        process = given.members[member_id].process_id
        load[process] += len(each(tasks.active)) + len(each(tasks.standby))
    if any(load[a] * threads[b] > (load[b] + 1) * threads[a] for a in threads for b in threads):
        return
    for member_id, tasks in given.before.items():
        for task in each(tasks.standby):
            had.setdefault(task, []).append(given.members[member_id].process_id)
    if {task: sorted(found) for task, found in had.items()} != {
        task: sorted(found) for task, found in standby.items()
    } and sum(map(len, had.values())) == sum(map(len, standby.values())):
        yield "streams-sticky", "standby tasks move in a group whose members are the same"
