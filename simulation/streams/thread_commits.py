"""Checks of one thread's commits: only of partitions that it has, in time, and before it gives them up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.simulation.judge.base import Finding, shown_names

_ROUNDING_US: Final = 1_000
"""An engine's clock has fractions of seconds, which are rounded."""


class _Due(NamedTuple):
    """An offset that is to be committed."""

    offset: int
    since_us: int
    """Time from which the commit interval counts, in microseconds: of the first record, or of the last
    attempt."""
    tried: bool
    """True if a commit had this offset, whatever became of it."""


class ThreadCommits:
    """Follows one thread: what its callbacks gave it, what it processed of that, and what it committed."""

    def __init__(self, thread: str, interval_us: int) -> None:
        self._thread = thread
        self._interval_us = interval_us
        self._tenures: dict[TopicPartition, int] = {}
        """The partitions that it has, with the number of the assignment in which they came."""
        self._assignments = 0
        self._done: dict[TopicPartition, int] = {}
        """The next offset of each partition that it has worked on since it got it."""
        self._due: dict[TopicPartition, _Due] = {}
        self._tried_us = 0
        """Time of its last commit, or of its start, in microseconds."""
        self._ended_us = -1
        """Time at which a commit last ended, in microseconds."""

    def started(self, now_us: int) -> None:
        """The thread begins to join its group."""
        self._tried_us = now_us

    def given(self, partitions: Iterable[TopicPartition]) -> None:
        """A callback gave it these."""
        self._assignments += 1
        self._tenures.update(dict.fromkeys(partitions, self._assignments))

    def taken(self, partitions: Iterable[TopicPartition]) -> None:
        """A callback took these away."""
        for partition in partitions:
            for known in (self._tenures, self._done, self._due):
                known.pop(partition, None)

    def tenure(self, partition: TopicPartition) -> int | None:
        """Return the number of the assignment in which it got the partition; None if it has it no more."""
        return self._tenures.get(partition)

    def processed(self, partition: TopicPartition, offset: int, tenure: int | None, now_us: int) -> None:
        """It has processed records of a partition, which it had in this tenure when it began with them.

        Records of a partition that it has lost meanwhile are not its own to commit.
        """
        if tenure is None or tenure != self._tenures.get(partition):
            return
        known = self._due.get(partition)
        self._done[partition] = offset
        self._due[partition] = _Due(offset, known.since_us if known else now_us, tried=False)

    def begins(
        self, offsets: Mapping[TopicPartition, int], now_us: int, *, in_time: bool
    ) -> Iterator[Finding]:
        """It commits these, `in_time` if that is neither for a revocation nor because the thread ends."""
        if foreign := offsets.keys() - self._tenures.keys():
            yield (
                "commit-while-owned",
                f"{self._thread} commits {shown_names(foreign)}, which it does not have",
            )
        for partition in offsets.keys() - foreign:
            if offsets[partition] > self._done.get(partition, 0):
                yield (
                    "commit-within-processed",
                    f"{self._thread} commits {offsets[partition]} of {shown_names([partition])}, and has"
                    f" processed only {self._done.get(partition, 0)} since it got it",
                )
        if in_time and now_us < self._tried_us + self._interval_us - _ROUNDING_US:
            early_ms = (self._tried_us + self._interval_us - now_us) // 1000
            yield "commits-go-on", f"{self._thread} commits {early_ms} ms too early"
        self._tried_us = now_us
        for partition, offset in offsets.items():
            known = self._due.get(partition)
            if known is not None and known.offset <= offset:
                self._due[partition] = _Due(known.offset, now_us, tried=True)

    def ended(self, now_us: int) -> None:
        """A commit is over, whatever became of it. It may have taken longer than the interval."""
        self._ended_us = now_us

    def committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """These are committed."""
        for partition, offset in offsets.items():
            known = self._due.get(partition)
            if known is not None and known.offset <= offset:
                del self._due[partition]

    def polls(self, now_us: int) -> Iterator[Finding]:
        """It polls: between polls it commits once what is due."""
        if self._ended_us == now_us:
            return
        late = [
            partition
            for partition, due in self._due.items()
            if now_us >= due.since_us + self._interval_us + _ROUNDING_US
        ]
        if late:
            waited_ms = max(now_us - self._due[partition].since_us for partition in late) // 1000
            yield (
                "commits-go-on",
                f"{self._thread} polls, and has not committed {shown_names(late)} for {waited_ms} ms",
            )

    def untried(self, partitions: Iterable[TopicPartition] | None = None) -> frozenset[TopicPartition]:
        """Return the partitions, of these or of all, of which it has not tried to commit its last records."""
        chosen = self._due.keys() if partitions is None else self._due.keys() & set(partitions)
        return frozenset(partition for partition in chosen if not self._due[partition].tried)

    def gives_up(self, before: frozenset[TopicPartition]) -> Iterator[Finding]:
        """It gives partitions up: none of these, whose commit was due, may still be untried."""
        if left := before & self.untried():
            yield (
                "commit-before-release",
                f"{self._thread} gives up {shown_names(left)}, and has not committed what it processed",
            )
