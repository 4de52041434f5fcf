"""The journal against the live state: a shadow that is fed from encoded records, and replays of the whole.

After each event the shadow takes the event's records, as bytes and back, and must agree with the live
coordinator on everything that they touch. When a coordinator has loaded, and at the end, everything is
compared, and the journal must replay to the same state in every compaction.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from fencepost.coordinator.consumer.group import ConsumerGroup
from fencepost.coordinator.journal.encoding import decode, encode
from fencepost.coordinator.journal.memory import MemoryJournal
from fencepost.coordinator.offsets.store import OffsetStore
from fencepost.coordinator.protocol import records as r
from fencepost.coordinator.protocol.ids import MemberId
from fencepost.coordinator.protocol.streams_records import StreamsGroupMetadataKey
from fencepost.coordinator.streams.group import StreamsGroup
from fencepost.simulation.checkers.base import Finding
from fencepost.simulation.checkers.step import Touched

if TYPE_CHECKING:
    from fencepost.coordinator.consumer.member import ConsumerGroupMember
    from fencepost.coordinator.coordinator import GroupCoordinator


G = TypeVar("G", ConsumerGroup, StreamsGroup)


class JournalVersion(enum.StrEnum):
    """What a coordinator may find of a journal when it loads."""

    AS_IT_IS = "the journal"
    COMPACTED = "the compacted journal"
    WITH_TOMBSTONES = "the journal compacted with its tombstones"
    HALF_COMPACTED = "the journal with its older half compacted"


_CHECKED: Final = frozenset(
    {
        *ConsumerGroup.applied_by,
        *StreamsGroup.applied_by,
        r.GroupMetadataKey,
        r.OffsetCommitKey,
        r.PendingOffsetCommitKey,
    }
)
"""Keys of the records that a shadow takes: those of a further kind have no bytes here."""


class Shadow:
    """The hard state of a second coordinator, which sees records only."""

    def __init__(self) -> None:
        self.groups: dict[str, ConsumerGroup] = {}
        self.offsets = OffsetStore()
        self.stored: dict[str, r.GroupMetadataValue] = {}
        """Classic groups."""
        self.streams: dict[str, StreamsGroup] = {}
        self._appliers: Mapping[type, Callable[[Any, Any], None]] = {
            r.OffsetCommitKey: self.offsets.apply,
            r.PendingOffsetCommitKey: self.offsets.apply_pending,
            r.GroupMetadataKey: self._apply_classic,
        }
        """What makes a record of that key true; any other is a streams or a consumer group's."""

    def apply(self, record: r.Record) -> None:
        """Makes a record true."""
        kind = type(record.key)
        apply = self._appliers.get(kind)
        if apply is not None:
            apply(record.key, record.value)
        elif kind in StreamsGroup.applied_by:
            StreamsGroup.apply(self.streams, record.key, record.value)
        else:
            ConsumerGroup.apply(self.groups, record.key, record.value)

    def _apply_classic(self, key: r.GroupMetadataKey, value: r.GroupMetadataValue | None) -> None:
        self.stored.pop(key.group_id, None)
        if value is not None:
            self.stored[key.group_id] = value

    def follow(
        self,
        live: GroupCoordinator,
        batch: tuple[r.Record, ...],
        named: Mapping[str, Touched],
        before: Mapping[MemberId, ConsumerGroupMember | None],
    ) -> Iterator[Finding]:
        """Takes one batch in, and compares what it touches: `named`, of consumer groups.

        `before` are the members that it names as the live coordinator knew them.
        """
        apply = self.apply
        if _offsets_only(batch):
            # They are many and all alike: one of them goes through its bytes.
            apply(decode(encode(batch[0])))
            for record in batch[1:]:
                apply(record)
        else:
            for record in batch:
                if type(record.key) in _CHECKED:
                    apply(self._through_bytes(record, before))
            yield from self._compare_groups(live, named)
        for record in batch:
            key = record.key
            if type(key) is r.GroupMetadataKey:
                one, other = self.stored.get(key.group_id), live.classic.stored.get(key.group_id)
                if one != other:
                    yield _difference(key.group_id, "the classic group", one, other)
            elif type(key) is StreamsGroupMetadataKey:
                ours, theirs = self.streams.get(key.group_id), live.streams.groups.get(key.group_id)
                yield from _compare_hard_state(key.group_id, ours, theirs, "the records seen so far")
            elif type(key) is r.OffsetCommitKey:
                stored = live.offsets.topics(key.group_id).get(key.topic, {}).get(key.partition)
                if stored is not record.value and stored != record.value:
                    what = f"the offset of {key.topic}-{key.partition}"
                    yield _difference(key.group_id, what, record.value, stored)

    def _through_bytes(
        self, record: r.Record, before: Mapping[MemberId, ConsumerGroupMember | None]
    ) -> r.Record:
        """The record as a journal keeps it.

        One that moves an epoch and nothing else, as most do, has the very sets that went through their bytes
        when they were new: the shadow's own are put in their place. It has them no more if a record before
        this one made the member anew.
        """
        key, value = record.key, record.value
        if type(value) is r.ConsumerGroupCurrentMemberAssignmentValue:
            assert type(key) is r.ConsumerGroupCurrentMemberAssignmentKey
            known, group = before.get(key.member_id), self.groups.get(key.group_id)
            ours = None if group is None else group.members.get(key.member_id)
            if (
                known is not None
                and ours is not None
                and ours.member_epoch == known.member_epoch
                and value.assigned is known.assigned
                and value.assignment_epochs is known.assignment_epochs
                and not value.pending_revocation
                and not known.pending_revocation
            ):
                moved = msgspec.structs.replace(
                    value, assigned=ours.assigned, assignment_epochs=ours.assignment_epochs
                )
                return r.Record(key, moved)
        return decode(encode(record))

    def _compare_groups(self, live: GroupCoordinator, named: Mapping[str, Touched]) -> Iterator[Finding]:
        for group_id, touched in named.items():
            ours, theirs = self.groups.get(group_id), live.groups.get(group_id)
            if ours is None or theirs is None:
                if ours is not theirs:
                    yield (
                        "journal-replay",
                        f"{group_id} is {_there(theirs)} live, and {_there(ours)} in its journal",
                    )
                continue
            summary, live_summary = _summary(ours), _summary(theirs)
            if summary != live_summary:
                for name, one, other in zip(_SUMMARY, summary, live_summary, strict=True):
                    if one != other:
                        yield _difference(group_id, name, one, other)
            for member_id in touched.members:
                member, live_member = ours.members.get(member_id), theirs.members.get(member_id)
                if member != live_member:
                    yield _difference(group_id, member_id, member, live_member)
            for member_id in touched.targets:
                target, live_target = ours.targets.get(member_id), theirs.targets.get(member_id)
                if target != live_target:
                    yield _difference(group_id, f"the target of {member_id}", target, live_target)

    def compare_all(self, live: GroupCoordinator, what: str) -> Iterator[Finding]:
        """The whole of both."""
        yield from compare_coordinators(self, live, what)


