"""What a coordinator knows of streams groups that is in no record: who was heard when, timers, what was seen.

It follows the records: a member's timers start when the record that makes the member is applied, and end
with its tombstone, so that nothing is left of members that went. It is rebuilt, with full session lengths,
when a journal is loaded. A request to shut an application down is lost then, as in Kafka.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from fencepost.coordinator.protocol.ids import MemberId
from fencepost.coordinator.protocol.streams_records import (
    StreamsGroupCurrentMemberAssignmentKey,
    StreamsGroupMemberMetadataKey,
)
from fencepost.coordinator.streams.group import StreamsGroup
from fencepost.coordinator.streams.member import StreamsGroupMember
from fencepost.coordinator.streams.states import StreamsGroupMemberState
from fencepost.coordinator.streams.topology import ConfiguredTopology
from fencepost.coordinator.timers import WRITE_RETRY_MS, MetadataRefresh, Timers, next_look_ms


class StreamsTimerKind(enum.StrEnum):
    """What a deadline is for."""

    SESSION = "session"
    """The member was not heard for the group's session length."""
    REBALANCE = "rebalance"
    """The member did not confirm a revocation within its rebalance time-out."""
    INITIAL = "initial"
    """The group has waited for members long enough, and gets its first target."""


class StreamsTimerKey(NamedTuple):
    """One deadline."""

    kind: StreamsTimerKind
    group_id: str
    member_id: MemberId = ""


class StreamsGroupSoftState(MetadataRefresh):
    """The soft state of one group."""

    __slots__ = (
        "configured",
        "endpoint_epoch",
        "last_heard_ms",
        "shutdown_requested_by",
    )

    def __init__(self) -> None:
        super().__init__()
        self.last_heard_ms: dict[MemberId, int] = {}
        self.configured: ConfiguredTopology | None = None
        """What became of the topology when its topics were looked at last."""
        self.endpoint_epoch = 0
        """Grows with each change of what can be asked for where."""
        self.shutdown_requested_by: MemberId | None = None
        """The first member that wanted the whole application to stop; None again once all are gone."""

    def request_shutdown(self, member_id: MemberId) -> None:
        """A member wants the application to stop. The first one is remembered."""
        if self.shutdown_requested_by is None:
            self.shutdown_requested_by = member_id


