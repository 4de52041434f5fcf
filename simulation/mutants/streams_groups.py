"""Bugs of a coordinator of streams groups (KIP-1071): some that Kafka had, and some that it did not have."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from fencepost.coordinator.assign.tasks import TaskMember, _Assignment
from fencepost.coordinator.epoch_groups import MemberContact, SoftState
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.ids import JOIN_EPOCH
from fencepost.coordinator.protocol.streams import NO_TASKS, Tasks
from fencepost.coordinator.streams import describe, groups, heartbeat, offset_fencing, target
from fencepost.coordinator.streams.owners import TaskOwners
from fencepost.coordinator.streams.soft import StreamsSoftState
from fencepost.coordinator.streams.states import StreamsGroupState
from fencepost.simulation.mutants.mutant import Mutants, Original

FAILURES: Final = ("streams-failures",)
STANDBY: Final = ("streams-standby-tasks",)


STREAMS_GROUP_MUTANTS: Final = Mutants()


@STREAMS_GROUP_MUTANTS.bug(
    "task-given-too-soon",
    "streams-one-owner",
    FAILURES,
    (TaskOwners, "active"),
    source="KIP-1071, Reconciliation",
)
def _nobody_has_it(_: Original, self: TaskOwners, subtopology: str, partition: int) -> str | None:
    """A member gets an active task before another member has released it."""
    return None


@STREAMS_GROUP_MUTANTS.bug(
    "silence-confirms",
    "streams-reconciles",
    FAILURES,
    (heartbeat, "reconcile"),
    source="KIP-1071, Reconciliation",
)
def _silence_confirms(original: Original, member: Any, *, owned: Tasks | None, **others: Any) -> Any:
    """A heartbeat without a task list counts as one of a member that owns no tasks."""
    return original(member, owned=NO_TASKS if owned is None else owned, **others)


@STREAMS_GROUP_MUTANTS.bug("end-without-rebalance", "streams-epochs", FAILURES, (groups, "removal_records"))
def _nobody_is_told(original: Original, group: Any, member_ids: Any, release: Any) -> Any:
    """A member leaves a streams group, and the group epoch does not rise."""
    return original(group, member_ids, release)[:-1]


@STREAMS_GROUP_MUTANTS.bug("task-left-out", "streams-target", FAILURES, (groups, "sticky"))
def _one_task_left_out(original: Original, spec: Any) -> Any:
    """The target of one member lacks its last task, which no member gets."""
    found = dict(original(spec))
    member_id = max(found)
    active = {one: numbers[:-1] for one, numbers in found[member_id].active.items() if numbers[:-1]}
    found[member_id] = Tasks(active, found[member_id].standby)
    return found


@STREAMS_GROUP_MUTANTS.bug("assignor-without-memory", "streams-sticky", FAILURES, (target, "TaskMember"))
def _no_memory(_: Original, process_id: str, tasks: Tasks) -> TaskMember:
    """The task assignor ignores the previous owners."""
    return TaskMember(process_id)


@STREAMS_GROUP_MUTANTS.bug(
    "standby-dropped", "streams-standby", STANDBY, (_Assignment, "_stands_by_again"), source="KAFKA-20899"
)
def _full_member_drops_it(original: Original, self: Any, task: Any) -> bool:
    """A standby task whose member has no room left is assigned to no member."""
    return bool(original(self, task)) or bool(self._stood_by.get(task))


@STREAMS_GROUP_MUTANTS.bug(
    "quota-stays", "streams-target", (*FAILURES, *STANDBY), (_Assignment, "_filled_active")
)
def _quota_stays(_: Original, self: _Assignment, count: int) -> None:
    """Members keep a full share of active tasks, even if that leaves a new process without any."""


@STREAMS_GROUP_MUTANTS.bug(
    "internal-topics-not-created",
    "streams-topics",
    ("streams-global-thread",),
    (heartbeat, "_effects"),
    source="KIP-1071, Topology Configuration",
)
def _creates_nothing(_: Original, group_id: str, configured: Any) -> tuple[()]:
    """The coordinator does not create the changelogs that a topology needs."""
    return ()


@STREAMS_GROUP_MUTANTS.bug(
    "streams-rejoin-fenced",
    "streams-answers",
    ("streams-shutdown", "streams-failures"),
    (heartbeat, "_member"),
    source="KAFKA-19233",
)
def _rejoin_is_fenced(original: Original, group: Any, request: Any, around: Any) -> Any:
    """A member that rejoins because its join response was lost is fenced."""
    if request.member_epoch == JOIN_EPOCH and request.member_id in group.members:
        raise ProtocolError(ErrorCode.FENCED_MEMBER_EPOCH, "The member epoch is smaller than known.")
    return original(group, request, around)


@STREAMS_GROUP_MUTANTS.bug("tasks-only-on-joining", "streams-replies", FAILURES, (heartbeat, "_reply"))
def _tasks_only_on_joining(original: Original, step: Any, request: Any, *others: Any, **named: Any) -> Any:
    """Only responses to joins carry tasks."""
    made = original(step, request, *others, **named)
    return made if request.member_epoch == JOIN_EPOCH else msgspec.structs.replace(made, tasks=None)


@STREAMS_GROUP_MUTANTS.bug("heartbeats-unheard", "streams-sessions", FAILURES, (SoftState, "heard"))
def _hears_nobody(_: Original, self: SoftState[Any, Any, Any], *arguments: Any) -> None:
    """A session expires although its member sends heartbeats."""


@STREAMS_GROUP_MUTANTS.bug(
    "first-joiner-takes-all",
    "streams-delays",
    FAILURES,
    (StreamsSoftState, "waits_for_members"),
    source="KAFKA-19829",
)
def _waits_for_nobody(_: Original, self: StreamsSoftState, group_id: str) -> bool:
    """The first member of a group gets all tasks at once, before others have joined."""
    return False


@STREAMS_GROUP_MUTANTS.bug("gone-members-remembered", "streams-bookkeeping", FAILURES, (SoftState, "_forget"))
def _remembers_the_gone(
    original: Original, self: SoftState[Any, Any, Any], group_id: str, member_id: str
) -> None:
    """The last-contact times of members that left are kept."""
    original(self, group_id, member_id)
    self.groups[group_id].contacts[member_id] = MemberContact(self.now_ms)


@STREAMS_GROUP_MUTANTS.bug(
    "tasks-committed-by-anybody",
    "streams-commits",
    ("streams-standby-tasks", "streams-frozen-clients"),
    (offset_fencing, "check_commit"),
    source="KIP-1251",
)
def _anybody_commits(_: Original, group: Any, image: Any, request: Any) -> None:
    """Fenced members, and members that lost a task, can still commit it."""


@STREAMS_GROUP_MUTANTS.bug(
    "ready-group-not-described",
    "streams-described",
    ("streams-other-applications",),
    (describe, "describe"),
    source="KAFKA-19661",
)
def _ready_once_heard(original: Original, group: Any, configured: Any) -> Any:
    """After a load, a ready group is described as NotReady until a member sends a heartbeat."""
    found = original(group, configured)
    if configured is None and group.members:
        found = msgspec.structs.replace(found, group_state=StreamsGroupState.NOT_READY)
    return found


@STREAMS_GROUP_MUTANTS.bug(
    "endpoints-told-once",
    "streams-endpoints",
    STANDBY,
    (heartbeat, "_reply"),
    source="KIP-1071, Interactive Queries",
)
def _map_is_told_once(original: Original, step: Any, request: Any, *others: Any, **named: Any) -> Any:
    """A member is not notified when the tasks of other processes change."""
    made = original(step, request, *others, **named)
    if made.tasks is None:
        made = msgspec.structs.replace(made, partitions_by_endpoint=None)
    return made
