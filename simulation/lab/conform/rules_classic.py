"""Rules of the classic protocol, and of groups that go from one protocol to the other."""

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
    """What holds of a request of the classic protocol to a consumer group."""
    return lambda x: _is_consumer_group(x) and when(x)


def _waited(x: ConformExchange) -> bool:
    """Whether the members' next generation answered it."""
    return _ok(x) and x.before.classic is not None and x.ours.generation > x.before.classic.generation


def _holder(x: ConformExchange) -> ClassicMemberView | None:
    """The member of a classic group that held the request's instance id before."""
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
        "a static member comes back with the newer protocol, and its group follows",
        lambda x: _becomes_consumer_group(x) and _holder(x) is not None,
    ),
    ConformRule(
        "migration.upgrade.round",
        "a group that rebalances becomes a consumer group",
        lambda x: _becomes_consumer_group(x) and _in_round(x),
    ),
    ConformRule(
        "migration.upgrade",
        "a consumer of the newer protocol makes a classic group a consumer group",
        _becomes_consumer_group,
    ),
    ConformRule(
        "migration.upgrade.refused",
        "a classic group that can't be taken over stays one",
        lambda x: (
            x.code is ErrorCode.GROUP_ID_NOT_FOUND
            and x.before.classic is not None
            and getattr(x.request, "member_epoch", None) == JOIN_EPOCH
        ),
    ),
    ConformRule(
        "migration.upgrade.empty",
        "an empty classic group gives way to a consumer group",
        lambda x: x.before.classic is not None and not x.before.classic.members and bool(x.after.members),
    ),
    ConformRule(
        "migration.downgrade.static",
        "a static member comes back with the classic protocol, and its group follows",
        lambda x: _becomes_classic_group(x) and hasattr(x.request, "protocols"),
    ),
    ConformRule(
        "migration.downgrade",
        "the last member of the newer protocol leaves a classic group behind",
        _becomes_classic_group,
    ),
    ConformRule(
        "migration.downgrade.empty",
        "an empty consumer group gives way to a classic group",
        lambda x: (
            x.before.exists
            and x.before.classic is None
            and x.before.streams is None
            and not x.before.members
            and x.after.classic is not None
        ),
    ),
)
"""Rules of requests that make a group one of the other kind, or might."""


