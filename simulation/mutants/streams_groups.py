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
from fencepost.simulation.mutants.mutant import UNREPORTED, Mutant, Original, instead_of

FAILURES: Final = ("streams-failures",)
STANDBY: Final = ("streams-standby-tasks",)


def _nobody_has_it(_: Original, self: TaskOwners, subtopology: str, partition: int) -> str | None:
    return None


def _silence_confirms(original: Original, member: Any, *, owned: Tasks | None, **others: Any) -> Any:
    return original(member, owned=NO_TASKS if owned is None else owned, **others)


def _nobody_is_told(original: Original, group: Any, member_ids: Any, release: Any) -> Any:
    """A member leaves, and the group's epoch stays."""
    return original(group, member_ids, release)[:-1]


def _one_task_left_out(original: Original, spec: Any) -> Any:
    found = dict(original(spec))
    member_id = max(found)
    active = {one: numbers[:-1] for one, numbers in found[member_id].active.items() if numbers[:-1]}
    found[member_id] = Tasks(active, found[member_id].standby)
    return found


def _no_memory(_: Original, process_id: str, tasks: Tasks) -> TaskMember:
    return TaskMember(process_id)


def _full_member_drops_it(original: Original, self: Any, task: Any) -> bool:
    """A standby task whose member has no room left counts as assigned."""
    return bool(original(self, task)) or bool(self._stood_by.get(task))


def _creates_nothing(_: Original, group_id: str, configured: Any) -> tuple[()]:
    return ()


def _rejoin_is_fenced(original: Original, group: Any, request: Any, around: Any) -> Any:
    if request.member_epoch == JOIN_EPOCH and request.member_id in group.members:
        raise ProtocolError(ErrorCode.FENCED_MEMBER_EPOCH, "The member epoch is smaller than known.")
    return original(group, request, around)


def _tasks_only_on_joining(original: Original, step: Any, request: Any, *others: Any, **named: Any) -> Any:
    made = original(step, request, *others, **named)
    return made if request.member_epoch == JOIN_EPOCH else msgspec.structs.replace(made, tasks=None)


def _hears_nobody(_: Original, self: SoftState[Any, Any, Any], *arguments: Any) -> None: ...


def _waits_for_nobody(_: Original, self: StreamsSoftState, group_id: str) -> bool:
    return False


def _remembers_the_gone(
    original: Original, self: SoftState[Any, Any, Any], group_id: str, member_id: str
) -> None:
    original(self, group_id, member_id)
    self.groups[group_id].contacts[member_id] = MemberContact(self.now_ms)


def _anybody_commits(_: Original, group: Any, image: Any, request: Any) -> None: ...


def _map_is_told_once(original: Original, step: Any, request: Any, *others: Any, **named: Any) -> Any:
    """The map of endpoints is sent with a member's own tasks, but not when the tasks of others change."""
    made = original(step, request, *others, **named)
    if made.tasks is None:
        made = msgspec.structs.replace(made, partitions_by_endpoint=None)
    return made


def _quota_stays(_: Original, self: _Assignment, count: int) -> None: ...


def _ready_once_heard(original: Original, group: Any, configured: Any) -> Any:
    """A group counts as ready only if a heartbeat came since the coordinator loaded."""
    found = original(group, configured)
    if configured is None and group.members:
        found = msgspec.structs.replace(found, group_state=StreamsGroupState.NOT_READY)
    return found


