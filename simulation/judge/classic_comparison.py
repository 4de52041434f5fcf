"""A classic group and the effects of its events, compared with the account of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import msgspec

from fencepost.coordinator.protocol import consumer
from fencepost.coordinator.protocol.classic import (
    JoinGroupRequest,
    JoinGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import MemberId
from fencepost.coordinator.protocol.outcome import MemberFenced, Outcome, ParkedResponse
from fencepost.coordinator.protocol.records import GroupMetadataKey, GroupMetadataValue
from fencepost.simulation.judge.base import Finding
from fencepost.simulation.judge.classic_expected import Answer, Deadline, Expected
from fencepost.simulation.kernel.observers import StepEvent

if TYPE_CHECKING:
    from fencepost.coordinator.coordinator import GroupCoordinator
    from fencepost.simulation.judge.classic_account import ExpectedGroup

_E = ErrorCode
_NONE = ErrorCode.NONE
_INSTANCE: Final = attrgetter("instance_id")


def sent(group_id: str, event: StepEvent, outcome: Outcome) -> Expected:
    """Return the effects that an event had on one group."""
    got, reply = Expected(), outcome.reply
    for effect in outcome.effects:
        if isinstance(effect, ParkedResponse):
            got.answers[effect.token] = effect.response
        elif isinstance(effect, MemberFenced) and effect.group_id == group_id:
            got.fenced.add(effect.member_id)
    if isinstance(event, JoinGroupRequest | SyncGroupRequest):
        if isinstance(reply, JoinGroupResponse | SyncGroupResponse):
            got.answers[event.token] = reply
    elif isinstance(reply, consumer.LeaveGroupResponse):
        got.codes = (reply.error_code,)
    elif isinstance(reply, consumer.LeaveGroupBatchResponse):
        refused = () if reply.error_code is _NONE else (reply.error_code,)
        got.codes = tuple(each.error_code for each in reply.members) or refused
    for record in outcome.records:
        if type(record.key) is GroupMetadataKey and record.key.group_id == group_id:
            got.value = record.value if isinstance(record.value, GroupMetadataValue) else None
    return got


def compare(group_id: str, what: str, expected: Expected, got: Expected) -> Iterator[Finding]:
    """Findings of one event, which `what` describes."""
    for token in expected.answers.keys() | got.answers.keys():
        yield from _compare_answers(group_id, what, expected.answers.get(token), got.answers.get(token))
    if expected.codes != got.codes:
        yield (
            "classic-answers",
            f"{what} of {group_id} returned {names_of(got.codes)} instead of {names_of(expected.codes)}",
        )
    if expected.fenced != got.fenced:
        yield (
            "classic-members",
            f"{what} of {group_id} removed {sorted(got.fenced)} instead of {sorted(expected.fenced)}",
        )
    if essence(got.value) != essence(expected.value):
        yield "classic-record", f"{what} of {group_id} wrote {got.value} instead of {expected.value}"


def names_of(codes: tuple[ErrorCode, ...]) -> str:
    """Return the names of these errors, for messages."""
    return ", ".join(code.name for code in codes) or "nothing"


def _compare_answers(
    group_id: str, what: str, expected: Answer | None, got: Answer | None
) -> Iterator[Finding]:
    joins = isinstance(expected or got, JoinGroupResponse)
    request = "JoinGroup" if joins else "SyncGroup"
    if expected is None or got is None or type(expected) is not type(got):
        yield (
            "classic-rounds" if joins else "classic-synced",
            f"{what} of {group_id}: a {request} got {_short(got)} instead of {_short(expected)}",
        )
    elif expected.error_code is not got.error_code:
        yield (
            "classic-answers",
            f"{what} of {group_id}: {request} got {got.error_code.name} instead of"
            f" {expected.error_code.name}",
        )
    elif _essence_of_answer(expected) != _essence_of_answer(got):
        name = "classic-joined" if joins else "classic-synced"
        if getattr(expected, "generation", 0) != getattr(got, "generation", 0):
            name = "classic-generations"
        yield name, f"{what} of {group_id}: {request} got {got} instead of {expected}"


def _short(answer: Answer | None) -> str:
    if answer is None:
        return "nothing"
    if answer.error_code is not _NONE:
        return answer.error_code.name
    return f"generation {answer.generation}" if isinstance(answer, JoinGroupResponse) else "its assignment"


def _essence_of_answer(answer: Answer) -> object:
    """Return the part of a response that clients use: if it has an error, they ignore the rest."""
    if answer.error_code is _E.MEMBER_ID_REQUIRED:
        return getattr(answer, "member_id", "")
    if answer.error_code is not _NONE:
        return None
    if isinstance(answer, SyncGroupResponse):
        return answer
    roster = {each.member_id: each for each in answer.members}
    return roster, msgspec.structs.replace(answer, members=())


def essence(value: GroupMetadataValue | None) -> object:
    """Return a record without its time, and without data that brokers only pass on."""
    if value is None:
        return None
    members = {
        each.member_id: msgspec.structs.replace(each, client_id="", client_host="") for each in value.members
    }
    leader = value.leader or None
    return members, msgspec.structs.replace(value, members=(), current_state_timestamp_ms=0, leader=leader)


def undated(value: GroupMetadataValue | None) -> object:
    """Return a record without the time at which the group entered its state: that is after the write."""
    return value and msgspec.structs.replace(value, current_state_timestamp_ms=0)


def check_timer(live: GroupCoordinator, account: ExpectedGroup, deadline: Deadline) -> Iterator[Finding]:
    """Findings of one timer of a group."""
    timers: Any = live.classic.timers
    at_ms, right_ms = timers.deadline_of(deadline), account.deadlines.get(deadline)
    if at_ms != right_ms:
        who = deadline.member_id or account.group_id
        yield "timers-armed", f"the {deadline.kind} timer of {who} is at {at_ms}, not at {right_ms}"


def check_state(account: ExpectedGroup, live: GroupCoordinator) -> Iterator[Finding]:
    """Findings of the state of a group after an event: its description, and its timers."""
    group_id = account.group_id
    group = live.classic.groups.get(group_id)
    if group is None:
        yield "classic-members", f"{group_id} was deleted, it has {sorted(account.members)}"
        return
    at, right = (group.state, group.generation), (account.phase, account.generation)
    if at != right:
        yield (
            "classic-rounds" if at[0] is not right[0] else "classic-generations",
            f"{group_id} is {at[0]} in generation {at[1]} instead of {right[0]} in {right[1]}",
        )
        return
    if not _seats_alike(group.members, account.members):
        seats = {each.member_id: each.instance_id for each in group.members.values()}
        yield "classic-members", f"{group_id} has the members {seats} instead of {sorted(account.members)}"
        return
    instances = [*map(_INSTANCE, group.members.values())]
    if len(group.static_members) != (static := len(instances) - instances.count(None)):
        yield (
            "static-bijection",
            f"{group_id} has {static} static members and {len(group.static_members)} instance ids",
        )
    if group.protocol != account.protocol or (group.protocol_type or None) != account.protocol_type:
        yield (
            "classic-joined",
            f"{group_id} has protocol {group.protocol_type} {group.protocol} instead of"
            f" {account.protocol_type} {account.protocol}",
        )
    if group.pending_joins.keys() != account.given_ids or group.pending_syncs.keys() != account.unsynced:
        yield (
            "classic-rounds",
            f"{group_id} waits for {[*group.pending_joins]} to join and {[*group.pending_syncs]} to sync, not"
            f" for {sorted(account.given_ids)} and {sorted(account.unsynced)}",
        )
    for deadline in account.deadlines:
        yield from check_timer(live, account, deadline)


def _seats_alike(one: Mapping[MemberId, Any], other: Mapping[MemberId, Any]) -> bool:
    """Return true if these are the same members, with the same instance ids.

    It is fast, since hundreds of members are compared in many steps.
    """
    if one.keys() != other.keys():
        return False
    if [*one] == [*other]:
        return [*map(_INSTANCE, one.values())] == [*map(_INSTANCE, other.values())]
    return all(one[member_id].instance_id == other[member_id].instance_id for member_id in one)