JOINS: tuple[ConformRule, ...] = (
    ConformRule(
        "migration.join.id_given",
        "a classic consumer gets its id first in a consumer group, too",
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
        "a classic member of a consumer group joins again, and says what it owns",
        _of_consumer_group(lambda x: _ok(x) and x.known is not None),
    ),
    ConformRule("migration.join", "a classic consumer joins a consumer group", _of_consumer_group(_ok)),
    ConformRule("classic.join.group_blank", "a group id is not empty", _code(ErrorCode.INVALID_GROUP_ID)),
    ConformRule(
        "classic.join.session",
        "a session time-out is within the broker's bounds",
        _code(ErrorCode.INVALID_SESSION_TIMEOUT),
    ),
    ConformRule("classic.join.full", "a full group takes nobody", _code(ErrorCode.GROUP_MAX_SIZE_REACHED)),
    ConformRule(
        "classic.join.inconsistent",
        "members share a protocol",
        _code(ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ),
    ConformRule("classic.join.unknown", "an id is one that was given", _code(ErrorCode.UNKNOWN_MEMBER_ID)),
    ConformRule(
        "classic.join.fenced", "another's instance id is fenced", _code(ErrorCode.FENCED_INSTANCE_ID)
    ),
    ConformRule(
        "classic.join.id_given", "a member is given its id first", _code(ErrorCode.MEMBER_ID_REQUIRED)
    ),
    ConformRule(
        "classic.join.interrupted",
        "who waits is told to join the consumer group that its group became",
        _code(ErrorCode.REBALANCE_IN_PROGRESS),
    ),
    ConformRule(
        "classic.join.leader_returns",
        "a static leader that returns leaves the assignment alone (KIP-814)",
        lambda x: _returns(x) and x.ours.skip_assignment,
    ),
    ConformRule(
        "classic.join.returns",
        "a static member that returns gets a new id, and no generation begins",
        lambda x: _returns(x) and not _waited(x),
    ),
    ConformRule(
        "classic.join.returns_changed",
        "a static member that returns begins a generation if it changes the group's protocol, or in a round",
        _returns,
    ),
    ConformRule(
        "classic.join.again",
        "a member that says the same is told of its generation again",
        lambda x: _ok(x) and x.before.classic is not None and not _waited(x),
    ),
    ConformRule(
        "classic.join.old_version",
        "before version 4 a member joins without an id",
        lambda x: _ok(x) and x.version < _OLD_JOIN and not x.request.member_id,
    ),
    ConformRule(
        "classic.round.vote",
        "the protocol that most members prefer is taken; of several the first one in a hash map",
        lambda x: _ok(x) and len(_first_choices(x)) > 1,
    ),
    ConformRule(
        "classic.round.leader",
        "a generation's leader is told of all members",
        lambda x: _ok(x) and x.ours.leader == x.ours.member_id,
    ),
    ConformRule("classic.round.follower", "the others are told who leads", _ok),
)

SYNCS: tuple[ConformRule, ...] = (
    ConformRule(
        "migration.sync.behind",
        "a classic member joins again before it takes what a newer target gives",
        _of_consumer_group(_code(ErrorCode.REBALANCE_IN_PROGRESS)),
    ),
    ConformRule(
        "migration.sync.refused",
        "a consumer group refuses SyncGroup of a classic member",
        _of_consumer_group(lambda x: not _ok(x)),
    ),
    ConformRule(
        "migration.sync",
        "a classic member of a consumer group is told what the coordinator assigned",
        _of_consumer_group(_ok),
    ),
    ConformRule("classic.sync.group_blank", "a group id is not empty", _code(ErrorCode.INVALID_GROUP_ID)),
    ConformRule(
        "classic.sync.inconsistent",
        "version 5 names the group's protocol",
        _code(ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ),
    ConformRule("classic.sync.unknown", "nobody syncs who is no member", _code(ErrorCode.UNKNOWN_MEMBER_ID)),
    ConformRule(
        "classic.sync.fenced", "another's instance id is fenced", _code(ErrorCode.FENCED_INSTANCE_ID)
    ),
    ConformRule(
        "classic.sync.generation",
        "a generation is the group's",
        _code(ErrorCode.ILLEGAL_GENERATION),
    ),
    ConformRule(
        "classic.sync.rebalance",
        "in a round members join first, and who waits is told so",
        _code(ErrorCode.REBALANCE_IN_PROGRESS),
    ),
    ConformRule(
        "classic.sync.leader",
        "the leader's assignment is everybody's",
        lambda x: x.before.classic is not None and x.request.member_id == x.before.classic.leader,
    ),
    ConformRule(
        "classic.sync.stable",
        "a stable group gives the same assignment again",
        lambda x: x.before.classic is not None and x.before.classic.state is ClassicGroupState.STABLE,
    ),
    ConformRule("classic.sync.follower", "the others are told once the leader has assigned", _ok),
)

HEARTBEATS: tuple[ConformRule, ...] = (
    ConformRule(
        "migration.heartbeat.rebalance",
        "a classic member of a consumer group is told to join again",
        _of_consumer_group(_code(ErrorCode.REBALANCE_IN_PROGRESS)),
    ),
    ConformRule(
        "migration.heartbeat.refused",
        "a consumer group refuses a heartbeat of a classic member",
        _of_consumer_group(lambda x: not _ok(x)),
    ),
    ConformRule(
        "migration.heartbeat", "a classic member of a consumer group may go on", _of_consumer_group(_ok)
    ),
    ConformRule(
        "classic.heartbeat.group_blank", "a group id is not empty", _code(ErrorCode.INVALID_GROUP_ID)
    ),
    ConformRule("classic.heartbeat.unknown", "a heartbeat is a member's", _code(ErrorCode.UNKNOWN_MEMBER_ID)),
    ConformRule(
        "classic.heartbeat.fenced", "another's instance id is fenced", _code(ErrorCode.FENCED_INSTANCE_ID)
    ),
    ConformRule(
        "classic.heartbeat.generation",
        "a generation is the group's",
        _code(ErrorCode.ILLEGAL_GENERATION),
    ),
    ConformRule(
        "classic.heartbeat.rebalance",
        "in a round members are told to join",
        _code(ErrorCode.REBALANCE_IN_PROGRESS),
    ),
    ConformRule("classic.heartbeat.alive", "a member may go on", _ok),
)


def _left(x: ConformExchange) -> Iterable[ErrorCode]:
    return [member.error_code for member in x.ours.members] or [x.code]


def _leaves(code: ErrorCode) -> Predicate:
    return lambda x: code in _left(x)


LEAVING: tuple[ConformRule, ...] = (
    ConformRule(
        "classic.leave.fenced",
        "a member does not leave under another's instance id",
        _leaves(ErrorCode.FENCED_INSTANCE_ID),
    ),
    ConformRule(
        "classic.leave.unknown", "nobody leaves who is no member", _leaves(ErrorCode.UNKNOWN_MEMBER_ID)
    ),
    ConformRule(
        "classic.leave.id_given",
        "an id that nobody has joined with is given back",
        lambda x: (
            x.before.classic is not None
            and any(member.member_id in x.before.classic.expected for member in x.request.members)
        ),
    ),
    ConformRule(
        "classic.leave.instance",
        "an administrator removes an instance",
        lambda x: any(not member.member_id for member in x.request.members),
    ),
    ConformRule(
        "classic.leave.last",
        "the last member leaves an empty group behind",
        lambda x: x.after.classic is not None and not x.after.classic.members,
    ),
    ConformRule("classic.leave", "a member leaves, and the others join again", lambda x: True),
)


def _committed(code: ErrorCode) -> Predicate:
    return lambda x: code in codes(x.ours)


COMMITS: tuple[ConformRule, ...] = (
    ConformRule(
        "classic.commit.rebalance",
        "nothing is committed before the generation's assignment",
        _committed(ErrorCode.REBALANCE_IN_PROGRESS),
    ),
    ConformRule(
        "classic.commit.generation",
        "a commit is of the group's generation",
        _committed(ErrorCode.ILLEGAL_GENERATION),
    ),
    ConformRule("classic.commit.unknown", "a commit is a member's", _committed(ErrorCode.UNKNOWN_MEMBER_ID)),
    ConformRule(
        "classic.commit.fenced", "another's instance id is fenced", _committed(ErrorCode.FENCED_INSTANCE_ID)
    ),
    ConformRule(
        "classic.commit.empty",
        "an empty group takes commits of nobody",
        lambda x: x.request.member_epoch < 0 and ErrorCode.NONE in codes(x.ours),
    ),
    ConformRule("classic.commit", "a member commits, in its group's round too", lambda x: True),
)


def _in_state(state: ClassicGroupState) -> Predicate:
    return lambda x: x.before.classic is not None and x.before.classic.state is state


DESCRIPTIONS: tuple[ConformRule, ...] = tuple(
    ConformRule(f"classic.describe.{name}", about, _in_state(state))
    for name, about, state in (
        ("empty", "a classic group without members", ClassicGroupState.EMPTY),
        (
            "preparing",
            "a classic group that waits for members shows what they had",
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
        "classic.describe.newer", "to the newer protocol a classic group is not there", lambda x: True
    ),
)

MIGRATED_COMMITS: tuple[ConformRule, ...] = (
    ConformRule(
        "migration.commit.refused",
        "a commit at another generation than a classic member's in a consumer group",
        lambda x: x.known is not None and x.known.classic is not None and codes(x.ours) != {ErrorCode.NONE},
    ),
    ConformRule(
        "migration.commit",
        "a classic member of a consumer group commits",
        lambda x: x.known is not None and x.known.classic is not None,
    ),
)
"""Before those of consumer groups."""

WITHOUT_REQUEST = {
    "classic.waits": "JoinGroup and SyncGroup wait as long as they do at the broker",
    "timer.join": "a member that does not join again in time is removed",
    "timer.sync": "a member that does not ask for its assignment in time is removed",
}
"""Rules that no single request exercises."""
