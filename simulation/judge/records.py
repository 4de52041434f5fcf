"""The records that applications process and commit: none is skipped, and none is committed before it is
processed."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.offsets import OffsetCommitRequest, OffsetCommitResponse
from fencepost.coordinator.protocol.outcome import Outcome, Request, Response
from fencepost.coordinator.protocol.records import OffsetCommitKey, OffsetCommitValue
from fencepost.simulation.judge.base import (
    NOTHING,
    Finding,
    Judge,
    OfHosts,
    as_set,
    joined,
    shown_names,
    without,
)
from fencepost.simulation.kernel.observers import StepEvent


class ProcessedProgress:
    """The progress of all applications together in each partition: the offset up to which all is processed
    without a gap."""

    def __init__(self) -> None:
        self.frontiers: dict[TopicPartition, int] = {}

    def processed(
        self, host: str, partition: TopicPartition, first: int, last_exclusive: int
    ) -> Sequence[Finding]:
        """Take in that an application finished with [first, last_exclusive)."""
        frontier = self.frontiers.get(partition, 0)
        if last_exclusive > frontier:
            self.frontiers[partition] = last_exclusive
        if first <= frontier:
            return ()
        finding = (
            "at-least-once",
            f"{host} processed {partition.topic}-{partition.partition} from {first}; no application"
            f" has processed [{frontier}, {first})",
        )
        return (finding,)


_REMEMBERED = 64
"""Commits of a partition that are kept: more than come between a callback and the first record."""


class CommittedHistory:
    """The committed offsets of each partition, with their times: an owner must start at one of them."""

    def __init__(self) -> None:
        self._commits: defaultdict[TopicPartition, deque[tuple[int, int]]] = defaultdict(
            partial(deque, maxlen=_REMEMBERED)
        )

    def committed(self, partition: TopicPartition, offset: int, now_us: int) -> None:
        """The coordinator has this offset now; 0 if it no longer has one."""
        self._commits[partition].append((now_us, offset))

    def forget(self, topic: str) -> None:
        """Forget a topic, since another one of that name is going to be created."""
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

    def __init__(self, host: str) -> None:
        self.host = host
        self.positions: dict[TopicPartition, int] = {}
        """The offset after the last record that was delivered; of owned partitions only."""
        self.processed: dict[TopicPartition, int] = {}
        self.attempted: dict[TopicPartition, int] = {}
        """The newest offset for which a commit was sent."""
        self.in_hand: set[TopicPartition] = set()
        """The partitions of the batch that is being processed."""
        self.of_earlier: set[TopicPartition] = set()
        """Those of them that were handed over before their topic was created again."""
        self.outlived = NOTHING
        """Still owned, but of a topic that was deleted since: its offsets mean nothing to a new topic of that
        name."""
        self.finished_us = -1
        """Time at which it was last done with records, in µs."""
        self.unreachable = False
        """True if no response arrived since a request was lost or the coordinator was searched for."""

    def assigned(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget the positions of new partitions."""
        for partition in partitions:
            self.positions.pop(partition, None)
            self.processed.pop(partition, None)
            self.attempted.pop(partition, None)
        if self.outlived:
            self.outlived = self.outlived.difference(partitions)

    def topic_deleted(self, topic: str, owned: Iterable[TopicPartition]) -> None:
        """Note which owned partitions outlive the deleted topic."""
        self.outlived |= {partition for partition in owned if partition.topic == topic}

    def topic_created(self, topic: str) -> None:
        """Note that the records in processing are of an earlier topic of that name."""
        self.of_earlier |= {partition for partition in self.in_hand if partition.topic == topic}

    def delivered(self, partition: TopicPartition, first: int, last_exclusive: int) -> Sequence[Finding]:
        """Take in that the application was handed [first, last_exclusive)."""
        position = self.positions.get(partition)
        self.positions[partition] = last_exclusive
        self.in_hand.add(partition)
        if position is None or first == position or partition in self.outlived:
            return ()
        finding = (
            "at-least-once",
            f"{self.host} was handed {partition.topic}-{partition.partition} from {first}, its position"
            f" was {position}",
        )
        return (finding,)

    def finished(self, partition: TopicPartition, last_exclusive: int) -> bool:
        """Note that the application has processed its records. Return true if the topic is still the same."""
        self.in_hand.discard(partition)
        if partition in self.of_earlier:
            self.of_earlier.remove(partition)
            return False
        self.processed[partition] = last_exclusive
        return True

    def rewound(self, partition: TopicPartition, offset: int) -> None:
        """Note that the application goes back to a committed position, and has processed up to there."""
        if partition in self.positions:
            self.positions[partition] = self.processed[partition] = self.attempted[partition] = offset

    def commits(
        self,
        offsets: Mapping[TopicPartition, int],
        owned: frozenset[TopicPartition],
        frontiers: Mapping[TopicPartition, int],
    ) -> Iterator[Finding]:
        """A commit is sent."""
        attempted, processed = self.attempted, self.processed
        for partition, offset in offsets.items():
            if offset > attempted.get(partition, 0):
                attempted[partition] = offset
            limit = processed.get(partition)
            if limit is None:
                limit = frontiers.get(partition, 0)
            if offset > limit and partition not in self.outlived:
                yield (
                    "commit-within-processed",
                    f"{self.host} commits {partition.topic}-{partition.partition} at {offset}, it has"
                    " processed"
                    f" up to {limit}",
                )
            if partition not in owned:
                yield (
                    "commit-while-owned",
                    f"{self.host} commits {partition.topic}-{partition.partition} at {offset} without"
                    " owning it",
                )

    def released(self, partitions: Iterable[TopicPartition]) -> Iterator[Finding]:
        """Check a revoked callback that ended. A commit that cannot be sent delays nothing forever."""
        if self.unreachable:
            return
        late = [
            partition
            for partition in partitions
            if partition not in self.outlived
            and self.processed.get(partition, 0) > self.attempted.get(partition, 0)
        ]
        if late:
            offsets = ", ".join(f"{p.topic}-{p.partition} at {self.processed[p]}" for p in sorted(late))
            yield (
                "commit-before-release",
                f"{self.host} released {shown_names(late)} without a commit of {offsets}",
            )


