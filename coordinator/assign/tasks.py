"""Assigns the tasks of a Streams application to its members, with few changes (KIP-1071; `sticky` in Kafka).

Active tasks come first, each for exactly one member: its previous owner, if that has room; else a member that
had it as a standby; else a member of the process with the least load. Standby tasks follow, in processes that
have the task in no role. A process's load is its tasks divided by its members.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from fencepost.coordinator.assign.java_order import PriorityQueue, hash_map_order
from fencepost.coordinator.protocol.ids import MemberId
from fencepost.coordinator.protocol.streams import NO_TASKS, TaskId, TaskIds, Tasks


class TaskMember(msgspec.Struct, frozen=True):
    """One member: its process, and its target of the epoch before."""

    process_id: str
    target: Tasks = NO_TASKS


class TaskGroupSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A group's members, its tasks, and the number of standbys of each stateful task.

    The order of the members decides ties, as that of Kafka's hash maps does.
    """

    members: Mapping[MemberId, TaskMember]
    tasks: Mapping[str, int]
    """The number of tasks of each subtopology, subtopologies ascending."""
    stateful: frozenset[str] = frozenset()
    """Subtopologies with changelogs."""
    num_standby_replicas: int = 0


def sticky(spec: TaskGroupSpec) -> dict[MemberId, Tasks]:
    """Return the target of each member.

    :raises ValueError: if there are tasks but no members.
    """
    assignment = _Assignment(spec)
    assignment.assign_active()
    if spec.num_standby_replicas > 0:
        assignment.assign_standby()
    return assignment.result()


class _Process:
    """The tasks of one process so far, and its load."""

    def __init__(self) -> None:
        self.counts: dict[MemberId, int] = {}
        """Tasks in all roles, by member."""
        self.tasks: set[TaskId[str]] = set()
        self.load = 0.0
        self._task_count = 0
        self._by_load: PriorityQueue[list[MemberId]] | None = None

    def add_member(self, member_id: MemberId) -> None:
        self.counts[member_id] = 0

    def add(self, member_id: MemberId, task: TaskId[str]) -> int:
        """Give a task to one of its members, and return the member's number of tasks."""
        self._by_load = None
        return self._add(member_id, task)

    def _add(self, member_id: MemberId, task: TaskId[str]) -> int:
        self._task_count += 1
        self.tasks.add(task)
        self.counts[member_id] += 1
        self.load = self._task_count / len(self.counts)
        return self.counts[member_id]

    def add_to_least_loaded(self, task: TaskId[str]) -> tuple[MemberId, int]:
        """Give a task to the member with the fewest tasks; return that member, and its new number of
        tasks."""
        if len(self.counts) == 1:
            (only,) = self.counts
            return only, self._add(only, task)
        if self._by_load is None:
            boxes = ([member_id] for member_id in hash_map_order(self.counts))
            self._by_load = PriorityQueue(boxes, lambda box: self.counts[box[0]])
        box = self._by_load.poll()
        count = self._add(box[0], task)
        self._by_load.add(box)
        return box[0], count