class StreamsSoftState:
    """The soft state of all streams groups of a coordinator, and its timers."""

    __slots__ = ("_session_timeout_ms", "groups", "now_ms", "timers")

    def __init__(self, session_timeout_ms: Callable[[str], int]) -> None:
        self._session_timeout_ms = session_timeout_ms
        """The session length of a group, by its id."""
        self.groups: dict[str, StreamsGroupSoftState] = {}
        self.timers: Timers[StreamsTimerKey] = Timers()
        self.now_ms = 0
        """The time of the last event; what is applied happens then."""

    def of(self, group_id: str) -> StreamsGroupSoftState:
        """The group's soft state; for a group that no record has made yet, one that is not kept."""
        return self.groups.get(group_id) or StreamsGroupSoftState()

    def follow(self, key: Any, value: Any, group: StreamsGroup | None) -> None:
        """Adapt to a record that was just applied to its group; None if there is no such group any more."""
        group_id = key.group_id
        if group is None:
            if self.groups.pop(group_id, None) is not None:
                self.timers.cancel(StreamsTimerKey(StreamsTimerKind.INITIAL, group_id))
            return
        soft = self.groups.get(group_id)
        if soft is None:
            soft = self.groups[group_id] = StreamsGroupSoftState()
        if type(key) is StreamsGroupCurrentMemberAssignmentKey and value is not None:
            self._arm_rebalance(group_id, group.members[key.member_id])
        elif type(key) is StreamsGroupMemberMetadataKey:
            if value is None:
                self._forget(group_id, soft, key.member_id)
            elif key.member_id not in soft.last_heard_ms:
                self._meet(group_id, soft, group.members[key.member_id])
        if not group.members:
            soft.shutdown_requested_by = None

    def rebuild(self, groups: Mapping[str, StreamsGroup], now_ms: int) -> None:
        """Start over after a load: every member was heard just now."""
        self.groups = {group_id: StreamsGroupSoftState() for group_id in groups}
        self.timers.clear()
        self.now_ms = now_ms
        for group_id, group in groups.items():
            for member_id in sorted(group.members):
                self._meet(group_id, self.groups[group_id], group.members[member_id])

    def heard(self, group_id: str, member_id: MemberId, now_ms: int) -> bool:
        """A member is alive. False if there is no such member."""
        soft = self.groups.get(group_id)
        if soft is None or member_id not in soft.last_heard_ms:
            return False
        soft.last_heard_ms[member_id] = now_ms
        return True

    def wait_for_members(self, group_id: str, delay_ms: int, now_ms: int) -> None:
        """A group without members got its first: others may follow soon. A wait that runs goes on."""
        key = StreamsTimerKey(StreamsTimerKind.INITIAL, group_id)
        if delay_ms > 0 and key not in self.timers:
            self.timers.set(key, now_ms + delay_ms)

    def waits_for_members(self, group_id: str) -> bool:
        """Whether the group's first target is put off."""
        return StreamsTimerKey(StreamsTimerKind.INITIAL, group_id) in self.timers

    def session_is_over(self, key: StreamsTimerKey, now_ms: int) -> bool:
        """Whether the session that just came up has ended; if the member was heard since, it goes on."""
        last_ms = self.groups[key.group_id].last_heard_ms[key.member_id]
        deadline_ms = last_ms + self._session_timeout_ms(key.group_id)
        if deadline_ms > now_ms:
            self.timers.set(key, next_look_ms(deadline_ms, now_ms))
            return False
        self.retry_later(key, now_ms)
        return True

    def retry_later(self, key: StreamsTimerKey, now_ms: int) -> None:
        """Run the timer again soon, unless what it writes ends the member before."""
        self.timers.set(key, now_ms + WRITE_RETRY_MS)

    def restart_sessions(self, group_ids: Iterable[str]) -> None:
        """Session lengths changed: bring the timers in line."""
        for group_id in group_ids:
            soft = self.groups.get(group_id)
            for member_id in () if soft is None else soft.last_heard_ms:
                self._arm_session(group_id, member_id)

    def _arm_session(self, group_id: str, member_id: MemberId) -> None:
        last_ms = self.groups[group_id].last_heard_ms[member_id]
        deadline_ms = last_ms + self._session_timeout_ms(group_id)
        self.timers.set(StreamsTimerKey(StreamsTimerKind.SESSION, group_id, member_id), deadline_ms)

    def _meet(self, group_id: str, soft: StreamsGroupSoftState, member: StreamsGroupMember) -> None:
        soft.last_heard_ms[member.member_id] = self.now_ms
        self._arm_session(group_id, member.member_id)
        self._arm_rebalance(group_id, member)

    def _forget(self, group_id: str, soft: StreamsGroupSoftState, member_id: MemberId) -> None:
        soft.last_heard_ms.pop(member_id, None)
        for kind in (StreamsTimerKind.SESSION, StreamsTimerKind.REBALANCE):
            self.timers.cancel(StreamsTimerKey(kind, group_id, member_id))

    def _arm_rebalance(self, group_id: str, member: StreamsGroupMember) -> None:
        """Each record that leaves a revocation outstanding starts its timer anew; any other stops it."""
        key = StreamsTimerKey(StreamsTimerKind.REBALANCE, group_id, member.member_id)
        if member.state is StreamsGroupMemberState.UNREVOKED_TASKS and member.member_epoch >= 0:
            self.timers.set(key, self.now_ms + member.rebalance_timeout_ms)
        else:
            self.timers.cancel(key)
