"""What members' heartbeats tell of them: who is there, what it owns, and how far it has come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fencepost.coordinator.consumer.group import ConsumerGroup
from fencepost.coordinator.consumer.states import MemberState
from fencepost.coordinator.protocol.consumer import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import JOIN_EPOCH, NO_PARTITIONS, MemberId, Partitions
from fencepost.simulation.embedded.members import named
from fencepost.simulation.embedded.view import GroupView, MemberSeen

_FENCED = (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID)


class ToldMembers:
    """The members of one group, by their own word; what changes is told as a world tells of its members."""

    def __init__(self, view: GroupView, tell: Callable[..., None]) -> None:
        self._view = view
        self._tell = tell
        self._states: dict[MemberId, str] = {}
        self.owned: dict[MemberId, Partitions] = {}
        """What each said last that it owns."""

    def before(self, request: ConsumerGroupHeartbeatRequest, reply: ConsumerGroupHeartbeatResponse) -> None:
        """A heartbeat was answered; nobody has been told of the step yet."""
        member_id = reply.member_id or request.member_id
        if reply.error_code is not ErrorCode.NONE or request.member_epoch < JOIN_EPOCH:
            return
        if member_id not in self._view.seen:
            self._view.seen[member_id] = MemberSeen(member_id)
            self._tell("on_member_host", member_id, "start")
        elif request.member_epoch == JOIN_EPOCH:
            self._drop(member_id, "lost")
        if request.member_epoch == JOIN_EPOCH:
            self._enter(member_id, "JOINING")

    def after(
        self,
        request: ConsumerGroupHeartbeatRequest,
        reply: ConsumerGroupHeartbeatResponse,
        group: ConsumerGroup | None,
    ) -> None:
        """The same, once everybody has been told of the step."""
        member_id = reply.member_id or request.member_id
        if member_id not in self._view.seen:
            return
        if reply.error_code is not ErrorCode.NONE:
            if reply.error_code in _FENCED:
                self._enter(member_id, "FENCED")
            return
        if request.topic_partitions is not None:
            self._owns(member_id, request.topic_partitions)
        member = None if group is None else group.members.get(member_id)
        if member is not None:
            settled = member.state is MemberState.STABLE and self.confirmed(member_id, member.assigned)
            self._enter(member_id, "STABLE" if settled else "RECONCILING")

    def removed(self, member_id: MemberId) -> None:
        """The coordinator has removed a member, whatever that one believes."""
        self.owned.pop(member_id, None)
        self._states.pop(member_id, None)
        if member_id in self._view.seen:
            self._tell("on_member_host", member_id, "stopped")
            del self._view.seen[member_id]

    def confirmed(self, member_id: MemberId, assigned: Partitions) -> bool:
        """Whether the member has said that it owns just this."""
        return _same(self.owned.get(member_id, NO_PARTITIONS), assigned)

    def _owns(self, member_id: MemberId, partitions: Partitions) -> None:
        image = self._view.topics
        had = named(self.owned.get(member_id, NO_PARTITIONS), image)
        has = named(partitions, image)
        self.owned[member_id] = partitions
        self._callback(member_id, "revoked", tuple(sorted({*had} - {*has})))
        self._callback(member_id, "assigned", tuple(sorted({*has} - {*had})))

    def _drop(self, member_id: MemberId, kind: str) -> None:
        had = named(self.owned.pop(member_id, NO_PARTITIONS), self._view.topics)
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


def _same(one: Partitions, other: Partitions) -> bool:
    return one.keys() == other.keys() and all(
        sorted(numbers) == sorted(other[topic_id]) for topic_id, numbers in one.items()
    )
