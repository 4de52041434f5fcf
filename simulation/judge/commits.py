"""Commits and offset fetches, as a coordinator handles them: fenced by member and epoch (KIP-1251)."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from fencepost.coordinator.protocol import records as r
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import MemberId, TopicId, TopicPartition, topic_partitions
from fencepost.coordinator.protocol.offsets import (
    MEMBER_EPOCH_VERSION,
    NO_OFFSET,
    OffsetAndMetadata,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from fencepost.coordinator.protocol.outcome import Outcome
from fencepost.coordinator.protocol.topics import TopicsImage
from fencepost.simulation.judge.base import NOTHING, OF_LOG, Finding, shown_names
from fencepost.simulation.judge.consumer_model import NONE
from fencepost.simulation.kernel.observers import StepEvent

if TYPE_CHECKING:
    from fencepost.coordinator.consumer.group import ConsumerGroup
    from fencepost.coordinator.consumer.member import ConsumerGroupMember
    from fencepost.coordinator.coordinator import GroupCoordinator

_BY_MEMBER: Final = frozenset(
    {
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.GROUP_ID_NOT_FOUND,
    }
)


_OF_THE_LOG: Final = OF_LOG | {ErrorCode.INVALID_COMMIT_OFFSET_SIZE}
"""Errors of a commit whose records could not be written."""

_OF_OFFSETS: Final = frozenset({r.OffsetCommitKey, r.PendingOffsetCommitKey})
_NOT_THERE: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})


def check_deleted_topics(before: TopicsImage, live: GroupCoordinator) -> Iterator[Finding]:
    """Yield offsets that stay although their topic, which is in the older image, was deleted.

    Those of open transactions have to go, too: the end of a transaction would count them for a topic that
    does not exist, or for a later one of that name.
    """
    now = live.image.by_id
    deleted = {topic_id for topic_id in before.by_id if topic_id not in now}
    if not deleted:
        return
    offsets = live.offsets
    for group_id in offsets.group_ids:
        stays = {partition for partition, value in offsets.committed(group_id) if value.topic_id in deleted}
        staged = {
            partition
            for of_producer in offsets.pending(group_id).values()
            for partition, value in of_producer.items()
            if value.topic_id in deleted
        }
        for left, kind in ((stays, "committed"), (staged, "staged")):
            if left:
                yield (
                    "offsets-kept",
                    f"{group_id}: {shown_names(left)} stays {kind}, though the topic was deleted",
                )


def expected_commit_error(
    request: OffsetCommitRequest,
    known: ConsumerGroup | None,
    image: TopicsImage,
    *,
    has_offsets: bool = False,
    alone: Container[TopicPartition] = (),
) -> ErrorCode | None:
    """Return the error that member and epoch cause for all partitions of a commit; None if other rules
    decide.

    If there is no consumer group, offsets make a group without members. Partitions that were refused `alone`
    do not count.
    """
    if request.is_anonymous_transaction:
        return NONE
    if known is None:
        if request.member_epoch < 0:
            return NONE
        if has_offsets:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return (
            ErrorCode.ILLEGAL_GENERATION
            if request.api_version < MEMBER_EPOCH_VERSION
            else ErrorCode.GROUP_ID_NOT_FOUND
        )
    if request.member_epoch < 0 and not known.members:
        return NONE
    member = known.members.get(request.member_id)
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if request.api_version < MEMBER_EPOCH_VERSION and member.classic is None:
        return ErrorCode.UNSUPPORTED_VERSION
    if request.member_epoch == member.member_epoch:
        return NONE
    if request.member_epoch > member.member_epoch:
        return _stale(member)
    for partition in request.offsets:
        if partition not in alone and not _held_since(
            member, request.topic_ids, partition, request.member_epoch, image
        ):
            return _stale(member)
    return NONE


def _stale(member: ConsumerGroupMember) -> ErrorCode:
    """Return the error for an epoch that is not the member's; a classic member has a generation instead."""
    return ErrorCode.STALE_MEMBER_EPOCH if member.classic is None else ErrorCode.ILLEGAL_GENERATION


