"""The members of a group as their heartbeats report them: who is there, what each owns, and its progress."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from fencepost.coordinator.coordinator import GroupCoordinator
from fencepost.coordinator.kinds import GroupMember, named
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import JOIN_EPOCH, NO_PARTITIONS, MemberId, Partitions, TopicPartition
from fencepost.simulation.embedded.replayed import EmbeddedMember, ReplayedGroup

_FENCED = (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID)


class ReportedMembers:
    """The members of one group by their own reports; changes are reported through the hooks of a world."""

    def __init__(self, world: ReplayedGroup, tell: Callable[..., None]) -> None:
        self._world = world
        self._tell = tell
        self._states: dict[MemberId, str] = {}
        self.owned: dict[MemberId, Partitions] = {}
        """The partitions that each member said last that it owns."""

    def before(self, request: Any, reply: Any) -> None:
        """Process a heartbeat's response before observers are notified of the step."""
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

    def after(self, request: Any, reply: Any, coordinator: GroupCoordinator | None) -> None:
        """Process the response after all observers were notified of the step."""
        member_id = reply.member_id or request.member_id
        if member_id not in self._world.seen:
            return
        if reply.error_code is not ErrorCode.NONE:
            if reply.error_code in _FENCED:
                self._enter(member_id, "FENCED")
            return
        kind = None if coordinator is None else coordinator.kinds.of(request.group_id)
        if coordinator is None or kind is None:
            return
        reported = kind.reported(request, member_id, coordinator.image)
        if reported.owned is not None:
            self._owns(member_id, reported.owned)
        if reported.assigned is not None:
            settled = reported.is_stable and self.confirmed(member_id, reported.assigned)
            self._enter(member_id, "STABLE" if settled else "RECONCILING")

    def removed(self, member_id: MemberId) -> None:
        """Note that the coordinator has removed a member, even if the member does not know yet."""
        self.owned.pop(member_id, None)
        self._states.pop(member_id, None)
        if member_id in self._world.seen:
            self._tell("on_member_host", member_id, "stopped")
            del self._world.seen[member_id]

    def confirmed(self, member_id: MemberId, assigned: Partitions) -> bool:
        """Return true if the member has reported exactly these partitions as owned."""
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


def _same(one: Partitions, other: Partitions) -> bool:
    return one.keys() == other.keys() and all(
        sorted(numbers) == sorted(other[topic_id]) for topic_id, numbers in one.items()
    )


class RoundMembers:
    """The members of one group that never report what they own: after each step they own their assignment.

    `tell` receives their changes through the hooks of a world.
    """

    def __init__(self, world: ReplayedGroup, tell: Callable[..., None]) -> None:
        self._world = world
        self._tell = tell
        self._known: dict[MemberId, tuple[str, tuple[TopicPartition, ...]]] = {}

    def compare(self, members: Iterable[GroupMember], state: str) -> None:
        """Report changes of a group's members, whose progress is `state`."""
        now = {member.member_id: (state, member.assignment) for member in members}
        seen = self._world.seen
        # A member that is missing was removed while the group had another kind.
        self._known = {member_id: known for member_id, known in self._known.items() if member_id in seen}
        for member_id in [each for each in self._known if each not in now]:
            self._tell("on_member_host", member_id, "stopped")
            del seen[member_id]
        for member_id, (_, given) in now.items():
            if member_id not in seen:
                seen[member_id] = EmbeddedMember(member_id)
                self._tell("on_member_host", member_id, "start")
            before, had = self._known.get(member_id, ("", ()))
            if state != before:
                self._tell("on_member_state", member_id, "round", before, state)
            for kind, partitions in (("revoked", {*had} - {*given}), ("assigned", {*given} - {*had})):
                for phase in ("begin", "end") if partitions else ():
                    self._tell("on_callback", member_id, kind, phase, partitions)
        self._known = now
