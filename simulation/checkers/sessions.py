"""The removal of members: for a reason, after their whole timeouts, and no later (KIP-848, Sessions).

The checker keeps its own account of the time of each member's last contact. A coordinator that has loaded
treats every member as just seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from fencepost.coordinator.protocol import classic, consumer
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import LEAVE_EPOCH, MemberId
from fencepost.coordinator.protocol.outcome import DeadlineReached, MemberFenced, MemberHeard, SessionEnded
from fencepost.coordinator.protocol.records import GroupMetadataKey
from fencepost.simulation.checkers.base import Finding

if TYPE_CHECKING:
    from fencepost.coordinator.consumer.member import ConsumerGroupMember
    from fencepost.coordinator.protocol.outcome import Outcome
    from fencepost.simulation.checkers.reconciliation import Reconciliation
    from fencepost.simulation.checkers.step import GroupStep, MemberChange
    from fencepost.simulation.kernel.observers import StepEvent

NONE = ErrorCode.NONE
"""A name of its own: in Python 3.11 an attribute of an enum class costs as much as a call."""

_REQUESTS: Final = (classic.HeartbeatRequest, classic.JoinGroupRequest, classic.SyncGroupRequest)
_ANSWERS: Final = (classic.HeartbeatResponse, classic.JoinGroupResponse, classic.SyncGroupResponse)
"""The classic protocol's responses."""
_ALIVE: Final = frozenset({ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS})
"""Errors of responses to a member whose session goes on."""
_NEVER_MS: Final = 2**63
_SLACK_MS: Final = 1
"""Events in the millisecond in which a session ends may come before its timer."""


