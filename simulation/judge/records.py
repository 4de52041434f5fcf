"""The records that applications process and commit: none is skipped, and none is committed before it is
processed."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from functools import partial

from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.offsets import OffsetCommitRequest, OffsetCommitResponse
from fencepost.coordinator.protocol.outcome import Outcome, Request, Response
from fencepost.coordinator.protocol.records import OffsetCommitKey, OffsetCommitValue
from fencepost.simulation.judge.base import (
    NOTHING,
    Finding,
    OfProcesses,
    as_set,
    joined,
    of_process,
    shown_names,
    without,
)
from fencepost.simulation.kernel.observers import StepEvent

_REMEMBERED = 64
"""Commits of a partition that are kept: more than come between a callback and the first record."""


class GroupRecords:
    """The progress of all applications together, and the committed offsets of each partition.

    An owner must start at one of these.
    """

    def __init__(self) -> None:
        self.frontiers: dict[TopicPartition, int] = {}
        """The offset of each partition up to which all is processed without a gap."""
        self.again: set[str] = set()
        """Topics that were created again. Classic members can't distinguish them from those before."""
        self._commits: defaultdict[TopicPartition, deque[tuple[int, int]]] = defaultdict(
            partial(deque, maxlen=_REMEMBERED)
        )
        """Times and offsets."""

    def committed(self, partition: TopicPartition, offset: int, now_us: int) -> None:
        """The coordinator has this offset now; 0 if it no longer has one."""
        self._commits[partition].append((now_us, offset))

    def deleted(self, topic: str) -> None:
        """Forget a topic, since another one of that name may be created."""
        self.again.add(topic)
        for partition in [each for each in self._commits if each.topic == topic]:
            del self._commits[partition]

    def since(self, partition: TopicPartition, since_us: int) -> set[int]:
        """Return the offsets that were committed at some time since then; empty if that is not known any
        more."""
        commits = self._commits.get(partition, ())
        offsets = set()
        for at_us, offset in reversed(commits):
            offsets.add(offset)
            if at_us < since_us:
                return offsets
        if len(commits) == _REMEMBERED:
            return set()
        return offsets | {0}


class ProcessedRecords:
    """One member process: the records that it was handed, has processed, and commits."""

    def __init__(self, host: str, group: GroupRecords) -> None:
        self._host = host
        self._group = group
        self._owned = NOTHING
        self._starts: dict[TopicPartition, int] = {}
        """Partitions that are new to it, and the time since when: none of their records were handed over
        yet."""
        self.positions: dict[TopicPartition, int] = {}
        """The offset after the last record that was delivered; of owned partitions only."""
        self.processed: dict[TopicPartition, int] = {}
        self._attempted: dict[TopicPartition, int] = {}
        """The newest offset for which a commit was sent."""
        self.in_hand: set[TopicPartition] = set()
        """The partitions of the batch that is being processed."""
        self._of_earlier: set[TopicPartition] = set()
        """Those of them that were handed over before their topic was created again."""
        self.outlived = NOTHING
        """Still owned, but of a topic that was deleted since: its offsets mean nothing to a new topic of that
        name."""
        self.finished_us = -1
        """Time at which it was last done with records, in µs."""
        self.unreachable = False
        """True if no response arrived since a request was lost or the coordinator was searched for."""

    def topic_deleted(self, topic: str) -> None:
        """Note which owned partitions outlive the deleted topic."""
        self.outlived |= {partition for partition in self._owned if partition.topic == topic}

    def topic_created(self, topic: str) -> None:
        """Note that the records in processing are of an earlier topic of that name."""
        self._of_earlier |= {partition for partition in self.in_hand if partition.topic == topic}

    def on_callback(
        self, kind: str, phase: str, partitions: Iterable[TopicPartition], now_us: int
    ) -> Iterator[Finding]:
        """Note that positions live as long as ownership."""
        chosen = as_set(tuple(partitions))
        if kind == "assigned" and phase == "begin":
            for partition in chosen:
                self.positions.pop(partition, None)
                self.processed.pop(partition, None)
                self._attempted.pop(partition, None)
            self.outlived = without(self.outlived, chosen)
            self._owned = joined(self._owned, chosen)
            self._starts.update(dict.fromkeys(chosen, now_us))
        elif phase == "end" and kind != "assigned":
            if kind == "revoked":
                yield from self._released(chosen)
            self._owned = without(self._owned, chosen)

    def _released(self, partitions: Iterable[TopicPartition]) -> Iterator[Finding]:
        """Check a revoked callback that ended. A commit that cannot be sent delays nothing forever."""
        if self.unreachable:
            return
        late = [
            partition
            for partition in partitions
            if partition not in self.outlived
            and self.processed.get(partition, 0) > self._attempted.get(partition, 0)
        ]
        if late:
            offsets = ", ".join(f"{p.topic}-{p.partition} at {self.processed[p]}" for p in sorted(late))
            yield (
                "commit-before-release",
                f"{self._host} released {shown_names(late)} without a commit of {offsets}",
            )

    def on_records_delivered(
        self, partition: TopicPartition, first: int, last_exclusive: int, now_us: int
    ) -> Iterator[Finding]:
        """Check that deliveries begin at the committed offset, and are gapless within one ownership."""
        since_us = self._starts.pop(partition, None)
        if since_us is not None and partition.topic not in self._group.again:
            known = self._group.since(partition, since_us)
            if known and first not in known:
                yield (
                    "starts-at-committed",
                    f"{self._host} begins to read {partition.topic}-{partition.partition} at {first},"
                    f" committed is {' or '.join(map(str, sorted(known)))}",
                )
        position = self.positions.get(partition)
        self.positions[partition] = last_exclusive
        self.in_hand.add(partition)
        if position is not None and first != position and partition not in self.outlived:
            yield (
                "at-least-once",
                f"{self._host} was handed {partition.topic}-{partition.partition} from {first}, its position"
                f" was {position}",
            )

    def on_records_rewound(self, partition: TopicPartition, offset: int, now_us: int) -> None:
        """Note that the application goes back to a committed position, and has processed up to there."""
        if partition in self.positions:
            self.positions[partition] = self.processed[partition] = self._attempted[partition] = offset

    def on_records_processed(
        self, partition: TopicPartition, first: int, last_exclusive: int, now_us: int
    ) -> Iterator[Finding]:
        """Check that processing is gapless over all owners, unless the records are of an earlier topic."""
        self.finished_us = now_us
        self.in_hand.discard(partition)
        if partition in self._of_earlier:
            self._of_earlier.remove(partition)
            return
        self.processed[partition] = last_exclusive
        frontier = self._group.frontiers.get(partition, 0)
        if last_exclusive > frontier:
            self._group.frontiers[partition] = last_exclusive
        if first > frontier:
            yield (
                "at-least-once",
                f"{self._host} processed {partition.topic}-{partition.partition} from {first}; no application"
                f" has processed [{frontier}, {first})",
            )

    def on_commit(
        self, request: OffsetCommitRequest, response: OffsetCommitResponse | Exception, now_us: int
    ) -> None:
        """Note if the coordinator can be reached."""
        self.unreachable = isinstance(response, Exception)

    def takes_response(self, request: Request, response: Response | Exception, now_us: int) -> None:
        """Note that the coordinator can be reached."""
        if not isinstance(response, Exception) and not getattr(response, "error_code", ErrorCode.NONE):
            self.unreachable = False

    def on_loss(self, broker: str, kind: str, request: Request, now_us: int) -> None:
        """Note that the coordinator cannot be reached."""
        self.unreachable = True

    def on_member_search(self, now_us: int) -> None:
        """Note that no coordinator is known to commit to, and perhaps no broker can name one."""
        self.unreachable = True

    def takes_request(self, request: Request, now_us: int) -> Iterator[Finding]:
        """Check a commit that is sent: it covers processed records of owned partitions."""
        if type(request) is not OffsetCommitRequest:
            return
        for partition, value in request.offsets.items():
            offset = value.offset
            if offset > self._attempted.get(partition, 0):
                self._attempted[partition] = offset
            limit = self.processed.get(partition)
            if limit is None:
                limit = self._group.frontiers.get(partition, 0)
            if offset > limit and partition not in self.outlived:
                yield (
                    "commit-within-processed",
                    f"{self._host} commits {partition.topic}-{partition.partition} at {offset}, it has"
                    f" processed up to {limit}",
                )
            if partition not in self._owned:
                yield (
                    "commit-while-owned",
                    f"{self._host} commits {partition.topic}-{partition.partition} at {offset} without"
                    " owning it",
                )


