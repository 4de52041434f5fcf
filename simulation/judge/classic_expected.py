"""The expected effects of one event of a classic group, and the known state of the group's members.

`classic_account` works it out, `classic_comparison` compares it with the actual effects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypeVar

import msgspec

from fencepost.coordinator.classic.states import ClassicGroupState
from fencepost.coordinator.protocol import classic
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import MemberId
from fencepost.coordinator.protocol.records import GroupMetadataValue

if TYPE_CHECKING:
    from fencepost.coordinator.config import GroupCoordinatorConfig
    from fencepost.coordinator.consumer.member import ConsumerGroupMember

Answer: TypeAlias = classic.JoinGroupResponse | classic.SyncGroupResponse
Offered: TypeAlias = tuple[tuple[str, bytes], ...]
"""Protocols with the member's metadata in each, in its order of preference."""

ID_GIVEN_FIRST: Final = 4
"""First version of JoinGroup in which a dynamic member gets an id before it joins (KIP-394)."""

# Names of their own: in Python 3.11 an attribute of an enum class costs as much as a call.
EMPTY, JOINING, SYNCING, STABLE, _ = ClassicGroupState


def offers_of(request: classic.JoinGroupRequest) -> Offered:
    """Return what a member offers in its JoinGroup."""
    return tuple((each.name, each.metadata) for each in request.protocols)


def metadata_of(offers: Offered, protocol: str | None) -> bytes:
    """Return a member's metadata in a protocol; nothing if it does not offer that one."""
    return dict(reversed(offers)).get(protocol or "", b"")


def request_error(request: classic.JoinGroupRequest, config: GroupCoordinatorConfig) -> ErrorCode:
    """Return the error with which a JoinGroup is refused, whatever the state of the group."""
    if not request.group_id:
        return ErrorCode.INVALID_GROUP_ID
    low, high = config.group_min_session_timeout_ms, config.group_max_session_timeout_ms
    return ErrorCode.NONE if low <= request.session_timeout_ms <= high else ErrorCode.INVALID_SESSION_TIMEOUT


SeatT = TypeVar("SeatT", "ExpectedMember", "ConsumerGroupMember")


def holder_of(members: Mapping[MemberId, SeatT], instance_id: str | None) -> SeatT | None:
    """Return the member with that instance id."""
    if instance_id is None:
        return None
    return next((each for each in members.values() if each.instance_id == instance_id), None)


def member_error(
    members: Mapping[MemberId, SeatT], member_id: MemberId, instance_id: str | None
) -> ErrorCode:
    """Return the error that a request of that member and instance gets; NONE if they are right (KIP-345)."""
    if instance_id is not None:
        holder = holder_of(members, instance_id)
        if holder is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if holder.member_id != member_id:
            return ErrorCode.FENCED_INSTANCE_ID
    return ErrorCode.NONE if member_id in members else ErrorCode.UNKNOWN_MEMBER_ID


class Deadline(NamedTuple):
    """The `session` of a member or id, or a group's `join` or `sync` phase: equal to its GroupTimerKey, and
    faster, as its kind is a plain string."""

    kind: str
    group_id: str
    member_id: MemberId = ""


class ExpectedMember(msgspec.Struct, kw_only=True, eq=False):
    """One member, by its own requests."""

    member_id: MemberId
    instance_id: str | None
    session_ms: int
    rebalance_ms: int
    offers: Offered
    assignment: bytes = b""
    join: classic.Token | None = None
    """Its JoinGroup that waits."""
    sync: classic.Token | None = None
    """Its SyncGroup that waits."""
    is_new: bool = False
    """True if it waits in its first join."""

    def metadata(self, protocol: str | None) -> bytes:
        """Return the metadata that it offers in that protocol."""
        return metadata_of(self.offers, protocol)


def nothing() -> None:
    """Change nothing."""


def undone(_code: ErrorCode) -> None:
    """Change nothing."""


class Expected(msgspec.Struct, eq=False):
    """The effects of one event on one group, as they should be or as clients and the journal see them."""

    answers: dict[classic.Token, Answer] = {}
    """Responses to JoinGroup and SyncGroup requests, of this event or of earlier ones."""
    codes: tuple[ErrorCode, ...] = ()
    """The errors of a response to LeaveGroup, of each member that it names."""
    value: GroupMetadataValue | None = None
    """The record of the group that is written; None without one, and for its tombstone."""
    later: Callable[[], None] = nothing
    """The change of the account once that is written."""
    undo: Callable[[ErrorCode], None] = undone
    """The change of the account if that can't be written, with the error that the members get."""
    fenced: set[MemberId] = set()
    """Members that were removed by time."""