class Records(Judge):
    """Checks deliveries, commits and releases of all members of a world."""

    def __init__(self) -> None:
        self._progress = ProcessedProgress()
        self._applications = OfHosts(ProcessedRecords)
        self._owned: dict[str, frozenset[TopicPartition]] = {}
        self._committed = CommittedHistory()
        self._starts: defaultdict[str, dict[TopicPartition, int]] = defaultdict(dict)
        """By host, partitions that are new to it, and the time since when: none of their records were handed
        over yet."""
        self._again: set[str] = set()
        """Topics that were created again. Classic members can't distinguish them from those before."""

    def application(self, host: str) -> ProcessedRecords:
        """Return the records that the application on that host was handed, and its progress with them."""
        return self._applications[host]

    def is_processing(self, host: str) -> bool:
        """Return true if the application on that host has records that it has not finished with."""
        application = self._applications[host]
        processed = application.processed
        return any(processed.get(each) != position for each, position in application.positions.items())

    def on_member_host(self, host: str, what: str, now_us: int) -> None:
        """Start afresh: a new process has processed nothing."""
        if what in ("start", "crash"):
            self._applications[host] = ProcessedRecords(host)
            self._owned[host] = NOTHING
            self._starts.pop(host, None)

    def on_topic(self, topic: str, what: str, partitions: int, now_us: int) -> None:
        """Note that a topic that is created again begins at offset 0; a deleted one may still get commits."""
        if what == "deleted":
            for host, application in self._applications.items():
                application.topic_deleted(topic, self._owned.get(host, ()))
            self._again.add(topic)
            self._committed.forget(topic)
        elif what == "created":
            for application in self._applications.values():
                application.topic_created(topic)
            for known in (self._progress.frontiers, *(a.positions for a in self._applications.values())):
                for partition in [p for p in known if p.topic == topic]:
                    del known[partition]

    def on_callback(
        self, host: str, kind: str, phase: str, partitions: Iterable[TopicPartition], now_us: int
    ) -> None:
        """Note that positions live as long as ownership."""
        application, owned = self._applications[host], self._owned.get(host, NOTHING)
        chosen = tuple(partitions)
        if kind == "assigned" and phase == "begin":
            application.assigned(chosen)
            self._owned[host] = joined(owned, as_set(chosen))
            self._starts[host].update(dict.fromkeys(chosen, now_us))
        elif phase == "end" and kind != "assigned":
            if kind == "revoked":
                self.report_all(application.released(chosen))
            self._owned[host] = without(owned, as_set(chosen))

    def on_records_delivered(
        self, host: str, partition: TopicPartition, first: int, last_exclusive: int, now_us: int
    ) -> None:
        """Check that deliveries begin at the committed offset, and are gapless within one ownership."""
        since_us = self._starts[host].pop(partition, None)
        if since_us is not None and partition.topic not in self._again:
            known = self._committed.since(partition, since_us)
            if known and first not in known:
                self.report(
                    "starts-at-committed",
                    f"{host} begins to read {partition.topic}-{partition.partition} at {first}, committed is"
                    f" {' or '.join(map(str, sorted(known)))}",
                )
        self.report_all(self._applications[host].delivered(partition, first, last_exclusive))

    def on_records_rewound(self, host: str, partition: TopicPartition, offset: int, now_us: int) -> None:
        """Note that records of an aborted transaction are delivered again."""
        self._applications[host].rewound(partition, offset)

    def on_records_processed(
        self, host: str, partition: TopicPartition, first: int, last_exclusive: int, now_us: int
    ) -> None:
        """Check that processing is gapless over all owners."""
        application = self._applications[host]
        application.finished_us = now_us
        if application.finished(partition, last_exclusive):
            self.report_all(self._progress.processed(host, partition, first, last_exclusive))

    def on_commit(
        self, host: str, request: OffsetCommitRequest, response: OffsetCommitResponse | Exception, now_us: int
    ) -> None:
        """Note if the coordinator can be reached."""
        self._applications[host].unreachable = isinstance(response, Exception)

    def takes_response(
        self, host: str, request: Request, response: Response | Exception, now_us: int
    ) -> None:
        """Note that the coordinator can be reached."""
        if not isinstance(response, Exception) and not getattr(response, "error_code", ErrorCode.NONE):
            self._applications[host].unreachable = False

    def on_coordinator_state(self, host: str, what: str, now_us: int) -> None:
        """Note that no member has a coordinator until one is active again."""
        for application in self._applications.values():
            application.unreachable = True

    def on_loss(self, host: str, broker: str, kind: str, request: Request, now_us: int) -> None:
        """Note that the coordinator cannot be reached."""
        self._applications[host].unreachable = True

    def on_member_search(self, host: str, now_us: int) -> None:
        """Note that no coordinator is known to commit to, and perhaps no broker can name one."""
        self._applications[host].unreachable = True

    def takes_request(self, host: str, request: Request, now_us: int) -> None:
        """Check a commit that is sent: it covers processed records of owned partitions."""
        if type(request) is not OffsetCommitRequest:
            return
        offsets = {partition: value.offset for partition, value in request.offsets.items()}
        owned = self._owned.get(host, NOTHING)
        self.report_all(self._applications[host].commits(offsets, owned, self._progress.frontiers))

    def on_coordinator_step(self, host: str, event: StepEvent, outcome: Outcome, now_us: int) -> None:
        """Check that all committed records were processed by an application."""
        by_name = isinstance(event, OffsetCommitRequest) and not event.topic_ids
        frontiers = self._progress.frontiers
        for record in outcome.records:
            key, value = record.key, record.value
            if type(key) is OffsetCommitKey and type(value) is OffsetCommitValue:
                partition = TopicPartition(key.topic, key.partition)
                self._committed.committed(partition, value.offset, now_us)
                frontier = frontiers.get(partition, 0)
                if value.offset > frontier and not (by_name and key.topic in self._again):
                    self.report(
                        "commit-within-processed",
                        f"{key.topic}-{key.partition} was committed at {value.offset}; it was processed up to"
                        f" {frontier}",
                    )
            elif type(key) is OffsetCommitKey and value is None:
                self._committed.committed(TopicPartition(key.topic, key.partition), 0, now_us)