def _offsets_only(batch: tuple[r.Record, ...]) -> bool:
    """Whether the batch is a commit. Offsets that expire may come with the end of their group."""
    return type(batch[0].key) is r.OffsetCommitKey and type(batch[-1].key) is r.OffsetCommitKey


def _there(group: object | None) -> str:
    return "missing" if group is None else "there"


def _loaded(make: Callable[[], GroupCoordinator], records: Iterable[r.Record]) -> GroupCoordinator:
    """A coordinator that has read a journal; that its records survive their encoding the shadow shows."""
    coordinator = make()
    coordinator.replay(records, 0)
    return coordinator


def _difference(group_id: str, what: str, ours: object, theirs: object) -> Finding:
    return "journal-replay", f"{group_id}: {what} is {theirs} live, and {ours} in its journal"


_SUMMARY = (
    "group_epoch",
    "metadata_hash",
    "assignment_epoch",
    "assignment_timestamp_ms",
    "state",
    "members",
    "targets",
    "static members",
    "resolved expressions",
)


def _summary(group: ConsumerGroup) -> tuple[object, ...]:
    """What is compared after every event: single values, and how many there are of the others."""
    return (
        group.group_epoch,
        group.metadata_hash,
        group.assignment_epoch,
        group.assignment_timestamp_ms,
        group.state,
        len(group.members),
        len(group.targets),
        len(group.static_members),
        len(group.resolved),
    )


