"""One event's work on a classic group: its responses, its records, and what follows from them."""

from __future__ import annotations

from collections.abc import Callable

from fencepost.coordinator.classic.group import ClassicGroup
from fencepost.coordinator.classic.member import ClassicGroupMember
from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.protocol.classic import JoinGroupResponse, SyncGroupResponse, Token
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import MemberId
from fencepost.coordinator.protocol.outcome import Effect, ParkedResponse
from fencepost.coordinator.protocol.records import GroupMetadataKey, GroupMetadataValue, Record
from fencepost.coordinator.timers import GroupTimerKey, GroupTimerKind, Timers

ClassicTimers = Timers[GroupTimerKey]


class ClassicStep:
    """The effect of one event on one group, while it is worked out.

    Soft state of the group changes at once. What depends on `records` is in `written`, which runs when they
    were applied, and in `failed`, which runs when they could not be appended.
    """

    __slots__ = ("answers", "config", "failed", "group", "happened", "now_ms", "records", "timers", "written")

    def __init__(
        self, group: ClassicGroup, timers: ClassicTimers, config: GroupCoordinatorConfig, now_ms: int
    ) -> None:
        self.group = group
        self.timers = timers
        self.config = config
        self.now_ms = now_ms
        self.answers: list[ParkedResponse] = []
        self.records: tuple[Record, ...] = ()
        self.written: Callable[[], None] | None = None
        self.failed: Callable[[ClassicStep, ErrorCode], None] | None = None
        """Called with a new step, which writes nothing."""
        self.happened: tuple[Effect, ...] = ()
        """Effects of changes in memory: they are carried out whatever the fate of the records is."""

    def write(self, value: GroupMetadataValue | None) -> None:
        """Write the group's record; None ends the group."""
        self.records += (Record(GroupMetadataKey(self.group.group_id), value),)

    def answer(self, token: Token | None, response: JoinGroupResponse | SyncGroupResponse) -> bool:
        """Respond to a request if one is parked; return true if one was."""
        if token is None:
            return False
        self.answers.append(ParkedResponse(token=token, response=response))
        return True

    def restart_session(self, member: ClassicGroupMember) -> None:
        """Restart the member's session, as the coordinator received a request from it."""
        self.set_session(member.member_id, member.session_timeout_ms)

    def set_session(self, member_id: MemberId, length_ms: int) -> None:
        """Set the session timer of the member, or of the client that was given the id."""
        key = GroupTimerKey(GroupTimerKind.SESSION, self.group.group_id, member_id)
        self.timers.set(key, self.now_ms + length_ms)

    def end_session(self, member_id: MemberId) -> None:
        """Cancel the session timer of that id."""
        self.timers.cancel(GroupTimerKey(GroupTimerKind.SESSION, self.group.group_id, member_id))

    def set_timer(self, kind: GroupTimerKind, length_ms: int) -> None:
        """End the group's join or sync phase after that time."""
        self.timers.set(GroupTimerKey(kind, self.group.group_id), self.now_ms + length_ms)

    def cancel_timer(self, kind: GroupTimerKind) -> None:
        """Cancel the timer of a phase that is over."""
        self.timers.cancel(GroupTimerKey(kind, self.group.group_id))

    def remove(self, member: ClassicGroupMember) -> None:
        """Remove a member from the group; its parked requests get UNKNOWN_MEMBER_ID."""
        unknown = ErrorCode.UNKNOWN_MEMBER_ID
        self.answer(self.group.release_join(member), JoinGroupResponse(error_code=unknown))
        sync, member.sync = member.sync, None
        self.answer(sync, SyncGroupResponse(error_code=unknown))
        self.group.remove(member.member_id)
        self.end_session(member.member_id)
