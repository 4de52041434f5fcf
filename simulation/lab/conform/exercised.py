"""The names of what a request exercised, read off its surface: no rule of a protocol is stated here.

A name says which kind of group a request met and which code it got, how its epoch and its partitions stood to
what its sender had, how sender and group moved, which records were written, and which parts the request and
the response had. The coordinators decide; a name says that they had to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, get_args

import msgspec

from fencepost.coordinator.protocol import ids, records
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.simulation.lab.conform import schedule
from fencepost.simulation.lab.conform.exchange import ConformExchange

SETS: Final = "sets"
"""First part of the names of what schedules set in requests."""
_INSIDE: Final = ("groups", "topics", "partitions", "members", "errors", "offsets")
_PARTS: Final = ("assignment", "tasks", "partitions_by_endpoint", "skip_assignment")
"""Parts of responses that are left out unless there is something to say."""
_PLAIN: Final = ("member", "topics", "members", "epoch", "generation", "owned", "offset", "lost")
"""Fields of steps that are told by other names, or that no coordinator sees."""

_UNSEEN: Final = frozenset(
    {
        "writes.ConsumerGroupRegularExpression",
        "writes.PendingOffsetCommit",
        "deletes.PendingOffsetCommit",
    }
)
"""Records of the background, and of transactions."""


def _found(value: Any, wanted: str) -> Iterator[Any]:
    """Yield the values of all fields of that name in a message, whatever its form."""
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, tuple):
        for one in value:
            yield from _found(one, wanted)
    elif isinstance(value, ErrorCode):
        yield from (value,) if wanted == "error_code" else ()
    elif value is not None:
        if (own := getattr(value, wanted, None)) is not None:
            yield own
        for name in _INSIDE:
            yield from _found(getattr(value, name, None), wanted)


def _tag(step: Any) -> str:
    return str(step.__struct_config__.tag)


def _epoch(epoch: int, member: Any) -> str:
    """Return how the epoch of a request stands to that of its sender."""
    if epoch <= ids.JOIN_EPOCH:
        return str(epoch) if epoch >= ids.STATIC_LEAVE_EPOCH else "below"
    if member is None:
        return "unknown"
    if epoch >= member.member_epoch:
        return "ahead" if epoch > member.member_epoch else "current"
    return "previous" if epoch == member.previous_member_epoch else "older"


def _owned(claimed: Any, member: Any) -> str:
    """Return how the partitions or active tasks that a request claims stand to those of its sender."""
    if claimed is None:
        return "null"
    has, claims = (
        {(topic, number) for topic, numbers in held.items() for number in numbers}
        for held in (getattr(member.assigned, "active", member.assigned), claimed)
    )
    return "all" if claims == has else "less" if claims < has else "more"


def _place(member: Any) -> str:
    if member is None:
        return "absent"
    return "away" if member.member_epoch < 0 else str(member.state).split("_")[0]


def _of_sender(x: ConformExchange, step: str) -> Iterator[str]:
    """Yield how the sender's epoch and partitions stood, and how it moved."""
    known, now = ({} if view.kind == "classic" else view.members for view in (x.before, x.after))
    epoch = next(_found(x.request, "member_epoch"), None)
    if isinstance(x.step, schedule.Describe | schedule.DescribeStreams):
        yield from sorted({f"{step}.member.{_place(member)}" for member in known.values()})
    if epoch is None:
        return
    old = known.get(next(_found(x.request, "member_id"), ""))
    accepted = set(_found(x.ours, "error_code")) <= {ErrorCode.NONE}
    outcome = "accepted" if accepted else "refused"
    yield f"{step}.epoch.{_epoch(epoch, old)}.{outcome}"
    if not isinstance(x.step, schedule.Beat | schedule.StreamsBeat):
        return
    if old is not None and epoch > 0:
        claimed = getattr(x.request, "active_tasks", getattr(x.request, "topic_partitions", None))
        yield f"{step}.owned.{_owned(claimed, old)}.{outcome}"
    if accepted:
        old = old or x.holder
        new = now.get(x.member_id)
        advanced = old is not None and new is not None and new.member_epoch > max(old.member_epoch, 0)
        yield f"{step}.member.{_place(old)}.{_place(new)}{'+' if advanced else ''}"


