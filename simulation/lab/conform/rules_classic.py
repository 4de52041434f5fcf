"""Rules of the classic protocol, and of groups that change from one protocol to the other."""

from __future__ import annotations

from collections.abc import Iterable

from fencepost.coordinator.classic.states import ClassicGroupState
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import JOIN_EPOCH
from fencepost.simulation.lab.conform.exchange import (
    ClassicMemberView,
    ConformExchange,
    ConformRule,
    Predicate,
)
from fencepost.simulation.lab.conform.rules_administration import codes

_OLD_JOIN = 4
"""Before this version of JoinGroup no member is given its id first (KIP-394)."""


def _code(code: ErrorCode) -> Predicate:
    return lambda x: x.code is code


def _ok(x: ConformExchange) -> bool:
    return x.code is ErrorCode.NONE


def _is_consumer_group(x: ConformExchange) -> bool:
    return bool(x.before.members)


def _of_consumer_group(when: Predicate) -> Predicate:
    """Return the predicate, restricted to requests of the classic protocol to a consumer group."""
    return lambda x: _is_consumer_group(x) and when(x)


def _waited(x: ConformExchange) -> bool:
    """Return true if the response came with the members' next generation."""
    return _ok(x) and x.before.classic is not None and x.ours.generation > x.before.classic.generation


def _holder(x: ConformExchange) -> ClassicMemberView | None:
    """Return the member of a classic group that held the request's instance id before."""
    instance_id = x.request.instance_id
    if instance_id is None or x.before.classic is None:
        return None
    return next((m for m in x.before.classic.members.values() if m.instance_id == instance_id), None)


def _returns(x: ConformExchange) -> bool:
    return _ok(x) and not x.request.member_id and _holder(x) is not None


def _first_choices(x: ConformExchange) -> set[str]:
    members = () if x.after.classic is None else x.after.classic.members.values()
    return {member.protocols[0] for member in members}


def _becomes_consumer_group(x: ConformExchange) -> bool:
    return x.before.classic is not None and bool(x.before.classic.members) and bool(x.after.members)


def _becomes_classic_group(x: ConformExchange) -> bool:
    return bool(x.before.members) and x.after.classic is not None


def _in_round(x: ConformExchange) -> bool:
    return x.before.classic is not None and x.before.classic.state in (
        ClassicGroupState.PREPARING_REBALANCE,
        ClassicGroupState.COMPLETING_REBALANCE,
    )


MIGRATION: tuple[ConformRule, ...] = (
    ConformRule(
        "migration.upgrade.static",
        "a static member that returns with KIP-848 converts its group",
        lambda x: _becomes_consumer_group(x) and _holder(x) is not None,
    ),
    ConformRule(
        "migration.upgrade.round",
        "a group can become a consumer group during a rebalance",
        lambda x: _becomes_consumer_group(x) and _in_round(x),
    ),
    ConformRule(
        "migration.upgrade",
        "a KIP-848 consumer converts a classic group to a consumer group",
        _becomes_consumer_group,
    ),
    ConformRule(
        "migration.upgrade.refused",
        "a classic group that cannot be converted stays classic",
        lambda x: (
            x.code is ErrorCode.GROUP_ID_NOT_FOUND
            and x.before.classic is not None
            and getattr(x.request, "member_epoch", None) == JOIN_EPOCH
        ),
    ),
    ConformRule(
        "migration.upgrade.empty",
        "a consumer group replaces an empty classic group",
        lambda x: x.before.classic is not None and not x.before.classic.members and bool(x.after.members),
    ),
    ConformRule(
        "migration.downgrade.static",
        "a static member that returns with the classic protocol converts its group",
        lambda x: _becomes_classic_group(x) and hasattr(x.request, "protocols"),
    ),
    ConformRule(
        "migration.downgrade",
        "when the last KIP-848 member leaves, the group becomes classic",
        _becomes_classic_group,
    ),
    ConformRule(
        "migration.downgrade.empty",
        "a classic group replaces an empty consumer group",
        lambda x: (
            x.before.exists
            and x.before.classic is None
            and x.before.streams is None
            and not x.before.members
            and x.after.classic is not None
        ),
    ),
)
"""Rules of requests that convert a group to the other kind, or might."""