def _compare_hard_state(group_id: str, ours: G | None, theirs: G | None, what: str) -> Iterator[Finding]:
    if ours is None or theirs is None:
        if ours is not theirs:
            yield "journal-replay", f"{group_id} is {_there(theirs)} live, and {_there(ours)} in {what}"
        return
    left, right = ours.hard_state(), theirs.hard_state()
    if left != right:
        yield "journal-replay", _differing(group_id, left, right, what)


def _hard_states(ours: Shadow | GroupCoordinator) -> Iterable[Mapping[str, Any]]:
    """What records made, by kind and group; a shadow has the groups of Kafka's three kinds."""
    if isinstance(ours, Shadow):
        consumer = {group_id: group.hard_state() for group_id, group in ours.groups.items()}
        streams = {group_id: group.hard_state() for group_id, group in ours.streams.items()}
        return consumer, ours.stored, streams
    return (kind.hard_state() for kind in ours.kinds)


def _differing(group_id: str, one: dict[str, Any], other: dict[str, Any], what: str) -> str:
    differing = [name for name in one if one[name] != other[name]]
    return f"{group_id}: {', '.join(differing)} of {what} differ from the live state"


def compare_coordinators(
    ours: Shadow | GroupCoordinator, live: GroupCoordinator, what: str
) -> Iterator[Finding]:
    """Everything that records made, in two coordinators."""
    for kind, mine in zip(live.kinds, _hard_states(ours), strict=False):
        theirs = kind.hard_state()
        for group_id in sorted(mine.keys() | theirs.keys()):
            one, other = mine.get(group_id), theirs.get(group_id)
            if one == other:
                continue
            if isinstance(one, dict) and isinstance(other, dict):
                yield "journal-replay", _differing(group_id, one, other, what)
            elif one is None or other is None:
                yield "journal-replay", f"{group_id} is {_there(other)} live, and {_there(one)} in {what}"
            else:
                message = f"the {kind.name} group {group_id} of {what} is {one}, live {other}"
                yield "journal-replay", message
    if ours.offsets != live.offsets:
        yield "journal-replay", f"the offsets of {what} differ from the live ones"


def check_replays(
    make: Callable[[], GroupCoordinator],
    journal: MemoryJournal,
    live: GroupCoordinator,
    versions: Iterable[JournalVersion] | None = None,
) -> Iterator[Finding]:
    """The journal in these versions, or in all of them, against the live state."""
    for version in JournalVersion if versions is None else versions:
        try:
            replayed = _loaded(make, _version(journal, version))
        except Exception as error:
            yield "journal-replay", f"{version} cannot be replayed: {error}"
        else:
            yield from compare_coordinators(replayed, live, version)


def _version(journal: MemoryJournal, version: JournalVersion) -> Iterable[r.Record]:
    if version is JournalVersion.AS_IT_IS:
        return journal
    batches = list(journal.batches())
    half = len(batches) // 2 if version is JournalVersion.HALF_COMPACTED else len(batches)
    compacted = MemoryJournal(batches[:half])
    compacted.compact(keep_tombstones=version is JournalVersion.WITH_TOMBSTONES)
    return chain(compacted, *batches[half:])
