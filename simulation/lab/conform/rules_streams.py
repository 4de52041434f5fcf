"""Rules of streams groups (KIP-1071): heartbeats, topologies, tasks, statuses, descriptions, offsets."""

from __future__ import annotations

from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import JOIN_EPOCH, LEAVE_EPOCH
from fencepost.coordinator.protocol.streams import NO_TASKS, StatusCode
from fencepost.coordinator.protocol.streams_records import (
    StreamsGroupTargetAssignmentMemberKey,
    StreamsGroupTargetAssignmentMetadataKey,
)
from fencepost.coordinator.streams.member import StreamsGroupMember
from fencepost.coordinator.streams.states import StreamsGroupMemberState
from fencepost.simulation.lab.conform.exchange import ConformExchange, ConformRule, Predicate
from fencepost.simulation.lab.conform.rules_administration import codes
from fencepost.simulation.lab.conform.schedule import CommitStep


def _before(x: ConformExchange) -> StreamsGroupMember | None:
    """Return the member that sent it, as it was before."""
    return None if x.before.streams is None else x.before.streams.members.get(x.request.member_id)


def _after(x: ConformExchange) -> StreamsGroupMember | None:
    """Return the member that sent it, as it is now."""
    return None if x.after.streams is None else x.after.streams.members.get(x.request.member_id)


def _code(code: ErrorCode) -> Predicate:
    return lambda x: x.code is code


def _joins(x: ConformExchange) -> bool:
    return bool(x.request.member_epoch == JOIN_EPOCH) and x.code is ErrorCode.NONE


def _told(code: StatusCode) -> Predicate:
    return lambda x: any(status.code is code for status in x.ours.status or ())


def _state(state: StreamsGroupMemberState) -> Predicate:
    def holds(x: ConformExchange) -> bool:
        old, new = _before(x), _after(x)
        return new is not None and new.state is state and (old is None or old.state is not state)

    return holds


def _released(x: ConformExchange) -> bool:
    old, new = _before(x), _after(x)
    return (
        old is not None
        and new is not None
        and old.state is StreamsGroupMemberState.UNREVOKED_TASKS
        and new.state is not StreamsGroupMemberState.UNREVOKED_TASKS
    )


def _kept_waiting(x: ConformExchange) -> bool:
    old, new = _before(x), _after(x)
    return old is not None and old == new and old.state is StreamsGroupMemberState.UNREVOKED_TASKS


def _previous_epoch(x: ConformExchange) -> bool:
    old = _before(x)
    return (
        x.code is ErrorCode.NONE
        and old is not None
        and JOIN_EPOCH < x.request.member_epoch < old.member_epoch
    )


def _steady(x: ConformExchange) -> bool:
    return x.code is ErrorCode.NONE and x.request.member_epoch > 0 and not x.records


def _computed(x: ConformExchange) -> bool:
    return any(isinstance(record.key, StreamsGroupTargetAssignmentMetadataKey) for record in x.records)


def _moved(x: ConformExchange) -> bool:
    changed = [r for r in x.records if isinstance(r.key, StreamsGroupTargetAssignmentMemberKey)]
    return _computed(x) and len(changed) > 1


def _standby(x: ConformExchange) -> bool:
    return x.after.streams is not None and any(target.standby for target in x.after.streams.targets.values())


def _shares_a_process(x: ConformExchange) -> bool:
    members = {} if x.after.streams is None else x.after.streams.members
    processes = [member.process_id for member in members.values()]
    return _computed(x) and len(set(processes)) < len(processes)


def _without_topics(x: ConformExchange) -> bool:
    problems = (StatusCode.MISSING_SOURCE_TOPICS, StatusCode.INCORRECTLY_PARTITIONED_TOPICS)
    return any(_told(code)(x) for code in problems) and x.ours.tasks == NO_TASKS