def _of_codes(x: ConformExchange, step: str, kind: str) -> Iterator[str]:
    """Yield the codes of the response, errors first."""
    for code in sorted(set(_found(x.ours, "error_code")), reverse=True):
        if code is ErrorCode.INVALID_REQUEST:  # Kafka's text begins with the field
            yield f"{step}.invalid.{(x.ours.error_message or '').split(' ')[0]}"
        else:
            yield f"{step}.{kind}.{code.name}"


def _of_response(x: ConformExchange, step: str) -> Iterator[str]:
    """Yield the parts of the response."""
    for status in getattr(x.ours, "status", None) or ():
        yield f"{step}.status.{status.code.name}"
    for state in filter(None, _found(x.ours, "group_state")):
        yield f"{step}.state.{state}"
    if any(getattr(position, "offset", position) >= 0 for position in _found(x.ours, "offset")):
        yield f"{step}.reply.offset"
    for part in _PARTS:
        if getattr(x.ours, part, None) not in (None, False, b""):
            yield f"{step}.reply.{part}"


def _surface(x: ConformExchange) -> Iterator[str]:
    step, kind, now = _tag(x.step), x.before.kind, x.after.kind
    if kind != now:
        yield f"group.{kind}.{now}.{step}"
    elif x.before.state != x.after.state:
        yield f"group.{kind}.{x.before.state}.{x.after.state}"
    yield from _of_codes(x, step, kind)
    yield from _of_sender(x, step)
    yield from _of_response(x, step)
    for record in x.records:
        verb = "deletes" if record.value is None else "writes"
        yield f"{verb}.{type(record.key).__name__.removesuffix('Key')}"
    for field in msgspec.structs.fields(x.step):
        if field.name not in _PLAIN and getattr(x.step, field.name) != field.default:
            yield f"{SETS}.{step}.{field.name}"


def exercised(exchange: ConformExchange) -> list[str]:
    """Return the names of what a request exercised, the most telling first."""
    return list(dict.fromkeys(_surface(exchange)))


_APIS: Final[Mapping[str, str]] = {
    "beat": "ConsumerGroupHeartbeat",
    "streams_beat": "StreamsGroupHeartbeat",
    "classic_join": "JoinGroup",
    "classic_sync": "SyncGroup",
    "classic_beat": "Heartbeat",
    "commit": "OffsetCommit",
    "fetch": "OffsetFetch",
    "forget": "OffsetDelete",
    "remove": "LeaveGroup",
    "delete_group": "DeleteGroups",
    "list": "ListGroups",
    "describe": "ConsumerGroupDescribe",
    "describe_classic": "DescribeGroups",
    "describe_streams": "StreamsGroupDescribe",
}
"""The API of each kind of step."""

