"""What a coordinator knows of groups that is in no record: who was heard when, timers, answers to repeat.

It follows the records: a member's timers start when the record that makes the member is applied, and end
with its tombstone, so that nothing is left of members that went, and a failed append changes nothing. It is
rebuilt, with full session lengths, when a journal is loaded.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from fencepost.coordinator.consumer.group import ConsumerGroup
from fencepost.coordinator.consumer.member import ConsumerGroupMember
from fencepost.coordinator.consumer.states import ConsumerGroupMemberState
from fencepost.coordinator.protocol.consumer import ConsumerGroupHeartbeatRequest
from fencepost.coordinator.protocol.ids import MemberId
from fencepost.coordinator.protocol.outcome import NOTHING, Outcome
from fencepost.coordinator.protocol.records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupMemberMetadataKey,
    Record,
)
from fencepost.coordinator.timers import WRITE_RETRY_MS, MetadataRefresh, Timers, next_look_ms

UNREVOKED = ConsumerGroupMemberState.UNREVOKED_PARTITIONS
"""A name of its own: in Python 3.11 an attribute of an enum class costs as much as a call."""


class ConsumerTimerKind(enum.StrEnum):
    """What a deadline is for."""

    SESSION = "session"
    """The member was not heard for the group's session length."""
    REBALANCE = "rebalance"
    """The member did not confirm a revocation within its rebalance time-out."""
    JOIN = "join"
    """The member speaks the classic protocol, and did not join again when it was told to."""
    SYNC = "sync"
    """The member speaks the classic protocol, and did not ask for its assignment after it joined."""


class ConsumerTimerKey(NamedTuple):
    """One deadline."""

    kind: ConsumerTimerKind
    group_id: str
    member_id: MemberId


class MemberContact:
    """When a member was heard last, and its last heartbeat that changed nothing, with the answer.

    The answer may be given again to an equal heartbeat as long as no record was applied that it depends on
    (`version` is the group's) and time has not reached `until_ms`. Of a heartbeat that moves its member's
    epoch and nothing else, the next one and its answer are kept: they hold once the record is applied.
    """

    __slots__ = (
        "answer",
        "awaited_epoch",
        "last_ms",
        "request",
        "revoking",
        "session_ms",
        "until_ms",
        "version",
    )

    def __init__(self, last_ms: int) -> None:
        self.last_ms = last_ms
        self.session_ms: int | None = None
        """A session length of its own: a member of the classic protocol has one."""
        self.request: ConsumerGroupHeartbeatRequest | None = None
        self.answer: Outcome = NOTHING
        self.version = -1
        self.awaited_epoch: int | None = None
        """The epoch that the member has to reach before the answer holds; None if it need not."""
        self.until_ms = 0
        self.revoking = False
        """Whether its rebalance timer runs."""


class ConsumerGroupSoftState(MetadataRefresh):
    """The soft state of one group."""

    __slots__ = ("contacts", "version")

    def __init__(self) -> None:
        super().__init__()
        self.contacts: dict[MemberId, MemberContact] = {}
        self.version = 0
        """Counts what may change the answer to a heartbeat."""


