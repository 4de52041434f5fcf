"""The partition assignor of Kafka Streams in the classic protocol, as a leader and as any member.

It leads groups of applications whose topology it was given, and which keep no state in changelogs: it makes
no internal topics and no standby tasks. A member sends the request to shut the application down (KIP-671) in
its subscription, and all members receive it in their assignments. A member that receives it repeats it in
another round, for those that have missed the first one, until all members of a round send it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from fencepost.coordinator.protocol.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)
from fencepost.coordinator.protocol.ids import MemberId, TopicPartition
from fencepost.coordinator.protocol.streams import TaskId
from fencepost.member.classic.assignor import Subscriber
from fencepost.member.classic.assignors import subscription_info
from fencepost.member.classic.assignors.assignment_info import (
    NO_REBALANCE_MS,
    AssignmentInfo,
    read_assignment_info,
    write_assignment_info,
)
from fencepost.member.classic.assignors.java_bytes import MalformedUserData
from fencepost.member.classic.assignors.streams_metadata import LATEST_VERSION, AssignorError, HostInfo

PROBING_REBALANCE_MS = 600_000
"""Delay before a member joins again that is to do so at some time: probing.rebalance.interval.ms."""
ASK_AGAIN_MS = 1_000
"""Delay before a member joins again if its request for a shutdown was not answered."""
MOST_REPEATS = 5
"""Number of rounds in which a member repeats that the application is to be shut down: others may keep coming.
"""

_AT_ONCE_MS = 0
_ALL_KNOW_MS = 1
"""All members know that the application is to be shut down. Kafka Streams ignores dates next to errors."""

_FUTURE = "future"
"""The process of members whose subscription is of a newer version than ours."""


Tasks = Mapping[TaskId[int], tuple[TopicPartition, ...]]


class _Member(NamedTuple):
    info: subscription_info.SubscriptionInfo
    process: str
    owned: tuple[TopicPartition, ...]


class StreamsAssignor:
    """One thread's assignor. `subtopologies` are the source topics of each part of the topology.

    `error` is that of the leader's last assignment, an AssignorError or an unknown number; ASSIGNMENT_ERROR
    also if it could not be read. `shutdown_requested` is true if subscriptions carry the request, this
    thread's own or one that it received; it never becomes false again.
    """

    name = "stream"
    cooperative = True

    def __init__(
        self,
        process_id: uuid.UUID,
        subtopologies: Sequence[Sequence[str]],
        *,
        user_endpoint: str | None = None,
        client_tags: Mapping[str, str] | None = None,
        latest_version: int = LATEST_VERSION,
    ) -> None:
        self._process_id = process_id
        self._subtopologies = tuple(map(tuple, subtopologies))
        self._user_endpoint = user_endpoint
        self._client_tags = dict(client_tags or {})
        self._latest = latest_version
        self._unique_field = 0
        self.used_version = latest_version
        """The version that the next subscription is written in."""
        self.shutdown_requested = False
        self.all_know = False
        """True if all members of the last round sent that the application is to be shut down."""
        self._repeats = 0
        self.error: int = AssignorError.NONE
        self.message = ""
        """Description of the error, if there is one."""
        self.active_tasks: Tasks = {}

    def request_shutdown(self) -> None:
        """Request the end of the whole application with every subscription from now on."""
        self.shutdown_requested = True

    def user_data(self) -> bytes | None:
        """Return Kafka Streams' own part of the subscription; each differs from the one before."""
        self._unique_field = (self._unique_field + 129) % 256 - 128
        code = AssignorError.SHUTDOWN_REQUESTED if self.shutdown_requested else AssignorError.NONE
        return subscription_info.write_subscription_info(
            subscription_info.SubscriptionInfo(
                version=self.used_version,
                latest_supported_version=self._latest,
                process_id=self._process_id,
                user_endpoint=self._user_endpoint,
                unique_field=self._unique_field,
                error_code=code,
                client_tags=self._client_tags,
            )
        )

    # -- as the leader -----------------------------------------------------------------------------------

    def assign(
        self, partitions: Mapping[str, int], members: Sequence[Subscriber]
    ) -> Mapping[MemberId, ConsumerProtocolAssignment]:
        """Tasks for all members, or an error for all. Members whose data can't be read are left out."""
        known = {each.member_id: found for each in members if (found := _understood(each, self._latest))}
        version = min((self._latest, *(each.info.version for each in known.values())))
        common = min((self._latest, *(each.info.latest_supported_version for each in known.values())))
        asked = any(each.info.error_code == AssignorError.SHUTDOWN_REQUESTED for each in known.values())
        sources = {topic for topics in self._subtopologies for topic in topics}
        if asked:
            learns = any(_learns(each.info, self._latest) for each in known.values())
            again_ms = _AT_ONCE_MS if learns else _ALL_KNOW_MS
            return _refusal(AssignorError.SHUTDOWN_REQUESTED, common, known, again_ms)
        if not sources <= partitions.keys():
            return _refusal(AssignorError.INCOMPLETE_SOURCE_TOPIC_METADATA, common, known)
        tasks = tasks_of(self._subtopologies, partitions)
        given = share(
            tuple(tasks),
            {member_id: each.process for member_id, each in known.items()},
            _workers(tasks, known),
            _stateful(known),
        )
        hosts = _hosts(tasks, given, known)
        template = AssignmentInfo(
            version=version, commonly_supported_version=common, partitions_by_host=hosts
        )
        owners = {partition: member_id for member_id, each in known.items() for partition in each.owned}
        return {
            member_id: _assignment(template, {task: tasks[task] for task in mine}, member_id, owners)
            for member_id, mine in given.items()
        }

    # -- as any member -----------------------------------------------------------------------------------

    def on_assignment(self, assignment: ConsumerProtocolAssignment) -> int | None:
        """Take this thread's tasks. Return the delay in ms after which it joins again, or None."""
        self.active_tasks = {}
        try:
            info = read_assignment_info(assignment.user_data)
            self.error, self.message = info.error_code, f"the leader sent error {info.error_code}"
            if not self.error:
                self._take(info, assignment)
        except MalformedUserData as error:
            self.error, self.message = (
                AssignorError.ASSIGNMENT_ERROR,
                f"the assignment can't be read: {error}",
            )
        if self.error == AssignorError.SHUTDOWN_REQUESTED:
            return self._repeat(info)
        if self.error:
            return None
        return self._rejoin_after(info)

    def _repeat(self, info: AssignmentInfo) -> int | None:
        """Repeat the request: members that did not fetch this assignment in time receive it in the next
        round.

        A leader of Kafka Streams does not report if all know: then one repetition has to do.
        """
        self.shutdown_requested = True
        self.all_know = info.next_rebalance_ms == _ALL_KNOW_MS
        most = MOST_REPEATS if info.next_rebalance_ms == _AT_ONCE_MS else 1
        if self.all_know or self._repeats >= most:
            return None
        self._repeats += 1
        return 0

    def _take(self, info: AssignmentInfo, assignment: ConsumerProtocolAssignment) -> None:
        """Return the tasks of the assigned partitions, in the order of the partitions."""
        assigned = sorted(
            TopicPartition(topic, number)
            for topic, numbers in assignment.partitions.items()
            for number in numbers
        )
        if info.version > self.used_version:
            raise MalformedUserData(f"version {info.version} is above the subscription's {self.used_version}")
        if info.commonly_supported_version > self._latest:
            raise MalformedUserData(f"version {info.commonly_supported_version} is above {self._latest}")
        if len(assigned) != len(info.active_tasks):
            raise MalformedUserData(f"{len(info.active_tasks)} tasks for {len(assigned)} partitions")
        tasks: dict[TaskId[int], tuple[TopicPartition, ...]] = {}
        for task, partition in zip(info.active_tasks, assigned, strict=True):
            tasks[task] = (*tasks.get(task, ()), partition)
        self.active_tasks = tasks

    def _rejoin_after(self, info: AssignmentInfo) -> int | None:
        """Version probing: go down to the version of the leader, and up again once all members support it."""
        common = info.commonly_supported_version
        if common > self.used_version or info.version < self.used_version:
            self.used_version = common
            return 0
        if self.shutdown_requested:
            return ASK_AGAIN_MS
        hosts = info.partitions_by_host
        mine = None if self._user_endpoint is None else _host(self._user_endpoint)
        if info.next_rebalance_ms == 0 or (hosts and mine is not None and mine not in hosts):
            return 0
        return None if info.next_rebalance_ms == NO_REBALANCE_MS else PROBING_REBALANCE_MS


