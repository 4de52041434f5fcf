"""One member on its way to its target: states, epochs and assignment agree (KIP-848, Reconciliation)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from fencepost.coordinator.consumer.states import ConsumerGroupMemberState
from fencepost.coordinator.protocol.classic import JoinGroupRequest
from fencepost.coordinator.protocol.consumer import ConsumerGroupHeartbeatRequest
from fencepost.coordinator.protocol.consumer_protocol import read_subscription
from fencepost.coordinator.protocol.ids import (
    JOIN_EPOCH,
    NO_PARTITIONS,
    STATIC_LEAVE_EPOCH,
    MemberId,
    Partitions,
)
from fencepost.simulation.checkers.base import Finding, shown
from fencepost.simulation.checkers.ownership import changes, in_order
from fencepost.simulation.checkers.step import subscribed_topics
from fencepost.simulation.kernel.observers import RecordsObserved

if TYPE_CHECKING:
    from fencepost.coordinator.consumer.member import ConsumerGroupMember
    from fencepost.simulation.checkers.ownership import Ownership
    from fencepost.simulation.checkers.step import GroupStep, MemberChange

# Names of their own: in Python 3.11 an attribute of an enum class costs as much as a call.
STABLE, UNREVOKED, UNRELEASED, _ = ConsumerGroupMemberState

_RECONCILED: Final = (STABLE, UNRELEASED)


class Reconciliation:
    """Checks the members that an event touched; `ownership` has taken the event in already."""

    def __init__(self, ownership: Ownership, slack_ms: int = 0) -> None:
        self._ownership = ownership
        self._slack_ms = slack_ms
        """Longest delay of a timer, in ms; 0 in virtual time."""
        self.revoking_since: dict[MemberId, int] = {}
        """Time since which members have to release partitions, by the rebalance timeouts."""
        self._excused_ms = 0

    def loaded(self, now_ms: int) -> None:
        """Note that a coordinator has loaded: rebalance timers run their full length again."""
        self.revoking_since = dict.fromkeys(self.revoking_since, now_ms)

    def excuse(self, now_ms: int) -> None:
        """Note that timers that ran out before could not act."""
        self._excused_ms = now_ms

    def check(self, step: GroupStep) -> Iterator[Finding]:
        """Findings of one event."""
        for change in step.members:
            before, after = change.before, change.after
            if change.member_id in self.revoking_since or (after is not None and after.state is UNREVOKED):
                yield from self._bounded(step, change)
            if after is not None and after != before:
                if not _only_epoch_rose(before, after):
                    yield from _epochs_of_partitions(step, after, change.holds)
                    if before is not None and not isinstance(step.event, RecordsObserved):
                        yield from _epochs_kept(step, before, after)
                if after.member_epoch != STATIC_LEAVE_EPOCH:
                    yield from _revocation(step, change, after)
                    yield from self._against_target(step, change, after)
                else:
                    yield from _away(step, before, after)

    def _bounded(self, step: GroupStep, change: MemberChange) -> Iterator[Finding]:
        """A rebalance timer is restarted by each reconciliation that changed the member.

        Members that speak the classic protocol have no timer: they are expected to join, and to sync.
        """
        after, member_id = change.after, change.member_id
        since = self.revoking_since.pop(member_id, None)
        if since is not None and change.before is not None:
            waited, limit = step.now_ms - since, change.before.rebalance_timeout_ms
            if step.now_ms - max(since, self._excused_ms) > limit + self._slack_ms:
                yield (
                    "revocation-bounded",
                    f"{member_id} of {step.group_id} was UNREVOKED for {waited} ms, its rebalance"
                    f" timeout is {limit} ms",
                )
        revoking = after is not None and after.state == UNREVOKED and after.classic is None
        if revoking and after is not None and after.member_epoch != STATIC_LEAVE_EPOCH:
            same = (
                since is not None and change.before is not None and _same_reconciliation(change.before, after)
            )
            self.revoking_since[member_id] = since if same and since is not None else step.now_ms

    def overdue(
        self, group_id: str, members: dict[MemberId, ConsumerGroupMember], now_ms: int
    ) -> Iterator[Finding]:
        """Yield members that are UNREVOKED beyond their rebalance timeout now."""
        for member_id, since in self.revoking_since.items():
            member = members.get(member_id)
            if member is None:
                continue
            if now_ms - max(since, self._excused_ms) > member.rebalance_timeout_ms + self._slack_ms:
                yield (
                    "revocation-bounded",
                    f"{member_id} of {group_id} has been UNREVOKED since {since} ms, longer than its"
                    f" rebalance timeout of {member.rebalance_timeout_ms} ms",
                )

    def _against_target(
        self, step: GroupStep, change: MemberChange, after: ConsumerGroupMember
    ) -> Iterator[Finding]:
        group, before = step.group, change.before
        assert group is not None
        if after.state not in _RECONCILED or after.member_epoch != group.assignment_epoch:
            return
        if before is not None and _same_place(before, after):
            return  # only the description of the member changed
        topics = subscribed_topics(after, group.resolved, step.image)
        wanted = group.targets.get(change.member_id, NO_PARTITIONS)
        if not wanted.keys() <= topics:
            topics |= step.unsettled
            wanted = {topic_id: numbers for topic_id, numbers in wanted.items() if topic_id in topics}
        if after.state is STABLE and after.assigned == wanted:
            return
        who = f"{change.member_id} of {step.group_id}"
        lacking, extra = map(in_order, changes(wanted, after.assigned))
        if extra:
            yield (
                "assigned-in-target",
                f"{who} at epoch {after.member_epoch} is assigned {shown(extra)} outside its target or"
                " subscription",
            )
        shrunk = (
            before is not None and before.member_epoch == after.member_epoch and before.state == after.state
        )
        if after.state == STABLE and lacking and not shrunk:
            yield (
                "stable-owns-target",
                f"{who} became STABLE at target epoch {after.member_epoch} without {shown(lacking)}",
            )
        if after.state == UNRELEASED and not any(self._ownership.others(change.member_id, lacking)):
            yield (
                "unreleased-waits",
                f"{who} waits at epoch {after.member_epoch}, but no other member holds {shown(lacking)}",
            )


def _same_place(before: ConsumerGroupMember, after: ConsumerGroupMember) -> bool:
    return (
        before.member_epoch == after.member_epoch
        and before.state is after.state
        and before.assigned == after.assigned
        and before.pending_revocation == after.pending_revocation
    )


def _only_epoch_rose(before: ConsumerGroupMember | None, after: ConsumerGroupMember) -> bool:
    """Return true if it holds the very same as before, since the same epochs."""
    return (
        before is not None
        and before.assigned is after.assigned
        and before.pending_revocation is after.pending_revocation
        and before.assignment_epochs is after.assignment_epochs
        and before.member_epoch <= after.member_epoch
    )


def _same_reconciliation(before: ConsumerGroupMember, after: ConsumerGroupMember) -> bool:
    return _same_place(before, after) and before.previous_member_epoch == after.previous_member_epoch


def _away(
    step: GroupStep, before: ConsumerGroupMember | None, after: ConsumerGroupMember
) -> Iterator[Finding]:
    """Check that a static member that is away keeps what it is assigned, and has nothing to release."""
    kept = after.assigned if before is None else before.assigned
    if after.pending_revocation or after.assigned != kept:
        yield (
            "revocation-state",
            f"{after.member_id} of {step.group_id} is away with {shown(after.assigned)}, it had"
            f" {shown(kept)}, and with {shown(after.pending_revocation)} to be revoked",
        )


def _revocation(step: GroupStep, change: MemberChange, after: ConsumerGroupMember) -> Iterator[Finding]:
    who = f"{change.member_id} of {step.group_id}"
    unrevoked = after.state == UNREVOKED
    if unrevoked != bool(after.pending_revocation):
        yield (
            "revocation-state",
            f"{who} is {after.state} with {shown(after.pending_revocation)} to be revoked",
        )
    before = change.before
    if before is None:
        return
    if change.lost and not acknowledges(step, change.member_id, freed := in_order(change.lost)):
        yield "revocation-frozen", f"{shown(freed)} was taken from {who}, which has not released it"
    if before.state == UNREVOKED:
        yield from _frozen(step, who, before, after)


def _frozen(
    step: GroupStep, who: str, before: ConsumerGroupMember, after: ConsumerGroupMember
) -> Iterator[Finding]:
    """Check that until it is acknowledged a revocation only grows, by topics that were dropped from the
    subscription."""
    if after.state == UNREVOKED and after.member_epoch != before.member_epoch:
        yield (
            "revocation-frozen",
            f"the epoch of {who} went from {before.member_epoch} to {after.member_epoch} during a revocation",
        )
    if acknowledges(step, after.member_id, before.pending_revocation):
        return
    back, grown = map(in_order, changes(before.pending_revocation, after.pending_revocation))
    if back:
        yield "revocation-frozen", f"{shown(back)} was given back to {who} before it was released"
    assert step.group is not None
    topics = subscribed_topics(after, step.group.resolved, step.image)
    if more := {topic_id: numbers for topic_id, numbers in grown.items() if topic_id in topics}:
        yield (
            "revocation-frozen",
            f"{who} is to revoke {shown(more)} too, though it has not released"
            f" {shown(before.pending_revocation)}",
        )


def acknowledges(step: GroupStep, member_id: MemberId, pending: Partitions) -> bool:
    """Return true if the event is a heartbeat of this member that lists none of these partitions as owned.

    A classic member reports it when it joins again, under the topics' names. A real coordinator's journal
    does not show the acknowledgement, only what followed from it.
    """
    request = step.event
    if isinstance(request, RecordsObserved):
        return True
    if isinstance(request, JoinGroupRequest) and request.member_id == member_id:
        kept = read_subscription(request.protocols[0].metadata).owned
        return not any(
            set(numbers) & set(kept.get(step.image.name_of(topic_id) or "", ()))
            for topic_id, numbers in pending.items()
        )
    if not isinstance(request, ConsumerGroupHeartbeatRequest) or request.member_id != member_id:
        return False
    owned = request.topic_partitions
    if request.member_epoch < JOIN_EPOCH or owned is None:
        return False
    return not any(set(numbers) & set(owned.get(topic_id, ())) for topic_id, numbers in pending.items())


def _epochs_kept(
    step: GroupStep, before: ConsumerGroupMember, after: ConsumerGroupMember
) -> Iterator[Finding]:
    """Check by KIP-1251 that partitions keep their epoch while they are held: else late commits of their
    member are refused. Partitions that come, or come back before they were released, have the epoch that the
    member reaches with them."""
    if STATIC_LEAVE_EPOCH in (after.member_epoch, before.member_epoch):
        return
    for topic_id, numbers in after.assignment_epochs.items():
        known = before.assignment_epochs.get(topic_id, {})
        if known is numbers:
            continue
        stays = {*before.assigned.get(topic_id, ()), *after.pending_revocation.get(topic_id, ())}
        for number, epoch in numbers.items():
            right = known.get(number, after.member_epoch) if number in stays else after.member_epoch
            if epoch != right:
                yield (
                    "assignment-epochs",
                    f"{after.member_id} of {step.group_id} holds {topic_id}-{number} since epoch {right}, and"
                    f" {epoch} is stored",
                )
                return


def _epochs_of_partitions(
    step: GroupStep, member: ConsumerGroupMember, holding: Partitions
) -> Iterator[Finding]:
    """Check by KIP-1251 that each held partition, and nothing else, has the epoch at which it became
    assigned."""
    who = f"{member.member_id} of {step.group_id}"
    epochs = member.assignment_epochs
    if {t: tuple(sorted(numbers)) for t, numbers in epochs.items() if numbers} != holding:
        yield "assignment-epochs", f"{who} holds {shown(holding)}, but has assignment epochs of {epochs}"
        return
    limit = max(member.member_epoch, 0)
    for topic_id, numbers in epochs.items():
        for number, epoch in numbers.items():
            if not 0 <= epoch <= limit:
                yield (
                    "assignment-epochs",
                    f"{who} at epoch {member.member_epoch} holds {topic_id}-{number} since epoch {epoch}",
                )
                return
