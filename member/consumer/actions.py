"""The actions that the machine of a KIP-848 member asks its shell to carry out."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from fencepost.coordinator.protocol.consumer import ConsumerGroupHeartbeatRequest
from fencepost.member.base import actions
from fencepost.member.consumer.states import ConsumerMemberEvent, ConsumerMemberState


class SendHeartbeat(msgspec.Struct, frozen=True, gc=False):
    """Send this heartbeat to the coordinator. A negative epoch leaves the group.

    A member with nothing new to send returns the very same value again and again.
    """

    token: int
    request: ConsumerGroupHeartbeatRequest


class ConsumerMoved(msgspec.Struct, frozen=True, gc=False):
    """The member took this arrow of its table."""

    event: ConsumerMemberEvent
    source: ConsumerMemberState
    target: ConsumerMemberState


Action: TypeAlias = (
    SendHeartbeat
    | actions.SendFindCoordinator
    | actions.ResolveTopicNames
    | actions.SendCommit
    | actions.FetchOffsets
    | actions.FindLogOffsets
    | actions.FindOffsetsByDuration
    | actions.RunCallback
    | ConsumerMoved
    | actions.RaiseToApplication
    | actions.CommitFinished
    | actions.LeaveFinished
    | actions.WakeApplication
)