_EXPECTED: Final = """
beat.none: GROUP_ID_NOT_FOUND NONE UNSUPPORTED_ASSIGNOR
beat.classic: GROUP_ID_NOT_FOUND NONE
beat.consumer: FENCED_INSTANCE_ID FENCED_MEMBER_EPOCH GROUP_MAX_SIZE_REACHED INVALID_REGULAR_EXPRESSION NONE
beat.consumer: UNKNOWN_MEMBER_ID UNRELEASED_INSTANCE_ID UNSUPPORTED_ASSIGNOR
beat.invalid: GroupId InstanceId MemberEpoch MemberId RackId RebalanceTimeoutMs TopicPartitions
beat.epoch: -1.accepted -1.refused -2.accepted -2.refused 0.accepted 0.refused ahead.refused below.refused
beat.epoch: current.accepted current.refused older.refused previous.accepted previous.refused unknown.refused
beat.owned: all.accepted less.accepted less.refused more.accepted more.refused null.accepted null.refused
beat.member: absent.STABLE absent.UNRELEASED away.STABLE+ away.away STABLE.absent STABLE.away
beat.member: STABLE.STABLE STABLE.STABLE+ STABLE.UNREVOKED STABLE.UNRELEASED+
beat.member: UNREVOKED.UNREVOKED UNREVOKED.STABLE+ UNREVOKED.UNRELEASED+ UNREVOKED.STABLE UNREVOKED.absent
beat.member: UNRELEASED.UNRELEASED UNRELEASED.UNRELEASED+ UNRELEASED.STABLE UNRELEASED.STABLE+
beat.member: UNREVOKED.away UNRELEASED.UNREVOKED UNRELEASED.absent
beat.reply: assignment
streams_beat.none: GROUP_ID_NOT_FOUND NONE STREAMS_INVALID_TOPOLOGY UNKNOWN_SERVER_ERROR
streams_beat.streams: FENCED_MEMBER_EPOCH GROUP_MAX_SIZE_REACHED NONE STREAMS_INVALID_TOPOLOGY
streams_beat.streams: UNKNOWN_MEMBER_ID UNKNOWN_SERVER_ERROR
streams_beat.invalid: ActiveTasks GroupId MemberEpoch MemberId RackId RebalanceTimeoutMs Static Topology
streams_beat.epoch: -1.accepted -1.refused 0.accepted 0.refused ahead.refused below.refused current.accepted
streams_beat.epoch: older.refused previous.accepted previous.refused unknown.refused
streams_beat.owned: all.accepted less.accepted less.refused more.accepted null.accepted null.refused
streams_beat.member: absent.STABLE absent.UNRELEASED STABLE.absent UNRELEASED.absent UNREVOKED.absent
streams_beat.member: STABLE.STABLE STABLE.STABLE+ STABLE.UNREVOKED UNREVOKED.UNREVOKED UNREVOKED.STABLE+
streams_beat.member: STABLE.UNRELEASED+ UNRELEASED.UNRELEASED UNRELEASED.UNRELEASED+ UNRELEASED.STABLE
streams_beat.member: UNREVOKED.UNRELEASED+ UNRELEASED.STABLE+
streams_beat.status: ASSIGNMENT_DELAYED INCORRECTLY_PARTITIONED_TOPICS MISSING_INTERNAL_TOPICS
streams_beat.status: MISSING_SOURCE_TOPICS SHUTDOWN_APPLICATION STALE_TOPOLOGY
streams_beat.reply: partitions_by_endpoint tasks
classic_join.none: INCONSISTENT_GROUP_PROTOCOL INVALID_GROUP_ID INVALID_SESSION_TIMEOUT MEMBER_ID_REQUIRED
classic_join.none: NONE UNKNOWN_MEMBER_ID
classic_join.classic: FENCED_INSTANCE_ID GROUP_MAX_SIZE_REACHED INCONSISTENT_GROUP_PROTOCOL
classic_join.classic: INVALID_SESSION_TIMEOUT MEMBER_ID_REQUIRED NONE REBALANCE_IN_PROGRESS UNKNOWN_MEMBER_ID
classic_join.consumer: FENCED_INSTANCE_ID INCONSISTENT_GROUP_PROTOCOL INVALID_SESSION_TIMEOUT
classic_join.consumer: MEMBER_ID_REQUIRED NONE UNKNOWN_MEMBER_ID
classic_join.reply: skip_assignment
classic_sync.none: INVALID_GROUP_ID
classic_sync.classic: FENCED_INSTANCE_ID ILLEGAL_GENERATION INCONSISTENT_GROUP_PROTOCOL NONE
classic_sync.classic: REBALANCE_IN_PROGRESS UNKNOWN_MEMBER_ID
classic_sync.consumer: FENCED_INSTANCE_ID INCONSISTENT_GROUP_PROTOCOL NONE REBALANCE_IN_PROGRESS
classic_sync.consumer: UNKNOWN_MEMBER_ID
classic_sync.reply: assignment
classic_beat.none: INVALID_GROUP_ID UNKNOWN_MEMBER_ID
classic_beat.classic: FENCED_INSTANCE_ID ILLEGAL_GENERATION NONE REBALANCE_IN_PROGRESS UNKNOWN_MEMBER_ID
classic_beat.consumer: FENCED_INSTANCE_ID ILLEGAL_GENERATION NONE REBALANCE_IN_PROGRESS UNKNOWN_MEMBER_ID
commit.none: GROUP_ID_NOT_FOUND ILLEGAL_GENERATION NONE UNKNOWN_TOPIC_OR_PARTITION
commit.classic: FENCED_INSTANCE_ID ILLEGAL_GENERATION NONE REBALANCE_IN_PROGRESS UNKNOWN_MEMBER_ID
commit.consumer: ILLEGAL_GENERATION NONE OFFSET_METADATA_TOO_LARGE STALE_MEMBER_EPOCH UNKNOWN_MEMBER_ID
commit.consumer: UNKNOWN_TOPIC_ID UNKNOWN_TOPIC_OR_PARTITION UNSUPPORTED_VERSION
commit.streams: NONE STALE_MEMBER_EPOCH UNKNOWN_MEMBER_ID UNSUPPORTED_VERSION
commit.epoch: -1.accepted -1.refused 0.refused ahead.refused current.accepted current.refused older.accepted
commit.epoch: older.refused previous.accepted previous.refused unknown.accepted unknown.refused
fetch.none: NONE
fetch.classic: NONE
fetch.consumer: NONE STALE_MEMBER_EPOCH UNKNOWN_MEMBER_ID UNKNOWN_TOPIC_ID
fetch.streams: NONE STALE_MEMBER_EPOCH UNKNOWN_MEMBER_ID
fetch.epoch: -1.accepted 0.refused ahead.refused current.accepted previous.refused unknown.accepted
fetch.epoch: unknown.refused
fetch.reply: offset
forget.none: GROUP_ID_NOT_FOUND NONE UNKNOWN_TOPIC_OR_PARTITION
forget.classic: GROUP_SUBSCRIBED_TO_TOPIC NONE NON_EMPTY_GROUP
forget.consumer: GROUP_SUBSCRIBED_TO_TOPIC NONE UNKNOWN_TOPIC_OR_PARTITION
remove.none: UNKNOWN_MEMBER_ID
remove.classic: FENCED_INSTANCE_ID NONE UNKNOWN_MEMBER_ID
remove.consumer: FENCED_INSTANCE_ID NONE UNKNOWN_MEMBER_ID
delete_group.none: GROUP_ID_NOT_FOUND NONE
delete_group.classic: NONE NON_EMPTY_GROUP
delete_group.consumer: NONE NON_EMPTY_GROUP
delete_group.streams: NONE NON_EMPTY_GROUP
list.state: Assigning CompletingRebalance Empty NotReady PreparingRebalance Reconciling Stable
describe.none: GROUP_ID_NOT_FOUND INVALID_GROUP_ID
describe.classic: GROUP_ID_NOT_FOUND
describe.state: Assigning Empty Reconciling Stable
describe.member: STABLE UNREVOKED UNRELEASED away
describe_classic.none: GROUP_ID_NOT_FOUND
describe_classic.consumer: GROUP_ID_NOT_FOUND
describe_classic.state: CompletingRebalance Dead Empty PreparingRebalance Stable
describe_streams.none: GROUP_ID_NOT_FOUND
describe_streams.state: Empty NotReady Reconciling Stable
describe_streams.member: STABLE UNREVOKED UNRELEASED
group.none: classic.classic_join consumer.beat streams.streams_beat
group.classic: consumer.beat consumer.classic_join none.delete_group
group.consumer: classic.beat classic.classic_join classic.remove none.delete_group
group.streams: none.delete_group
group.consumer: Assigning.Empty Assigning.Reconciling Assigning.Stable Empty.Stable Reconciling.Assigning
group.consumer: Reconciling.Stable Stable.Assigning Stable.Empty Stable.Reconciling
group.classic: CompletingRebalance.Empty CompletingRebalance.PreparingRebalance CompletingRebalance.Stable
group.classic: Empty.CompletingRebalance PreparingRebalance.CompletingRebalance PreparingRebalance.Empty
group.classic: Stable.CompletingRebalance Stable.Empty Stable.PreparingRebalance
group.streams: Assigning.Empty Assigning.Reconciling Assigning.Stable Empty.NotReady Empty.Stable
group.streams: NotReady.Empty NotReady.Stable Reconciling.Assigning Reconciling.Stable Stable.Assigning
group.streams: Stable.Empty Stable.NotReady Stable.Reconciling
"""
"""All that one comparison should exercise: beginnings of names, and ends."""

