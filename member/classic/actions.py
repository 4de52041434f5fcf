"""Further actions of the machine of a classic member, in addition to those of every member."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from fencepost.coordinator.protocol.classic import HeartbeatRequest, JoinGroupRequest, SyncGroupRequest
from fencepost.coordinator.protocol.consumer import LeaveGroupRequest
from fencepost.member.classic.states import ClassicMemberEvent, ClassicMemberState

GroupRequest: TypeAlias = JoinGroupRequest | SyncGroupRequest | HeartbeatRequest | LeaveGroupRequest


class SendGroupRequest(msgspec.Struct, frozen=True, gc=False):
    """Send this to the coordinator; `group_answered` follows with the same token, or `request_failed`."""

    token: int
    request: GroupRequest
    timeout_ms: int


class CountPartitions(msgspec.Struct, frozen=True, gc=False):
    """Count the partitions of these topics in fresh metadata; `partitions_counted` follows."""

    token: int
    topics: tuple[str, ...]


class ClassicMoved(msgspec.Struct, frozen=True, gc=False):
    """The member took this arrow of its table."""

    event: ClassicMemberEvent
    source: ClassicMemberState
    target: ClassicMemberState
