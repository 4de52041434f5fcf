"""One member's steps compared with the model: `consumer_model` says what must follow, and a difference is
classified into the invariant that it breaks.

The judge of simulated and embedded coordinators sees each request, and expects one result. The judge of real
ones sees records, and accepts every result that some request explains.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from fencepost.coordinator.config import ReleaseVersion
from fencepost.coordinator.protocol.classic import JoinGroupRequest
from fencepost.coordinator.protocol.consumer import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from fencepost.coordinator.protocol.consumer_protocol import read_subscription
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    NO_PARTITIONS,
    STATIC_LEAVE_EPOCH,
    MemberId,
    Partitions,
    TopicId,
)
from fencepost.simulation.checkers import consumer_model as model
from fencepost.simulation.checkers.base import OF_LOG, Finding, shown
from fencepost.simulation.checkers.consumer_model import (
    NONE,
    STABLE,
    UNRELEASED,
    UNREVOKED,
    CoordinatorChoice,
    Standing,
)
from fencepost.simulation.checkers.step import subscribed_topics
from fencepost.simulation.kernel.observers import RecordsObserved, StepEvent

if TYPE_CHECKING:
    from fencepost.coordinator.consumer.group import ConsumerGroup
    from fencepost.coordinator.consumer.member import ConsumerGroupMember
    from fencepost.coordinator.protocol.topics import TopicsImage
    from fencepost.simulation.checkers.ownership import Ownership
    from fencepost.simulation.checkers.step import GroupStep, KnownGroup, MemberChange


def check_answer(
    request: ConsumerGroupHeartbeatRequest, reply: ConsumerGroupHeartbeatResponse, known: KnownGroup | None
) -> Sequence[Finding]:
    """Yield a finding if the request was not accepted, or refused, as it must be."""
    expected, got = model.refusal(request, known), reply.error_code
    if expected is None or expected == got or (expected == NONE and _has_own_reason(request, got, known)):
        return ()
    member = None if known is None else known.members.get(request.member_id)
    stored = (
        "unknown"
        if member is None
        else f"at epoch {member.member_epoch} after {member.previous_member_epoch}"
    )
    owned = "none" if request.topic_partitions is None else shown(request.topic_partitions)
    finding = (
        "heartbeat-answers",
        f"{request.member_id} of {request.group_id}, {stored}, sent epoch {request.member_epoch} with"
        f" owned {owned}: {got.name} instead of {expected.name}",
    )
    return (finding,)


def _has_own_reason(request: ConsumerGroupHeartbeatRequest, got: ErrorCode, known: KnownGroup | None) -> bool:
    """Return true if a refusal may have another cause than the epoch and the names."""
    return (
        got in OF_LOG
        or (got is ErrorCode.GROUP_MAX_SIZE_REACHED and request.member_epoch == JOIN_EPOCH)
        or (got is ErrorCode.INVALID_REGULAR_EXPRESSION and bool(request.subscribed_topic_regex))
        or (got is ErrorCode.UNSUPPORTED_ASSIGNOR and request.server_assignor is not None)
        or (got is ErrorCode.UNSUPPORTED_VERSION and known is None)
    )


def check_reply(
    request: ConsumerGroupHeartbeatRequest,
    reply: ConsumerGroupHeartbeatResponse,
    before: ConsumerGroupMember | None,
    after: ConsumerGroupMember | None,
    ownership: Ownership | None,
) -> Iterator[Finding]:
    """Yield what is wrong with a successful reply, by the stored member before and after the request."""
    who = f"{reply.member_id} of {request.group_id}"
    if request.member_epoch < 0:
        if reply.member_epoch != request.member_epoch or reply.assignment is not None:
            yield (
                "reply-equals-state",
                f"{who} left with {request.member_epoch}, received {reply.member_epoch}",
            )
        if request.member_epoch == LEAVE_EPOCH and after is not None:
            yield "reply-equals-state", f"{who} left, and is still there at epoch {after.member_epoch}"
        return
    if after is None:
        yield "reply-equals-state", f"{who} received epoch {reply.member_epoch}, but is not stored"
        return
    yield from _stored(who, request, reply, before, after)
    if ownership is not None and reply.assignment is not None:
        for topic_id, number, holder in ownership.others(after.member_id, reply.assignment):
            yield (
                "granted-after-release",
                f"{who} received {topic_id}-{number} at epoch {after.member_epoch} while {holder} holds it",
            )


def _stored(
    who: str,
    request: ConsumerGroupHeartbeatRequest,
    reply: ConsumerGroupHeartbeatResponse,
    before: ConsumerGroupMember | None,
    after: ConsumerGroupMember,
) -> Iterator[Finding]:
    """Yield differences between the stored member, what it said about itself, and what it is told."""
    for name, right in model.description(request, before).items():
        if (stored := getattr(after, name)) != right:
            yield "heartbeat-recorded", f"{who} is stored with {name} {stored!r} instead of {right!r}"
    was, epoch = model.NEW if before is None else Standing.of(before), after.member_epoch
    told, given = reply.member_epoch, reply.assignment
    if told != epoch:
        yield "reply-equals-state", f"{who} received epoch {told}, stored is {epoch}"
    if reply.heartbeat_interval_ms <= 0:
        yield "reply-equals-state", f"{who} received a heartbeat interval of {reply.heartbeat_interval_ms} ms"
    needed = model.has_assignment(request, was, Standing.of(after))
    if needed != (given is not None) and (needed or before is not None):
        yield (
            "assignment-present",
            f"{who} at epoch {epoch} received {'no' if needed else 'an'} assignment; its request was"
            f" {'' if model.is_full(request) else 'not '}full, and it had {shown(was.assigned)}",
        )
    if given is not None and given != after.assigned:
        yield (
            "reply-equals-state",
            f"{who} received {shown(given)} at epoch {epoch}, assigned is {shown(after.assigned)}",
        )


def check_new_target(step: GroupStep, interval_ms: int, release: ReleaseVersion) -> Iterator[Finding]:
    """Yield a finding if a new target has another time or epoch than now's, or was made too soon (KIP-1263).

    A group without members has a target of its epoch from Kafka 4.4 on, dated 0 (KAFKA-20442).
    """
    group = step.group
    if group is None:
        return
    got = group.assignment_epoch, group.assignment_timestamp_ms
    right = group.group_epoch, step.now_ms if group.members else 0
    if got != right or (not group.members and release is ReleaseVersion.V4_3):
        yield (
            "target-due",
            f"target {got[0]} of {step.group_id} dated {got[1]} ms was made at {step.now_ms} ms with"
            f" {len(group.members)} members in release {release}: expected {right[0]} dated {right[1]}",
        )
    waited_ms = step.now_ms - step.known.assignment_timestamp_ms
    if group.members and step.known.assignment_timestamp_ms and waited_ms < interval_ms:
        yield (
            "target-due",
            f"target {got[0]} of {step.group_id} was made {waited_ms} ms after the one before, the assignment"
            f" interval is {interval_ms} ms",
        )


def check_due(group: ConsumerGroup, member_id: MemberId, interval_ms: int, now_ms: int) -> Iterator[Finding]:
    """Yield a finding if a heartbeat was accepted, and did not make the target that was due."""
    waited_ms = now_ms - group.assignment_timestamp_ms
    if model.is_target_due(group.group_epoch, group.assignment_epoch, waited_ms, interval_ms):
        yield (
            "target-due",
            f"{member_id} sent a heartbeat, and {group.group_id} at epoch {group.group_epoch} still has"
            f" target {group.assignment_epoch}, {waited_ms} ms old",
        )


class Reconciliation:
    """Judges the members that an event touched; `ownership` has taken the event in already."""

    def __init__(self, ownership: Ownership, slack_ms: int = 0) -> None:
        self._ownership = ownership
        self._slack_ms = slack_ms
        """Longest delay of a timer, in ms; 0 in virtual time."""
        self.revoking_since: dict[MemberId, int] = {}
        """Time since which members have to release partitions, by the rebalance timeouts."""
        self._excused_ms = 0

    def check(self, step: GroupStep) -> Iterator[Finding]:
        """Findings of one event that wrote records."""
        for change in step.members:
            after = change.after
            if change.member_id in self.revoking_since or (after is not None and after.state is UNREVOKED):
                yield from self._bounded(step, change)
            if after is not None and not step.is_load and _is_evaluated(step, change, after):
                yield from self._step(step, change, after)

    def _step(self, step: GroupStep, change: MemberChange, after: ConsumerGroupMember) -> Iterator[Finding]:
        group, event = step.group, step.event
        assert group is not None
        before, is_new = _before(step, change, after)
        unseen = isinstance(event, RecordsObserved)
        got, who = Standing.of(after), f"{change.member_id} of {step.group_id}"
        is_away = got.epoch == STATIC_LEAVE_EPOCH
        if not is_away and (got.state is UNREVOKED) != bool(got.revoking):
            yield "revocation-state", f"{who} is {got.state} with {shown(got.revoking)} to be revoked"
        was = model.NEW if before is None else Standing.of(before)
        if is_new or (was.epoch == STATIC_LEAVE_EPOCH != got.epoch):
            was = was._replace(epoch=0, previous=0)  # it comes back
        choice = self._choice(group, before, after, step.image)
        if is_away:
            right: Sequence[Standing] = (model.away(was),)
        else:
            owned = model.UNSEEN if unseen else _owned(event, change.member_id, step)
            if step.unsettled and not choice.target.keys() <= choice.topics:
                choice = choice._replace(topics=choice.topics | step.unsettled)
            right = model.standings(was, owned, choice)
            if after.classic is not None and before is None:  # it joined, or was converted as it stood
                right = (*right, got._replace(state=STABLE, revoking=NO_PARTITIONS))
        loose = unseen or is_away or after.classic is not None
        found = next((each for each in right if _agree(got, each, loose=loose)), None)
        if found is None:
            yield from self._differences(who, was, got, right[0], choice)
        yield from _epochs_of_partitions(who, after, got)
        if not unseen and found is not None and before is not None:
            yield from _held_since(who, before, after, was, got)

    def check_move(
        self,
        request: ConsumerGroupHeartbeatRequest,
        before: ConsumerGroupMember,
        after: ConsumerGroupMember,
        group: ConsumerGroup,
        image: TopicsImage,
    ) -> Iterator[Finding]:
        """Judge an accepted heartbeat of which no change was recorded, or that of the epoch only."""
        was, got = Standing.of(before), Standing.of(after)
        choice = self._choice(group, before, after, image)
        (right,) = model.standings(was, request.topic_partitions, choice)
        if not _agree(got, right, loose=False):
            who = f"{after.member_id} of {group.group_id}"
            yield from self._differences(who, was, got, right, choice)

    def _choice(
        self,
        group: ConsumerGroup,
        before: ConsumerGroupMember | None,
        after: ConsumerGroupMember,
        image: TopicsImage,
    ) -> CoordinatorChoice:
        regex = after.subscribed_topic_regex
        known = ((), "") if before is None else (before.subscribed_topic_names, before.subscribed_topic_regex)
        resolution = group.resolved.get(regex or "")

        def taken(partitions: Partitions) -> Partitions:
            found: dict[TopicId, list[int]] = {}
            for topic_id, number, _ in self._ownership.others(after.member_id, partitions):
                found.setdefault(topic_id, []).append(number)
            return {topic_id: tuple(numbers) for topic_id, numbers in found.items()}

        return CoordinatorChoice(
            group.assignment_epoch,
            group.targets.get(after.member_id, NO_PARTITIONS),
            subscribed_topics(after, group.resolved, image),
            (after.subscribed_topic_names, regex) != known,
            not after.subscribed_topic_names and not (resolution is not None and resolution.topics),
            taken,
        )

    def _differences(
        self, who: str, was: Standing, got: Standing, right: Standing, choice: CoordinatorChoice
    ) -> Iterator[Finding]:
        """Classify a difference: yield each invariant that it breaks."""
        told = f"{who}: expected {_told(right)}, got {_told(got)}; it was {_told(was)}"
        told += f", the target {choice.target_epoch} is {shown(choice.wanted)}"
        held = model.union(got.assigned, got.revoking)
        gone = model.minus(model.union(was.assigned, was.revoking), held)
        extra, lacking = model.minus(got.assigned, right.assigned), model.minus(right.assigned, got.assigned)
        missing = model.minus(choice.wanted, got.assigned)
        broken = []
        if frozen := model.both(gone, model.union(right.assigned, right.revoking)):
            broken.append(("revocation-frozen", f"{shown(frozen)} was not released"))
        elif was.state is UNREVOKED and UNREVOKED in (right.state, got.state):
            broken.append(("revocation-frozen", f"it has not released {shown(was.revoking)}"))
        if extra and model.minus(got.assigned, choice.wanted):
            broken.append(("assigned-in-target", f"{shown(extra)} is outside its target or subscription"))
        if got.epoch == STATIC_LEAVE_EPOCH:
            broken.append(("revocation-state", "it is away, and keeps what it is assigned"))
        elif got.state is STABLE and missing and (lacking or got.epoch == choice.target_epoch):
            broken.append(("stable-owns-target", f"{shown(missing)} is missing"))
        if got.state is UNRELEASED and not choice.taken(missing):
            broken.append(("unreleased-waits", "no other member holds what it waits for"))
        if not broken or got == was:
            broken = [("heartbeat-reconciles", "it sent a heartbeat")]
        for invariant, why in broken:
            yield invariant, f"{told}; {why}"

    # -- revocations in time ------------------------------------------------------------------------------

    def loaded(self, now_ms: int) -> None:
        """Note that a coordinator has loaded: rebalance timers run their full length again."""
        self.revoking_since = dict.fromkeys(self.revoking_since, now_ms)

    def excuse(self, now_ms: int) -> None:
        """Note that timers that ran out before could not act."""
        self._excused_ms = now_ms

    def _bounded(self, step: GroupStep, change: MemberChange) -> Iterator[Finding]:
        """A rebalance timer is restarted by each reconciliation that changed the member.

        Members that speak the classic protocol have no timer: they are expected to join, and to sync.
        """
        after, before, member_id = change.after, change.before, change.member_id
        since = self.revoking_since.pop(member_id, None)
        if since is not None and before is not None:
            yield from self._too_long(step.group_id, before, since, step.now_ms)
        if after is None or after.state is not UNREVOKED or after.classic is not None:
            return
        if after.member_epoch != STATIC_LEAVE_EPOCH:
            same = since is not None and before is not None and Standing.of(before) == Standing.of(after)
            self.revoking_since[member_id] = since if same and since is not None else step.now_ms

    def overdue(
        self, group_id: str, members: dict[MemberId, ConsumerGroupMember], now_ms: int
    ) -> Iterator[Finding]:
        """Yield members that are UNREVOKED beyond their rebalance timeout now."""
        for member_id, since in self.revoking_since.items():
            if (member := members.get(member_id)) is not None:
                yield from self._too_long(group_id, member, since, now_ms)

    def _too_long(
        self, group_id: str, member: ConsumerGroupMember, since_ms: int, now_ms: int
    ) -> Iterator[Finding]:
        limit_ms = member.rebalance_timeout_ms
        if now_ms - max(since_ms, self._excused_ms) > limit_ms + self._slack_ms:
            yield (
                "revocation-bounded",
                f"{member.member_id} of {group_id} was UNREVOKED for {now_ms - since_ms} ms, its rebalance"
                f" timeout is {limit_ms} ms",
            )


def _is_evaluated(step: GroupStep, change: MemberChange, after: ConsumerGroupMember) -> bool:
    """Return true if the member stands elsewhere than before, or has sent the request."""
    before = change.before
    if before is None:
        return after.member_epoch != JOIN_EPOCH  # until it has its first epoch, it was only described
    if before is not after and Standing.of(before) != Standing.of(after):
        return True
    event = step.event
    return isinstance(event, ConsumerGroupHeartbeatRequest) and event.member_id == after.member_id


def _before(
    step: GroupStep, change: MemberChange, after: ConsumerGroupMember
) -> tuple[ConsumerGroupMember | None, bool]:
    """Return the member as the event met it, and whether it takes a static member's place under a new id."""
    if after.instance_id is not None:
        for other in step.members:
            was = other.before
            if other.after is None and was is not None and was.instance_id == after.instance_id:
                return was, True
    return change.before, False