class ConsumerSoftState:
    """The soft state of all groups of a coordinator, and its timers."""

    __slots__ = ("_session_timeout_ms", "groups", "now_ms", "resolving", "timers")

    def __init__(self, session_timeout_ms: Callable[[str], int]) -> None:
        self._session_timeout_ms = session_timeout_ms
        """The session length of a group, by its id."""
        self.groups: dict[str, ConsumerGroupSoftState] = {}
        self.timers: Timers[ConsumerTimerKey] = Timers()
        self.resolving: dict[str, None] = {}
        """Groups that wait for an answer about their regular expressions."""
        self.now_ms = 0
        """The time of the last event that was not just answered again; what is applied happens then."""

    def of(self, group_id: str) -> ConsumerGroupSoftState:
        """The group's soft state; for a group that no record has made yet, one that is not kept."""
        return self.groups.get(group_id) or ConsumerGroupSoftState()

    def follow(self, key: Any, value: Any, group: ConsumerGroup | None) -> None:
        """Adapt to a record of a group that was just applied; None if it ended the group."""
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
        """Start over after a load: every member was heard just now."""
        self.groups = {group_id: ConsumerGroupSoftState() for group_id in groups}
        self.timers.clear()
        self.resolving = {}
        self.now_ms = now_ms
        for group_id, group in groups.items():
            for member_id in sorted(group.members):
                self._meet(group_id, group.members[member_id])

    def session_is_over(self, key: ConsumerTimerKey, now_ms: int) -> bool:
        """Whether the session that just came up has ended; if the member was heard since, it goes on."""
        contact = self.groups[key.group_id].contacts[key.member_id]
        deadline_ms = contact.last_ms + self._session_ms(key.group_id, contact)
        if deadline_ms > now_ms:
            self.timers.set(key, next_look_ms(deadline_ms, now_ms))
            return False
        self.retry_later(key, now_ms)
        return True

    def retry_later(self, key: ConsumerTimerKey, now_ms: int) -> None:
        """Run the timer again soon, unless what it writes ends the member before."""
        self.timers.set(key, now_ms + WRITE_RETRY_MS)

    def restart_sessions(self, group_ids: Iterable[str]) -> None:
        """Session lengths changed: bring the timers in line, and forget answers."""
        for group_id in group_ids:
            soft = self.groups.get(group_id)
            if soft is None:
                continue
            soft.version += 1
            for member_id, contact in soft.contacts.items():
                self._arm_session(group_id, member_id, contact)

    def expect(self, kind: ConsumerTimerKind, group_id: str, member: ConsumerGroupMember) -> None:
        """A member of the classic protocol has its rebalance time-out to join, or to sync."""
        key = ConsumerTimerKey(kind, group_id, member.member_id)
        if kind is not ConsumerTimerKind.JOIN or key not in self.timers:
            self.timers.set(key, self.now_ms + member.rebalance_timeout_ms)

    def expect_no_more(self, kind: ConsumerTimerKind, group_id: str, member_id: MemberId) -> None:
        """It did."""
        self.timers.cancel(ConsumerTimerKey(kind, group_id, member_id))

    def discard(self, records: Iterable[Record]) -> None:
        """These were not written: of members that they were to make nothing is expected, nor other epochs."""
        for record in records:
            key = record.key
            contacts = self.of(key.group_id).contacts
            if type(key) is ConsumerGroupMemberMetadataKey and key.member_id not in contacts:
                self.expect_no_more(ConsumerTimerKind.SYNC, key.group_id, key.member_id)
            elif type(key) is ConsumerGroupCurrentMemberAssignmentKey and key.member_id in contacts:
                contacts[key.member_id].awaited_epoch = None

    def _session_ms(self, group_id: str, contact: MemberContact) -> int:
        return self._session_timeout_ms(group_id) if contact.session_ms is None else contact.session_ms

    def _arm_session(self, group_id: str, member_id: MemberId, contact: MemberContact) -> None:
        key = ConsumerTimerKey(ConsumerTimerKind.SESSION, group_id, member_id)
        self.timers.set(key, contact.last_ms + self._session_ms(group_id, contact))

    def _meet(self, group_id: str, member: ConsumerGroupMember) -> None:
        contact = self.groups[group_id].contacts[member.member_id] = MemberContact(self.now_ms)
        contact.session_ms = None if member.classic is None else member.classic.session_timeout_ms
        self._arm_session(group_id, member.member_id, contact)
        self._arm_rebalance(group_id, member, contact)

    def _told(self, group_id: str, member: ConsumerGroupMember, contact: MemberContact) -> None:
        """A member said something of itself: it may have changed its protocol."""
        session_ms = None if member.classic is None else member.classic.session_timeout_ms
        if contact.session_ms != session_ms:
            contact.session_ms = session_ms
            self._arm_session(group_id, member.member_id, contact)
        if session_ms is None:
            self.expect_no_more(ConsumerTimerKind.JOIN, group_id, member.member_id)
            self.expect_no_more(ConsumerTimerKind.SYNC, group_id, member.member_id)

    def _forget(self, group_id: str, member_id: MemberId) -> None:
        self.groups[group_id].contacts.pop(member_id, None)
        for kind in (
            ConsumerTimerKind.SESSION,
            ConsumerTimerKind.REBALANCE,
            ConsumerTimerKind.JOIN,
            ConsumerTimerKind.SYNC,
        ):
            self.timers.cancel(ConsumerTimerKey(kind, group_id, member_id))

    def _arm_rebalance(self, group_id: str, member: ConsumerGroupMember, contact: MemberContact) -> None:
        """Each record that leaves a revocation outstanding starts its timer anew; any other stops it.

        A member's epoch stands still while it is in that state, so the timer is about that epoch. A member of
        the classic protocol has the time to join and to sync instead.
        """
        revoking = member.state is UNREVOKED and member.member_epoch >= 0 and member.classic is None
        if revoking:
            key = ConsumerTimerKey(ConsumerTimerKind.REBALANCE, group_id, member.member_id)
            self.timers.set(key, self.now_ms + member.rebalance_timeout_ms)
        elif contact.revoking:
            self.timers.cancel(ConsumerTimerKey(ConsumerTimerKind.REBALANCE, group_id, member.member_id))
        contact.revoking = revoking