class Records(OfProcesses[ProcessedRecords]):
    """Checks deliveries, commits and releases of all members of a world."""

    on_callback = of_process(ProcessedRecords.on_callback)
    on_commit = of_process(ProcessedRecords.on_commit)
    on_loss = of_process(ProcessedRecords.on_loss)
    on_member_search = of_process(ProcessedRecords.on_member_search)
    on_records_delivered = of_process(ProcessedRecords.on_records_delivered)
    on_records_processed = of_process(ProcessedRecords.on_records_processed)
    on_records_rewound = of_process(ProcessedRecords.on_records_rewound)
    takes_request = of_process(ProcessedRecords.takes_request)
    takes_response = of_process(ProcessedRecords.takes_response)

    def __init__(self) -> None:
        super().__init__()
        self._group = GroupRecords()

    def new(self, host: str) -> ProcessedRecords:
        """Return a process that has no records."""
        return ProcessedRecords(host, self._group)

    def is_processing(self, host: str) -> bool:
        """Return true if the application on that host has records that it has not finished with."""
        application = self.processes[host]
        processed = application.processed
        return any(processed.get(each) != position for each, position in application.positions.items())

    def on_topic(self, topic: str, what: str, partitions: int, now_us: int) -> None:
        """Note that a topic that is created again begins at offset 0; a deleted one may still get commits."""
        applications = self.processes.values()
        if what == "deleted":
            for application in applications:
                application.topic_deleted(topic)
            self._group.deleted(topic)
        elif what == "created":
            for application in applications:
                application.topic_created(topic)
            for known in (self._group.frontiers, *(each.positions for each in applications)):
                for partition in [p for p in known if p.topic == topic]:
                    del known[partition]

    def on_coordinator_state(self, host: str, what: str, now_us: int) -> None:
        """Note that no member has a coordinator until one is active again."""
        for application in self.processes.values():
            application.unreachable = True

    def on_coordinator_step(self, host: str, event: StepEvent, outcome: Outcome, now_us: int) -> None:
        """Check that all committed records were processed by an application."""
        by_name = isinstance(event, OffsetCommitRequest) and not event.topic_ids
        for record in outcome.records:
            key, value = record.key, record.value
            if type(key) is OffsetCommitKey and type(value) is OffsetCommitValue:
                partition = TopicPartition(key.topic, key.partition)
                self._group.committed(partition, value.offset, now_us)
                frontier = self._group.frontiers.get(partition, 0)
                if value.offset > frontier and not (by_name and key.topic in self._group.again):
                    self.report(
                        "commit-within-processed",
                        f"{key.topic}-{key.partition} was committed at {value.offset}; it was processed up to"
                        f" {frontier}",
                    )
            elif type(key) is OffsetCommitKey and value is None:
                self._group.committed(TopicPartition(key.topic, key.partition), 0, now_us)