def _owned(event: StepEvent, member_id: MemberId, step: GroupStep) -> Partitions | None:
    """Return the partitions that the event lists as owned by the member; None if it confirms nothing of it.

    A classic member lists them when it joins again, under the topics' names.
    """
    reply = step.outcome.reply
    if member_id not in (getattr(event, "member_id", ""), getattr(reply, "member_id", "")):
        return None
    if isinstance(event, ConsumerGroupHeartbeatRequest):
        return event.topic_partitions
    if isinstance(event, JoinGroupRequest):
        owned = read_subscription(event.protocols[0].metadata).owned
        ids = {name: topic.topic_id for name in owned if (topic := step.image.by_name.get(name))}
        return {ids[name]: tuple(numbers) for name, numbers in owned.items() if name in ids}
    return None


def only_epoch_moved(before: ConsumerGroupMember, after: ConsumerGroupMember) -> bool:
    """Return true if a member holds the very same partitions, and no record can have changed more of it."""
    return (
        after.assigned is before.assigned
        and after.assignment_epochs is before.assignment_epochs
        and not after.pending_revocation
        and not before.pending_revocation
        and after.classic is before.classic is None
        and after.instance_id is before.instance_id is None
        and after.subscribed_topic_names is before.subscribed_topic_names
        and not after.subscribed_topic_regex
    )


