"""Offsets in transactions: staged, and counted once their transaction commits.

The model knows requests, their replies and the ends of transactions. It reads no code of the coordinators.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from fencepost.coordinator.protocol import records as r
from fencepost.coordinator.protocol.consumer import DeleteGroupsRequest
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.offsets import (
    OffsetAndMetadata,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from fencepost.coordinator.protocol.outcome import DeadlineReached, Outcome, TopicsChanged
from fencepost.coordinator.protocol.transactions import TransactionEnded
from fencepost.simulation.judge.base import Finding, Judge, shown_names
from fencepost.simulation.judge.producers import KnownProducers

if TYPE_CHECKING:
    from fencepost.coordinator.coordinator import GroupCoordinator
    from fencepost.coordinator.protocol.topics import Topic
    from fencepost.simulation.kernel.observers import FindingReport, StepEvent, TransactionsView, WorldView

_NONE: Final = ErrorCode.NONE


def _position(value: r.OffsetCommitValue | r.PendingOffsetCommitValue) -> OffsetAndMetadata:
    return OffsetAndMetadata(offset=value.offset, leader_epoch=value.leader_epoch, metadata=value.metadata)


def _place(key: r.OffsetCommitKey | r.PendingOffsetCommitKey) -> TopicPartition:
    return TopicPartition(key.topic, key.partition)


class StagedOffsets:
    """One group's offsets: those that count, and those of open transactions."""

    def __init__(self) -> None:
        self.committed: dict[TopicPartition, OffsetAndMetadata] = {}
        self.staged: dict[int, dict[TopicPartition, OffsetAndMetadata]] = {}
        """By producer."""
        self._overtaken: set[tuple[int, TopicPartition]] = set()
        """Staged offsets after which another was committed without a transaction."""

    def is_staged(self, partition: TopicPartition) -> bool:
        """Return true if a transaction is open that may change the partition's offset."""
        return any(partition in offsets for offsets in self.staged.values())

    def commit(self, request: OffsetCommitRequest, reply: OffsetCommitResponse) -> None:
        """Take in the accepted offsets of a commit."""
        for partition, code in reply.errors.items():
            if code is not _NONE:
                continue
            position = request.offsets[partition]
            if request.is_transactional:
                self.staged.setdefault(request.producer_id, {})[partition] = position
                self._overtaken.discard((request.producer_id, partition))
                continue
            self.committed[partition] = position
            self._overtaken |= {
                (producer_id, partition)
                for producer_id, offsets in self.staged.items()
                if partition in offsets
            }

    def end(
        self, event: TransactionEnded, records: tuple[r.Record, ...], topics: Mapping[str, Topic]
    ) -> Iterator[Finding]:
        """Take in a transaction that ended with these records."""
        staged = self.staged.pop(event.producer_id, {})
        counts = {
            partition: position
            for partition, position in staged.items()
            if event.commit and (event.producer_id, partition) not in self._overtaken
        }
        self._overtaken = {each for each in self._overtaken if each[0] != event.producer_id}
        written = {
            _place(each.key): _position(each.value)
            for each in records
            if isinstance(each.key, r.OffsetCommitKey) and isinstance(each.value, r.OffsetCommitValue)
        }
        end = "committed" if event.commit else "aborted"
        who = f"{event.group_id}: the transaction of producer {event.producer_id} {end}"
        if wrong := {p for p in {*counts, *written} if counts.get(p) != written.get(p)}:
            which = ", ".join(
                f"{_offset(written.get(p))} instead of {_offset(counts.get(p))}" for p in sorted(wrong)
            )
            yield "transaction-offsets", f"{who}, and of {shown_names(wrong)} counts {which}"
        for each in records:
            if isinstance(each.key, r.OffsetCommitKey) and isinstance(each.value, r.OffsetCommitValue):
                topic = topics.get(each.key.topic)
                if topic is not None and each.value.topic_id != topic.topic_id:
                    yield (
                        "transaction-offsets",
                        f"{who}, and its offset of {each.key.topic} has the topic id {each.value.topic_id}"
                        f" instead of {topic.topic_id}: it would count for another topic of that name",
                    )
        forgotten = {
            _place(each.key)
            for each in records
            if isinstance(each.key, r.PendingOffsetCommitKey)
            and each.value is None
            and each.key.producer_id == event.producer_id
        }
        if left := staged.keys() - forgotten:
            yield "transaction-offsets", f"{who}, and {shown_names(left)} stays staged"
        self.committed |= counts

    def take(self, event: StepEvent, records: tuple[r.Record, ...]) -> Iterator[Finding]:
        """Take in tombstones that no end of a transaction brings."""
        for record in records:
            key = record.key
            if record.value is not None or not isinstance(key, r.OffsetCommitKey | r.PendingOffsetCommitKey):
                continue
            partition = _place(key)
            deleted = isinstance(event, DeleteGroupsRequest | TopicsChanged) or (
                isinstance(event, OffsetDeleteRequest) and partition in event.partitions
            )
            if self.is_staged(partition) and not deleted:
                what = "expired" if isinstance(event, DeadlineReached) else "went"
                yield (
                    "transaction-staged",
                    f"{key.group_id}: {partition.topic}-{partition.partition} {what}, though a transaction is"
                    " open with an offset of it",
                )
            if isinstance(key, r.OffsetCommitKey):
                self.committed.pop(partition, None)
                self._overtaken = {each for each in self._overtaken if each[1] != partition}
            else:
                self.staged.get(key.producer_id, {}).pop(partition, None)

    def compare(self, live: GroupCoordinator, group_id: str, when: str) -> Iterator[Finding]:
        """Compare the coordinator's offsets with these."""
        ours = {producer_id: offsets for producer_id, offsets in self.staged.items() if offsets}
        theirs = {
            producer_id: {partition: _position(value) for partition, value in offsets.items()}
            for producer_id, offsets in live.offsets.pending(group_id).items()
        }
        if ours != theirs:
            yield "transaction-staged", f"{group_id}: {when} staged is {theirs} instead of {ours}"
        counted = {partition: _position(value) for partition, value in live.offsets.committed(group_id)}
        if wrong := {p for p in {*counted, *self.committed} if counted.get(p) != self.committed.get(p)}:
            which = ", ".join(
                f"{_offset(counted.get(p))} for {_offset(self.committed.get(p))}" for p in sorted(wrong)
            )
            yield "transaction-offsets", f"{group_id}: {when} of {shown_names(wrong)} counts {which}"


