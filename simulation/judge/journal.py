"""The journal against the live state: a shadow that is fed from encoded records, and replays of the whole.

After each event the shadow takes the event's records, as bytes and back, and must agree with the live
coordinator on everything that they touch. When a coordinator has loaded, and at the end, everything is
compared, and the journal must replay to the same state in every compaction.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, get_args

import msgspec

from fencepost.coordinator.coordinator import GroupCoordinator
from fencepost.coordinator.journal.encoding import decode, encode
from fencepost.coordinator.journal.memory import MemoryJournal
from fencepost.coordinator.protocol import records as r
from fencepost.coordinator.protocol.streams_records import StreamsGroupMetadataKey
from fencepost.simulation.judge.base import Finding
from fencepost.simulation.judge.step import Touched

if TYPE_CHECKING:
    from fencepost.coordinator.config import GroupCoordinatorConfig
    from fencepost.coordinator.consumer.group import ConsumerGroup
    from fencepost.coordinator.kinds import GroupKind
    from fencepost.coordinator.streams.group import StreamsGroup


SEEN_SO_FAR: Final = "the records seen so far"
"""The name of a shadow's content in messages."""


class JournalVersion(enum.StrEnum):
    """The forms of a journal that a coordinator may find when it loads."""

    AS_IT_IS = "the journal"
    COMPACTED = "the compacted journal"
    WITH_TOMBSTONES = "the journal compacted with its tombstones"
    HALF_COMPACTED = "the journal with its older half compacted"


_OFFSETS_ONLY: Final = frozenset({r.OffsetCommitKey})
_OF_OFFSETS: Final = frozenset({r.OffsetCommitKey, r.PendingOffsetCommitKey})
_VALUES: Final = "group_epoch", "metadata_hash", "assignment_epoch", "assignment_timestamp_ms", "state"
_COUNTED: Final = "members", "targets", "static_members", "resolved"
"""Collections whose sizes are compared after every event."""
_HAVE_BYTES: Final = frozenset(get_args(r.RecordKey))
"""Keys of the records that have an encoding: those of a further kind of groups have no encoding."""


class Shadow:
    """A second coordinator, which sees records only, and most of them as bytes.

    It applies them by the code that loads a journal. That is its judgement: live state must not exceed what
    its records lead to.
    """

    def __init__(self, config: GroupCoordinatorConfig) -> None:
        self._coordinator = GroupCoordinator(config)
        self._offsets: dict[r.OffsetCommitKey, r.Record] = {}
        """The newest commits, on which nothing else depends: they are applied when a check reads them."""

    @property
    def coordinator(self) -> GroupCoordinator:
        """Return the coordinator, with all records applied."""
        self._catch_up()
        return self._coordinator

    @property
    def groups(self) -> Mapping[str, ConsumerGroup]:
        """The consumer groups."""
        return self._coordinator.groups

    def apply(self, record: r.Record) -> None:
        """Apply a record."""
        self._coordinator.replay_one(record)

    def _catch_up(self) -> None:
        for record in self._offsets.values():
            self.apply(decode(encode(record)))
        self._offsets.clear()

    def follow(
        self,
        live: GroupCoordinator,
        batch: tuple[r.Record, ...],
        named: Mapping[str, Touched],
    ) -> Iterator[Finding]:
        """Take one batch in, and compare the groups that it touches: `named`, of consumer groups."""
        kinds = {type(record.key) for record in batch}
        if kinds == _OFFSETS_ONLY:
            for record in batch:
                assert isinstance(record.key, r.OffsetCommitKey)
                self._offsets[record.key] = record
            yield from _compare_offsets(live, batch)
        else:
            if not kinds.isdisjoint(_OF_OFFSETS):
                self._catch_up()
            ours, apply = self._coordinator, self.apply
            for record in batch:
                has_bytes = type(record.key) in _HAVE_BYTES
                apply(self._through_bytes(record) if has_bytes else record)
            yield from self._compare_groups(live, named)
            yield from _compare_offsets(live, batch)
            for record in batch:
                key = record.key
                if type(key) is r.GroupMetadataKey:
                    one, other = (each.classic.stored.get(key.group_id) for each in (ours, live))
                    yield from _compare(live.classic, key.group_id, one, other, SEEN_SO_FAR)
                elif type(key) is StreamsGroupMetadataKey:
                    mine, theirs = (
                        _hard_state(each.streams.groups.get(key.group_id)) for each in (ours, live)
                    )
                    yield from _compare(live.streams, key.group_id, mine, theirs, SEEN_SO_FAR)

    def _through_bytes(self, record: r.Record) -> r.Record:
        """Return the record as a journal keeps it.

        Most records of a member only move its epoch. Its sets were encoded when they were new: the shadow's
        own replace them.
        """
        key, value = record.key, record.value
        if type(value) is r.ConsumerGroupCurrentMemberAssignmentValue and not value.pending_revocation:
            group = self.groups.get(key.group_id)
            ours: Any = None if group is None else group.members.get(getattr(key, "member_id", ""))
            names = "assigned", "assignment_epochs"
            if ours is not None and all(getattr(value, each) == getattr(ours, each) for each in names):
                own = {each: getattr(ours, each) for each in names}
                return r.Record(key, msgspec.structs.replace(value, **own))
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
            values: list[tuple[str, object, object]] = [
                (name, getattr(ours, name), getattr(theirs, name)) for name in _VALUES
            ]
            values += [(name, len(getattr(ours, name)), len(getattr(theirs, name))) for name in _COUNTED]
            values += [(each, ours.members.get(each), theirs.members.get(each)) for each in touched.members]
            values += [
                (f"the target of {each}", ours.targets.get(each), theirs.targets.get(each))
                for each in touched.targets
            ]
            for what, one, other in values:
                if one != other:
                    yield _difference(group_id, what, one, other)