HEARTBEATS = (
    ConformRule(
        "streams.request.invalid",
        "an invalid heartbeat is refused",
        _code(ErrorCode.INVALID_REQUEST),
    ),
    ConformRule(
        "streams.topology.invalid",
        "an invalid topology is refused",
        _code(ErrorCode.STREAMS_INVALID_TOPOLOGY),
    ),
    ConformRule(
        "streams.unexpected",
        "a request that makes Kafka fail unexpectedly",
        _code(ErrorCode.UNKNOWN_SERVER_ERROR),
    ),
    ConformRule(
        "streams.group.missing",
        "an unknown streams group is refused",
        _code(ErrorCode.GROUP_ID_NOT_FOUND),
    ),
    ConformRule("streams.member.unknown", "an unknown member is refused", _code(ErrorCode.UNKNOWN_MEMBER_ID)),
    ConformRule("streams.epoch.fenced", "a wrong epoch is fenced", _code(ErrorCode.FENCED_MEMBER_EPOCH)),
    ConformRule(
        "streams.group.full", "a full group refuses new members", _code(ErrorCode.GROUP_MAX_SIZE_REACHED)
    ),
    ConformRule(
        "streams.epoch.previous", "the previous epoch is accepted with assigned tasks", _previous_epoch
    ),
    ConformRule(
        "streams.leave",
        "a member that leaves frees its tasks",
        lambda x: x.code is ErrorCode.NONE and x.request.member_epoch == LEAVE_EPOCH,
    ),
    ConformRule(
        "streams.shutdown", "an application is asked to shut down", _told(StatusCode.SHUTDOWN_APPLICATION)
    ),
    ConformRule(
        "streams.topology.stale",
        "a member's topology is older than the group's",
        _told(StatusCode.STALE_TOPOLOGY),
    ),
    ConformRule(
        "streams.topics.source", "source topics are missing", _told(StatusCode.MISSING_SOURCE_TOPICS)
    ),
    ConformRule(
        "streams.topics.partitions",
        "topics have wrong partition counts",
        _told(StatusCode.INCORRECTLY_PARTITIONED_TOPICS),
    ),
    ConformRule(
        "streams.topics.internal", "internal topics are missing", _told(StatusCode.MISSING_INTERNAL_TOPICS)
    ),
    ConformRule("streams.topics.no_tasks", "a group without its topics has no tasks", _without_topics),
    ConformRule("streams.assignment.delayed", "a target is delayed", _told(StatusCode.ASSIGNMENT_DELAYED)),
    ConformRule(
        "streams.rejoin",
        "a known member rejoins",
        lambda x: _joins(x) and _before(x) is not None,
    ),
    ConformRule(
        "streams.join.first",
        "the first member creates the group",
        lambda x: _joins(x) and x.before.streams is None,
    ),
    ConformRule("streams.join", "a member joins", lambda x: _joins(x) and _before(x) is None),
    ConformRule(
        "streams.revocation.asked",
        "a member must release tasks",
        _state(StreamsGroupMemberState.UNREVOKED_TASKS),
    ),
    ConformRule("streams.revocation.awaited", "a release is not confirmed yet", _kept_waiting),
    ConformRule("streams.revocation.confirmed", "a member released tasks", _released),
    ConformRule(
        "streams.unreleased",
        "other members hold tasks of the target",
        _state(StreamsGroupMemberState.UNRELEASED_TASKS),
    ),
    ConformRule(
        "streams.target.standby", "standby tasks are assigned", lambda x: _computed(x) and _standby(x)
    ),
    ConformRule("streams.target.processes", "threads of one process share its tasks", _shares_a_process),
    ConformRule("streams.target.moved", "a target moves tasks between members", _moved),
    ConformRule("streams.target", "a target is computed", _computed),
    ConformRule(
        "streams.endpoints",
        "members receive the map of endpoints",
        lambda x: bool(x.ours.partitions_by_endpoint),
    ),
    ConformRule("streams.steady", "a heartbeat without changes", _steady),
    ConformRule("streams.heartbeat", "any other heartbeat", lambda x: True),
)

DESCRIPTIONS = (
    ConformRule(
        "streams.describe.missing",
        "a group that is not a streams group is not described",
        lambda x: x.ours.groups[0].error_code is not ErrorCode.NONE,
    ),
    ConformRule("streams.describe", "a group is described", lambda x: True),
)

OFFSETS = (
    ConformRule(
        "streams.commit.refused",
        "a commit at a wrong epoch is refused",
        lambda x: isinstance(x.step, CommitStep) and bool(codes(x.ours) - {ErrorCode.NONE}),
    ),
    ConformRule("streams.offsets", "offsets of a streams group", lambda x: True),
)

WITHOUT_REQUEST = {
    "streams.topics.created": "internal topics are created when a group needs them",
    "streams.target.valid": "Kafka 4.4's target assigns each task to one member",
}
"""Rules that no single request exercises."""