def _offset(position: OffsetAndMetadata | None) -> str:
    return "nothing" if position is None else str(position.offset)


class CountedRange(msgspec.Struct):
    """The records of one partition in a transaction: from `first`, None if that is not known, up to `end`."""

    first: int | None
    end: int


class CountedRecords:
    """The records that count: those of committed transactions, each once."""

    def __init__(self) -> None:
        self._counted: dict[TopicPartition, int] = {}
        """The offset up to which they count, without a gap."""
        self._first: dict[str, dict[TopicPartition, int]] = {}
        """By host, the first of its records that are processed and not staged."""
        self._open: dict[int, dict[TopicPartition, CountedRange]] = {}
        self._unjudged: set[TopicPartition] = set()
        """Partitions with commits outside of transactions: these may well count twice."""
        self._expired: set[TopicPartition] = set()
        """Partitions without an offset since their last transaction: the next one may begin at 0 again."""

    def process_began(self, host: str) -> None:
        """Start afresh: a new process has processed nothing."""
        self._first.pop(host, None)

    def processed(self, host: str, partition: TopicPartition, first: int) -> None:
        """Take in that an application finished with records."""
        self._first.setdefault(host, {}).setdefault(partition, first)

    def dropped(self, host: str, partition: TopicPartition) -> None:
        """Drop records that the host processed and did not stage: they do not count."""
        self._first.get(host, {}).pop(partition, None)

    def topic_gone(self, topic: str) -> None:
        """Forget the records of a topic that is created again."""
        of_partitions: list[dict[TopicPartition, Any]] = [self._counted]
        of_partitions += self._first.values()
        of_partitions += self._open.values()
        for known in of_partitions:
            for partition in [each for each in known if each.topic == topic]:
                del known[partition]

    def staged(
        self, producer_id: int, host: str, request: OffsetCommitRequest, taken: set[TopicPartition]
    ) -> None:
        """Take in positions that became part of a transaction."""
        opened = self._open.setdefault(producer_id, {})
        for partition in sorted(taken):
            first = self._first.get(host, {}).pop(partition, None)
            end = request.offsets[partition].offset
            if partition in opened:
                opened[partition].end = end
            else:
                opened[partition] = CountedRange(first, end)

    def committed_without(self, partitions: set[TopicPartition]) -> None:
        """Count positions that were in no transaction."""
        self._unjudged |= partitions

    def expired(self, records: tuple[r.Record, ...]) -> None:
        """Note the offsets that these records delete. A consumer without an offset begins at 0."""
        self._expired |= {
            _place(each.key)
            for each in records
            if each.value is None and isinstance(each.key, r.OffsetCommitKey)
        }

    def ended(self, producer_id: int, *, commit: bool) -> Iterator[Finding]:
        """Take in the end of a transaction."""
        for partition, each in self._open.pop(producer_id, {}).items():
            if not commit or partition in self._unjudged:
                continue
            upto = self._counted.get(partition, 0)
            begins_anew = each.first == 0 and partition in self._expired
            self._expired.discard(partition)
            if each.first is not None and each.first != upto and not begins_anew:
                what = "count twice" if each.first < upto else "count never"
                low, high = sorted((each.first, upto))
                yield (
                    "exactly-once",
                    f"{partition.topic}-{partition.partition} [{low}, {high}) {what}: producer {producer_id}"
                    f" committed [{each.first}, {each.end}) after what ended at {upto}",
                )
            self._counted[partition] = each.end


