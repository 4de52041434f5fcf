"""The rules of committed offsets and of administration."""

from __future__ import annotations

from typing import Any

from fencepost.coordinator.consumer.states import MemberState
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.simulation.lab.conform.exchange import Exchange
from fencepost.simulation.lab.conform.rule import Predicate, Rule


def _is(code: ErrorCode) -> Predicate:
    """Whether our answer about the only group has that code."""
    return lambda x: _only(x.ours).error_code is code


def _in_state(state: str) -> Predicate:
    return lambda x: _only(x.ours).group_state == state


def codes(reply: Any) -> set[ErrorCode]:
    """The codes of all partitions of an answer about offsets."""
    return {one.error_code for topic in getattr(reply, "topics", ()) for one in topic.partitions}


def _committed(code: ErrorCode) -> Predicate:
    return lambda x: code in codes(x.ours)


def _relation(x: Exchange) -> int | None:
    """The commit's epoch against the member's: -1, 0, 1; None without such a member."""
    known = x.known
    if known is None:
        return None
    epoch: int = x.request.member_epoch
    return (epoch > known.member_epoch) - (epoch < known.member_epoch)


def _only(reply: Any) -> Any:
    return reply.groups[0]


COMMITS: tuple[Rule, ...] = (
    Rule(
        "commit.simple_group",
        "a commit without an epoch makes a group",
        lambda x: not x.before.exists and x.request.member_epoch < 0 and ErrorCode.NONE in codes(x.ours),
    ),
    Rule("commit.group_missing", "an epoch needs a group", _committed(ErrorCode.GROUP_ID_NOT_FOUND)),
    Rule(
        "commit.old_version_group_missing",
        "below version 9 it is a generation",
        _committed(ErrorCode.ILLEGAL_GENERATION),
    ),
    Rule(
        "commit.no_epoch_empty_group",
        "an empty group takes commits without an epoch",
        lambda x: x.before.exists and not x.before.members and x.request.member_epoch < 0,
    ),
    Rule(
        "commit.unknown_member",
        "nobody commits that is not a member",
        _committed(ErrorCode.UNKNOWN_MEMBER_ID),
    ),
    Rule(
        "commit.old_version",
        "below version 9 a member cannot commit",
        _committed(ErrorCode.UNSUPPORTED_VERSION),
    ),
    Rule(
        "commit.metadata_too_large",
        "too much metadata fails alone",
        _committed(ErrorCode.OFFSET_METADATA_TOO_LARGE),
    ),
    Rule(
        "commit.unknown_topic_id", "an unknown topic id fails alone", _committed(ErrorCode.UNKNOWN_TOPIC_ID)
    ),
    Rule(
        "commit.unknown_partition",
        "an unknown partition fails alone",
        _committed(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ),
    Rule(
        "commit.stale_held",
        "an older epoch commits what is held since then (KIP-1251)",
        lambda x: _relation(x) == -1 and x.request.member_epoch >= 0 and ErrorCode.NONE in codes(x.ours),
    ),
    Rule("commit.stale", "an older epoch is stale for all else", lambda x: _relation(x) == -1),
    Rule("commit.ahead", "a newer epoch is stale", lambda x: _relation(x) == 1),
    Rule("commit.current", "the member's epoch commits any partition", lambda x: _relation(x) == 0),
)


def _fetch(x: Exchange) -> Any:
    return x.request.groups[0]


def _fetch_code(x: Exchange) -> ErrorCode:
    code: ErrorCode = _only(x.ours).error_code
    return code


def _fetched(x: Exchange, what: str) -> bool:
    positions = [one.offset.offset for topic in _only(x.ours).topics for one in topic.partitions]
    return bool(positions) and (min(positions) < 0 if what == "missing" else max(positions) >= 0)


FETCHES: tuple[Rule, ...] = (
    Rule(
        "fetch.unknown_member",
        "nobody fetches that is not a member",
        _is(ErrorCode.UNKNOWN_MEMBER_ID),
    ),
    Rule(
        "fetch.stale",
        "any other epoch than the member's is stale",
        _is(ErrorCode.STALE_MEMBER_EPOCH),
    ),
    Rule(
        "fetch.member",
        "the member's epoch fetches",
        lambda x: _fetch(x).member_id is not None and _fetch_code(x) is ErrorCode.NONE,
    ),
    Rule("fetch.all", "no topics means all of them", lambda x: _fetch(x).topics is None),
    Rule(
        "fetch.group_missing",
        "a group that is not there has no offsets",
        lambda x: not x.before.exists and not x.before.has_offsets,
    ),
    Rule("fetch.missing", "what was never committed is -1", lambda x: _fetched(x, "missing")),
    Rule("fetch.offset", "what was committed is answered", lambda x: _fetched(x, "found")),
)

DESCRIPTIONS: tuple[Rule, ...] = (
    Rule(
        "describe.missing",
        "a group that is not there",
        lambda x: _only(x.ours).error_code is not ErrorCode.NONE,
    ),
    Rule(
        "describe.revoking",
        "what is being revoked is shown as assigned (KAFKA-20431)",
        lambda x: any(m.state is MemberState.UNREVOKED_PARTITIONS for m in x.before.members.values()),
    ),
    Rule(
        "describe.away",
        "a static member that is away",
        lambda x: any(m.member_epoch == -2 for m in x.before.members.values()),
    ),
    Rule("describe.empty", "an empty group", _in_state("Empty")),
    Rule(
        "describe.assigning",
        "a group that waits for its target",
        _in_state("Assigning"),
    ),
    Rule(
        "describe.reconciling",
        "a group that reconciles",
        _in_state("Reconciling"),
    ),
    Rule("describe.stable", "a stable group", _in_state("Stable")),
)

CLASSIC: tuple[Rule, ...] = (
    Rule("describe.classic", "to the classic protocol a consumer group is dead", lambda x: x.before.exists),
    Rule("describe.classic_missing", "as is one that is not there", lambda x: True),
)

LISTS: tuple[Rule, ...] = (
    Rule("list.states", "groups by state, ignoring case", lambda x: bool(x.request.states_filter)),
    Rule("list.types", "groups by type, ignoring case", lambda x: bool(x.request.types_filter)),
    Rule("list.simple", "a group of offsets alone", lambda x: x.before.has_offsets and not x.before.exists),
    Rule("list.group", "all groups", lambda x: True),
)

REMOVALS: tuple[Rule, ...] = (
    Rule(
        "remove.several",
        "several members go at once, and the epoch rises once",
        lambda x: len(x.before.members) - len(x.after.members) > 1,
    ),
    Rule(
        "remove.instance",
        "an instance is removed",
        lambda x: any(m.instance_id is not None and m.error_code is ErrorCode.NONE for m in x.ours.members),
    ),
    Rule(
        "remove.instance_mismatch",
        "a member is not removed under another's instance id",
        lambda x: any(m.error_code is ErrorCode.FENCED_INSTANCE_ID for m in x.ours.members),
    ),
    Rule(
        "remove.unknown",
        "a member that is not there is unknown",
        lambda x: any(m.error_code is ErrorCode.UNKNOWN_MEMBER_ID for m in x.ours.members),
    ),
    Rule("remove.group_missing", "a group that is not there has no members", lambda x: not x.before.exists),
    Rule("remove.old_version", "below version 3 one member goes", lambda x: x.version < 3),
    Rule("remove.member", "a member is removed", lambda x: bool(x.records)),
)

DELETIONS: tuple[Rule, ...] = (
    Rule(
        "delete_group.not_empty",
        "a group with members stays",
        _is(ErrorCode.NON_EMPTY_GROUP),
    ),
    Rule(
        "delete_group.missing",
        "a group that is not there",
        _is(ErrorCode.GROUP_ID_NOT_FOUND),
    ),
    Rule(
        "delete_group.offsets",
        "offsets go with their group",
        lambda x: x.before.has_offsets and bool(x.records),
    ),
    Rule("delete_group.empty", "an empty group is deleted", lambda x: bool(x.records)),
)

FORGETTING: tuple[Rule, ...] = (
    Rule(
        "forget.subscribed",
        "offsets of subscribed topics stay",
        _committed(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC),
    ),
    Rule(
        "forget.unknown_partition", "an unknown partition", _committed(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    ),
    Rule(
        "forget.group_missing", "a group that is not there", lambda x: x.code is ErrorCode.GROUP_ID_NOT_FOUND
    ),
    Rule("forget.offset", "other offsets are deleted", lambda x: bool(x.records)),
    Rule("forget.nothing", "an offset that is not there is deleted all the same", lambda x: True),
)
