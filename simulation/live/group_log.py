"""Kafka's own log of groups as a trace: it turns records of `__consumer_offsets` into rows.

A log has a coordinator's decisions, but not the requests. It has no heartbeats, and does not say whether a
removed member left or timed out: it may have read nothing for a session timeout before its tombstone. The log
of a classic group has each generation once it is complete, but not the rounds of joining before it. So rows
mark what has no known time: `gone` for such a removal, `taken` for partitions that a generation gave to
another member, and `generation: …` for a rebalance that the log shows only at its end.

The partitions of a member are those that the coordinator has assigned to it. The model is lenient, because
compaction may have removed any older record, including tombstones.

Records of one millisecond form one step: the group's state becomes a row once all of them are applied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from itertools import groupby
from typing import Any, Final, NamedTuple

import msgspec

from fencepost.coordinator.codec.group_records import MalformedRecord, OpaqueRecord, decode_record
from fencepost.coordinator.consumer.states import STATES_BY_CODE, ConsumerGroupMemberState, GroupState
from fencepost.coordinator.protocol import records as r
from fencepost.coordinator.protocol import streams_records as s
from fencepost.coordinator.protocol.classic import CONSUMER_PROTOCOL_TYPE
from fencepost.coordinator.protocol.consumer_protocol import MalformedConsumerProtocol, read_assignment
from fencepost.coordinator.protocol.ids import MemberId, Partitions, TopicId, TopicPartition
from fencepost.coordinator.protocol.records import Record
from fencepost.coordinator.protocol.streams import TaskIds
from fencepost.simulation.trace.group_runs import start_row
from fencepost.simulation.trace.schema import GENERATION, LOG_WORLD, Row, RowKind

_AWAY: Final = -2
"""The epoch of a static member that left for a while (KIP-848)."""

Names = Callable[[TopicId], str]
"""Returns the name of a topic by its id, or the id itself if the topic is no longer known."""


class LogRecord(NamedTuple):
    """A record of the log; its time is in milliseconds, by the broker's clock."""

    timestamp_ms: int
    key: bytes | None
    value: bytes | None


class _Member(msgspec.Struct):
    """One member as the log shows it: the partitions that it holds, and those that it has yet to release."""

    actor: str
    """Its client id and its id, as Kafka names classic members."""
    epoch: int = -1
    state: str = ""
    held: tuple[TopicPartition, ...] = ()
    leaving: tuple[TopicPartition, ...] = ()


class _Known(msgspec.Struct):
    """The state of a group that is kept between two batches of its records."""

    began_ms: int | None = None
    last_us: int = 0
    seq: int = 0
    state: str = ""
    epoch: int = -1
    target: int = -1
    classic: bool = False
    members: dict[MemberId, _Member] = {}