def _compare_offsets(live: GroupCoordinator, batch: tuple[r.Record, ...]) -> Iterator[Finding]:
    """Compare the offsets of a batch with the live ones."""
    for record in batch:
        key = record.key
        if type(key) is r.OffsetCommitKey:
            stored = live.offsets.get(key.group_id, key)
            if stored is not record.value and stored != record.value:
                what = f"the offset of {key.topic}-{key.partition}"
                yield _difference(key.group_id, what, record.value, stored)


def _hard_state(group: StreamsGroup | None) -> dict[str, Any] | None:
    return None if group is None else group.hard_state()


def _there(group: object | None) -> str:
    return "missing" if group is None else "there"


def _loaded(make: Callable[[], GroupCoordinator], records: Iterable[r.Record]) -> GroupCoordinator:
    """Return a coordinator that has read a journal; the shadow checks the encoding of its records."""
    coordinator = make()
    coordinator.replay(records, 0)
    return coordinator


def _difference(group_id: str, what: str, ours: object, theirs: object) -> Finding:
    return "journal-replay", f"{group_id}: {what} is {theirs} live, and {ours} in its journal"


def _compare(kind: GroupKind, group_id: str, one: Any, other: Any, what: str) -> Iterator[Finding]:
    """Compare a group's hard state in `what` with the live one; None if it is missing."""
    if one == other:
        return
    if one is None or other is None:
        yield "journal-replay", f"{group_id} is {_there(other)} live, and {_there(one)} in {what}"
    elif isinstance(one, dict):
        differing = ", ".join(name for name in one if one[name] != other[name])
        yield "journal-replay", f"{group_id}: {differing} of {what} differ from the live state"
    else:
        yield "journal-replay", f"the {kind.name} group {group_id} of {what} is {one}, live {other}"


def compare_coordinators(ours: GroupCoordinator, live: GroupCoordinator, what: str) -> Iterator[Finding]:
    """Compare everything that records made, in two coordinators."""
    for mine, theirs in zip(ours.kinds, live.kinds, strict=True):
        one, other = mine.hard_state(), theirs.hard_state()
        for group_id in sorted(one.keys() | other.keys()):
            yield from _compare(theirs, group_id, one.get(group_id), other.get(group_id), what)
    if ours.offsets != live.offsets:
        yield "journal-replay", f"the offsets of {what} differ from the live ones"


def check_replays(
    make: Callable[[], GroupCoordinator],
    journal: MemoryJournal,
    live: GroupCoordinator,
    versions: Iterable[JournalVersion] | None = None,
) -> Iterator[Finding]:
    """Compare the journal in these versions, or in all of them, with the live state."""
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