def _held_since(
    member: ConsumerGroupMember,
    topic_ids: Mapping[str, str],
    partition: TopicPartition,
    epoch: int,
    image: TopicsImage,
) -> bool:
    topic = image.by_name.get(partition.topic)
    topic_id = topic_ids.get(partition.topic) or (None if topic is None else topic.topic_id)
    if topic_id is None:
        return False
    since = member.assignment_epochs.get(topic_id, {}).get(partition.partition)
    return since is not None and since <= epoch


def missing(
    request: OffsetCommitRequest, reply: OffsetCommitResponse, image: TopicsImage
) -> frozenset[TopicPartition]:
    """Return the partitions that are refused because they do not exist: that is checked first."""
    return frozenset(
        partition
        for partition, got in reply.errors.items()
        if got in _NOT_THERE and not _exists(request, partition, image)
    )


def _exists(request: OffsetCommitRequest, partition: TopicPartition, image: TopicsImage) -> bool:
    topic = image.by_name.get(partition.topic)
    if topic is None or not 0 <= partition.partition < topic.partitions:
        return False
    return request.topic_ids.get(partition.topic, topic.topic_id) == topic.topic_id


def check_recorded(
    event: StepEvent, outcome: Outcome, image: TopicsImage, now_ms: int | None, *, metadata_max: int
) -> Iterator[Finding]:
    """Check that a commit wrote the accepted offsets, and only those: staged in a transaction, else
    committed.

    `now_ms` is the coordinator's own time, if that is known. Metadata may have `metadata_max` UTF-16 units; a
    partition with more is refused alone.
    """
    reply = outcome.reply
    if not isinstance(event, OffsetCommitRequest) or not isinstance(reply, OffsetCommitResponse):
        return
    group_id, producer_id, staged = event.group_id, event.producer_id, event.is_transactional
    accepted: dict[object, object] = {}
    for partition, code in reply.errors.items():
        position = event.offsets[partition]
        metadata = position.metadata
        units = len(metadata.encode("utf-16-le", "surrogatepass")) // 2 if metadata else 0
        too_large = units > metadata_max
        if (too_large and code is NONE) or (not too_large and code is ErrorCode.OFFSET_METADATA_TOO_LARGE):
            yield "commit-recorded", f"metadata of {units} units for {partition} got {code.name}"
        if code not in _NOT_THERE and not _exists(event, partition, image):
            yield "commit-recorded", f"{partition} does not exist, and a commit for it got {code.name}"
        if code is NONE:
            topic = image.by_name.get(partition.topic)
            place = group_id, partition.topic, partition.partition
            what = r.PendingOffsetCommitKey(*place, producer_id) if staged else r.OffsetCommitKey(*place)
            accepted[what] = position.offset, position.leader_epoch, metadata, topic and topic.topic_id
    written: dict[object, object] = {}
    for record in outcome.records:
        key, value = record.key, record.value
        in_time = now_ms is None or getattr(value, "commit_timestamp_ms", None) == now_ms
        if isinstance(value, r.OffsetCommitValue | r.PendingOffsetCommitValue) and in_time:
            written[key] = value.offset, value.leader_epoch, value.metadata, value.topic_id
        else:
            written[key] = value
    if written != accepted:
        yield (
            "commit-recorded",
            f"{event.member_id} of {group_id} was accepted with {accepted} at {now_ms} ms; written is"
            f" {written}",
        )


