"""Judges what programs did to records: what they reported as done, what they committed, what they wrote.

It keeps an account of its own, of records by topic, partition and offset. It shares no rule with the
coordinators, whose judges run too.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from fencepost.coordinator.kinds import GroupMember
from fencepost.coordinator.protocol.ids import TopicPartition

AT_LEAST_ONCE: Final = "record-processed"
EXACTLY_ONCE: Final = "record-once"
IN_ORDER: Final = "record-order"
COMMIT_AHEAD: Final = "commit-after-processing"
OWNER_ONLY: Final = "processed-by-owner"
NO_CRASH: Final = "no-crash"
CLAIMS: Final = {
    "at-least-once": AT_LEAST_ONCE,
    "exactly-once": EXACTLY_ONCE,
    "order": IN_ORDER,
    "commit-after-processing": COMMIT_AHEAD,
    "owner-only": OWNER_ONLY,
    NO_CRASH: NO_CRASH,
}
"""The claims that a test may make about its programs, each with its invariant."""
DEFAULT_CLAIMS: Final = ("at-least-once", "order", "commit-after-processing", "owner-only")

BATCH_US: Final = 10_000_000
"""Time for which a program may go on with records that it read before it released their partition.

A program that was frozen, slow, or cut off meanwhile has that time from the end of that: it could not know
earlier.
"""

Report: TypeAlias = Callable[[str, str], None]


class Done(NamedTuple):
    """One record that a program has reported as done."""

    partition: TopicPartition
    offset: int
    program: str
    process: int
    at_us: int
    group: str = ""
    """The group for which it was done; empty if it is not known."""
    place: str = ""
    """The line that reported it."""

    def __str__(self) -> str:
        """Return what a run's digest has of it: not the place, whose file may be in another folder."""
        return (
            f"Done(partition={self.partition!r}, offset={self.offset!r}, program={self.program!r}, "
            f"process={self.process!r}, at_us={self.at_us!r}, group={self.group!r})"
        )

    @property
    def told(self) -> str:
        """The program, the time and the line, as messages have them."""
        return f"{self.program} at {_time(self.at_us)}{f' ({self.place})' if self.place else ''}"