def _agree(got: Standing, right: Standing, *, loose: bool) -> bool:
    """Return true if two standings are equal; a `loose` comparison leaves out the epoch before."""
    return (
        got.state is right.state
        and got.epoch == right.epoch
        and (loose or got.previous == right.previous)
        and (got.assigned is right.assigned or got.assigned == right.assigned)
        and got.revoking == right.revoking
    )


def _told(standing: Standing) -> str:
    revoking = f", to release {shown(standing.revoking)}" if standing.revoking else ""
    return (
        f"{standing.state} at epoch {standing.epoch} after {standing.previous} with"
        f" {shown(standing.assigned)}{revoking}"
    )


def _held_since(
    who: str, before: ConsumerGroupMember, after: ConsumerGroupMember, was: Standing, got: Standing
) -> Iterator[Finding]:
    if after.assignment_epochs is before.assignment_epochs:
        return
    epochs = after.assignment_epochs
    for topic_id, number, right in model.held_since(before.assignment_epochs, was, got):
        if (stored := epochs.get(topic_id, {}).get(number)) != right:
            yield (
                "assignment-epochs",
                f"{who} holds {topic_id}-{number} since epoch {right}, and {stored} is stored",
            )
            return


def _epochs_of_partitions(who: str, member: ConsumerGroupMember, got: Standing) -> Iterator[Finding]:
    """Yield a finding unless each held partition, and nothing else, has an epoch (KIP-1251)."""
    epochs = member.assignment_epochs
    holding = model.union(got.assigned, got.revoking) if got.revoking else got.assigned
    limit = max(got.epoch, 0)
    wrong = epochs.keys() != holding.keys() or any(
        len(known) != len(holding[topic_id])
        or not all(0 <= known.get(number, -1) <= limit for number in holding[topic_id])
        for topic_id, known in epochs.items()
    )
    if wrong:
        yield (
            "assignment-epochs",
            f"{who} holds {shown(holding)} at epoch {got.epoch}, but has assignment epochs of {epochs}",
        )