STREAMS_GROUP_MUTANTS: Final = (
    Mutant(
        "task-given-too-soon",
        "KIP-1071, Reconciliation",
        "A member gets an active task before another member has released it.",
        ("streams-one-owner",),
        FAILURES,
        (instead_of(TaskOwners, "active", _nobody_has_it),),
    ),
    Mutant(
        "silence-confirms",
        "KIP-1071, Reconciliation",
        "A heartbeat without a task list counts as one of a member that owns no tasks.",
        ("streams-reconciles",),
        FAILURES,
        (instead_of(heartbeat, "reconcile", _silence_confirms),),
    ),
    Mutant(
        "end-without-rebalance",
        UNREPORTED,
        "A member leaves a streams group, and the group epoch does not rise.",
        ("streams-epochs",),
        FAILURES,
        (instead_of(groups, "removal_records", _nobody_is_told),),
    ),
    Mutant(
        "task-left-out",
        UNREPORTED,
        "The target of one member lacks its last task, which no member gets.",
        ("streams-target",),
        FAILURES,
        (instead_of(groups, "sticky", _one_task_left_out),),
    ),
    Mutant(
        "assignor-without-memory",
        UNREPORTED,
        "The task assignor ignores the previous owners.",
        ("streams-sticky",),
        FAILURES,
        (instead_of(target, "TaskMember", _no_memory),),
    ),
    Mutant(
        "standby-dropped",
        "KAFKA-20899",
        "A standby task whose member has no room left is assigned to no member.",
        ("streams-standby",),
        STANDBY,
        (instead_of(_Assignment, "_stands_by_again", _full_member_drops_it),),
    ),
    Mutant(
        "quota-stays",
        UNREPORTED,
        "Members keep a full share of active tasks, even if that leaves a new process without any.",
        ("streams-target",),
        (*FAILURES, *STANDBY),
        (instead_of(_Assignment, "_filled_active", _quota_stays),),
    ),
    Mutant(
        "internal-topics-not-created",
        "KIP-1071, Topology Configuration",
        "The coordinator does not create the changelogs that a topology needs.",
        ("streams-topics",),
        ("streams-global-thread",),
        (instead_of(heartbeat, "_effects", _creates_nothing),),
    ),
    Mutant(
        "streams-rejoin-fenced",
        "KAFKA-19233",
        "A member that rejoins because its join response was lost is fenced.",
        ("streams-answers",),
        ("streams-shutdown", "streams-failures"),
        (instead_of(heartbeat, "_member", _rejoin_is_fenced),),
    ),
    Mutant(
        "tasks-only-on-joining",
        UNREPORTED,
        "Only responses to joins carry tasks.",
        ("streams-replies",),
        FAILURES,
        (instead_of(heartbeat, "_reply", _tasks_only_on_joining),),
    ),
    Mutant(
        "heartbeats-unheard",
        UNREPORTED,
        "A session expires although its member sends heartbeats.",
        ("streams-sessions",),
        FAILURES,
        (instead_of(SoftState, "heard", _hears_nobody),),
    ),
    Mutant(
        "first-joiner-takes-all",
        "KAFKA-19829",
        "The first member of a group gets all tasks at once, before others have joined.",
        ("streams-delays",),
        FAILURES,
        (instead_of(StreamsSoftState, "waits_for_members", _waits_for_nobody),),
    ),
    Mutant(
        "gone-members-remembered",
        UNREPORTED,
        "The last-contact times of members that left are kept.",
        ("streams-bookkeeping",),
        FAILURES,
        (instead_of(SoftState, "_forget", _remembers_the_gone),),
    ),
    Mutant(
        "tasks-committed-by-anybody",
        "KIP-1251",
        "Fenced members, and members that lost a task, can still commit it.",
        ("streams-commits",),
        ("streams-standby-tasks", "streams-frozen-clients"),
        (instead_of(offset_fencing, "check_commit", _anybody_commits),),
    ),
    Mutant(
        "ready-group-not-described",
        "KAFKA-19661",
        "After a load, a ready group is described as NotReady until a member sends a heartbeat.",
        ("streams-described",),
        ("streams-other-applications",),
        (instead_of(describe, "describe", _ready_once_heard),),
    ),
    Mutant(
        "endpoints-told-once",
        "KIP-1071, Interactive Queries",
        "A member is not notified when the tasks of other processes change.",
        ("streams-endpoints",),
        STANDBY,
        (instead_of(heartbeat, "_reply", _map_is_told_once),),
    ),
)