class GroupLog:
    """The log of one group, as rows. `kept` is the result of `keep` after the earlier records."""

    def __init__(self, group_id: str, names: Names, kept: bytes | None = None) -> None:
        self._group_id = group_id
        self._names = names
        self._known = _Known() if kept is None else msgspec.msgpack.decode(kept, type=_Known)
        self._rows: list[Row] = []
        self._now_us = 0
        self.unreadable = 0
        """Number of records that do not match their type and version, or whose type is unknown."""

    @property
    def began_ms(self) -> int:
        """The time of the group's first record, which is 0 in the trace."""
        return self._known.began_ms or 0

    def keep(self) -> bytes:
        """Return the state that is needed to continue."""
        return msgspec.msgpack.encode(self._known)

    def take(self, records: Iterable[LogRecord]) -> list[Row]:
        """Return the rows for these records, in the order of the log."""
        for timestamp_ms, instant in groupby(records, key=lambda each: each.timestamp_ms):
            read = [record for each in instant if (record := self._read(each)) is not None]
            if read:
                self._step(timestamp_ms, read)
        rows, self._rows = self._rows, []
        return rows

    def _read(self, record: LogRecord) -> Record | None:
        try:
            found = decode_record(record.key, record.value)
        except MalformedRecord:
            found = None
        if isinstance(found, Record):
            return found
        if isinstance(found, OpaqueRecord) and found.group_id is not None and found.version is None:
            return None  # the log ignores it, such as 4.0's partition metadata of each group
        self.unreadable += 1
        return None

    # -- one step ----------------------------------------------------------------------------------------

    def _step(self, timestamp_ms: int, records: Sequence[Record]) -> None:
        known = self._known
        if known.began_ms is None:
            known.began_ms = timestamp_ms
            known.seq = 1
            self._rows.append(start_row(LOG_WORLD, self._group_id, began_ms=timestamp_ms))
        # A broker's clock may be set back; the time of a trace may not.
        self._now_us = known.last_us = max((timestamp_ms - known.began_ms) * 1_000, known.last_us)
        cause = self._cause(records)
        first = len(self._rows)
        offsets: list[tuple[r.OffsetCommitKey, r.OffsetCommitValue]] = []
        for key, value in ((each.key, each.value) for each in records):
            match key:
                case r.OffsetCommitKey() if isinstance(value, r.OffsetCommitValue):
                    offsets.append((key, value))
                case r.GroupMetadataKey():
                    self._classic(value if isinstance(value, r.GroupMetadataValue) else None)
                case _:
                    self._apply(key, value, cause)
        if offsets:
            self._commit(offsets)
        self._settle(first)

    def _apply(self, key: Any, value: Any, cause: str) -> None:
        known = self._known
        if isinstance(value, r.EPOCH_VALUES):
            known.classic, known.epoch = False, value.epoch
            self._add(RowKind.GROUP_EPOCH, detail=cause)
        elif isinstance(value, r.TARGET_VALUES):
            known.target = value.assignment_epoch
            self._add(RowKind.TARGET)
        elif isinstance(key, r.GROUP_KEYS):
            known.epoch = known.target = -1
            known.state = self._moved(known.state, GroupState.DEAD)
        elif isinstance(key, r.MEMBER_KEYS):
            if value is None:
                self._remove(key.member_id)
            else:
                self._join(key.member_id, value.client_id)
        elif isinstance(key, r.ASSIGNMENT_KEYS) and value is not None:
            self._place(key.member_id, value)
        elif isinstance(key, r.ConsumerGroupCurrentMemberAssignmentKey):
            self._add(RowKind.ASSIGNMENT, key.member_id, detail=self._actor(key.member_id))

    def _cause(self, records: Sequence[Record]) -> str:
        """Return the cause of the raised group epoch, as far as the records show it."""
        said = [each.key.member_id for each in records if isinstance(each.key, r.MEMBER_KEYS) and each.value]
        if any(member_id not in self._known.members for member_id in said):
            return "join"
        if any(isinstance(each.key, r.MEMBER_KEYS) and each.value is None for each in records):
            return "gone"
        if said:
            return "full"
        if any(isinstance(each.key, r.ConsumerGroupRegularExpressionKey) for each in records):
            return "expressions"
        return "topics"

    def _settle(self, first: int) -> None:
        """Add the group's state after the step to the rows about its epoch, and as a row of its own."""
        known = self._known
        before, after = known.state, self._state_now()
        for index in range(first, len(self._rows)):
            if self._rows[index].kind == RowKind.GROUP_EPOCH:
                self._rows[index] = self._rows[index]._replace(state_to=after)
        if after != before:
            known.state = self._moved(before, after)

    def _state_now(self) -> str:
        known = self._known
        if known.epoch < 0:
            return known.state  # it was deleted, or the log has only its offsets
        if not known.members:
            return str(GroupState.EMPTY)
        if known.classic:
            return str(GroupState.STABLE)
        if known.epoch > known.target:
            return str(GroupState.ASSIGNING)
        settled = all(
            each.epoch == known.target and each.state == ConsumerGroupMemberState.STABLE
            for each in known.members.values()
        )
        return str(GroupState.STABLE if settled else GroupState.RECONCILING)

    def _moved(self, before: str, after: str) -> str:
        self._add(RowKind.GROUP_STATE, state_from=before, state_to=str(after))
        return str(after)

    # -- members -----------------------------------------------------------------------------------------

    def _join(self, member_id: MemberId, client_id: str = "") -> None:
        if member_id not in self._known.members:
            named = member_id if member_id.startswith(client_id) else f"{client_id}-{member_id}"
            self._known.members[member_id] = _Member(named)
            self._add(RowKind.HOST, member_id, detail="start")
            self._add(RowKind.MEMBER_STATE, member_id, state_from="UNSUBSCRIBED", state_to="JOINING")

    def _remove(self, member_id: MemberId) -> None:
        member = self._known.members.get(member_id)
        if member is not None:
            # A static member that is away has left, and released everything then.
            self._add(RowKind.MEMBER_REMOVED, member_id, detail="left" if member.epoch == _AWAY else "gone")
            self._add(RowKind.HOST, member_id, detail="stopped")
            del self._known.members[member_id]

    def _place(
        self,
        member_id: MemberId,
        value: r.ConsumerGroupCurrentMemberAssignmentValue | s.StreamsGroupCurrentMemberAssignmentValue,
    ) -> None:
        """Add rows for a member's epoch, state and partitions."""
        self._join(member_id)
        if isinstance(value, r.ConsumerGroupCurrentMemberAssignmentValue):
            held, leaving = self._named(value.assigned), self._named(value.pending_revocation)
        else:
            held, leaving = _tasks(value.assigned.active), _tasks(value.pending_revocation.active)
        state = str(STATES_BY_CODE[value.state])
        if isinstance(value, r.ConsumerGroupCurrentMemberAssignmentValue):
            partitions, actor = tuple(sorted({*held, *leaving})), self._actor(member_id)
            self._add(RowKind.ASSIGNMENT, member_id, state_to=state, partitions=partitions, detail=actor)
        if value.member_epoch == _AWAY:
            held = leaving = ()  # the coordinator keeps them for its next process; this one has released them
        self._move(member_id, value.member_epoch, state, held, leaving)

    def _move(
        self,
        member_id: MemberId,
        epoch: int,
        state: str,
        held: tuple[TopicPartition, ...],
        leaving: tuple[TopicPartition, ...] = (),
        *,
        elsewhere: Set[TopicPartition] = frozenset(),
    ) -> None:
        """Add rows for what a member releases and gets. The time of the release is not known of partitions
        that another member has `elsewhere` by now."""
        member = self._known.members[member_id]
        had, had_leaving = {*member.held}, {*member.leaving}
        taken = tuple(each for each in sorted(had) if each not in held)
        gone = tuple(sorted((had_leaving | {*taken}) - {*leaving}))
        given = tuple(each for each in held if each not in had)
        before = _of_client(member.state)
        member.epoch, member.state, member.held, member.leaving = epoch, state, held, leaving
        for kind, ended in ((RowKind.CALLBACK_BEGIN, taken), (RowKind.CALLBACK_END, gone)):
            for detail in ("revoked", "taken"):
                if of_one := tuple(each for each in ended if (each in elsewhere) == (detail == "taken")):
                    self._add(kind, member_id, partitions=of_one, detail=detail)
        if given:
            self._add(RowKind.CALLBACK_BEGIN, member_id, partitions=given, detail="assigned")
            self._add(RowKind.CALLBACK_END, member_id, partitions=given, detail="assigned")
        if (after := _of_client(state)) != before:
            states = {"state_from": before, "state_to": after}
            self._add(RowKind.MEMBER_STATE, member_id, partitions=held, detail=state, **states)

    # -- classic groups ----------------------------------------------------------------------------------

    def _classic(self, value: r.GroupMetadataValue | None) -> None:
        """Add rows for the last generation of a classic group; the log has no records of the rounds between
        generations."""
        known = self._known
        if value is None:
            if known.classic:
                for member_id in list(known.members):
                    self._remove(member_id)
                known.epoch, known.state = -1, self._moved(known.state, GroupState.DEAD)
            return
        known.classic = True
        now = {member.member_id: member for member in value.members}
        gone = [each for each in known.members if each not in now]
        joined = [each for each in now if each not in known.members]
        if value.generation != known.epoch:
            known.epoch = known.target = value.generation
            self._add(RowKind.GROUP_EPOCH, detail=_generation(joined, gone))
            self._add(RowKind.TARGET)
        for member_id in gone:
            self._remove(member_id)
        readable = value.protocol_type == CONSUMER_PROTOCOL_TYPE
        held = {each: _assigned(member.assignment) if readable else () for each, member in now.items()}
        everything = frozenset(part for parts in held.values() for part in parts)
        for member_id, member in now.items():  # all releases come before what others get
            self._join(member_id, member.client_id)
            kept = tuple(each for each in known.members[member_id].held if each in held[member_id])
            self._move(
                member_id, value.generation, known.members[member_id].state, kept, elsewhere=everything
            )
        for member_id in now:
            self._move(member_id, value.generation, str(ConsumerGroupMemberState.STABLE), held[member_id])

    # -- rows --------------------------------------------------------------------------------------------

    def _commit(self, offsets: Sequence[tuple[r.OffsetCommitKey, r.OffsetCommitValue]]) -> None:
        last = {TopicPartition(key.topic, key.partition): value.offset for key, value in offsets}
        self._add(
            RowKind.COMMIT,
            partitions=tuple(sorted(last)),
            detail=" ".join(
                f"{each.topic}-{each.partition}:{offset}" for each, offset in sorted(last.items())
            ),
        )

    def _add(
        self,
        kind: RowKind,
        actor: str = "",
        *,
        state_from: str = "",
        state_to: str = "",
        partitions: tuple[TopicPartition, ...] = (),
        detail: str = "",
    ) -> None:
        known = self._known
        known.seq += 1
        member = known.members.get(actor)
        self._rows.append(
            Row(
                seq=known.seq,
                t_us=self._now_us,
                world=LOG_WORLD,
                group=self._group_id,
                actor=self._actor(actor),
                kind=kind.value,
                state_from=state_from,
                state_to=state_to,
                member_epoch=-1 if member is None else member.epoch,
                group_epoch=known.epoch,
                partitions=partitions,
                error="",
                detail=detail,
            )
        )

    def _actor(self, member_id: MemberId) -> str:
        member = self._known.members.get(member_id)
        return member_id if member is None else member.actor

    def _named(self, partitions: Partitions) -> tuple[TopicPartition, ...]:
        return tuple(
            sorted(
                TopicPartition(self._names(topic_id), number)
                for topic_id, numbers in partitions.items()
                for number in numbers
            )
        )


def _generation(joined: Sequence[MemberId], gone: Sequence[MemberId]) -> str:
    """Return what differs from the generation before; the cause of a rebalance itself is not logged."""
    changed = [word for word, members in (("joined", joined), ("gone", gone)) if members]
    return f"{GENERATION}: {' and '.join(changed) or 'same members'}"


def _of_client(state: str) -> str:
    """Return a member's state by the client's name; `detail` has the coordinator's name."""
    if not state:
        return "JOINING"
    return "STABLE" if state == ConsumerGroupMemberState.STABLE else "RECONCILING"


def _tasks(tasks: TaskIds) -> tuple[TopicPartition, ...]:
    """Return active tasks of a Streams application as partitions of their subtopology."""
    return tuple(sorted(TopicPartition(one, number) for one, numbers in tasks.items() for number in numbers))


def _assigned(assignment: bytes) -> tuple[TopicPartition, ...]:
    if not assignment:
        return ()
    try:
        found = read_assignment(assignment).partitions
    except MalformedConsumerProtocol:
        return ()
    return tuple(
        sorted(TopicPartition(topic, number) for topic, numbers in found.items() for number in numbers)
    )
