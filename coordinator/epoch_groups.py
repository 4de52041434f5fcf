"""Groups with epochs: the common parts of consumer groups (KIP-848) and streams groups (KIP-1071).

Members report their subscriptions, the group computes a target for its epoch, and each heartbeat leads its
own member closer to that target. A group is in three parts here, as in each of the two packages: the hard
state of one group, the soft state of all of them, and the kind that has both.
"""

from __future__ import annotations

import enum
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, Final, Generic, Self, TypeVar

import msgspec

from fencepost.coordinator.config import (
    GroupConfig,
    GroupCoordinatorConfig,
    OfGroup,
    ReleaseVersion,
    SettingsByGroup,
)
from fencepost.coordinator.kinds import Applier, GroupKind
from fencepost.coordinator.protocol.errors import ErrorCode, InconsistentRecord, ProtocolError
from fencepost.coordinator.protocol.ids import LEAVE_EPOCH, MemberId
from fencepost.coordinator.protocol.machine import CodedState, StateTable
from fencepost.coordinator.protocol.offsets import (
    MEMBER_EPOCH_VERSION,
    OffsetCommitRequest,
    OffsetFetchRequest,
)
from fencepost.coordinator.protocol.outcome import NOTHING, MemberFenced, Outcome
from fencepost.coordinator.protocol.records import Record
from fencepost.coordinator.protocol.topics import TopicsImage
from fencepost.coordinator.timers import (
    WRITE_RETRY_MS,
    GroupTimerKey,
    GroupTimerKind,
    MetadataRefresh,
    Timers,
    next_look_ms,
)

State = TypeVar("State", bound=CodedState)
Step = TypeVar("Step", bound=enum.StrEnum)


def member_table(name: str, states: type[State], steps: type[Step], source: str) -> StateTable[State, Step]:
    """Return the table of members on their way to the target: each step leads to one state from all of them.

    Only an unknown state leads to no revocation. Both enums have the order of `ConsumerGroupMemberState` and
    `ConsumerReconciliationStep`.
    """
    stable, unrevoked, unreleased, unknown = states
    revoke, wait, settle, unreadable = steps
    targets = {settle: stable, revoke: unrevoked, wait: unreleased, unreadable: unknown}
    arrows = ((state, step, target) for state in states for step, target in targets.items())
    transitions = (arrow for arrow in arrows if arrow[:2] != (unknown, revoke))
    return StateTable(name, source=source, states=states, initial=stable, transitions=transitions)


class StatesByCode(dict[int, State]):
    """The states by their numbers in records; the last one for any number of a newer coordinator."""

    def __init__(self, states: type[State]) -> None:
        super().__init__({state.code: state for state in states})
        *_, self._unknown = states

    def __missing__(self, code: int) -> State:
        return self._unknown


INITIAL_EPOCH: Final = 1
"""Group and assignment epoch of a new group; the first change of its inputs makes 2 (KAFKA-19829)."""