class Sessions:
    """The sessions of one group's members. Times are in milliseconds of the coordinator."""

    def __init__(self) -> None:
        self.heard: dict[MemberId, int] = {}
        """Time of each member's last certain contact."""
        self._perhaps: dict[MemberId, int] = {}
        """Time of a request that may not count as contact: it was refused because of the log, or was a leave.
        """
        self._told_to_join: dict[MemberId, int] = {}
        """Classic members: the time since which they know that they have to join again."""
        self._joined: dict[MemberId, int] = {}
        """Classic members too: the time since which they have joined, and not requested their assignment."""
        self._excused_ms = 0
        self._look_ms = _NEVER_MS
        """Before this time no session can end."""

    def loaded(self, now_ms: int) -> None:
        """Note that a coordinator has loaded: sessions have their full length again, and no member is waited
        for."""
        self.heard = dict.fromkeys(self.heard, now_ms)
        self._told_to_join.clear()
        self._joined.clear()

    def excuse(self, now_ms: int) -> None:
        """Note that timers that ran out before could not act."""
        self._excused_ms = now_ms

    def takes(self, event: StepEvent, outcome: Outcome, now_ms: int) -> None:
        """Take in a request that may keep its member's session."""
        reply: Any = outcome.reply
        if type(event) is consumer.ConsumerGroupHeartbeatRequest:
            if type(reply) is consumer.ConsumerGroupHeartbeatResponse:
                lives = reply.error_code in _ALIVE and event.member_epoch >= 0
                (self.heard if lives else self._perhaps)[reply.member_id or event.member_id] = now_ms
        elif isinstance(event, MemberHeard):
            self.heard[event.member_id] = now_ms
        elif isinstance(event, _REQUESTS) and isinstance(reply, _ANSWERS):
            member_id = getattr(reply, "member_id", None) or event.member_id
            if reply.error_code not in _ALIVE:
                self._perhaps[member_id] = now_ms
                return
            self.heard[member_id] = now_ms
            if isinstance(event, classic.JoinGroupRequest):
                self._told_to_join.pop(member_id, None)
                self._joined[member_id] = now_ms
            elif isinstance(event, classic.SyncGroupRequest):
                self._joined.pop(member_id, None)
            elif reply.error_code != NONE:
                self._told_to_join.setdefault(member_id, now_ms)

    def check(
        self, step: GroupStep, reconciliation: Reconciliation, default_session_ms: int
    ) -> Iterator[Finding]:
        """Findings of one event; `reconciliation` has not taken it in."""
        came = {
            change.after.instance_id
            for change in step.members
            if change.before is None and change.after is not None
        }
        for change in step.members:
            if change.after is None:
                if change.before is not None and change.before.instance_id not in came - {None}:
                    yield from self._removed(step, change, reconciliation, default_session_ms)
                self._forget(change.member_id)
            else:
                # A member that joins again, under whatever name, begins a session; it may be a short one.
                self.keeps(change.after, default_session_ms, step.now_ms)

    def keeps(self, member: ConsumerGroupMember, default_session_ms: int, now_ms: int) -> None:
        """Take in a step in which the member stays."""
        heard_ms = self.heard.setdefault(member.member_id, now_ms)
        self._look_ms = min(self._look_ms, heard_ms + _session_ms(member, default_session_ms))

    def _forget(self, member_id: MemberId) -> None:
        for known in (self.heard, self._perhaps, self._told_to_join, self._joined):
            known.pop(member_id, None)

    def _removed(
        self,
        step: GroupStep,
        change: MemberChange,
        reconciliation: Reconciliation,
        default_session_ms: int,
    ) -> Iterator[Finding]:
        member, event = change.before, step.event
        assert member is not None
        who = f"{change.member_id} of {step.group_id}"
        if not isinstance(event, DeadlineReached):
            if not _may_remove(step, change):
                yield (
                    "members-kept",
                    f"{who} was removed by {type(event).__name__}, which does not concern it",
                )
            return
        reason = next(
            (
                effect.reason
                for effect in step.outcome.effects
                if isinstance(effect, MemberFenced) and effect.member_id == change.member_id
            ),
            None,
        )
        if reason is None:
            if not _is_other_kind(step):
                yield "members-kept", f"{who} was removed without a reported reason"
            return
        began: Mapping[MemberId, int] = {
            "session": self.heard,
            "rebalance": reconciliation.revoking_since,
            "join": self._told_to_join,
            "sync": self._joined,
        }[reason]
        since_ms = began.get(change.member_id)
        limit_ms = (
            _session_ms(member, default_session_ms) if reason == "session" else member.rebalance_timeout_ms
        )
        if since_ms is None or step.now_ms - since_ms < limit_ms:
            waited = "which had not begun" if since_ms is None else f"after {step.now_ms - since_ms} ms"
            yield "members-kept", f"{who} was removed by its {reason} timeout of {limit_ms} ms, {waited}"

    def is_due(self, now_ms: int) -> bool:
        """Return true if a session may have ended before this time."""
        return now_ms > self._look_ms + _SLACK_MS

    def overdue(
        self, group_id: str, members: Mapping[MemberId, ConsumerGroupMember], session_ms: int, now_ms: int
    ) -> Iterator[Finding]:
        """Yield members that were silent for longer than their session, and are still there."""
        self._look_ms = _NEVER_MS
        for member_id, member in members.items():
            heard_ms = max(self.heard.get(member_id, now_ms), self._perhaps.get(member_id, 0))
            ends_ms = max(heard_ms, self._excused_ms) + _session_ms(member, session_ms)
            self._look_ms = min(self._look_ms, ends_ms)
            if now_ms > ends_ms + _SLACK_MS:
                yield (
                    "gone-members",
                    f"{member_id} of {group_id} was last seen {now_ms - heard_ms} ms ago, its session is"
                    f" {_session_ms(member, session_ms)} ms, and it is still a member",
                )


def _session_ms(member: ConsumerGroupMember, default_ms: int) -> int:
    return default_ms if member.classic is None else member.classic.session_timeout_ms


def _is_other_kind(step: GroupStep) -> bool:
    """Return true if the group becomes one of another kind: its members are converted."""
    return any(type(record.key) is GroupMetadataKey for record in step.outcome.records)


def _may_remove(step: GroupStep, change: MemberChange) -> bool:
    """Return true if the event removes this member."""
    event = step.event
    if isinstance(event, consumer.ConsumerGroupHeartbeatRequest):
        leaves = event.member_epoch == LEAVE_EPOCH and event.member_id == change.member_id
        return leaves or _is_other_kind(step)
    if isinstance(event, SessionEnded):
        return event.member_id == change.member_id
    if isinstance(event, consumer.LeaveGroupRequest | consumer.LeaveGroupBatchRequest):
        named = event.members if isinstance(event, consumer.LeaveGroupBatchRequest) else (event,)
        before = change.before
        instance_id = None if before is None else before.instance_id
        if any(
            one.member_id == change.member_id if one.instance_id is None else one.instance_id == instance_id
            for one in named
        ):
            return True
    return _is_other_kind(step)