JOINS: tuple[ConformRule, ...] = (
    ConformRule(
        "migration.join.id_given",
        "a classic consumer gets its member id first, also in a consumer group",
        _of_consumer_group(_code(ErrorCode.MEMBER_ID_REQUIRED)),
    ),
    ConformRule(
        "migration.join.refused",
        "a consumer group refuses a classic consumer",
        _of_consumer_group(lambda x: not _ok(x)),
    ),
    ConformRule(
        "migration.join.static",
        "a static classic consumer returns to a consumer group",
        _of_consumer_group(lambda x: _ok(x) and x.holder is not None),
    ),
    ConformRule(
        "migration.join.again",
        "a classic member of a consumer group rejoins and lists what it owns",
        _of_consumer_group(lambda x: _ok(x) and x.known is not None),
    ),
    ConformRule("migration.join", "a classic consumer joins a consumer group", _of_consumer_group(_ok)),
    ConformRule("classic.join.group_blank", "a group id is not empty", _code(ErrorCode.INVALID_GROUP_ID)),
    ConformRule(
        "classic.join.session",
        "a session timeout is within the broker's limits",
        _code(ErrorCode.INVALID_SESSION_TIMEOUT),
    ),
    ConformRule(
        "classic.join.full", "a full group refuses new members", _code(ErrorCode.GROUP_MAX_SIZE_REACHED)
    ),
    ConformRule(
        "classic.join.inconsistent",
        "all members share a protocol",
        _code(ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ),
    ConformRule(
        "classic.join.unknown",
        "a member id must be one that the coordinator assigned",
        _code(ErrorCode.UNKNOWN_MEMBER_ID),
    ),
    ConformRule(
        "classic.join.fenced", "another member's instance id is fenced", _code(ErrorCode.FENCED_INSTANCE_ID)
    ),
    ConformRule(
        "classic.join.id_given", "a new member first gets its member id", _code(ErrorCode.MEMBER_ID_REQUIRED)
    ),
    ConformRule(
        "classic.join.interrupted",
        ("a waiting JoinGroup is refused when its group becomes a consumer group, and the member rejoins"),
        _code(ErrorCode.REBALANCE_IN_PROGRESS),
    ),
    ConformRule(
        "classic.join.leader_returns",
        "a static leader that returns leaves the assignment alone (KIP-814)",
        lambda x: _returns(x) and x.ours.skip_assignment,
    ),
    ConformRule(
        "classic.join.returns",
        "a static member that returns gets a new member id without a new generation",
        lambda x: _returns(x) and not _waited(x),
    ),
    ConformRule(
        "classic.join.returns_changed",
        "a static member that returns starts a generation if it changes the group's protocol, or in a round",
        _returns,
    ),
    ConformRule(
        "classic.join.again",
        "an unchanged JoinGroup gets the current generation again",
        lambda x: _ok(x) and x.before.classic is not None and not _waited(x),
    ),
    ConformRule(
        "classic.join.old_version",
        "before version 4 a member joins without an id",
        lambda x: _ok(x) and x.version < _OLD_JOIN and not x.request.member_id,
    ),
    ConformRule(
        "classic.round.vote",
        "the protocol with most votes wins, and ties follow the order of a hash map",
        lambda x: _ok(x) and len(_first_choices(x)) > 1,
    ),
    ConformRule(
        "classic.round.leader",
        "the leader receives the list of members",
        lambda x: _ok(x) and x.ours.leader == x.ours.member_id,
    ),
    ConformRule("classic.round.follower", "followers receive the leader's member id", _ok),
)

SYNCS: tuple[ConformRule, ...] = (
    ConformRule(
        "migration.sync.behind",
        "a classic member rejoins before it gets partitions of a newer target",
        _of_consumer_group(_code(ErrorCode.REBALANCE_IN_PROGRESS)),
    ),
    ConformRule(
        "migration.sync.refused",
        "a consumer group refuses SyncGroup of a classic member",
        _of_consumer_group(lambda x: not _ok(x)),
    ),
    ConformRule(
        "migration.sync",
        "a classic member of a consumer group receives the coordinator's assignment",
        _of_consumer_group(_ok),
    ),
    ConformRule("classic.sync.group_blank", "a group id is not empty", _code(ErrorCode.INVALID_GROUP_ID)),
    ConformRule(
        "classic.sync.inconsistent",
        "version 5 names the group's protocol",
        _code(ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ),
    ConformRule(
        "classic.sync.unknown",
        "SyncGroup of an unknown member is refused",
        _code(ErrorCode.UNKNOWN_MEMBER_ID),
    ),
    ConformRule(
        "classic.sync.fenced", "another member's instance id is fenced", _code(ErrorCode.FENCED_INSTANCE_ID)
    ),
    ConformRule(
        "classic.sync.generation",
        "a wrong generation is refused",
        _code(ErrorCode.ILLEGAL_GENERATION),
    ),
    ConformRule(
        "classic.sync.rebalance",
        "SyncGroup during a round gets REBALANCE_IN_PROGRESS, also if it already waits",
        _code(ErrorCode.REBALANCE_IN_PROGRESS),
    ),
    ConformRule(
        "classic.sync.leader",
        "the leader's assignment goes to all members",
        lambda x: x.before.classic is not None and x.request.member_id == x.before.classic.leader,
    ),
    ConformRule(
        "classic.sync.stable",
        "a stable group returns the same assignment again",
        lambda x: x.before.classic is not None and x.before.classic.state is ClassicGroupState.STABLE,
    ),
    ConformRule("classic.sync.follower", "followers get the response once the leader has assigned", _ok),
)

HEARTBEATS: tuple[ConformRule, ...] = (
    ConformRule(
        "migration.heartbeat.rebalance",
        "a classic member of a consumer group is asked to rejoin",
        _of_consumer_group(_code(ErrorCode.REBALANCE_IN_PROGRESS)),
    ),
    ConformRule(
        "migration.heartbeat.refused",
        "a consumer group refuses a heartbeat of a classic member",
        _of_consumer_group(lambda x: not _ok(x)),
    ),
    ConformRule(
        "migration.heartbeat",
        "a heartbeat of a classic member in a consumer group is accepted",
        _of_consumer_group(_ok),
    ),
    ConformRule(
        "classic.heartbeat.group_blank", "a group id is not empty", _code(ErrorCode.INVALID_GROUP_ID)
    ),
    ConformRule(
        "classic.heartbeat.unknown",
        "a heartbeat of an unknown member is refused",
        _code(ErrorCode.UNKNOWN_MEMBER_ID),
    ),
    ConformRule(
        "classic.heartbeat.fenced",
        "another member's instance id is fenced",
        _code(ErrorCode.FENCED_INSTANCE_ID),
    ),
    ConformRule(
        "classic.heartbeat.generation",
        "a wrong generation is refused",
        _code(ErrorCode.ILLEGAL_GENERATION),
    ),
    ConformRule(
        "classic.heartbeat.rebalance",
        "a heartbeat during a round gets REBALANCE_IN_PROGRESS",
        _code(ErrorCode.REBALANCE_IN_PROGRESS),
    ),
    ConformRule("classic.heartbeat.alive", "a member's heartbeat is accepted", _ok),
)


def _left(x: ConformExchange) -> Iterable[ErrorCode]:
    return [member.error_code for member in x.ours.members] or [x.code]


def _leaves(code: ErrorCode) -> Predicate:
    return lambda x: code in _left(x)


LEAVING: tuple[ConformRule, ...] = (
    ConformRule(
        "classic.leave.fenced",
        "a leave with another member's instance id is refused",
        _leaves(ErrorCode.FENCED_INSTANCE_ID),
    ),
    ConformRule(
        "classic.leave.unknown",
        "a leave of an unknown member is refused",
        _leaves(ErrorCode.UNKNOWN_MEMBER_ID),
    ),
    ConformRule(
        "classic.leave.id_given",
        "a member id without a join is returned",
        lambda x: (
            x.before.classic is not None
            and any(member.member_id in x.before.classic.expected for member in x.request.members)
        ),
    ),
    ConformRule(
        "classic.leave.instance",
        "an admin removes an instance id",
        lambda x: any(not member.member_id for member in x.request.members),
    ),
    ConformRule(
        "classic.leave.last",
        "when the last member leaves, the group is empty",
        lambda x: x.after.classic is not None and not x.after.classic.members,
    ),
    ConformRule("classic.leave", "a member leaves, and the others rejoin", lambda x: True),
)


def _committed(code: ErrorCode) -> Predicate:
    return lambda x: code in codes(x.ours)


COMMITS: tuple[ConformRule, ...] = (
    ConformRule(
        "classic.commit.rebalance",
        "a commit before the generation's assignment is refused",
        _committed(ErrorCode.REBALANCE_IN_PROGRESS),
    ),
    ConformRule(
        "classic.commit.generation",
        "a commit with a wrong generation is refused",
        _committed(ErrorCode.ILLEGAL_GENERATION),
    ),
    ConformRule(
        "classic.commit.unknown",
        "a commit of an unknown member is refused",
        _committed(ErrorCode.UNKNOWN_MEMBER_ID),
    ),
    ConformRule(
        "classic.commit.fenced",
        "another member's instance id is fenced",
        _committed(ErrorCode.FENCED_INSTANCE_ID),
    ),
    ConformRule(
        "classic.commit.empty",
        "an empty group accepts commits without a member id",
        lambda x: x.request.member_epoch < 0 and ErrorCode.NONE in codes(x.ours),
    ),
    ConformRule("classic.commit", "a member's commit is accepted, also during a round", lambda x: True),
)


def _in_state(state: ClassicGroupState) -> Predicate:
    return lambda x: x.before.classic is not None and x.before.classic.state is state


DESCRIPTIONS: tuple[ConformRule, ...] = tuple(
    ConformRule(f"classic.describe.{name}", about, _in_state(state))
    for name, about, state in (
        ("empty", "a classic group without members", ClassicGroupState.EMPTY),
        (
            "preparing",
            "a classic group that waits for members shows their earlier assignment",
            ClassicGroupState.PREPARING_REBALANCE,
        ),
        (
            "completing",
            "a classic group that waits for its leader",
            ClassicGroupState.COMPLETING_REBALANCE,
        ),
        ("stable", "a stable classic group with its protocol", ClassicGroupState.STABLE),
    )
)

NEWER_DESCRIPTIONS: tuple[ConformRule, ...] = (
    ConformRule(
        "classic.describe.newer", "ConsumerGroupDescribe does not find a classic group", lambda x: True
    ),
)

MIGRATED_COMMITS: tuple[ConformRule, ...] = (
    ConformRule(
        "migration.commit.refused",
        "a classic member in a consumer group commits at a wrong generation",
        lambda x: x.known is not None and x.known.classic is not None and codes(x.ours) != {ErrorCode.NONE},
    ),
    ConformRule(
        "migration.commit",
        "a classic member of a consumer group commits",
        lambda x: x.known is not None and x.known.classic is not None,
    ),
)
"""Rules that come before those of consumer groups."""

WITHOUT_REQUEST = {
    "classic.waits": "JoinGroup and SyncGroup wait as long as at the broker",
    "timer.join": "a member that does not rejoin in time is removed",
    "timer.sync": "a member that does not send SyncGroup in time is removed",
}
"""Rules that no single request exercises."""