def _understood(member: Subscriber, latest: int) -> _Member | None:
    """Return a member's data; None if it is no thread of Kafka Streams, or one of a version before 2.6."""
    if member.subscription is None:
        return None
    try:
        info = subscription_info.read_subscription_info(member.subscription.user_data)
    except MalformedUserData:
        return None
    process = _FUTURE if info.version > latest else str(info.process_id)
    return _Member(info, process, _owned(member.subscription))


def _learns(info: subscription_info.SubscriptionInfo, latest: int) -> bool:
    """Return true if a member could have asked for the shutdown of the application, and has not done so."""
    knows = info.error_code == AssignorError.SHUTDOWN_REQUESTED
    return subscription_info.ERROR_CODE_VERSION <= info.version <= latest and not knows


def _refusal(
    error: AssignorError, common: int, members: Iterable[MemberId], again_ms: int = NO_REBALANCE_MS
) -> dict[MemberId, ConsumerProtocolAssignment]:
    """Only an error for all members, in the newest version that all of them can read.

    Kafka's leader uses its own latest version, at which an older member fails.
    """
    info = AssignmentInfo(
        version=common, commonly_supported_version=common, error_code=error, next_rebalance_ms=again_ms
    )
    return dict.fromkeys(
        members, ConsumerProtocolAssignment(partitions={}, user_data=write_assignment_info(info))
    )