class CommittedOffsets:
    """Checks one group's offsets against those that were committed last."""

    def __init__(self) -> None:
        self.committed: dict[TopicPartition, r.OffsetCommitValue] = {}
        self._count = 0
        """Commits that were sent."""
        self._on_their_way: dict[int, tuple[int, OffsetCommitRequest]] = {}
        """Commits that have not arrived, by identity: the number of each, and the request itself."""
        self._last: dict[tuple[str, int], tuple[MemberId, int, r.OffsetCommitValue]] = {}
        """The last commit of each partition: its member, its number, and its value."""
        self._ids: dict[str, TopicId | None] = {}
        """The id of each topic at its last commit."""
        self._committed_ever: set[tuple[str, int]] = set()
        self._of_earlier: set[tuple[str, int]] = set()
        """Partitions whose topic was created again, until a commit goes back.

        A commit that names its topic only may still carry the position in the topic that was deleted.
        """
        self._pending: set[r.PendingOffsetCommitKey] = set()
        """Offsets in open transactions: a group that has only these exists, too."""
        self._was_simple = False
        """True if there was an offset since the last record of the group itself: without a compaction and a
        load, Kafka and ours still know the group without its offsets."""

    def check(
        self, event: StepEvent, outcome: Outcome, known: ConsumerGroup | None, image: TopicsImage
    ) -> Iterator[Finding]:
        """Findings of one event; then take its records in."""
        reply = outcome.reply
        if isinstance(event, OffsetCommitRequest) and isinstance(reply, OffsetCommitResponse):
            yield from self._check_commit(event, reply, known, image)
        elif isinstance(event, OffsetFetchRequest) and isinstance(reply, OffsetFetchResponse):
            yield from self._check_fetch(event, reply, known, image)
        yield from self.take_all(outcome.records, known, image, event)

    def take_all(
        self,
        records: tuple[r.Record, ...],
        known: ConsumerGroup | None,
        image: TopicsImage,
        event: StepEvent | None = None,
    ) -> Iterator[Finding]:
        """Take records in, of that event if it is known."""
        request = event if isinstance(event, OffsetCommitRequest) else None
        sent = self._count
        if request is not None:
            sent, _ = self._on_their_way.get(id(request), (sent, request))
        for record in records:
            key, value = record.key, record.value
            if type(key) is r.OffsetCommitKey:
                if type(value) is r.OffsetCommitValue:
                    self.committed[TopicPartition(key.topic, key.partition)] = value
                else:
                    yield from self._goes(record, known, image)
                if request is None:
                    self._last.pop((key.topic, key.partition), None)
                elif value is not None and (finding := self._advances(key, value, request, sent)) is not None:
                    yield finding
            elif type(key) is r.PendingOffsetCommitKey:
                (self._pending.discard if value is None else self._pending.add)(key)
            self._was_simple = type(key) in _OF_OFFSETS and (self._was_simple or value is not None)
        if request is not None:
            self._on_their_way.pop(id(request), None)

    def _goes(self, record: r.Record, known: ConsumerGroup | None, image: TopicsImage) -> Iterator[Finding]:
        key = record.key
        assert isinstance(key, r.OffsetCommitKey)
        (partition,) = topic_partitions(key.topic, (key.partition,))
        had = self.committed.pop(partition, None)
        subscribers = [] if known is None else list(known.members.values())
        wanted = any(key.topic in member.subscribed_topic_names for member in subscribers)
        if had is not None and wanted and key.topic in image.by_name:
            yield (
                "offsets-kept",
                f"{key.group_id}: the offset {had.offset} of {key.topic}-{key.partition} went, though members"
                " subscribe to it",
            )

    def sends(self, request: OffsetCommitRequest) -> None:
        """Note that a member sends a commit. A later one, on another connection, may overtake it."""
        self._count += 1
        self._on_their_way[id(request)] = self._count, request

    def _advances(
        self, key: r.OffsetCommitKey, value: Any, event: OffsetCommitRequest, sent: int
    ) -> Finding | None:
        """Check that a member does not commit an offset before its own last one, unless another member
        committed since.

        If two members both have reasons to believe that they own the partition, the later one counts.
        """
        place = key.topic, key.partition
        last = self._last.get(place)
        self._last[place] = event.member_id, sent, value
        if self._ids.setdefault(key.topic, value.topic_id) != value.topic_id:
            self._ids[key.topic] = value.topic_id
            self._of_earlier |= {(name, number) for name, number in self._committed_ever if name == key.topic}
        self._committed_ever.add(place)
        if not event.member_id or last is None:
            return None
        last_by, last_sent, last_value = last
        if (
            value.offset < last_value.offset
            and event.member_id == last_by
            and value.topic_id == last_value.topic_id
            and last_sent <= sent
        ):
            if not event.topic_ids and place in self._of_earlier:
                self._of_earlier.discard(place)
                return None
            return (
                "offsets-advance",
                f"{last_by} of {key.group_id} committed {last_value.offset} for"
                f" {key.topic}-{key.partition}, and then {value.offset}",
            )
        return None

    def _position(self, partition: TopicPartition, image: TopicsImage) -> OffsetAndMetadata:
        """Return the committed position; none if the topic was deleted and created again since."""
        value, topic = self.committed.get(partition), image.by_name.get(partition.topic)
        if value is None:
            return NO_OFFSET
        if topic is not None and value.topic_id is not None and topic.topic_id != value.topic_id:
            return NO_OFFSET
        return OffsetAndMetadata(
            offset=value.offset, leader_epoch=value.leader_epoch, metadata=value.metadata
        )

    def _check_commit(
        self,
        request: OffsetCommitRequest,
        reply: OffsetCommitResponse,
        known: ConsumerGroup | None,
        image: TopicsImage,
    ) -> Iterator[Finding]:
        codes = reply.errors
        refused = any(codes.values())  # as a rule no code is an error
        gone = missing(request, reply, image) if refused else NOTHING
        too_large = {p for p, got in codes.items() if got is ErrorCode.OFFSET_METADATA_TOO_LARGE}
        has_offsets = bool(self.committed or self._pending)
        expected = expected_commit_error(
            request, known, image, has_offsets=has_offsets, alone=gone | too_large
        )
        if known is None and request.member_epoch >= 0 and self._was_simple and not has_offsets:
            return
        if expected is None or (expected is NONE and not refused):
            return
        for partition, got in codes.items():
            if partition in gone:
                continue
            if partition in too_large:
                continue
            wrong = got != expected if expected != NONE else got != NONE and got not in _OF_THE_LOG
            if wrong:
                member = None if known is None else known.members.get(request.member_id)
                stored = "unknown" if member is None else f"at epoch {member.member_epoch}"
                yield (
                    "commit-fenced",
                    f"{request.member_id} of {request.group_id}, {stored}, committed {partition.topic}-"
                    f"{partition.partition} at epoch {request.member_epoch}: {got.name} instead of"
                    f" {expected.name}",
                )
                return

    def _check_fetch(
        self,
        request: OffsetFetchRequest,
        reply: OffsetFetchResponse,
        known: ConsumerGroup | None,
        image: TopicsImage,
    ) -> Iterator[Finding]:
        expected = _expected_fetch_error(request, known)
        if (
            expected is not None
            and expected != reply.error_code
            and {expected, reply.error_code} & _BY_MEMBER
        ):
            yield (
                "commit-fenced",
                f"{request.member_id} of {request.group_id} fetched offsets at epoch {request.member_epoch}:"
                f" {reply.error_code.name} instead of {expected.name}",
            )
        if reply.error_code != NONE:
            return
        asked = self.committed if request.partitions is None else request.partitions
        for partition in {**dict.fromkeys(asked), **dict.fromkeys(reply.offsets)}:
            value, stored = reply.offsets.get(partition, NO_OFFSET), self._position(partition, image)
            if value != stored:
                yield (
                    "fetch-equals-commit",
                    f"{request.group_id}: {partition.topic}-{partition.partition} was returned as"
                    f" {value}, committed is {stored}",
                )


def _expected_fetch_error(request: OffsetFetchRequest, known: ConsumerGroup | None) -> ErrorCode | None:
    if request.member_id is None:
        return NONE if request.member_epoch < 0 else None
    if known is None:
        return NONE
    member = known.members.get(request.member_id)
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    return NONE if request.member_epoch == member.member_epoch else _stale(member)