class EpochMember(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A member of such a group: a value, replaced as a whole when a record says so.

    Its metadata has the same names as in the member's record.
    """

    metadata_key: ClassVar[type[Any]]
    metadata_value: ClassVar[type[Any]]
    """The record of the member's metadata."""
    assignment_key: ClassVar[type[Any]]
    assignment_value: ClassVar[type[Any]]
    """The record of its epochs, its state and its partitions or tasks."""
    nothing: ClassVar[Any]
    """The empty assignment of this kind of group."""

    member_id: MemberId
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    member_epoch: int = 0
    previous_member_epoch: int = 0
    """The epoch before the last evaluation; a member may still send it if a response was lost."""
    state: Any
    assigned: Any
    pending_revocation: Any
    assignment_epochs: dict[str, dict[int, int]] = {}
    """The epoch at which each partition, or active task, of both became assigned (KIP-1251).

    By topic id, or subtopology, and partition.
    """

    def metadata_record(self, group_id: str) -> Record:
        """Return the record of the member's metadata."""
        said = (getattr(self, name) for name in self.metadata_value.__struct_fields__)
        return Record(self.metadata_key(group_id, self.member_id), self.metadata_value(*said))

    def with_metadata(self, value: Any) -> Self:
        """Return the member after a record of its metadata."""
        return msgspec.structs.replace(
            self, **{name: getattr(value, name) for name in self.metadata_value.__struct_fields__}
        )

    def assignment_record(self, group_id: str) -> Record:
        """Return the record of the member's epochs, its state and its partitions or tasks."""
        return Record(
            self.assignment_key(group_id, self.member_id),
            self.assignment_value(
                member_epoch=self.member_epoch,
                previous_member_epoch=self.previous_member_epoch,
                state=self.state.code,
                assigned=self.assigned,
                pending_revocation=self.pending_revocation,
                assignment_epochs=self.assignment_epochs,
            ),
        )

    def without_assignment(self) -> Self:
        """Return the member after the tombstone of its assignment: it holds nothing, and is about to go."""
        return msgspec.structs.replace(
            self,
            member_epoch=LEAVE_EPOCH,
            previous_member_epoch=LEAVE_EPOCH,
            assigned=self.nothing,
            pending_revocation=self.nothing,
            assignment_epochs={},
        )


M = TypeVar("M", bound=EpochMember)
T = TypeVar("T")
"""The target of one member: partitions, or tasks."""


class EpochGroup(Generic[M, T]):
    """The hard state of one group: epochs, members, and the target assignment.

    Everything is read-only outside `apply_*`. Records may come from a compacted journal: the first record of
    a member or a group may be any of its records, so each record creates what it needs. Tombstones without an
    object are ignored.
    """

    __slots__ = (
        "_members",
        "_targets",
        "assignment_epoch",
        "assignment_timestamp_ms",
        "group_epoch",
        "group_id",
        "members",
        "metadata_hash",
        "targets",
    )

    member_type: ClassVar[type[Any]]
    """Makes a new member; `member_id` is its only argument."""
    metadata_key: ClassVar[type[Any]]
    """The key whose tombstone ends the group."""
    target_key: ClassVar[type[Any]]
    target_value: ClassVar[type[Any]]
    """The record of one member's target."""
    target_metadata_key: ClassVar[type[Any]]
    target_metadata_value: ClassVar[type[Any]]
    """The record of the target's epoch and time."""
    applied_by: ClassVar[Mapping[type, Callable[[Any, Any, Any], None]]]
    """The method that applies a record, by the type of its key: every key of such a group is here."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.group_epoch = INITIAL_EPOCH
        self.metadata_hash = 0
        self.assignment_epoch = INITIAL_EPOCH
        """The group epoch that the target was computed for; -1 once the group is being deleted."""
        self.assignment_timestamp_ms = 0
        self._members: dict[MemberId, M] = {}
        self._targets: dict[MemberId, T] = {}
        self.members: Mapping[MemberId, M] = MappingProxyType(self._members)
        self.targets: Mapping[MemberId, T] = MappingProxyType(self._targets)

    @classmethod
    def apply(cls, groups: dict[str, Self], key: Any, value: Any) -> None:
        """Apply a record. Any value creates the group; a tombstone for a missing group changes nothing.

        :raises InconsistentRecord: if the record cannot follow those before it.
        """
        group = groups.get(key.group_id)
        if group is None:
            if value is None:
                return
            group = groups[key.group_id] = cls(key.group_id)
        if value is None and type(key) is cls.metadata_key:
            group.check_deletable(key)
            del groups[key.group_id]
            return
        cls.applied_by[type(key)](group, key, value)

    def member(self, member_id: MemberId) -> M:
        """Return the member of that id.

        :raises ProtocolError: UNKNOWN_MEMBER_ID if it is missing.
        """
        member = self._members.get(member_id)
        if member is None:
            raise ProtocolError(
                ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {self.group_id}."
            )
        return member

    @abstractmethod
    def is_subscribed_to(self, topic: str) -> bool:
        """Return true if a member reads the topic."""

    def target_record(self, member_id: MemberId, target: T) -> Record:
        """Return the record of a member's target."""
        return Record(self.target_key(self.group_id, member_id), self.target_value(target))

    def target_records(
        self, before: Mapping[MemberId, T], after: Mapping[MemberId, T], epoch: int, now_ms: int
    ) -> tuple[Record, ...]:
        """Return the records of a new target: of each member whose target changed, in their order, then the
        epoch."""
        changed = [
            self.target_record(member_id, target)
            for member_id, target in after.items()
            if (old := before.get(member_id)) is not target and old != target
        ]
        return (*changed, self._target_metadata_record(epoch, now_ms))

    def _target_metadata_record(self, epoch: int, now_ms: int) -> Record:
        return Record(self.target_metadata_key(self.group_id), self.target_metadata_value(epoch, now_ms))

    def target_without_members(self, epoch: int, removed: int, release: ReleaseVersion) -> tuple[Record, ...]:
        """Return the records that follow the removal of that many members.

        From Kafka 4.4 on, a group that loses its last member has the target of its epoch, so that no target
        is computed.
        """
        if release is ReleaseVersion.V4_3 or not removed or removed < len(self._members):
            return ()
        # As of time 0, as in a new group: the next target waits for nothing.
        return (self._target_metadata_record(epoch, 0),)

    def member_tombstones(self, member_id: MemberId) -> tuple[Record, ...]:
        """Return the tombstones of one member. Replay relies on their order."""
        member = self.member_type
        keys = member.assignment_key, self.target_key, member.metadata_key
        return tuple(Record(key(self.group_id, member_id), None) for key in keys)

    def tombstones(
        self, *, before: Iterable[Record] = (), after: Iterable[Record] = ()
    ) -> tuple[Record, ...]:
        """Return the tombstones of a group, whatever is left in it. Replay relies on their order.

        Those of a kind's own come `before` and `after` that of the group's metadata.
        """
        group_id, member = self.group_id, self.member_type
        members = sorted(self._members)
        # A target outlives its member only in a journal that lost records: it must not keep the group alive.
        targets = sorted({*members, *self._targets})
        return (
            *(Record(member.assignment_key(group_id, one), None) for one in members),
            *(Record(self.target_key(group_id, one), None) for one in targets),
            Record(self.target_metadata_key(group_id), None),
            *(Record(member.metadata_key(group_id, one), None) for one in members),
            *before,
            Record(self.metadata_key(group_id), None),
            *after,
        )

    def check_deletable(self, key: Any) -> None:
        """Take the tombstone of the group: no member may be left.

        :raises InconsistentRecord: if something is left.
        """
        if self._members:
            raise InconsistentRecord.of(key, f"the group still has {len(self._members)} members")
        if self.assignment_epoch != LEAVE_EPOCH:
            raise InconsistentRecord.of(key, "the target assignment's own tombstone is missing")

    def apply_member_metadata(self, key: Any, value: Any) -> None:
        """Apply a member's metadata; its tombstone removes the member."""
        old = self._members.get(key.member_id)
        if value is not None:
            new: M = self.member_type(member_id=key.member_id) if old is None else old
            self._replace(old, new.with_metadata(value), key)
        elif old is not None:
            if old.member_epoch != LEAVE_EPOCH:
                raise InconsistentRecord.of(key, "the tombstone of the member's assignment is missing")
            if key.member_id in self._targets:
                raise InconsistentRecord.of(key, "the tombstone of the member's target is missing")
            self._replace(old, None, key)

    def apply_target_metadata(self, key: Any, value: Any) -> None:
        """Apply the target's epoch and time; its tombstone is the first step of the group's deletion."""
        if value is None and self._targets:
            raise InconsistentRecord.of(key, f"the assignment still has {len(self._targets)} members")
        self.assignment_epoch = LEAVE_EPOCH if value is None else value.assignment_epoch
        self.assignment_timestamp_ms = 0 if value is None else value.assignment_timestamp_ms

    @abstractmethod
    def _replace(self, old: M | None, new: M | None, key: Any) -> None:
        """Replace a member, and update all that is derived from it."""


class MemberContact:
    """The last contact with a member."""

    __slots__ = ("last_ms", "session_ms")

    def __init__(self, last_ms: int) -> None:
        self.last_ms = last_ms
        self.session_ms: int | None = None
        """The member's own session timeout in ms, if it speaks the classic protocol."""


C = TypeVar("C", bound=MemberContact)


class EpochGroupSoftState(MetadataRefresh, Generic[C]):
    """The soft state of one group."""

    __slots__ = ("contacts",)

    def __init__(self) -> None:
        super().__init__()
        self.contacts: dict[MemberId, C] = {}


S = TypeVar("S", bound=EpochGroupSoftState[Any])
G = TypeVar("G", bound=EpochGroup[Any, Any])


class SoftState(Generic[S, G, M]):
    """The state of groups that no record holds: timers, and when each member sent its last heartbeat.

    It follows the records: a member's timers start when the record that creates it is applied, and end with
    its tombstone. So nothing is left of removed members, and a failed append changes nothing. It is rebuilt,
    with full session lengths, when a journal is loaded.
    """

    __slots__ = ("_make", "_session_timeout_ms", "groups", "now_ms", "timers")

    timer_kinds: ClassVar[Collection[GroupTimerKind]]
    """The timers that a member may have."""

    def __init__(self, make: Callable[[], S], session_timeout_ms: Callable[[str], int]) -> None:
        self._make = make
        self._session_timeout_ms = session_timeout_ms
        """The session length of a group, by its id."""
        self.groups: dict[str, S] = {}
        self.timers: Timers[GroupTimerKey] = Timers()
        self.now_ms = 0
        """The time of the last event, except heartbeats that got a kept response; records are applied at this
        time."""

    def of(self, group_id: str) -> S:
        """Return the group's soft state; for a group that no record has made yet, one that is not kept."""
        return self.groups.get(group_id) or self._make()

    @abstractmethod
    def follow(self, key: Any, value: Any, group: G | None) -> None:
        """Update the soft state after a record of a group was applied; None if the record ended the group."""

    def rebuild(self, groups: Mapping[str, G], now_ms: int) -> None:
        """Start over after a load: every session starts now."""
        self.groups = {group_id: self._make() for group_id in groups}
        self.timers.clear()
        self.now_ms = now_ms
        for group_id, group in groups.items():
            for member_id in sorted(group.members):
                self._meet(group_id, group.members[member_id])

    def heard(self, group_id: str, member_id: MemberId, now_ms: int) -> None:
        """Note that a member is alive, if it exists."""
        soft = self.groups.get(group_id)
        if soft is not None and member_id in soft.contacts:
            soft.contacts[member_id].last_ms = now_ms

    def session_is_over(self, key: GroupTimerKey, now_ms: int) -> bool:
        """Return true if the session whose timer fired has ended.

        It has not if the member sent a heartbeat since.
        """
        deadline_ms = self._session_end_ms(key.group_id, self.groups[key.group_id].contacts[key.member_id])
        if deadline_ms > now_ms:
            self.timers.set(key, next_look_ms(deadline_ms, now_ms))
            return False
        self.retry_later(key, now_ms)
        return True

    def retry_later(self, key: GroupTimerKey, now_ms: int) -> None:
        """Run the timer again soon, unless the member ends before."""
        self.timers.set(key, now_ms + WRITE_RETRY_MS)

    def restart_sessions(self, group_id: str) -> None:
        """Adjust the timers of a group: its session timeout has changed."""
        for member_id, contact in self.of(group_id).contacts.items():
            self._arm_session(group_id, member_id, contact)

    def _session_end_ms(self, group_id: str, contact: MemberContact) -> int:
        length_ms = self._session_timeout_ms(group_id) if contact.session_ms is None else contact.session_ms
        return contact.last_ms + length_ms

    def _arm_session(self, group_id: str, member_id: MemberId, contact: MemberContact) -> None:
        key = GroupTimerKey(GroupTimerKind.SESSION, group_id, member_id)
        self.timers.set(key, self._session_end_ms(group_id, contact))

    def _meet(self, group_id: str, member: M) -> None:
        contact = self.groups[group_id].contacts[member.member_id] = self._first_contact(member)
        self._arm_session(group_id, member.member_id, contact)
        self._arm_rebalance(group_id, member, contact)

    def _forget(self, group_id: str, member_id: MemberId) -> None:
        self.groups[group_id].contacts.pop(member_id, None)
        for kind in self.timer_kinds:
            self.timers.cancel(GroupTimerKey(kind, group_id, member_id))

    @abstractmethod
    def _first_contact(self, member: M) -> Any:
        """Return the contact of a new member."""

    @abstractmethod
    def _arm_rebalance(self, group_id: str, member: M, contact: Any) -> None:
        """Restart the rebalance timer if the record leaves a revocation outstanding; else cancel it."""


def stale(member: Any, message: str) -> ProtocolError:
    """Return the error for an epoch that is not the member's."""
    is_classic = getattr(member, "classic", None) is not None
    return ProtocolError(
        ErrorCode.ILLEGAL_GENERATION if is_classic else ErrorCode.STALE_MEMBER_EPOCH, message
    )


def check_commit_epoch(group: EpochGroup[M, Any], request: OffsetCommitRequest, protocol: str) -> M | None:
    """Check that the request may commit (KIP-848, OffsetCommit; KIP-1251). Return None if it may for any
    partition. If its epoch is an older one of the member's, return the member: it may for what it had then.

    :raises ProtocolError: UNKNOWN_MEMBER_ID, UNSUPPORTED_VERSION for a request from before member epochs, or
        STALE_MEMBER_EPOCH for an epoch that the member has not reached; a member that speaks the classic
        protocol gets ILLEGAL_GENERATION.
    """
    epoch = request.member_epoch
    if request.is_anonymous_transaction or (epoch < 0 and not group.members):
        return None
    member = group.member(request.member_id)
    is_classic = getattr(member, "classic", None) is not None
    if not request.is_transactional and request.api_version < MEMBER_EPOCH_VERSION and not is_classic:
        raise ProtocolError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"OffsetCommit version {MEMBER_EPOCH_VERSION} or above must be used by members using the "
            f"{protocol} group protocol",
        )
    current = member.member_epoch
    if epoch > current:
        raise stale(member, f"Received member epoch {epoch} is newer than current member epoch {current}.")
    return None if epoch == current else member


