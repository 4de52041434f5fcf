"""The removal of members: for a reason, after their whole timeouts, and no later (KIP-848, Sessions).

This is an account of the times since which members are silent, or are waited for. A coordinator that has
loaded treats every member as just seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from fencepost.coordinator.protocol import classic, consumer
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import MemberId
from fencepost.coordinator.protocol.outcome import DeadlineReached, MemberFenced, MemberHeard
from fencepost.simulation.judge import consumer_model as model
from fencepost.simulation.judge.base import Finding

if TYPE_CHECKING:
    from fencepost.coordinator.consumer.member import ConsumerGroupMember
    from fencepost.coordinator.protocol.outcome import Outcome
    from fencepost.simulation.judge.step import GroupStep, MemberChange
    from fencepost.simulation.kernel.observers import StepEvent

_REQUESTS: Final = (classic.HeartbeatRequest, classic.JoinGroupRequest, classic.SyncGroupRequest)
_ANSWERS: Final = (classic.HeartbeatResponse, classic.JoinGroupResponse, classic.SyncGroupResponse)
"""The classic protocol's responses."""
_ALIVE: Final = frozenset({ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS})
"""Errors of responses to a member whose session goes on."""
_NEVER_MS: Final = 2**63
_SLACK_MS: Final = 1
"""Events in the millisecond in which a session ends may come before its timer."""