def _owned(subscription: ConsumerProtocolSubscription) -> tuple[TopicPartition, ...]:
    return tuple(
        TopicPartition(topic, number) for topic, numbers in subscription.owned.items() for number in numbers
    )


def _workers(tasks: Tasks, members: Mapping[MemberId, _Member]) -> dict[TaskId[int], MemberId]:
    """Return the member that owns partitions of each task."""
    task_of = {partition: task for task, partitions in tasks.items() for partition in partitions}
    found: dict[TaskId[int], MemberId] = {}
    for member_id in sorted(members):
        for partition in members[member_id].owned:
            if (task := task_of.get(partition)) is not None:
                found.setdefault(task, member_id)
    return found


def _stateful(members: Mapping[MemberId, _Member]) -> dict[TaskId[int], list[str]]:
    """Return the processes that have state of each task, furthest first."""
    found: dict[TaskId[int], dict[str, float]] = {}
    for each in members.values():
        for task, offset_sum in each.info.task_offset_sums.items():
            far = float("inf") if offset_sum == subscription_info.RUNS_ACTIVE else float(offset_sum)
            sums = found.setdefault(task, {})
            sums[each.process] = max(far, sums.get(each.process, far))
    return {task: sorted(sums, key=lambda process: (-sums[process], process)) for task, sums in found.items()}


def _hosts(
    tasks: Tasks, given: Mapping[MemberId, Sequence[TaskId[int]]], members: Mapping[MemberId, _Member]
) -> dict[HostInfo, tuple[TopicPartition, ...]]:
    """Return the host that serves each partition's task, of the processes that name one."""
    hosts: dict[HostInfo, tuple[TopicPartition, ...]] = {}
    for member_id, mine in given.items():
        endpoint = members[member_id].info.user_endpoint
        host = None if endpoint is None else _host(endpoint)
        if host is not None:
            partitions = tuple(partition for task in mine for partition in tasks[task])
            hosts[host] = (*hosts.get(host, ()), *partitions)
    return hosts


def _host(endpoint: str) -> HostInfo | None:
    """Return the parts of host:port; None if the text has another form."""
    host, _, port = endpoint.rpartition(":")
    if not host or not port.isdecimal():
        return None
    return HostInfo(host.removeprefix("[").removesuffix("]"), int(port))


def _assignment(
    template: AssignmentInfo, tasks: Tasks, member_id: MemberId, owners: Mapping[TopicPartition, MemberId]
) -> ConsumerProtocolAssignment:
    """Return a member's tasks without those that another member has not released; for these it joins once
    more."""
    mine: list[tuple[TopicPartition, TaskId[int]]] = []
    waits = False
    for task, partitions in tasks.items():
        if any(owners.get(partition, member_id) != member_id for partition in partitions):
            waits = True
        else:
            mine += [(partition, task) for partition in partitions]
    mine.sort()
    topics: dict[str, tuple[int, ...]] = {}
    for partition, _ in mine:
        topics[partition.topic] = (*topics.get(partition.topic, ()), partition.partition)
    info = AssignmentInfo(
        version=template.version,
        commonly_supported_version=template.commonly_supported_version,
        active_tasks=tuple(task for _, task in mine),
        partitions_by_host=template.partitions_by_host,
        next_rebalance_ms=0 if waits else NO_REBALANCE_MS,
    )
    return ConsumerProtocolAssignment(partitions=topics, user_data=write_assignment_info(info))


def tasks_of(subtopologies: Sequence[Sequence[str]], partitions: Mapping[str, int]) -> Tasks:
    """Return a task for each number of a partition that a source topic of the subtopology has.

    `partitions` are the sizes of topics. The id of a subtopology is its position.
    """
    tasks: dict[TaskId[int], tuple[TopicPartition, ...]] = {}
    for subtopology, topics in enumerate(subtopologies):
        for number in range(max((partitions.get(topic, 0) for topic in topics), default=0)):
            tasks[TaskId(subtopology, number)] = tuple(
                TopicPartition(topic, number) for topic in sorted(topics) if number < partitions.get(topic, 0)
            )
    return tasks


def share(
    tasks: Sequence[TaskId[int]],
    members: Mapping[MemberId, str],
    before: Mapping[TaskId[int], MemberId],
    stateful: Mapping[TaskId[int], Sequence[str]],
) -> dict[MemberId, list[TaskId[int]]]:
    """Return tasks by member; no member has two more than another.

    `members` names the process of each; `before` the last worker of each task, as far as it is known;
    `stateful` the processes that have state of a task, furthest first.
    """
    given: dict[MemberId, list[TaskId[int]]] = {member: [] for member in sorted(members)}
    fewest, more = divmod(len(tasks), len(given)) if given else (0, 0)
    left: list[TaskId[int]] = []
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
