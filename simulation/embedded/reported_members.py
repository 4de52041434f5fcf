"""What members' heartbeats tell of them: who is there, what it owns, and how far it has come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from fencepost.coordinator.consumer.states import ConsumerGroupMemberState
from fencepost.coordinator.coordinator import GroupCoordinator
from fencepost.coordinator.protocol.consumer import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import JOIN_EPOCH, NO_PARTITIONS, MemberId, Partitions
from fencepost.coordinator.protocol.streams import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
)
from fencepost.coordinator.streams.states import StreamsGroupMemberState as StreamsMemberState
from fencepost.simulation.embedded.members import named, partitions_read
from fencepost.simulation.embedded.replayed import EmbeddedMember, ReplayedGroup

Heartbeat: TypeAlias = ConsumerGroupHeartbeatRequest | StreamsGroupHeartbeatRequest
HeartbeatAnswer: TypeAlias = ConsumerGroupHeartbeatResponse | StreamsGroupHeartbeatResponse

_STABLE: Final = (ConsumerGroupMemberState.STABLE, StreamsMemberState.STABLE)
_FENCED = (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID)


class ReportedMembers:
    """The members of one group, by their own word; what changes is told as a world tells of its members."""

    def __init__(self, world: ReplayedGroup, tell: Callable[..., None]) -> None:
        self._world = world
        self._tell = tell
        self._states: dict[MemberId, str] = {}
        self.owned: dict[MemberId, Partitions] = {}
        """What each said last that it owns."""

    def before(self, request: Heartbeat, reply: HeartbeatAnswer) -> None:
        """A heartbeat was answered; nobody has been told of the step yet."""
        member_id = reply.member_id or request.member_id
        if reply.error_code is not ErrorCode.NONE or request.member_epoch < JOIN_EPOCH:
            return
        if member_id not in self._world.seen:
            self._world.seen[member_id] = EmbeddedMember(member_id)
            self._tell("on_member_host", member_id, "start")
        elif request.member_epoch == JOIN_EPOCH:
            self._drop(member_id, "lost")
        if request.member_epoch == JOIN_EPOCH:
            self._enter(member_id, "JOINING")

    def after(self, request: Heartbeat, reply: HeartbeatAnswer, coordinator: GroupCoordinator | None) -> None:
        """The same, once everybody has been told of the step."""
        member_id = reply.member_id or request.member_id
        if member_id not in self._world.seen:
            return
        if reply.error_code is not ErrorCode.NONE:
            if reply.error_code in _FENCED:
                self._enter(member_id, "FENCED")
            return
        said, placed = _standing(request, member_id, coordinator)
        if said is not None:
            self._owns(member_id, said)
        if placed is not None:
            state, assigned = placed
            settled = state in _STABLE and self.confirmed(member_id, assigned)
            self._enter(member_id, "STABLE" if settled else "RECONCILING")

    def removed(self, member_id: MemberId) -> None:
        """The coordinator has removed a member, whatever that one believes."""
        self.owned.pop(member_id, None)
        self._states.pop(member_id, None)
        if member_id in self._world.seen:
            self._tell("on_member_host", member_id, "stopped")
            del self._world.seen[member_id]

    def confirmed(self, member_id: MemberId, assigned: Partitions) -> bool:
        """Whether the member has said that it owns just this."""
        return _same(self.owned.get(member_id, NO_PARTITIONS), assigned)

    def _owns(self, member_id: MemberId, partitions: Partitions) -> None:
        image = self._world.topics
        had = named(self.owned.get(member_id, NO_PARTITIONS), image)
        has = named(partitions, image)
        self.owned[member_id] = partitions
        self._callback(member_id, "revoked", tuple(sorted({*had} - {*has})))
        self._callback(member_id, "assigned", tuple(sorted({*has} - {*had})))

    def _drop(self, member_id: MemberId, kind: str) -> None:
        had = named(self.owned.pop(member_id, NO_PARTITIONS), self._world.topics)
        self._callback(member_id, kind, had)

    def _callback(self, member_id: MemberId, kind: str, partitions: tuple[Any, ...]) -> None:
        if partitions:
            for phase in ("begin", "end"):
                self._tell("on_callback", member_id, kind, phase, partitions)

    def _enter(self, member_id: MemberId, state: str) -> None:
        before = self._states.get(member_id, "UNSUBSCRIBED")
        if state != before:
            self._states[member_id] = state
            self._tell("on_member_state", member_id, "heartbeat", before, state)


def _standing(
    request: Heartbeat, member_id: MemberId, coordinator: GroupCoordinator | None
) -> tuple[Partitions | None, tuple[str, Partitions] | None]:
    """What the member says that it owns, if it says so; its state and what it has by the coordinator."""
    if isinstance(request, ConsumerGroupHeartbeatRequest):
        group = None if coordinator is None else coordinator.groups.get(request.group_id)
        member = None if group is None else group.members.get(member_id)
        return request.topic_partitions, None if member is None else (member.state, member.assigned)
    streams = None if coordinator is None else coordinator.streams.groups.get(request.group_id)
    if coordinator is None or streams is None:
        return None, None
    image = coordinator.image
    tasks, thread = request.active_tasks, streams.members.get(member_id)
    return (
        None if tasks is None else partitions_read(streams, tasks, image),
        None if thread is None else (thread.state, partitions_read(streams, thread.assigned.active, image)),
    )


def _same(one: Partitions, other: Partitions) -> bool:
    return one.keys() == other.keys() and all(
        sorted(numbers) == sorted(other[topic_id]) for topic_id, numbers in one.items()
    )