WITHOUT_REQUEST: Final[Mapping[str, str]] = {
    "assignor.range.equal": "both range targets are equal",
    "assignor.range.mixed": "the same, with different subscriptions",
    "assignor.uniform.valid": "Kafka's uniform target assigns each subscribed partition to one subscriber",
    "assignor.uniform.sizes": "both uniform targets have the same sizes",
    "assignor.uniform.moves": "fencepost's uniform target moves no more partitions than Kafka's",
    "assignor.uniform.mixed": "the same, with different subscriptions",
    "regex.resolution": "a resolution of expressions raises the epoch, or does not",
    "group.configuration": "group settings are accepted or refused",
    "topics.change": "topics are created, grown, deleted, or refused",
    "timer.session": "a member without heartbeats for its session timeout is removed",
    "timer.rebalance": "a member that does not revoke in time is removed",
    "timer.join": "a member that does not rejoin in time is removed",
    "timer.sync": "a member that does not send SyncGroup in time is removed",
    "classic.waits": "JoinGroup and SyncGroup wait as long as at the broker",
    "streams.topics.created": "internal topics are created when a group needs them",
    "streams.target.valid": "Kafka 4.4's target assigns each task to one member",
}
"""Names that no single request exercises."""


def about(name: str) -> str:
    """Return what a name says."""
    if name in WITHOUT_REQUEST:
        return WITHOUT_REQUEST[name]
    first, second, *rest = name.split(".")
    api, last = _APIS.get(first, first), " ".join(rest)
    match first, second:
        case "writes" | "deletes", _:
            return f"the coordinator {first} a record {second}"
        case "sets", _:
            return f"{_APIS[second]} sets {last}"
        case "group", _ if rest[1] in _APIS:
            return f"{_APIS[rest[1]]} turns {_GROUPS[second]} into {_GROUPS[rest[0]]}"
        case "group", _:
            return f"{_GROUPS[second]} moves from {rest[0]} to {rest[1]}"
        case _, "invalid":
            return f"{api} is refused for its {last}"
        case _, "epoch":
            return f"{api} with epoch {rest[0]} is {rest[1]}"
        case _, "owned":
            return f"{api} that lists {_LISTED[rest[0]]} of what its sender has is {rest[1]}"
        case _, "member" if len(rest) == 1:
            return f"{api} of a group with a member {last}"
        case _, "member":
            epoch = ", and its epoch advances" if last.endswith("+") else ""
            return f"{api} moves its sender from {rest[0]} to {rest[1].rstrip('+')}{epoch}"
        case _, "state" | "status" | "reply":
            return f"the response to {api} has the {second} {last}".replace("the reply ", "")
        case _:
            return f"{api} to {_GROUPS[second]} gets {last}"


_GROUPS: Final[Mapping[str, str]] = {
    "none": "no group",
    "classic": "a classic group",
    "consumer": "a consumer group",
    "streams": "a streams group",
}
_LISTED: Final[Mapping[str, str]] = {"null": "nothing", "less": "less", "all": "all", "more": "more than all"}


def _names() -> Iterator[str]:
    for row in _EXPECTED.strip().splitlines():
        first, ends = row.split(": ")
        yield from (f"{first}.{end}" for end in ends.split())
    for key in get_args(records.RecordKey):
        kind = key.__name__.removesuffix("Key")
        yield from (f"{verb}.{kind}" for verb in ("writes", "deletes") if f"{verb}.{kind}" not in _UNSEEN)
    for step in get_args(schedule.Step):
        if _tag(step) in _APIS:
            fields = (each.name for each in msgspec.structs.fields(step))
            yield from (f"{SETS}.{_tag(step)}.{each}" for each in fields if each not in _PLAIN)
    yield from WITHOUT_REQUEST


NAMES: Final[Mapping[str, str]] = {name: about(name) for name in _names()}
"""The names of all that a comparison should exercise, with what they say."""