class RecordJudge:
    """The record-level account of one run. `report` takes an invariant's name and a message.

    `owns` returns true if a coordinator assigns the partition to the program. `hindered_until` returns
    the virtual time in microseconds until which the program was frozen, slow, or cut off. `readable` returns
    the offsets of the records in a range of a partition: markers of transactions, and records of aborted
    ones, have offsets too. `groups_of` returns the groups of which a program is a member. `original` returns
    the offset of the record of which the one at an offset is a broker's copy, else that offset.
    """

    def __init__(
        self,
        claims: Iterable[str],
        report: Report,
        owns: Callable[[str, TopicPartition], bool],
        hindered_until: Callable[[str], int] = lambda program: 0,
        *,
        readable: Callable[[TopicPartition, int, int], Iterable[int]] = lambda _, first, end: range(
            first, end
        ),
        groups_of: Callable[[str], Iterable[str]] = lambda program: (),
        original: Callable[[TopicPartition, int], int] = lambda _, offset: offset,
    ) -> None:
        self._owns = owns
        self._hindered_until = hindered_until
        self._readable = readable
        self._groups_of = groups_of
        self._original = original
        self._claims = frozenset(claims)
        self._report = report
        self.done: dict[TopicPartition, dict[int, list[Done]]] = {}
        """Records that programs reported as done, by partition and offset."""
        self._done_by: dict[tuple[str, TopicPartition], set[int]] = {}
        """Offsets that were done, by group and partition; those of no known group count for all groups."""
        self._committed: dict[tuple[str, TopicPartition], int] = {}
        self._reporting: set[tuple[str, str]] = set()
        """Groups and topics: a member of the group has reported a record of the topic as done."""
        self._looked_up: set[tuple[int, str]] = set()
        """Processes and topics whose groups are among them."""
        self._keys: dict[tuple[TopicPartition, bytes, int], int] = {}
        self._given_up: dict[tuple[str, TopicPartition], tuple[int, str]] = {}
        """By program and partition: since when the coordinators know that the program has released it, and
        the new owner."""

    def claims(self, claim: str) -> bool:
        """Return true if the test makes this claim."""
        return claim in self._claims

    # -- programs report --------------------------------------------------------------------------------

    def processed(self, done: Done, key: bytes | None) -> None:
        """Note that a program has done a record."""
        times = self.done.setdefault(done.partition, {}).setdefault(done.offset, [])
        if self.claims("exactly-once"):
            self._judge_once(done)
        times.append(done)
        self._done_by.setdefault((done.group, done.partition), set()).add(done.offset)
        if self.claims("commit-after-processing"):
            self._note_groups(done)
        if self.claims("order") and key is not None:
            self._judge_order(done, key)
        if self.claims("owner-only"):
            self._judge_owner(done)

    def _judge_once(self, done: Done) -> None:
        offset = self._original(done.partition, done.offset)
        times = self.done[done.partition].get(offset, [])
        first = next((each for each in times if each.group == done.group), None)
        if first is not None:
            copied = f" (the log holds it again at offset {done.offset})" if offset != done.offset else ""
            self._report(
                EXACTLY_ONCE,
                f"{_name(done.partition, offset)}{copied} was done twice: by {first.told} and by {done.told}",
            )

    def _note_groups(self, done: Done) -> None:
        """Note whose commits of the topic are to be judged: a group may read it and report nothing."""
        key = (done.process, done.partition.topic)
        if key not in self._looked_up:
            groups = tuple(self._groups_of(done.program))
            self._reporting.update((group_id, done.partition.topic) for group_id in groups)
            if groups:
                self._looked_up.add(key)

    def _judge_order(self, done: Done, key: bytes) -> None:
        """Check that records of a key are done in offset order within one process, unless it seeks back."""
        last = self._keys.get((done.partition, key, done.process))
        if last is not None and done.offset < last and len(self.done[done.partition][done.offset]) == 1:
            self._report(
                IN_ORDER,
                f"{_name(done.partition, done.offset)} with the key {key!r} was first done after offset "
                f"{last} of the same key, by {done.told}",
            )
        self._keys[done.partition, key, done.process] = max(done.offset, -1 if last is None else last)

    def _judge_owner(self, done: Done) -> None:
        given_up = self._given_up.get((done.program, done.partition))
        if given_up is None:
            return
        if self._owns(done.program, done.partition):
            del self._given_up[done.program, done.partition]
        elif done.at_us > max(given_up[0], self._hindered_until(done.program)) + BATCH_US:
            until_us, owner = given_up
            self._report(
                OWNER_ONLY,
                f"{_name(done.partition, done.offset)} was done by {done.told}; the "
                f"program had let go of it by {_time(until_us)}; {owner} owns it",
            )

    # -- the coordinators -------------------------------------------------------------------------------

    def owners(
        self, members: Sequence[GroupMember], program_of: Callable[[GroupMember], str], now_us: int
    ) -> None:
        """Note the owners in a stable group: which program confirmed which partition. The others have
        released it."""
        owner: dict[TopicPartition, str] = {}
        for member in members:
            for partition in member.owned:
                owner[partition] = program_of(member)
        for member in members:
            name = program_of(member)
            for partition, who in owner.items():
                key = (name, partition)
                if who == name:
                    self._given_up.pop(key, None)
                elif key not in self._given_up:
                    self._given_up[key] = (now_us, who)

    def gone(self, program: str) -> None:
        """Forget a program's ended process; what the next one does is another matter."""
        self._given_up = {key: value for key, value in self._given_up.items() if key[0] != program}

    def committed(
        self,
        group_id: str,
        partition: TopicPartition,
        offset: int,
        first: int,
        committer: Callable[[], str] = lambda: "",
    ) -> None:
        """Note that a group has committed an offset; `first` is that of the first record of the partition.

        `committer` returns the program that did it, as words.
        """
        before = self._committed.get((group_id, partition), first)
        self._committed[group_id, partition] = offset
        if not self.claims("commit-after-processing") or (group_id, partition.topic) not in self._reporting:
            return
        missing = next(self._not_done(partition, before, offset, group_id), None)
        if missing is not None:
            by = "no program" if len(self._groups_on(partition.topic)) < 2 else "none of its programs"
            self._report(
                COMMIT_AHEAD,
                f"group {group_id} committed {partition.topic}-{partition.partition} at offset {offset}"
                f"{committer()}, and {by} had done offset {missing}",
            )

    # -- at the end -------------------------------------------------------------------------------------

    def all_done(self, ends: Mapping[TopicPartition, tuple[int, int]]) -> None:
        """Judge at the end that nothing was left out; `ends` are first offsets and those after the last."""
        for partition, missing in self.missing(ends):
            count = sum(1 for _ in self._readable(partition, *ends[partition]))
            some = ", ".join(map(str, missing[:5])) + (", ..." if len(missing) > 5 else "")
            self._report(
                AT_LEAST_ONCE,
                f"{len(missing)} of {count} records of {partition.topic}-{partition.partition} "
                f"were never done: offsets {some}",
            )
        for group_id, partition, missing in self.missing_in_groups(ends):
            self._report(
                AT_LEAST_ONCE,
                f"group {group_id} has never done {len(missing)} records of {partition.topic}-"
                f"{partition.partition} that another group did, such as offset {missing[0]}",
            )

    def missing(
        self, ends: Mapping[TopicPartition, tuple[int, int]]
    ) -> Iterator[tuple[TopicPartition, list[int]]]:
        """Yield partitions with records that are not done, if the test claims that all are.

        Topics of which no record is done are left out: no program reads them, or none reports.
        """
        topics = {each.topic for each in self.done} if self.claims("at-least-once") else set()
        for partition, (first, end) in ends.items():
            if partition.topic in topics:
                missing = list(self._not_done(partition, first, end))
                if missing:
                    yield partition, missing

    def missing_in_groups(
        self, ends: Mapping[TopicPartition, tuple[int, int]]
    ) -> Iterator[tuple[str, TopicPartition, list[int]]]:
        """Yield what one of several groups on a topic has left out, from the first record on that it did.

        A group may begin later than another one, or at the end of a topic.
        """
        if not self.claims("at-least-once"):
            return
        for (group_id, partition), offsets in self._done_by.items():
            if group_id and partition in ends and len(self._groups_on(partition.topic)) > 1:
                missing = list(self._not_done(partition, min(offsets), ends[partition][1], group_id))
                if missing:
                    yield group_id, partition, missing

    def _groups_on(self, topic: str) -> set[str]:
        return {group_id for group_id, partition in self._done_by if group_id and partition.topic == topic}

    def _not_done(
        self, partition: TopicPartition, first: int, end: int, group_id: str | None = None
    ) -> Iterator[int]:
        """Yield the readable offsets in a range that no program has done, or none for that group."""
        done: Container[int] = self.done.get(partition, {})
        if group_id is not None:
            known = self._done_by
            done = known.get((group_id, partition), set()) | known.get(("", partition), set())
        if all(offset in done for offset in range(first, end)):
            return iter(())
        return (offset for offset in self._readable(partition, first, end) if offset not in done)


def _name(partition: TopicPartition, offset: int) -> str:
    return f"{partition.topic}-{partition.partition} offset {offset}"


def _time(at_us: int) -> str:
    return f"{at_us / 1e6:.3f} s"
