"""The rules of committed offsets and of administration."""

from __future__ import annotations

from typing import Any

from fencepost.coordinator.consumer.states import ConsumerGroupMemberState
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.simulation.lab.conform.exchange import ConformExchange, ConformRule, Predicate


def _is(code: ErrorCode) -> Predicate:
    """Return a predicate: our response about the only group has that code."""
    return lambda x: _only(x.ours).error_code is code


def _in_state(state: str) -> Predicate:
    return lambda x: _only(x.ours).group_state == state


def codes(reply: Any) -> set[ErrorCode]:
    """Return the codes of all partitions of a response about offsets."""
    return {one.error_code for topic in getattr(reply, "topics", ()) for one in topic.partitions}


def _committed(code: ErrorCode) -> Predicate:
    return lambda x: code in codes(x.ours)


def _relation(x: ConformExchange) -> int | None:
    """Return the commit's epoch against the member's: -1, 0, 1; None without such a member."""
    known = x.known
    if known is None:
        return None
    epoch: int = x.request.member_epoch
    return (epoch > known.member_epoch) - (epoch < known.member_epoch)


def _only(reply: Any) -> Any:
    return reply.groups[0]


COMMITS: tuple[ConformRule, ...] = (
    ConformRule(
        "commit.simple_group",
        "a commit without an epoch creates a group",
        lambda x: not x.before.exists and x.request.member_epoch < 0 and ErrorCode.NONE in codes(x.ours),
    ),
    ConformRule(
        "commit.group_missing",
        "a commit with an epoch needs a group",
        _committed(ErrorCode.GROUP_ID_NOT_FOUND),
    ),
    ConformRule(
        "commit.old_version_group_missing",
        "below version 9 the epoch is a generation",
        _committed(ErrorCode.ILLEGAL_GENERATION),
    ),
    ConformRule(
        "commit.no_epoch_empty_group",
        "an empty group accepts commits without an epoch",
        lambda x: x.before.exists and not x.before.members and x.request.member_epoch < 0,
    ),
    ConformRule(
        "commit.unknown_member",
        "a commit of an unknown member is refused",
        _committed(ErrorCode.UNKNOWN_MEMBER_ID),
    ),
    ConformRule(
        "commit.old_version",
        "below version 9 a member cannot commit",
        _committed(ErrorCode.UNSUPPORTED_VERSION),
    ),
    ConformRule(
        "commit.metadata_too_large",
        "too much metadata fails only its partition",
        _committed(ErrorCode.OFFSET_METADATA_TOO_LARGE),
    ),
    ConformRule(
        "commit.unknown_topic_id",
        "an unknown topic id fails only its topic",
        _committed(ErrorCode.UNKNOWN_TOPIC_ID),
    ),
    ConformRule(
        "commit.unknown_partition",
        "an unknown partition fails only itself",
        _committed(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ),
    ConformRule(
        "commit.stale_held",
        "an older epoch can commit partitions held since then (KIP-1251)",
        lambda x: _relation(x) == -1 and x.request.member_epoch >= 0 and ErrorCode.NONE in codes(x.ours),
    ),
    ConformRule(
        "commit.stale", "an older epoch is stale for all other partitions", lambda x: _relation(x) == -1
    ),
    ConformRule("commit.ahead", "a newer epoch is stale", lambda x: _relation(x) == 1),
    ConformRule("commit.current", "the member's epoch commits any partition", lambda x: _relation(x) == 0),
)


def _fetch(x: ConformExchange) -> Any:
    return x.request.groups[0]


def _fetch_code(x: ConformExchange) -> ErrorCode:
    code: ErrorCode = _only(x.ours).error_code
    return code


def _fetched(x: ConformExchange, what: str) -> bool:
    positions = [one.offset.offset for topic in _only(x.ours).topics for one in topic.partitions]
    return bool(positions) and (min(positions) < 0 if what == "missing" else max(positions) >= 0)


FETCHES: tuple[ConformRule, ...] = (
    ConformRule(
        "fetch.unknown_member",
        "a fetch of an unknown member is refused",
        _is(ErrorCode.UNKNOWN_MEMBER_ID),
    ),
    ConformRule(
        "fetch.stale",
        "a fetch with a wrong epoch is stale",
        _is(ErrorCode.STALE_MEMBER_EPOCH),
    ),
    ConformRule(
        "fetch.member",
        "a fetch with the member's epoch is accepted",
        lambda x: _fetch(x).member_id is not None and _fetch_code(x) is ErrorCode.NONE,
    ),
    ConformRule("fetch.all", "a fetch without topics returns all topics", lambda x: _fetch(x).topics is None),
    ConformRule(
        "fetch.group_missing",
        "a missing group has no offsets",
        lambda x: not x.before.exists and not x.before.has_offsets,
    ),
    ConformRule(
        "fetch.missing", "a partition without a commit has offset -1", lambda x: _fetched(x, "missing")
    ),
    ConformRule("fetch.offset", "a fetch returns the committed offset", lambda x: _fetched(x, "found")),
)

DESCRIPTIONS: tuple[ConformRule, ...] = (
    ConformRule(
        "describe.missing",
        "a missing group",
        lambda x: _only(x.ours).error_code is not ErrorCode.NONE,
    ),
    ConformRule(
        "describe.revoking",
        "partitions under revocation appear as assigned (KAFKA-20431)",
        lambda x: any(
            m.state is ConsumerGroupMemberState.UNREVOKED_PARTITIONS for m in x.before.members.values()
        ),
    ),
    ConformRule(
        "describe.away",
        "an absent static member",
        lambda x: any(m.member_epoch == -2 for m in x.before.members.values()),
    ),
    ConformRule("describe.empty", "an empty group", _in_state("Empty")),
    ConformRule(
        "describe.assigning",
        "a group that waits for its target",
        _in_state("Assigning"),
    ),
    ConformRule(
        "describe.reconciling",
        "a group that reconciles",
        _in_state("Reconciling"),
    ),
    ConformRule("describe.stable", "a stable group", _in_state("Stable")),
)

CLASSIC: tuple[ConformRule, ...] = (
    ConformRule(
        "describe.classic", "DescribeGroups shows a consumer group as dead", lambda x: x.before.exists
    ),
    ConformRule("describe.classic_missing", "DescribeGroups shows a missing group as dead", lambda x: True),
)

LISTS: tuple[ConformRule, ...] = (
    ConformRule("list.states", "groups by state, ignoring case", lambda x: bool(x.request.states_filter)),
    ConformRule("list.types", "groups by type, ignoring case", lambda x: bool(x.request.types_filter)),
    ConformRule(
        "list.simple", "a group that has only offsets", lambda x: x.before.has_offsets and not x.before.exists
    ),
    ConformRule("list.group", "all groups", lambda x: True),
)

REMOVALS: tuple[ConformRule, ...] = (
    ConformRule(
        "remove.several",
        "several members are removed at once, and the epoch rises once",
        lambda x: len(x.before.members) - len(x.after.members) > 1,
    ),
    ConformRule(
        "remove.instance",
        "an instance is removed",
        lambda x: any(m.instance_id is not None and m.error_code is ErrorCode.NONE for m in x.ours.members),
    ),
    ConformRule(
        "remove.instance_mismatch",
        "a member is not removed with another member's instance id",
        lambda x: any(m.error_code is ErrorCode.FENCED_INSTANCE_ID for m in x.ours.members),
    ),
    ConformRule(
        "remove.unknown",
        "removing a missing member gets an error",
        lambda x: any(m.error_code is ErrorCode.UNKNOWN_MEMBER_ID for m in x.ours.members),
    ),
    ConformRule(
        "remove.group_missing",
        "removing members of a missing group gets an error",
        lambda x: not x.before.exists,
    ),
    ConformRule(
        "remove.old_version", "below version 3 a request removes one member", lambda x: x.version < 3
    ),
    ConformRule("remove.member", "a member is removed", lambda x: bool(x.records)),
)

DELETIONS: tuple[ConformRule, ...] = (
    ConformRule(
        "delete_group.not_empty",
        "a group with members is not deleted",
        _is(ErrorCode.NON_EMPTY_GROUP),
    ),
    ConformRule(
        "delete_group.missing",
        "a missing group",
        _is(ErrorCode.GROUP_ID_NOT_FOUND),
    ),
    ConformRule(
        "delete_group.offsets",
        "deleting a group deletes its offsets",
        lambda x: x.before.has_offsets and bool(x.records),
    ),
    ConformRule("delete_group.empty", "an empty group is deleted", lambda x: bool(x.records)),
)

FORGETTING: tuple[ConformRule, ...] = (
    ConformRule(
        "forget.subscribed",
        "offsets of subscribed topics are not deleted",
        _committed(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC),
    ),
    ConformRule(
        "forget.unknown_partition", "an unknown partition", _committed(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    ),
    ConformRule("forget.group_missing", "a missing group", lambda x: x.code is ErrorCode.GROUP_ID_NOT_FOUND),
    ConformRule("forget.offset", "other offsets are deleted", lambda x: bool(x.records)),
    ConformRule("forget.nothing", "deleting a missing offset succeeds", lambda x: True),
)
