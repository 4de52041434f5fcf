"""One consumer group compared with the model: `consumer_model` says what must follow from an event, and a
difference is classified into the invariant that it breaks.

The judge of simulated and embedded coordinators sees each request, and expects one result. The judge of real
ones sees records, and accepts every result that some request explains.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from fencepost.coordinator.config import ReleaseVersion
from fencepost.coordinator.consumer.states import GroupState
from fencepost.coordinator.protocol import records as r
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
    NO_EPOCH,
    NO_PARTITIONS,
    STATIC_LEAVE_EPOCH,
    MemberId,
    Partitions,
    TopicId,
)
from fencepost.coordinator.protocol.outcome import RebalanceRequested
from fencepost.coordinator.timers import GroupTimerKind
from fencepost.simulation.judge import consumer_model as model
from fencepost.simulation.judge.base import OF_LOG, Finding, shown
from fencepost.simulation.judge.consumer_model import (
    NONE,
    STABLE,
    UNRELEASED,
    UNREVOKED,
    CoordinatorChoice,
    Standing,
)
from fencepost.simulation.judge.sessions import Timeouts
from fencepost.simulation.judge.step import Holders
from fencepost.simulation.judge.targets import check_digest, check_targets
from fencepost.simulation.kernel.observers import RecordsObserved

if TYPE_CHECKING:
    from fencepost.coordinator.consumer.group import ConsumerGroup
    from fencepost.coordinator.consumer.member import ConsumerGroupMember
    from fencepost.coordinator.coordinator import GroupCoordinator
    from fencepost.coordinator.protocol.topics import TopicsImage
    from fencepost.simulation.judge.step import GroupStep, MemberChange

# Names of their own: in Python 3.11 an attribute of an enum class costs as much as a call.
SESSION, REBALANCE = GroupTimerKind.SESSION, GroupTimerKind.REBALANCE


class ConsumerGroupJudge:
    """Judges one group after each event that wrote records of it."""

    def __init__(self, default_assignor: str, *, slack_ms: int = 0) -> None:
        self.holders = Holders()
        self.timeouts = Timeouts(slack_ms)
        self._default_assignor = default_assignor
        self._state = GroupState.EMPTY
        self._noticed: TopicsImage | None = None

    def check(self, step: GroupStep) -> Iterator[Finding]:
        """Findings of one event."""
        group = step.group
        yield from self._owners(step)
        if group is not None:
            yield from _epochs(step, group)
            if step.targets or step.touched.new_targets:
                yield from check_targets(step, group, self._default_assignor)
        yield from self.timeouts.check(step)
        if group is not None and not step.is_load:
            for change in step.members:
                if change.after is not None and _is_evaluated(step, change, change.after):
                    yield from self._standing(step, group, change, change.after)
        yield from self._whole(step)

    # -- partitions -----------------------------------------------------------------------------------------

    def _owners(self, step: GroupStep) -> Iterator[Finding]:
        """Check that each partition has one owner, and that the coordinator's own map says the same."""
        for change in step.members:
            self.holders.release(change.member_id, change.lost)
        members = {} if step.group is None else step.group.members
        for change in step.members:
            after = change.after
            pending = NO_PARTITIONS if after is None else after.pending_revocation
            if after is not None and pending and (twice := model.both(after.assigned, pending)):
                who = f"{change.member_id} of {step.group_id}"
                yield "one-owner", f"{who} is assigned {shown(twice)} and is to release it"
            for topic_id, number, holder in self.holders.grant(change.member_id, change.gained):
                at = f"epoch {members[holder].member_epoch}" if holder in members else "removed"
                yield (
                    "one-owner",
                    f"{step.group_id}: partition {topic_id}-{number} was given to {change.member_id} at epoch"
                    f" {after and after.member_epoch} while {holder} ({at}) holds it",
                )
        if step.group is None:
            return
        for change in step.members:
            was = NO_EPOCH if change.before is None else change.before.member_epoch
            now = NO_EPOCH if change.after is None else change.after.member_epoch
            yield from self._mapped(step.group, change.gained if now == was else change.holds, now)
            yield from self._mapped(step.group, change.lost, NO_EPOCH)

    def _mapped(self, group: ConsumerGroup, partitions: Partitions, likely: int) -> Iterator[Finding]:
        """Compare the coordinator's map of partition epochs with the epochs of the holders."""
        for topic_id, numbers in partitions.items():
            stored = group.partition_epochs.of_all(topic_id, numbers)
            if stored.count(likely) == len(stored):
                continue
            for number, holder, epoch in zip(
                numbers, self.holders.of(topic_id, numbers), stored, strict=True
            ):
                member = None if holder is None else group.members.get(holder)
                if epoch != (right := NO_EPOCH if member is None else member.member_epoch):
                    yield (
                        "owners-map",
                        f"{group.group_id}: the map has epoch {epoch} for {topic_id}-{number}, which"
                        f" {holder or 'no member'} holds at epoch {right}",
                    )

    # -- members --------------------------------------------------------------------------------------------

    def _standing(
        self, step: GroupStep, group: ConsumerGroup, change: MemberChange, after: ConsumerGroupMember
    ) -> Iterator[Finding]:
        unseen = isinstance(step.event, RecordsObserved)
        replaced = step.predecessor(after)
        before, got = replaced or change.before, Standing.of(after)
        was = model.NEW if before is None else Standing.of(before)
        is_away, who = got.epoch == STATIC_LEAVE_EPOCH, f"{change.member_id} of {step.group_id}"
        is_back = was.epoch == STATIC_LEAVE_EPOCH and not is_away
        # It comes back; under another instance id, or none, it would be a known member that joins again.
        named = getattr(step.event, "instance_id", after.instance_id)
        if replaced or (is_back and before is not None and before.instance_id == named == after.instance_id):
            was = was._replace(epoch=0, previous=0)
        choice = self._choice(step, group, before, after)
        if is_away:
            right: Sequence[Standing] = (model.away(was),)
        else:
            owned = model.UNSEEN if unseen else _owned(step, change.member_id)
            right = model.standings(was, owned, choice)
            if step.unsettled and not choice.target.keys() <= choice.topics:  # it may not have seen them go
                known = choice._replace(topics=choice.topics | step.unsettled)
                right = (*right, *model.standings(was, owned, known))
            if after.classic is not None and before is None:  # it joined, or was converted as it stood
                right = (*right, got._replace(state=STABLE, revoking=NO_PARTITIONS))
        loose = unseen or (after.classic is not None and before is None)
        found = next((each for each in right if _agree(got, each, loose=loose)), None)
        if found is None or (is_away and after.instance_id is None):
            yield from _differences(who, was, got, right[0], choice, loose=loose)
        stored = after.assignment_epochs
        if (
            change.gained
            or change.lost
            or got.epoch < was.epoch
            or before is None
            or was.revoking
            or stored != before.assignment_epochs
        ):
            since = model.held_since({} if before is None else before.assignment_epochs, was, got)
            exact = not (loose or found is None or step.touched.converted)
            if stored != since and (exact or not _may_be_since(after, since)):
                yield (
                    "assignment-epochs",
                    f"{who} has partitions since {since} by epochs, stored are {stored}",
                )

    def check_unmoved(
        self, step: GroupStep, group: ConsumerGroup, member: ConsumerGroupMember
    ) -> Iterator[Finding]:
        """Judge an accepted heartbeat of which nothing was recorded: it must have had nothing to change."""
        got, choice = Standing.of(member), self._choice(step, group, member, member)
        (right,) = model.standings(got, _owned(step, member.member_id), choice)
        if not _agree(got, right, loose=False):
            who = f"{member.member_id} of {group.group_id}"
            yield from _differences(who, got, got, right, choice, loose=False)

    def _choice(
        self,
        step: GroupStep,
        group: ConsumerGroup,
        before: ConsumerGroupMember | None,
        after: ConsumerGroupMember,
    ) -> CoordinatorChoice:
        matched = step.matched
        said = after.subscribed_topic_names, after.subscribed_topic_regex

        def taken(partitions: Partitions) -> Partitions:
            found: dict[TopicId, list[int]] = {}
            for topic_id, number, _ in self.holders.others(after.member_id, partitions):
                found.setdefault(topic_id, []).append(number)
            return {topic_id: tuple(numbers) for topic_id, numbers in found.items()}

        return CoordinatorChoice(
            group.assignment_epoch,
            group.targets.get(after.member_id, NO_PARTITIONS),
            model.subscribed_topics(after, matched, step.image),
            said
            != (
                ((), "") if before is None else (before.subscribed_topic_names, before.subscribed_topic_regex)
            ),
            not after.subscribed_topic_names and not matched.get(after.regex or ""),
            taken,
        )

    def noticed(self, group: ConsumerGroup, image: TopicsImage) -> Iterator[Finding]:
        """Check, once for each image of the topics, that a heartbeat has made the group notice its changes.

        (KAFKA-18916)
        """
        if image is not self._noticed:
            self._noticed = image
            yield from check_digest(group, image)

    # -- the group as a whole -------------------------------------------------------------------------------

    def _whole(self, step: GroupStep) -> Iterator[Finding]:
        """Compare what the coordinator derives from the members."""
        group, group_id = step.group, step.group_id
        if step.touched.ends:
            yield from _tombstones(step)
        if group is None:
            return
        if group.state is not self._state:
            self._state = group.state
            right = model.group_state(group.members.values(), group.group_epoch, group.assignment_epoch)
            if group.state is not right:
                yield "transitions", f"{group_id} is {group.state}, by its epochs and members it is {right}"
        if len(group.partition_epochs) != self.holders.total:
            counts = f"{len(group.partition_epochs)} partitions, members hold {self.holders.total}"
            yield "owners-map", f"{group_id}: the map has {counts}"
        if step.touched.described or step.touched.ends:
            yield from _derived(step, group)