class Timeouts:
    """The running timeouts of one group's members. Times are in milliseconds of the coordinator."""

    def __init__(self, slack_ms: int = 0) -> None:
        self._slack_ms = slack_ms
        """Longest delay of a rebalance timer, in ms; 0 in virtual time."""
        self.heard: dict[MemberId, int] = {}
        """Time of each member's last certain contact."""
        self._perhaps: dict[MemberId, int] = {}
        """Time of a request that may not count as contact: it was refused because of the log, or was a leave.
        """
        self._revoking: dict[MemberId, int] = {}
        """Time since which members have to release partitions."""
        self._told_to_join: dict[MemberId, int] = {}
        """Classic members: the time since which they know that they have to join again."""
        self._joined: dict[MemberId, int] = {}
        """Classic members too: the time since which they have joined, and not requested their assignment."""
        self._excused_ms = 0
        self._look_ms = _NEVER_MS
        """Before this time no session can end."""

    def loaded(self, now_ms: int) -> None:
        """Note that a coordinator has loaded: timeouts have their full length again, and no classic member is
        waited for."""
        self.heard = dict.fromkeys(self.heard, now_ms)
        self._revoking = dict.fromkeys(self._revoking, now_ms)
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
            is_refused_sync = (
                isinstance(event, classic.SyncGroupRequest) and reply.error_code != ErrorCode.NONE
            )
            if is_refused_sync or reply.error_code not in _ALIVE:  # only a successful sync begins a session
                self._perhaps[member_id] = now_ms
                if reply.error_code in _ALIVE:
                    self._told_to_join.setdefault(member_id, now_ms)
                return
            self.heard[member_id] = now_ms
            if isinstance(event, classic.JoinGroupRequest):
                self._told_to_join.pop(member_id, None)
                self._joined[member_id] = now_ms
            elif isinstance(event, classic.SyncGroupRequest):
                self._joined.pop(member_id, None)
            elif reply.error_code != ErrorCode.NONE:
                self._told_to_join.setdefault(member_id, now_ms)

    def check_removals(self, step: GroupStep, session_ms: int) -> Iterator[Finding]:
        """Findings of members that one event removed; `check` has not taken it in."""
        for change in step.members:
            before, after = change.before, change.after
            if after is not None:
                # A member that joins again, under whatever name, begins a session; it may be a short one.
                since_ms = self.heard.setdefault(change.member_id, step.now_ms)
                ends_ms = since_ms + model.timeout_ms("session", after, session_ms)
                self._look_ms = min(self._look_ms, ends_ms)
            elif before is not None and not any(
                each.after is not None and step.predecessor(each.after) is before for each in step.members
            ):
                yield from self._removed(step, change, before, session_ms)

    def _removed(
        self, step: GroupStep, change: MemberChange, member: ConsumerGroupMember, session_ms: int
    ) -> Iterator[Finding]:
        who = f"{change.member_id} of {step.group_id}"
        fenced = (each for each in step.outcome.effects if isinstance(each, MemberFenced))
        reason = next((each.reason for each in fenced if each.member_id == change.member_id), None)
        if not isinstance(step.event, DeadlineReached) or reason is None:
            # In a group that becomes one of another kind members are converted.
            if not model.may_remove(step.event, member) and not step.touched.converted:
                cause = (
                    f"{type(step.event).__name__}, which does not concern it, and without a reported reason"
                )
                yield "members-kept", f"{who} was removed by {cause}"
            return
        began: Mapping[str, Mapping[MemberId, int]] = {
            "session": self.heard,
            "rebalance": self._revoking,
            "join": self._told_to_join,
            "sync": self._joined,
        }
        since_ms, limit_ms = began[reason].get(change.member_id), model.timeout_ms(reason, member, session_ms)
        if since_ms is None or step.now_ms - since_ms < limit_ms:
            waited = "which had not begun" if since_ms is None else f"after {step.now_ms - since_ms} ms"
            yield "members-kept", f"{who} was removed by its {reason} timeout of {limit_ms} ms, {waited}"

    def check(self, step: GroupStep) -> Iterator[Finding]:
        """Take one event in; a reconciliation that changes its member restarts the rebalance timer."""
        for change in step.members:
            before, after, member_id = change.before, change.after, change.member_id
            since_ms = self._revoking.pop(member_id, None)
            if since_ms is not None and before is not None:
                yield from self._too_long(step.group_id, before, since_ms, step.now_ms)
            if after is None:
                for known in (self.heard, self._perhaps, self._told_to_join, self._joined):
                    known.pop(member_id, None)
            elif model.is_timed(after):
                same = before is not None and model.Standing.of(before) == model.Standing.of(after)
                self._revoking[member_id] = since_ms if same and since_ms is not None else step.now_ms

    def _too_long(
        self, group_id: str, member: ConsumerGroupMember, since_ms: int, now_ms: int
    ) -> Iterator[Finding]:
        limit_ms = model.timeout_ms("rebalance", member, 0)
        if now_ms - max(since_ms, self._excused_ms) > limit_ms + self._slack_ms:
            yield (
                "revocation-bounded",
                f"{member.member_id} of {group_id} was UNREVOKED for {now_ms - since_ms} ms, its rebalance"
                f" timeout is {limit_ms} ms",
            )

    def is_due(self, now_ms: int) -> bool:
        """Return true if a session may have ended before this time."""
        return now_ms > self._look_ms + _SLACK_MS

    def overdue(
        self,
        group_id: str,
        members: Mapping[MemberId, ConsumerGroupMember],
        session_ms: int | None,
        now_ms: int,
    ) -> Iterator[Finding]:
        """Yield members that are still there, though they have not released their partitions within their
        rebalance timeouts, or were silent for longer than their sessions; None if these are not known."""
        for member_id, since_ms in self._revoking.items():
            if member_id in members:
                yield from self._too_long(group_id, members[member_id], since_ms, now_ms)
        if session_ms is None:
            return
        self._look_ms = _NEVER_MS
        for member_id, member in members.items():
            heard_ms = max(self.heard.get(member_id, now_ms), self._perhaps.get(member_id, 0))
            limit_ms = model.timeout_ms("session", member, session_ms)
            ends_ms = max(heard_ms, self._excused_ms) + limit_ms
            self._look_ms = min(self._look_ms, ends_ms)
            if now_ms > ends_ms + _SLACK_MS:
                yield (
                    "gone-members",
                    f"{member_id} of {group_id} was last seen {now_ms - heard_ms} ms ago, its session is"
                    f" {limit_ms} ms, and it is still a member",
                )
