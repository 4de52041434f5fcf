"""Judges where a target puts tasks, by rules that hold for every order in which Kafka's assignor may go.

Kafka's sticky assignor (KIP-1071) gives each active task to its previous owner, else to a member that stood
by for it, as long as the member has less than its share. It gives the others to the process with the least
load. A process's load is its tasks divided by its members. Standby tasks follow in the same way.

A target does not show the order in which tasks were given out, nor which of several equal processes was
taken. So each rule here follows from the result alone: a member or a process *took on* a task if it did not
have it before, so the task was given to the least load.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TypeAlias

from fencepost.coordinator.protocol.ids import MemberId
from fencepost.coordinator.protocol.streams import NO_TASKS, TaskIds, Tasks
from fencepost.simulation.judge.base import Finding

Task: TypeAlias = tuple[str, int]


def each(tasks: TaskIds) -> list[Task]:
    """Return the tasks one by one."""
    return [(one, number) for one, numbers in tasks.items() for number in numbers]


class Placement:
    """A target that has each task once, and the target before it."""

    def __init__(
        self,
        processes: Mapping[MemberId, str],
        before: Mapping[MemberId, Tasks],
        after: Mapping[MemberId, Tasks],
        tasks: Collection[Task],
        *,
        standbys: int,
    ) -> None:
        """`processes` are those of the members; `standbys` the number of standby tasks that are configured
        for each task."""
        self._process_of = processes
        self._threads = Counter(processes.values())
        self._tasks = tasks
        self._standbys = standbys
        self._owner: dict[Task, MemberId] = {}
        self._stood_by: dict[Task, list[MemberId]] = {}
        for member_id in processes:
            had = before.get(member_id, NO_TASKS)
            self._owner.update((task, member_id) for task in each(had.active))
            for task in each(had.standby):
                self._stood_by.setdefault(task, []).append(member_id)
        self._active = {one: set(each(after.get(one, NO_TASKS).active)) for one in processes}
        self._standby = {one: set(each(after.get(one, NO_TASKS).standby)) for one in processes}
        self._held: dict[str, set[Task]] = {process: set() for process in self._threads}
        self._active_counts: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()
        for member_id, process in processes.items():
            self._held[process] |= self._active[member_id] | self._standby[member_id]
            self._active_counts[process] += len(self._active[member_id])
            self._counts[process] += self._count(member_id)

    def findings(self) -> Iterator[Finding]:
        """Yield what is wrong with the target."""
        yield from self._active_shares()
        yield from self._full_owners()
        yield from self._standbys_first()
        yield from self._active_to_least_load()
        if self._standbys:
            yield from self._standbys_to_least_load()
            yield from self._full_members()
            yield from self._holders_first()

    def _count(self, member_id: MemberId) -> int:
        return len(self._active[member_id]) + len(self._standby[member_id])

    def _took_on(self, member_id: MemberId, tasks: Iterable[Task]) -> bool:
        """Return true if the member had one of the tasks in no role: it got it for its little load."""
        return any(
            self._owner.get(task) != member_id and member_id not in self._stood_by.get(task, ())
            for task in tasks
        )

    # -- active tasks ----------------------------------------------------------------------------------------

    def _active_shares(self) -> Iterator[Finding]:
        """Yield processes that have less than the share of their members.

        Members keep tasks up to the least share, and only as many keep one more as have to. So there are
        tasks left for each process with less.
        """
        least = len(self._tasks) // len(self._process_of)
        for process, threads in self._threads.items():
            if self._active_counts[process] < threads * least:
                yield (
                    "streams-target",
                    f"process {process} has {self._active_counts[process]} active tasks, its {threads}"
                    f" members have a share of {least} each",
                )

    def _full_owners(self) -> Iterator[Finding]:
        """Yield members that had a full share, of which too few keep it."""
        least, more = divmod(len(self._tasks), len(self._process_of))
        had = Counter(self._owner[task] for task in self._tasks if task in self._owner)
        kept = Counter(self._owner[task] for task in self._tasks if self._is_kept(task))
        full = [member_id for member_id, count in had.items() if count > least]
        keeping = sum(kept[member_id] > least for member_id in full)
        if keeping < min(len(full), more):
            yield (
                "streams-sticky",
                f"{keeping} members keep {least + 1} active tasks, {len(full)} had them and {more} may",
            )

    def _is_kept(self, task: Task) -> bool:
        owner = self._owner.get(task)
        return owner is not None and task in self._active[owner]

    def _standbys_first(self) -> Iterator[Finding]:
        """Yield active tasks that pass over members that stood by for them and had room."""
        least = len(self._tasks) // len(self._process_of)
        for task in self._tasks:
            holders = self._stood_by.get(task)
            if not holders or self._is_kept(task) or any(task in self._active[one] for one in holders):
                continue
            counts = {one: len(self._active[one]) for one in holders}
            if self._had_room(counts, self._active_counts, least, {}):
                yield (
                    "streams-sticky",
                    f"{task} passes over {', '.join(holders)}, which stood by: one has less than {least}"
                    " active tasks",
                )

    def _had_room(
        self,
        counts: Mapping[MemberId, int],
        loads: Mapping[str, int],
        least: int,
        before: Mapping[str, int],
    ) -> bool:
        """Return true if the member that Kafka chooses of some had less than its share.

        Kafka passes over a member if another one has fewer tasks, in a process with less load. `counts` are
        the tasks of members, and `loads` those of processes, all in the end. `before` are the tasks that a
        process had when the member was chosen.
        """
        for member_id, count in counts.items():
            process = self._process_of[member_id]
            if count < least and all(
                counts[other] < least
                or loads[process] * self._threads[full]
                < max(least, before.get(full, 0)) * self._threads[process]
                for other in counts
                for full in [self._process_of[other]]
            ):
                return True
        return False

    def _active_to_least_load(self) -> Iterator[Finding]:
        """Yield processes and members that took on an active task while others had less to do."""
        for member_id, process in self._process_of.items():
            if not self._took_on(member_id, self._active[member_id]):
                continue
            count, threads = self._active_counts[process], self._threads[process]
            for other, size in self._threads.items():
                if (count - 1) * size > self._active_counts[other] * threads:
                    yield (
                        "streams-target",
                        f"process {process} takes on active tasks up to {count} for {threads} members,"
                        f" process {other} has {self._active_counts[other]} for {size}",
                    )
            for other in self._threads_of(process):
                if len(self._active[member_id]) - 1 > len(self._active[other]):
                    yield (
                        "streams-target",
                        f"{member_id} takes on active tasks up to {len(self._active[member_id])}, {other} of"
                        f" the same process has {len(self._active[other])}",
                    )

    def _threads_of(self, process: str) -> list[MemberId]:
        return [one for one, its in self._process_of.items() if its == process]

    # -- standby tasks ---------------------------------------------------------------------------------------

    @property
    def _share(self) -> tuple[int, int]:
        """Number of tasks in all roles that each member has at least, and of members that may have one more.

        As in Kafka, standby tasks count even if there are too few processes for them.
        """
        return divmod(len(self._tasks) * (1 + self._standbys), len(self._process_of))

    def _standbys_to_least_load(self) -> Iterator[Finding]:
        """Yield processes and members that took on a standby task while others had less to do.

        A member with more than its share did not get all of its tasks back: its process took one on.
        """
        least, more = self._share
        for member_id, process in self._process_of.items():
            took_on = self._took_on(member_id, self._standby[member_id])
            if (took_on or self._count(member_id) > least + bool(more)) and not self._had_least_load(process):
                yield (
                    "streams-standby",
                    f"{member_id} has {self._count(member_id)} tasks, its share is {least + bool(more)}, and"
                    f" process {process} took on a standby task that a process with less to do lacks",
                )
            if took_on:
                for other in self._threads_of(process):
                    if self._count(member_id) - 1 > self._count(other):
                        yield (
                            "streams-standby",
                            f"{member_id} takes on standby tasks up to {self._count(member_id)}, {other} of"
                            f" the same process has {self._count(other)}",
                        )

    def _had_least_load(self, process: str) -> bool:
        """Return true if the process may have taken on one of its standby tasks as the last one.

        Then no process without that task has less to do than this one had.
        """
        count, threads = self._counts[process], self._threads[process]
        idle = [
            self._held[other]
            for other, size in self._threads.items()
            if other != process and (count - 1) * size > self._counts[other] * threads
        ]
        standby = {task for one in self._threads_of(process) for task in self._standby[one]}
        return any(all(task in held for held in idle) for task in standby)

    def _full_members(self) -> Iterator[Finding]:
        """Yield more members with a full share than there may be, in processes that took on nothing.

        If active tasks fill a share, they may fill more of them than that.
        """
        least, more = self._share
        if -(-len(self._tasks) // len(self._process_of)) > least:
            return
        full = [
            member_id
            for member_id, process in self._process_of.items()
            if self._count(member_id) > least and not self._had_least_load(process)
        ]
        if len(full) > more:
            yield (
                "streams-standby",
                f"{len(full)} members keep more than {least} tasks, there are more for {more} members",
            )

    def _holders_first(self) -> Iterator[Finding]:
        """Yield standby tasks that pass over members that had the task and have room.

        A member stands by only if its process does not have the task in another role. If a process has it of
        those that stood by, Kafka 4.3 does not look at the others.
        """
        least, _ = self._share
        for task in self._tasks:
            holders = self._stood_by.get(task, [])
            owner = [self._owner[task]] if task in self._owner else []
            if not any(
                task in self._standby[one] for one in self._process_of if one not in (*holders, *owner)
            ):
                continue
            counts = {one: self._count(one) for one in holders}
            if any(self._lacks(one, task) and self._count(one) < least for one in owner) or (
                all(self._lacks(one, task) for one in holders)
                and self._had_room(counts, self._counts, least, self._active_counts)
            ):
                yield (
                    "streams-sticky",
                    f"the standby of {task} passes over {', '.join((*owner, *holders))}, which had the task:"
                    f" one has less than {least} tasks",
                )

    def _lacks(self, member_id: MemberId, task: Task) -> bool:
        return task not in self._held[self._process_of[member_id]]
