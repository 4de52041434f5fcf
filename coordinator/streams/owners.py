"""The process that holds each task, by role; derived from the members (KIP-1071)."""

from __future__ import annotations

from typing import Any

from fencepost.coordinator.protocol.streams import TaskIds
from fencepost.coordinator.streams.member import StreamsGroupMember

_Task = tuple[str, int]


class TaskOwners:
    """The processes of all tasks that members hold, assigned or not yet revoked.

    An active task has one process, a standby or warm-up task any number of them. Records of a compacted log
    may come in an order in which two members hold a task for a moment: the last one counts (KAFKA-19862).
    """

    __slots__ = ("_active", "_standby", "_warmup")

    def __init__(self) -> None:
        self._active: dict[_Task, str] = {}
        self._standby: dict[_Task, dict[str, None]] = {}
        self._warmup: dict[_Task, dict[str, None]] = {}

    def active(self, subtopology: str, partition: int) -> str | None:
        """Return the process that has the task as an active one."""
        return self._active.get((subtopology, partition))

    def is_passive_in(self, process_id: str, subtopology: str, partition: int) -> bool:
        """Return true if the process has the task as a standby or a warm-up one."""
        task = subtopology, partition
        return process_id in self._standby.get(task, ()) or process_id in self._warmup.get(task, ())

    def replace(self, old: StreamsGroupMember | None, new: StreamsGroupMember | None) -> None:
        """Release the tasks of `old`, then hold those of `new`."""
        if old is not None:
            for tasks in (old.assigned, old.pending_revocation):
                for task in _each(tasks.active):
                    if self._active.get(task) == old.process_id:
                        del self._active[task]
                _leave(self._standby, tasks.standby, old.process_id)
                _leave(self._warmup, tasks.warmup, old.process_id)
        if new is not None:
            for tasks in (new.assigned, new.pending_revocation):
                self._active.update(dict.fromkeys(_each(tasks.active), new.process_id))
                _enter(self._standby, tasks.standby, new.process_id)
                _enter(self._warmup, tasks.warmup, new.process_id)

    def as_dict(self) -> dict[str, Any]:
        """Return a copy: process ids by role and task."""
        return {
            "active": dict(sorted(self._active.items())),
            "standby": {task: sorted(owners) for task, owners in sorted(self._standby.items())},
            "warmup": {task: sorted(owners) for task, owners in sorted(self._warmup.items())},
        }


def _each(tasks: TaskIds) -> list[_Task]:
    return [(subtopology, number) for subtopology, numbers in tasks.items() for number in numbers]


def _enter(owners: dict[_Task, dict[str, None]], tasks: TaskIds, process_id: str) -> None:
    for task in _each(tasks):
        owners.setdefault(task, {})[process_id] = None


def _leave(owners: dict[_Task, dict[str, None]], tasks: TaskIds, process_id: str) -> None:
    for task in _each(tasks):
        found = owners.get(task, {})
        found.pop(process_id, None)
        if not found:
            owners.pop(task, None)