class Transactions(Judge):
    """Watches staged offsets and the transactions that they belong to."""

    world: TransactionsView

    def attach(self, world: WorldView, report: FindingReport) -> None:
        """Start with nothing."""
        super().attach(world, report)
        self._offsets = StagedOffsets()
        self._records = CountedRecords()
        self._producers = KnownProducers(self.world.config.transactional_id_expiration_ms)

    # -- the group's coordinator --------------------------------------------------------------------------

    def on_coordinator_step(self, host: str, event: StepEvent, outcome: Outcome, now_us: int) -> None:
        """Judge a step that may concern offsets."""
        live = self.world.coordinators[host].coordinator
        if live is not None:
            self.report_all(self._findings(live, event, outcome))

    def _findings(self, live: GroupCoordinator, event: StepEvent, outcome: Outcome) -> Iterator[Finding]:
        reply, group_id = outcome.reply, self.world.group_id
        if isinstance(event, OffsetCommitRequest) and isinstance(reply, OffsetCommitResponse):
            self._commit(event, reply)
        elif isinstance(event, TransactionEnded):
            had_staged = bool(self._offsets.staged.get(event.producer_id))
            if had_staged and not outcome.records and self.world.journal_fails:
                return  # it could not be written, and is sent again; without offsets nothing is written
            yield from self._producers.told(event.producer_id, commit=event.commit)
            yield from self._offsets.end(event, outcome.records, live.image.by_name)
            yield from self._records.ended(event.producer_id, commit=event.commit)
            yield from self._offsets.compare(live, group_id, "after the end of a transaction")
        elif isinstance(event, OffsetFetchRequest) and isinstance(reply, OffsetFetchResponse):
            yield from self._fetch(event, reply)
        elif outcome.records:
            yield from self._offsets.take(event, outcome.records)
            self._records.expired(outcome.records)

    def _commit(self, request: OffsetCommitRequest, reply: OffsetCommitResponse) -> None:
        self._offsets.commit(request, reply)
        taken = {partition for partition, code in reply.errors.items() if code is _NONE}
        if not request.is_transactional:
            self._records.committed_without(taken)
        elif (host := self._producers.id_of(request.producer_id)) is not None:
            self._records.staged(request.producer_id, host, request, taken)

    def _fetch(self, request: OffsetFetchRequest, reply: OffsetFetchResponse) -> Iterator[Finding]:
        if reply.error_code is not _NONE:
            return
        asked = reply.offsets if request.require_stable else ()
        expected = {partition for partition in asked if self._offsets.is_staged(partition)}
        if reply.unstable != expected:
            yield (
                "transaction-stable-fetch",
                f"{request.group_id}: {shown_names(reply.unstable)} was returned as unstable, staged is"
                f" {shown_names(expected)}",
            )

    def on_coordinator_state(self, host: str, what: str, now_us: int) -> None:
        """Check that a coordinator that has loaded has the state of the one before."""
        live = self.world.coordinators[host].coordinator
        if what == "active" and live is not None:
            self.report_all(self._offsets.compare(live, self.world.group_id, "after a load"))

    # -- the coordinator of transactions ------------------------------------------------------------------

    def on_transaction_step(self, host: str, event: Any, outcome: Any, now_us: int) -> None:
        """Judge a producer's request, or the end of a transaction."""
        fails = self.world.journal_fails
        self.report_all(self._producers.check(event, outcome, now_us // 1_000, may_fail=fails))

    def on_transactions_loaded(self, host: str, now_us: int) -> None:
        """Check that a coordinator that has loaded knows the producers of the one before."""
        self._producers.disturbed(now_us // 1_000)
        if (live := self.world.transactions) is not None:
            self.report_all(self._producers.compare(live.transactions))

    def on_fault(self, fault: str, phase: str, detail: str, now_us: int) -> None:
        """Note that logs that fail and brokers that stand still keep transactions open."""
        if fault in ("append-failure", "broker-pause"):
            self._producers.disturbed(now_us // 1_000)

    # -- applications -------------------------------------------------------------------------------------

    def on_member_host(self, host: str, what: str, now_us: int) -> None:
        """Start afresh: a new process has processed nothing."""
        if what in ("start", "crash"):
            self._records.process_began(host)

    def on_records_processed(
        self, host: str, partition: TopicPartition, first: int, last_exclusive: int, now_us: int
    ) -> None:
        """Note that the application finished with records; they count once they are committed."""
        self._records.processed(host, partition, first)

    def on_records_rewound(self, host: str, partition: TopicPartition, offset: int, now_us: int) -> None:
        """Note that the application will process records again."""
        self._records.dropped(host, partition)

    def on_callback(self, host: str, kind: str, phase: str, partitions: Any, now_us: int) -> None:
        """Drop records of revoked partitions that were not staged: they do not count."""
        if phase == "end":
            for partition in partitions:
                self._records.dropped(host, partition)

    def on_topic(self, topic: str, what: str, partitions: int, now_us: int) -> None:
        """Forget the records of a topic that is created again."""
        if what != "grown":
            self._records.topic_gone(topic)

    # -- the end ------------------------------------------------------------------------------------------

    def on_end(self, now_us: int) -> None:
        """Check that no transaction is left that took too long, or whose end was decided."""
        if self.world.transactions is None or self.world.active is None:
            return
        self.report_all(self._producers.unfinished(now_us // 1_000))
        self.report_all(self._offsets.compare(self.world.active, self.world.group_id, "at the end"))
        left = [
            each
            for each, staged in self._offsets.staged.items()
            if staged and not self._producers.is_open(each)
        ]
        for producer_id in left:
            self.report(
                "transaction-ends", f"producer {producer_id} has staged offsets, and no open transaction"
            )
