"""The classic protocol in schedules: requests of members, with what they know of their group."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fencepost.coordinator.codec.registry import ApiKey
from fencepost.coordinator.protocol import classic, consumer_protocol
from fencepost.coordinator.protocol.ids import MemberId
from fencepost.simulation.lab.conform.knowledge import ClassicKnowledge
from fencepost.simulation.lab.conform.schedule import (
    TOLD,
    ClassicBeat,
    ClassicJoinStep,
    ClassicSyncStep,
    Owned,
)

ClassicStepKind = ClassicJoinStep | ClassicSyncStep | ClassicBeat
MAY_WAIT = (ClassicJoinStep, ClassicSyncStep)
"""Steps whose response may have to wait for other members."""

_MALFORMED = b"\x00\x01\x00\x00\x00\x01\x00"
"""A subscription of one topic that ends before its name."""
_STATIC_JOIN, _STATIC_SYNC, _NAMED_SYNC = 5, 3, 5
"""From these versions on JoinGroup, SyncGroup and Heartbeat have instance ids, and SyncGroup a protocol."""
_Topics = Mapping[str, tuple[int, ...]]


def classic_request(
    step: ClassicStepKind, group_id: str, members: dict[str, ClassicKnowledge], topic: Callable[[str], str]
) -> tuple[ApiKey, Any]:
    """Return the request of a step. `topic` gives a topic's name in the cluster."""
    member = members.setdefault(step.member, ClassicKnowledge())
    member_id = member.member_id if step.member_id is None else step.member_id
    match step:
        case ClassicJoinStep():
            return ApiKey.JOIN_GROUP, _join(step, group_id, member_id, _owned(step.owned, member), topic)
        case ClassicSyncStep():
            return ApiKey.SYNC_GROUP, _sync(step, group_id, member_id, members, topic)
        case ClassicBeat():
            heartbeat = classic.HeartbeatRequest(
                group_id=group_id,
                generation=member.generations.of(step.generation),
                member_id=member_id,
                instance_id=step.instance if step.version >= _STATIC_SYNC else None,
            )
            return ApiKey.HEARTBEAT, heartbeat


def _owned(owned: Owned, member: ClassicKnowledge) -> _Topics:
    match owned:
        case Owned.ASSIGNED:
            return member.assigned
        case Owned.BEFORE:
            return member.before
        case Owned.PARTIAL:
            return {name: numbers[1:] for name, numbers in member.assigned.items()}
        case _:
            return {}


def _join(
    step: ClassicJoinStep, group_id: str, member_id: MemberId, owned: _Topics, topic: Callable[[str], str]
) -> classic.JoinGroupRequest:
    subscription = consumer_protocol.ConsumerProtocolSubscription(
        topics=tuple(map(topic, step.topics)), owned=owned
    )
    data = _MALFORMED if step.malformed else consumer_protocol.write_subscription(subscription)
    return classic.JoinGroupRequest(
        group_id=group_id,
        member_id=member_id,
        instance_id=step.instance if step.version >= _STATIC_JOIN else None,
        protocol_type=step.protocol_type,
        protocols=tuple(classic.JoinGroupProtocol(name, data) for name in step.protocols),
        session_timeout_ms=step.session_timeout_ms,
        rebalance_timeout_ms=step.rebalance_timeout_ms,
        api_version=step.version,
    )


def _sync(
    step: ClassicSyncStep,
    group_id: str,
    member_id: MemberId,
    members: Mapping[str, ClassicKnowledge],
    topic: Callable[[str], str],
) -> classic.SyncGroupRequest:
    member = members[step.member]
    named = step.version >= _NAMED_SYNC
    protocol = member.protocol if step.protocol == TOLD else step.protocol
    return classic.SyncGroupRequest(
        group_id=group_id,
        generation=member.generations.of(step.generation),
        member_id=member_id,
        instance_id=step.instance if step.version >= _STATIC_SYNC else None,
        protocol_type=step.protocol_type if named else None,
        protocol_name=protocol if named else None,
        assignments={
            members[name].member_id: consumer_protocol.write_assignment(
                consumer_protocol.ConsumerProtocolAssignment(
                    partitions={topic(each): numbers for each, numbers in given.items()},
                    user_data=b"an assignor's own" if step.user_data else None,
                )
            )
            for name, given in step.gives.items()
            if name in members and members[name].member_id
        },
    )