class _Assignment:
    def __init__(self, spec: TaskGroupSpec) -> None:
        self._spec = spec
        order = hash_map_order(spec.members)
        self._active: dict[MemberId, list[TaskId[str]]] = {member_id: [] for member_id in order}
        self._standby: dict[MemberId, list[TaskId[str]]] = {member_id: [] for member_id in order}
        processes: dict[str, _Process] = {}
        self._process_of: dict[MemberId, _Process] = {}
        self._was_active: dict[TaskId[str], MemberId] = {}
        self._stood_by: dict[TaskId[str], list[MemberId]] = {}
        for member_id in order:
            member = spec.members[member_id]
            process = processes.setdefault(member.process_id, _Process())
            process.add_member(member_id)
            self._process_of[member_id] = process
            for task in _each(member.target.active):
                self._was_active[task] = member_id
            for task in _each(member.target.standby):
                self._stood_by.setdefault(task, []).append(member_id)
        self._processes = [processes[one] for one in hash_map_order(processes, len(order))]
        self._active_left = sum(spec.tasks.values())
        stateful = sum(count for one, count in spec.tasks.items() if one in spec.stateful)
        self._tasks_left = self._active_left + stateful * spec.num_standby_replicas
        self._active_members = self._members = len(order)
        self._active_quota = _share(self._active_left, self._active_members)
        self._quota = _share(self._tasks_left, self._members)

    def _count(self, member_id: MemberId) -> int:
        return self._process_of[member_id].counts[member_id]

    def _filled_active(self, count: int) -> None:
        """Exclude a member that reached the quota: the other members share the rest."""
        if count == self._active_quota:
            self._active_members -= 1
            self._active_left -= count
            self._active_quota = _share(self._active_left, self._active_members)

    def _filled(self, count: int) -> None:
        if count == self._quota:
            self._members -= 1
            self._tasks_left -= count
            self._quota = _share(self._tasks_left, self._members)

    def assign_active(self) -> None:
        """Assign each task to one member."""
        tasks = [TaskId(one, number) for one, count in self._spec.tasks.items() for number in range(count)]
        tasks.sort(key=lambda task: (task.partition, task.subtopology))
        tasks = [task for task in tasks if not self._stays(task, self._was_active.get(task))]
        tasks = [
            task for task in tasks if not self._stays(task, self._least_loaded(self._stood_by.get(task)))
        ]
        if tasks and not self._processes:
            raise ValueError(f"there is no member for task {tasks[0]}")
        queue = PriorityQueue(self._processes, lambda process: process.load)
        for task in sorted(tasks):
            process = queue.poll()
            member_id, count = process.add_to_least_loaded(task)
            self._active[member_id].append(task)
            self._filled_active(count)
            self._filled(count)
            queue.add(process)

    def _stays(self, task: TaskId[str], member_id: MemberId | None) -> bool:
        """Give the task to that member if it has room for it."""
        if member_id is None or self._count(member_id) >= self._active_quota:
            return False
        count = self._process_of[member_id].add(member_id, task)
        self._active[member_id].append(task)
        self._filled_active(count)
        self._filled(count)
        return True

    def _least_loaded(
        self, members: list[MemberId] | None, task: TaskId[str] | None = None
    ) -> MemberId | None:
        """Return a member with little load that had standbys; None if the first one's process has the
        `task`."""
        if not members:
            return None
        first = found = members[0]
        process_load = self._process_of[first].load
        member_load = self._count(first)
        for member_id in members[1:]:
            process = self._process_of[member_id]
            free = task is None or task not in process.tasks
            if process.load < process_load and free and self._count(member_id) < member_load:
                found, process_load, member_load = member_id, process.load, self._count(member_id)
        if task is not None and task in self._process_of[first].tasks:
            return None
        return found

    def assign_standby(self) -> None:
        """Assign the standbys of each task, each in another process; fewer if there are fewer processes."""
        missing = self._standbys_left()
        queue = PriorityQueue(self._processes, lambda process: process.load)
        for task, count in sorted(missing, reverse=True):
            for _ in range(count):
                if not self._stands_by_somewhere(queue, task):
                    break

    def _standbys_left(self) -> list[tuple[TaskId[str], int]]:
        """Give standby tasks to members that had them; return the others, and how many each of them needs."""
        wanted = self._spec.num_standby_replicas
        tasks = [
            TaskId(one, number)
            for one, count in self._spec.tasks.items()
            if one in self._spec.stateful
            for number in range(count)
        ]
        tasks.sort(key=lambda task: (task.partition, task.subtopology), reverse=True)
        missing: list[tuple[TaskId[str], int]] = []
        for task in tasks:
            for given in range(wanted):
                if not self._stands_by_again(task):
                    missing.append((task, wanted - given))
                    break
        return missing

    def _stands_by_again(self, task: TaskId[str]) -> bool:
        """Give the standby task to a member that had the task in any role; return true if that is
        possible."""
        before = self._was_active.get(task)
        if before is not None and task not in self._process_of[before].tasks and self._has_room(before):
            self._give_standby(before, task)
            return True
        stood_by = self._least_loaded(self._stood_by.get(task), task)
        if stood_by is not None and self._has_room(stood_by):
            self._give_standby(stood_by, task)
            return True
        return False

    def _has_room(self, member_id: MemberId) -> bool:
        return self._count(member_id) < self._quota

    def _give_standby(self, member_id: MemberId, task: TaskId[str]) -> None:
        count = self._process_of[member_id].add(member_id, task)
        self._standby[member_id].append(task)
        self._filled(count)

    def _stands_by_somewhere(self, queue: PriorityQueue[_Process], task: TaskId[str]) -> bool:
        """Give the standby task to the process with the least load that does not have the task."""
        seen: list[_Process] = []
        found = False
        while len(queue) and not found:
            process = queue.poll()
            seen.append(process)
            if task not in process.tasks:
                member_id, count = process.add_to_least_loaded(task)
                self._standby[member_id].append(task)
                self._filled(count)
                found = True
        for process in reversed(seen):
            queue.add(process)
        return found

    def result(self) -> dict[MemberId, Tasks]:
        """Return the tasks of each member."""
        return {
            member_id: Tasks(_grouped(self._active[member_id]), _grouped(self._standby[member_id]))
            for member_id in self._spec.members
        }


def _each(tasks: TaskIds) -> list[TaskId[str]]:
    return [TaskId(subtopology, number) for subtopology, numbers in tasks.items() for number in numbers]


def _grouped(tasks: list[TaskId[str]]) -> TaskIds:
    found: dict[str, list[int]] = {}
    for task in sorted(tasks):
        found.setdefault(task.subtopology, []).append(task.partition)
    return {subtopology: tuple(numbers) for subtopology, numbers in found.items()}


def _share(tasks: int, members: int) -> int:
    return -(-tasks // members) if members else 0