def _epochs(step: GroupStep, group: ConsumerGroup) -> Iterator[Finding]:
    """Compare the epochs of the group, and of its target."""
    known, group_id = step.known, step.group_id
    target, raised = group.assignment_epoch, group.group_epoch - max(known.group_epoch, model.FIRST_EPOCH)
    if raised < 0 < known.group_epoch or target < known.assignment_epoch:
        fell = f"from {known.group_epoch} and {known.assignment_epoch} to {group.group_epoch} and {target}"
        yield "epochs-monotone", f"the epochs of {group_id} and its target fell {fell}"
    if target > group.group_epoch:
        yield "epochs-ordered", f"{group_id} has target epoch {target} at group epoch {group.group_epoch}"
    requested = isinstance(step.event, RebalanceRequested)
    if raised == 0 and not step.touched.described and not requested:
        return  # no input has changed
    for change in step.members:
        before, after = change.before, change.after
        if not raised and before and after and model.subscribes_otherwise(before, after):
            yield (
                "subscription-raises-epoch",
                f"{change.member_id} of {group_id} subscribes to others, and the group epoch is still"
                f" {group.group_epoch}",
            )
    if step.is_load or step.touched.converted:
        return
    pairs = list(step.pairs())
    due = (
        "a rebalance was requested"
        if requested
        else model.reason_to_raise(pairs, step.matched_before, step.matched)
    )
    allowed = (
        due
        or group.metadata_hash != known.metadata_hash
        or step.matched_before != step.matched
        or model.is_input_changed(pairs)
    )
    least, most = int(bool(due)), int(bool(allowed))
    if isinstance(step.event, RecordsObserved):  # several outcomes may appear as one
        least, most = 0, raised if allowed else 0
    if not least <= max(raised, 0) <= most:
        yield (
            "epoch-caused",
            f"the epoch of {group_id} is {group.group_epoch} after {known.group_epoch};"
            f" {due or ('an input changed' if allowed else 'no input of its target changed')}",
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


def _owned(step: GroupStep, member_id: MemberId) -> Partitions | None:
    """Return the partitions that the event lists as owned by the member; None if it confirms nothing of it.

    A classic member lists them when it joins again, under the topics' names.
    """
    event, reply = step.event, step.outcome.reply
    if member_id not in (getattr(event, "member_id", ""), getattr(reply, "member_id", "")):
        return None
    if isinstance(event, ConsumerGroupHeartbeatRequest):
        return event.topic_partitions
    if isinstance(event, JoinGroupRequest):
        owned, by_name = read_subscription(event.protocols[0].metadata).owned, step.image.by_name
        return {by_name[name].topic_id: tuple(numbers) for name, numbers in owned.items() if name in by_name}
    return None


def _agree(got: Standing, right: Standing, *, loose: bool) -> bool:
    """Return true if two standings are equal; a `loose` comparison leaves out the epoch before."""
    if loose and (got.previous <= got.epoch or got.epoch == STATIC_LEAVE_EPOCH):
        right = right._replace(previous=got.previous)
    return got == right


def _differences(
    who: str, was: Standing, got: Standing, right: Standing, choice: CoordinatorChoice, *, loose: bool
) -> Iterator[Finding]:
    """Classify a difference: yield each invariant that it breaks."""
    text = f"{who}: expected {told(right)}, got {told(got)}; it was {told(was)}"
    text += f", the target {choice.target_epoch} is {shown(choice.wanted)}"
    held = model.union(got.assigned, got.revoking)
    gone = model.minus(model.union(was.assigned, was.revoking), held)
    extra, lacking = model.minus(got.assigned, right.assigned), model.minus(right.assigned, got.assigned)
    missing = model.minus(choice.wanted, got.assigned)
    is_away = got.epoch == STATIC_LEAVE_EPOCH
    broken = [] if is_away else list(_broken_epochs(was, got, right, choice.target_epoch, loose=loose))
    if frozen := model.both(gone, model.union(right.assigned, right.revoking)):
        broken.append(("revocation-frozen", f"{shown(frozen)} was not released"))
    elif was.state is UNREVOKED and UNREVOKED in (right.state, got.state) and not is_away:
        broken.append(("revocation-frozen", f"it has not released {shown(was.revoking)}"))
    if extra and model.minus(got.assigned, choice.wanted):
        broken.append(("assigned-in-target", f"{shown(extra)} is outside its target or subscription"))
    if is_away:
        broken.append(("revocation-state", "it is away, and keeps what it is assigned"))
    elif got.state is STABLE and missing and (lacking or got.epoch == choice.target_epoch):
        broken.append(("stable-owns-target", f"{shown(missing)} is missing"))
    if got.state is UNRELEASED and not choice.taken(missing):
        broken.append(("unreleased-waits", "no other member holds what it waits for"))
    if not broken or got == was:
        broken = [("heartbeat-reconciles", "it sent a heartbeat")]
    for invariant, why in broken:
        yield invariant, f"{text}; {why}"


def _broken_epochs(
    was: Standing, got: Standing, right: Standing, target_epoch: int, *, loose: bool
) -> Iterator[Finding]:
    if got.epoch < was.epoch:
        yield "epochs-monotone", "its epoch fell"
    elif not target_epoch >= got.epoch >= got.previous:
        yield "epochs-ordered", "its epochs are not in order"
    elif got.previous != right.previous and got.epoch == right.epoch and not loose:
        yield "epochs-ordered", "the epoch before is another one"
    if (got.state is UNREVOKED) != bool(got.revoking):
        yield "revocation-state", f"it is {got.state} with {shown(got.revoking)} to release"


def told(standing: Standing) -> str:
    """Return a standing for a message."""
    revoking = f", to release {shown(standing.revoking)}" if standing.revoking else ""
    return (
        f"{standing.state} at epoch {standing.epoch} after {standing.previous} with"
        f" {shown(standing.assigned)}{revoking}"
    )


def _may_be_since(member: ConsumerGroupMember, since: model.Since) -> bool:
    """Return true if the member has an epoch, no newer than its own, for just what it holds (KIP-1251)."""
    limit, stored = max(member.member_epoch, 0), member.assignment_epochs
    return {t: n.keys() for t, n in stored.items()} == {t: n.keys() for t, n in since.items()} and all(
        0 <= epoch <= limit for epochs in stored.values() for epoch in epochs.values()
    )


_ORDER: Final = (
    r.ConsumerGroupCurrentMemberAssignmentKey,
    r.ConsumerGroupTargetAssignmentMemberKey,
    r.ConsumerGroupMemberMetadataKey,
)
"""The order of a member's tombstones: types 8, 7 and 5."""


def _tombstones(step: GroupStep) -> Iterator[Finding]:
    """Check that a member's tombstones are in one batch, in their order, and that a group's comes last."""
    seen: dict[MemberId, list[int]] = {}
    ended = False
    for record in step.outcome.records:
        key = record.key
        if type(key) is r.OffsetCommitKey or key.group_id != step.group_id:
            continue
        if ended and type(key) is not r.GroupMetadataKey:  # its type now, if it has become a classic one
            yield "journal-batches", f"{step.group_id}: a record of {key} follows the group's tombstone"
        if record.value is None:
            if isinstance(key, _ORDER):
                seen.setdefault(key.member_id, []).append(_ORDER.index(type(key)))
            ended = ended or type(key) is r.ConsumerGroupMetadataKey
    for member_id, places in seen.items():
        # The member may never have had a target of its own; its tombstone may be left out then.
        if places != sorted(places) or (2 in places) != (0 in places):
            types = [(8, 7, 5)[place] for place in places]
            yield "journal-batches", f"the tombstones of {member_id} of {step.group_id} are of types {types}"


def _derived(step: GroupStep, group: ConsumerGroup) -> Iterator[Finding]:
    """Check that the group keeps nothing of former members, and knows its static ones by their names."""
    members, static = group.members, step.instances
    if group.static_members != static:
        named = sorted(group.static_members.items())
        yield "static-bijection", f"{group.group_id} has {sorted(static.items())}, instance ids of {named}"
    if len(group.targets) > len(members):
        yield (
            "bounded-memory",
            f"{group.group_id} has {len(members)} members and {len(group.targets)} targets",
        )
    if group.resolved and (foreign := group.resolved.keys() - {each.regex for each in members.values()}):
        yield (
            "regexes-subscribed",
            f"{group.group_id} keeps the resolution of {sorted(foreign)}, to which no member subscribes",
        )
    if not members:
        left = {
            "targets": len(group.targets),
            "held partitions": len(group.partition_epochs),
            "resolved expressions": len(group.resolved),
            "topic counts": len(group.counts.by_name) + len(group.counts.by_regex),
            "digest of topics": group.metadata_hash,
        }
        if any(left.values()):
            yield "empty-group", f"{group.group_id} has no members, but {left}"


def check_soft_state(live: GroupCoordinator, step: GroupStep) -> Iterator[Finding]:
    """Check that contacts and timers exist for exactly the members."""
    group_id, soft = step.group_id, live.soft
    members = {} if step.group is None else step.group.members
    known = soft.groups.get(group_id)
    contacts = 0 if known is None else len(known.contacts)
    if contacts != len(members):
        yield "bounded-memory", f"{group_id} has {len(members)} members and contacts of {contacts}"
    if step.touched.described:
        if len(soft.groups) > len(live.groups):
            what = f"{len(live.groups)} groups, and soft state of {len(soft.groups)}"
            yield "bounded-memory", f"there are {what}"
        limit = 1 + 2 * sum(len(each.contacts) for each in soft.groups.values())
        if len(soft.timers) > limit:  # a classic member is expected to join, and to sync
            limit += sum(each.classic is not None for each in members.values())
        if len(soft.timers) > limit:
            yield "bounded-memory", f"{len(soft.timers)} timers run, {limit} at most are for members"
    for change in step.members:
        after = change.after
        for kind, wanted in (
            (SESSION, after is not None),
            (REBALANCE, after is not None and model.is_timed(after)),
        ):
            if ((kind, group_id, change.member_id) in soft.timers) != wanted:  # equal to a TimerKey
                yield (
                    "timers-armed",
                    f"{change.member_id} of {group_id} has {'no' if wanted else 'a'} {kind} timer, it is"
                    f" {'removed' if after is None else f'{after.state} at epoch {after.member_epoch}'}",
                )


# -- requests and responses ---------------------------------------------------------------------------------


def check_answer(
    request: ConsumerGroupHeartbeatRequest, reply: ConsumerGroupHeartbeatResponse, known: ConsumerGroup | None
) -> Sequence[Finding]:
    """Return a finding if the request was not accepted, or refused, as it must be."""
    expected, got = model.refusal(request, known), reply.error_code
    member = None if known is None else known.members.get(request.member_id)
    if got is ErrorCode.GROUP_MAX_SIZE_REACHED and request.member_epoch >= 0 and member is None:
        return ()  # Kafka looks at the size before it looks for the member
    if expected is None or expected == got or (expected == NONE and _has_own_reason(request, got, known)):
        return ()
    stored = "unknown" if member is None else told(Standing.of(member))
    owned = "none" if request.topic_partitions is None else shown(request.topic_partitions)
    sent = f"sent epoch {request.member_epoch} with owned {owned}: {got.name} instead of {expected.name}"
    return (("heartbeat-answers", f"{request.member_id} of {request.group_id}, {stored}, {sent}"),)


def _has_own_reason(
    request: ConsumerGroupHeartbeatRequest, got: ErrorCode, known: ConsumerGroup | None
) -> bool:
    """Return true if a refusal may have another cause than the epoch and the names."""
    return (
        got in OF_LOG
        or (got is ErrorCode.INVALID_REGULAR_EXPRESSION and bool(request.subscribed_topic_regex))
        or (got is ErrorCode.UNSUPPORTED_ASSIGNOR and request.server_assignor is not None)
        or (got is ErrorCode.UNSUPPORTED_VERSION and known is None)
    )


def check_reply(
    request: ConsumerGroupHeartbeatRequest,
    reply: ConsumerGroupHeartbeatResponse,
    before: ConsumerGroupMember | None,
    after: ConsumerGroupMember | None,
) -> Iterator[Finding]:
    """Yield what is wrong with a successful reply, by the stored member before and after the request.

    One that takes a static member's place was that member, and has no epoch yet.
    """
    who, leaves = f"{reply.member_id} of {request.group_id}", request.member_epoch < 0
    if (after is None) != (request.member_epoch == LEAVE_EPOCH):
        yield (
            "reply-equals-state",
            f"{who} sent {request.member_epoch}, and is {'there' if after else 'gone'}",
        )
    elif after is not None and not leaves:
        for name, right in model.description(request, before).items():
            if (stored := getattr(after, name)) != right:
                yield "heartbeat-recorded", f"{who} is stored with {name} {stored!r} instead of {right!r}"
    replaced = before is not None and after is not None and before.member_id != after.member_id
    was = model.NEW if before is None or replaced else Standing.of(before)
    now = model.NEW if after is None else Standing.of(after)
    epoch, assignment = model.response(request, was, now)
    if reply.member_epoch != epoch or (not leaves and reply.heartbeat_interval_ms <= 0):
        told = f"{reply.member_epoch}, and an interval of {reply.heartbeat_interval_ms} ms"
        yield "reply-equals-state", f"{who} received epoch {told}; expected {epoch}"
    given = reply.assignment
    if (given is None) != (assignment is None):
        yield (
            "assignment-present",
            f"{who} at epoch {epoch} received {'an' if assignment is None else 'no'} assignment; its request"
            f" was {'' if model.is_full(request) else 'not '}full, and it had {shown(was.assigned)}",
        )
    if given is not None and given != now.assigned:
        yield (
            "reply-equals-state",
            f"{who} received {shown(given)} at {epoch}, assigned is {shown(now.assigned)}",
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
    waited_ms = step.now_ms - step.known.assignment_timestamp_ms
    early = bool(group.members) and step.known.assignment_timestamp_ms > 0 and waited_ms < interval_ms
    if got != right or early or (not group.members and release is ReleaseVersion.V4_3):
        yield (
            "target-due",
            f"target {got[0]} of {step.group_id} dated {got[1]} ms was made at {step.now_ms} ms,"
            f" {waited_ms} ms after the one before, with {len(group.members)} members in release {release}:"
            f" expected {right[0]} dated {right[1]}, and an interval of {interval_ms} ms",
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
