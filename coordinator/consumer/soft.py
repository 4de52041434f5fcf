"""The state of consumer groups that no record holds: timers, and responses that may be repeated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fencepost.coordinator.consumer.group import ConsumerGroup
from fencepost.coordinator.consumer.member import ConsumerGroupMember
from fencepost.coordinator.consumer.states import ConsumerGroupMemberState
from fencepost.coordinator.epoch_groups import EpochGroupSoftState, MemberContact, SoftState
from fencepost.coordinator.protocol.consumer import ConsumerGroupHeartbeatRequest
from fencepost.coordinator.protocol.ids import MemberId
from fencepost.coordinator.protocol.outcome import NOTHING, Outcome
from fencepost.coordinator.protocol.records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupMemberMetadataKey,
    Record,
)
from fencepost.coordinator.timers import GroupTimerKey, GroupTimerKind

UNREVOKED = ConsumerGroupMemberState.UNREVOKED_PARTITIONS
"""A module-level name: in Python 3.11 an attribute of an enum class costs as much as a call."""


class ConsumerGroupContact(MemberContact):
    """The last contact with a member, and its last heartbeat that changed nothing, with the response.

    An equal heartbeat may get the same response again until `until_ms`, as long as no record that it depends
    on is applied (`version` is the group's). After a heartbeat that moves its member's epoch and nothing
    else, the next heartbeat and its response are kept: they hold once the record is applied.
    """

    __slots__ = ("answer", "awaited_epoch", "request", "revoking", "until_ms", "version")

    def __init__(self, last_ms: int) -> None:
        super().__init__(last_ms)
        self.request: ConsumerGroupHeartbeatRequest | None = None
        self.answer: Outcome = NOTHING
        self.version = -1
        self.awaited_epoch: int | None = None
        """The epoch that the member has to reach before the response holds; None without such a condition."""
        self.until_ms = 0
        self.revoking = False
        """True if its rebalance timer runs."""


class ConsumerGroupSoftState(EpochGroupSoftState[ConsumerGroupContact]):
    """The soft state of one group."""

    __slots__ = ("version",)

    def __init__(self) -> None:
        super().__init__()
        self.version = 0
        """Number of changes that may change the response to a heartbeat."""


class ConsumerSoftState(SoftState[ConsumerGroupSoftState, ConsumerGroup, ConsumerGroupMember]):
    """The soft state of all consumer groups of a coordinator, and its timers."""

    __slots__ = ("resolving",)

    timer_kinds = (
        GroupTimerKind.SESSION,
        GroupTimerKind.REBALANCE,
        GroupTimerKind.JOIN,
        GroupTimerKind.SYNC,
    )

    def __init__(self, session_timeout_ms: Callable[[str], int]) -> None:
        super().__init__(ConsumerGroupSoftState, session_timeout_ms)
        self.resolving: dict[str, None] = {}
        """Groups whose regular expressions are being resolved."""

    def follow(self, key: Any, value: Any, group: ConsumerGroup | None) -> None:
        """Update the soft state after a record of a group was applied; None if the record ended the group."""
        group_id = key.group_id
        if group is None:
            self.groups.pop(group_id, None)
            return
        soft = self.groups.get(group_id)
        if soft is None:
            soft = self.groups[group_id] = ConsumerGroupSoftState()
        if type(key) is ConsumerGroupCurrentMemberAssignmentKey and value is not None:
            member = group.members[key.member_id]
            contact = soft.contacts.get(key.member_id)
            if contact is not None:
                awaited = contact.awaited_epoch == group.group_epoch and member.is_reconciled_to(
                    group.group_epoch
                )
                contact.version = soft.version if awaited else -1
                contact.awaited_epoch = None
                self._arm_rebalance(group_id, member, contact)
        else:
            soft.version += 1
            if type(key) is ConsumerGroupMemberMetadataKey:
                if value is None:
                    self._forget(group_id, key.member_id)
                elif key.member_id not in soft.contacts:
                    self._meet(group_id, group.members[key.member_id])
                else:
                    self._told(group_id, group.members[key.member_id], soft.contacts[key.member_id])

    def rebuild(self, groups: Mapping[str, ConsumerGroup], now_ms: int) -> None:
        """Start over after a load: every session starts now."""
        self.resolving = {}
        super().rebuild(groups, now_ms)

    def restart_sessions(self, group_id: str) -> None:
        """Adjust the timers of a group, and forget kept responses."""
        self.of(group_id).version += 1
        super().restart_sessions(group_id)

    def expect(self, kind: GroupTimerKind, group_id: str, member: ConsumerGroupMember) -> None:
        """Start the rebalance timeout of a classic-protocol member that has to join, or to sync."""
        key = GroupTimerKey(kind, group_id, member.member_id)
        if kind is not GroupTimerKind.JOIN or key not in self.timers:
            self.timers.set(key, self.now_ms + member.rebalance_timeout_ms)

    def expect_no_more(self, kind: GroupTimerKind, group_id: str, member_id: MemberId) -> None:
        """Cancel the timeout of a member that joined or synced."""
        self.timers.cancel(GroupTimerKey(kind, group_id, member_id))

    def discard(self, records: Iterable[Record]) -> None:
        """Undo expectations about members and epochs in records that were not written."""
        for record in records:
            key = record.key
            contacts = self.of(key.group_id).contacts
            if type(key) is ConsumerGroupMemberMetadataKey and key.member_id not in contacts:
                self.expect_no_more(GroupTimerKind.SYNC, key.group_id, key.member_id)
            elif type(key) is ConsumerGroupCurrentMemberAssignmentKey and key.member_id in contacts:
                contacts[key.member_id].awaited_epoch = None

    def _first_contact(self, member: ConsumerGroupMember) -> ConsumerGroupContact:
        contact = ConsumerGroupContact(self.now_ms)
        contact.session_ms = None if member.classic is None else member.classic.session_timeout_ms
        return contact

    def _told(self, group_id: str, member: ConsumerGroupMember, contact: ConsumerGroupContact) -> None:
        """Adapt to a change of a member's metadata: it may have changed its protocol."""
        session_ms = None if member.classic is None else member.classic.session_timeout_ms
        if contact.session_ms != session_ms:
            contact.session_ms = session_ms
            self._arm_session(group_id, member.member_id, contact)
        if session_ms is None:
            self.expect_no_more(GroupTimerKind.JOIN, group_id, member.member_id)
            self.expect_no_more(GroupTimerKind.SYNC, group_id, member.member_id)

    def _arm_rebalance(
        self, group_id: str, member: ConsumerGroupMember, contact: ConsumerGroupContact
    ) -> None:
        """Restart the timer with each record that leaves a revocation outstanding; cancel it with any other.

        A member's epoch does not change in that state, so the timer is for that epoch. A member of the
        classic protocol has time limits to join and to sync instead.
        """
        revoking = member.state is UNREVOKED and member.member_epoch >= 0 and member.classic is None
        if revoking:
            key = GroupTimerKey(GroupTimerKind.REBALANCE, group_id, member.member_id)
            self.timers.set(key, self.now_ms + member.rebalance_timeout_ms)
        elif contact.revoking:
            self.timers.cancel(GroupTimerKey(GroupTimerKind.REBALANCE, group_id, member.member_id))
        contact.revoking = revoking