def check_held_since(member: EpochMember, epoch: int, part: str, number: int, what: str) -> None:
    """Check that the member holds a partition or a task, and held it at that epoch of its own.

    :raises ProtocolError: STALE_MEMBER_EPOCH, or ILLEGAL_GENERATION for a classic member.
    """
    assigned_at = member.assignment_epochs.get(part, {}).get(number)
    if assigned_at is None:
        message = f"{what} {part}-{number} is not assigned or pending revocation for member."
        raise stale(member, message)
    if epoch < assigned_at:
        raise stale(
            member,
            f"Received member epoch {epoch} is older than assignment epoch {assigned_at} "
            f"for {what.lower()} {part}-{number}.",
        )


def check_fetch_epoch(group: EpochGroup[Any, Any], request: OffsetFetchRequest) -> None:
    """Check that the request may fetch (KIP-848, OffsetFetch): without a member, or at its member's epoch.

    :raises ProtocolError: UNKNOWN_MEMBER_ID, STALE_MEMBER_EPOCH, or ILLEGAL_GENERATION for a classic member.
    """
    if request.member_id is None and request.member_epoch < 0:
        return
    member = group.member(request.member_id or "")
    if request.member_epoch != member.member_epoch:
        raise stale(
            member,
            f"The received member epoch {request.member_epoch} does not match the expected member epoch "
            f"{member.member_epoch}.",
        )


