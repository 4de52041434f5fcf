"""The state of streams groups that no record holds: timers, and the topics as last seen.

A request to shut an application down is lost when a journal is loaded, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fencepost.coordinator.epoch_groups import EpochGroupSoftState, MemberContact, SoftState
from fencepost.coordinator.protocol import streams_records
from fencepost.coordinator.protocol.ids import MemberId
from fencepost.coordinator.streams.group import StreamsGroup
from fencepost.coordinator.streams.member import StreamsGroupMember
from fencepost.coordinator.streams.states import StreamsGroupMemberState
from fencepost.coordinator.streams.topology import ConfiguredTopology
from fencepost.coordinator.timers import GroupTimerKey, GroupTimerKind


class StreamsGroupSoftState(EpochGroupSoftState[MemberContact]):
    """The soft state of one group."""

    __slots__ = ("configured", "endpoint_epoch", "shutdown_requested_by")

    def __init__(self) -> None:
        super().__init__()
        self.configured: ConfiguredTopology | None = None
        """The topology as configured at the last look at its topics."""
        self.endpoint_epoch = 0
        """Raised with each change of the partitions that can be queried at endpoints."""
        self.shutdown_requested_by: MemberId | None = None
        """The first member that requested a shutdown of the application; None again once all members are
        gone."""

    def request_shutdown(self, member_id: MemberId) -> None:
        """Remember the first member that requests a shutdown of the application."""
        if self.shutdown_requested_by is None:
            self.shutdown_requested_by = member_id


class StreamsSoftState(SoftState[StreamsGroupSoftState, StreamsGroup, StreamsGroupMember]):
    """The soft state of all streams groups of a coordinator, and its timers."""

    __slots__ = ()

    timer_kinds = (GroupTimerKind.SESSION, GroupTimerKind.REBALANCE)

    def __init__(self, session_timeout_ms: Callable[[str], int]) -> None:
        super().__init__(StreamsGroupSoftState, session_timeout_ms)

    def follow(self, key: Any, value: Any, group: StreamsGroup | None) -> None:
        """Update the soft state after a record of a group was applied; None if the record ended the group."""
        group_id = key.group_id
        if group is None:
            if self.groups.pop(group_id, None) is not None:
                self.timers.cancel(GroupTimerKey(GroupTimerKind.INITIAL, group_id))
            return
        soft = self.groups.get(group_id)
        if soft is None:
            soft = self.groups[group_id] = StreamsGroupSoftState()
        if type(key) is streams_records.StreamsGroupCurrentMemberAssignmentKey and value is not None:
            self._arm_rebalance(group_id, group.members[key.member_id])
        elif type(key) is streams_records.StreamsGroupMemberMetadataKey:
            if value is None:
                self._forget(group_id, key.member_id)
            elif key.member_id not in soft.contacts:
                self._meet(group_id, group.members[key.member_id])
        if not group.members:
            soft.shutdown_requested_by = None

    def wait_for_members(self, group_id: str, delay_ms: int, now_ms: int) -> None:
        """Start to wait for more members after a group's first one, unless it waits already."""
        key = GroupTimerKey(GroupTimerKind.INITIAL, group_id)
        if delay_ms > 0 and key not in self.timers:
            self.timers.set(key, now_ms + delay_ms)

    def waits_for_members(self, group_id: str) -> bool:
        """Return true if the group's first target is delayed."""
        return GroupTimerKey(GroupTimerKind.INITIAL, group_id) in self.timers

    def _first_contact(self, member: StreamsGroupMember) -> MemberContact:
        return MemberContact(self.now_ms)

    def _arm_rebalance(
        self, group_id: str, member: StreamsGroupMember, contact: MemberContact | None = None
    ) -> None:
        """Restart the timer with each record that leaves a revocation outstanding; cancel it with any
        other."""
        key = GroupTimerKey(GroupTimerKind.REBALANCE, group_id, member.member_id)
        if member.state is StreamsGroupMemberState.UNREVOKED_TASKS and member.member_epoch >= 0:
            self.timers.set(key, self.now_ms + member.rebalance_timeout_ms)
        else:
            self.timers.cancel(key)