class EpochGroups(GroupKind, Generic[G, OfGroup]):
    """All groups of such a kind in a coordinator."""

    __slots__ = ("_groups", "_settings", "config", "groups", "image", "replay", "timers")

    group_type: ClassVar[type[Any]]
    soft: SoftState[Any, G, Any]

    def __init__(
        self,
        config: GroupCoordinatorConfig,
        settings_of: Callable[[GroupConfig], OfGroup],
    ) -> None:
        self.config = config
        self._groups: dict[str, G] = {}
        self.groups: Mapping[str, G] = MappingProxyType(self._groups)
        self.replay: Callable[[Any, Any], None] = partial(self.group_type.apply, self._groups)
        """Makes a record of a journal true, or raises InconsistentRecord; `rebuild` ends a load."""
        self.timers = self.soft.timers
        self.image = TopicsImage()
        """The cluster's topics, as of the last TopicsChanged."""
        self._settings = SettingsByGroup(settings_of)

    # Records

    def appliers(self) -> Mapping[type, Applier]:
        """Return the functions that apply the records of these groups."""
        return dict.fromkeys(self.group_type.applied_by, self.apply)

    def replayers(self) -> Mapping[type, Applier]:
        """Return the same, without the state in memory."""
        return dict.fromkeys(self.group_type.applied_by, self.replay)

    def begin(self, now_ms: int) -> None:
        """Take the time of the event that is about to be handled."""
        self.soft.now_ms = now_ms

    def apply(self, key: Any, value: Any) -> None:
        """Make a record true, at the time of the event that was handled last.

        :raises InconsistentRecord: if it cannot follow the records before it.
        """
        self.replay(key, value)
        self.soft.follow(key, value, self._groups.get(key.group_id))

    def rebuild(self, now_ms: int) -> None:
        """Start all timers with their full length."""
        self.soft.rebuild(self._groups, now_ms)

    @abstractmethod
    def end_of_members(self, group: G, member_ids: Collection[MemberId], now_ms: int) -> tuple[Record, ...]:
        """Return the records that remove members for good."""

    @abstractmethod
    def raised(self, group: G) -> tuple[Record, ...]:
        """Return the records that raise the epoch of a group, and change nothing else."""

    # Configuration

    def set_group_config(self, group_id: str, config: GroupConfig | None) -> None:
        """Set the configuration of a group, or remove it with None. No record holds it."""
        self._settings.configure(group_id, config)
        self.soft.restart_sessions(group_id)

    def settings(self, group_id: str) -> OfGroup:
        """Return the settings of a group."""
        return self._settings.of(group_id)

    def _session_timeout_ms(self, group_id: str) -> int:
        return self._settings.of(group_id).session_timeout_ms

    def check_fetch(self, group: G, request: OffsetFetchRequest) -> None:
        """Fence an OffsetFetch by the member's epoch."""
        check_fetch_epoch(group, request)

    # What happens without a request

    def heard(self, group_id: str, member_id: MemberId, now_ms: int) -> None:
        """Note that a member is alive, as the shell knows."""
        self.soft.heard(group_id, member_id, now_ms)

    def session_ended(self, group_id: str, member_id: MemberId, now_ms: int) -> Outcome:
        """Remove a member that is gone, as the shell knows."""
        group = self._groups.get(group_id)
        if group is None or member_id not in group.members:
            return NOTHING
        return self._fence(GroupTimerKey(GroupTimerKind.SESSION, group_id, member_id), now_ms)

    def rebalance(self, group_id: str, now_ms: int) -> Outcome:
        """Raise the epoch of a group with members for its own sake."""
        group = self._groups.get(group_id)
        if group is None or not group.members:
            return NOTHING
        return Outcome(records=self.raised(group))

    def _fence(self, key: GroupTimerKey, now_ms: int) -> Outcome:
        records = self.end_of_members(self._groups[key.group_id], (key.member_id,), now_ms)
        fenced = MemberFenced(group_id=key.group_id, member_id=key.member_id, reason=key.kind.value)
        return Outcome(records=records, effects=(fenced,))
