"""Commits, one after the other, with the newest epoch (KIP-848, Committing Offsets)."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping

from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import NO_EPOCH, MemberId, TopicId, TopicPartition
from fencepost.coordinator.protocol.offsets import (
    MEMBER_EPOCH_VERSION,
    TOPIC_IDS_VERSION,
    OffsetAndMetadata,
    OffsetCommitRequest,
    OffsetCommitResponse,
)
from fencepost.member.base.actions import SendCommit
from fencepost.member.base.backoff import Backoff
from fencepost.member.base.config import ConsumerConfig


class CommitKind(enum.Enum):
    """The reasons for a commit."""

    AUTO = "auto"
    """The interval passed. Tried once; the next poll tries again."""
    RELEASE = "release"
    """Partitions are about to be given up. Retried until the deadline, through stale epochs too."""
    MANUAL = "manual"
    """The application requested it. Retried until the deadline; a stale epoch fails it, as in Kafka."""


class Commit:
    """One commit until it ends."""

    __slots__ = ("commit_id", "deadline_ms", "is_late", "kind", "let_go", "offsets", "topic_ids")

    def __init__(
        self,
        commit_id: int,
        kind: CommitKind,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        deadline_ms: int,
        topic_ids: Mapping[str, TopicId],
    ) -> None:
        self.commit_id = commit_id
        self.kind = kind
        self.offsets = offsets
        self.deadline_ms = deadline_ms
        self.topic_ids = topic_ids
        """Ids of the topics that the member owned when it made the commit."""
        self.let_go: frozenset[TopicPartition] = frozenset()
        """The offsets in flight whose partitions were released since they were sent."""
        self.is_late = False
        """True if a part of it was not committed before its partition was released."""

    def drop(self, gone: Iterable[TopicPartition]) -> None:
        """Remove these from the commit."""
        left = {partition: offset for partition, offset in self.offsets.items() if partition not in gone}
        self.is_late = self.is_late or len(left) < len(self.offsets)
        self.offsets = left

    @property
    def lateness(self) -> ErrorCode:
        """Error that the application receives for offsets that were too late; the member ignores it."""
        late = self.is_late and self.kind is CommitKind.MANUAL
        return ErrorCode.STALE_MEMBER_EPOCH if late else ErrorCode.NONE

    @property
    def stated_ids(self) -> Mapping[str, TopicId]:
        """The id of each topic of the commit, or nothing if one of them is not known.

        With its id, a topic cannot be mistaken for a later topic of the same name, to which these offsets
        mean nothing.
        """
        ids: dict[str, TopicId] = {}
        for partition in self.offsets:
            topic_id = self.topic_ids.get(partition.topic)
            if topic_id is None:
                return {}
            ids[partition.topic] = topic_id
        return ids


_ABOUT_THE_PARTITION = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
"""Retriable by name, but the topic was deleted: the commit does not wait for it (KAFKA-18217)."""


def _tried_again(kind: CommitKind, code: ErrorCode) -> bool:
    if kind is CommitKind.AUTO:
        return False
    if code is ErrorCode.STALE_MEMBER_EPOCH:
        return kind is CommitKind.RELEASE
    return code.retriable and code not in _ABOUT_THE_PARTITION


class Commits:
    """The queue of commits; the first one is being worked on.

    No commit is sent while a caller waits for the response to another: an older commit that is retried must
    not arrive after a newer one. A commit without a waiting caller is not retried.
    """

    __slots__ = (
        "_backoff",
        "_config",
        "_group_id",
        "_sent",
        "_tokens",
        "in_flight",
        "member_id",
        "next_auto_ms",
        "queue",
        "retry_at_ms",
    )

    def __init__(
        self,
        group_id: str,
        member_id: MemberId,
        config: ConsumerConfig,
        backoff: Backoff,
        tokens: Iterator[int],
    ) -> None:
        self._group_id = group_id
        self.member_id = member_id
        """The member id that commits carry."""
        self._config = config
        self._backoff = backoff
        self._tokens = tokens
        self.queue: list[Commit] = []
        """The commits that wait or are in flight."""
        self._sent: Commit | None = None
        """The commit in flight, as long as a caller waits for its result."""
        self.in_flight: int | None = None
        """The token of its request."""
        self.retry_at_ms = 0
        self.next_auto_ms = 0
        """Time at which the next commit by interval is due."""

    def delay_auto(self, now_ms: int) -> None:
        """Start the interval of automatic commits."""
        self.next_auto_ms = now_ms + self._config.auto_commit_interval_ms

    def auto_ended(self, error: ErrorCode, now_ms: int) -> None:
        """Set the next automatic commit: after the interval, or soon if the last one failed."""
        wait_ms = self._config.auto_commit_interval_ms if not error else self._config.retry_backoff_ms
        self.next_auto_ms = now_ms + wait_ms

    def make(
        self,
        kind: CommitKind,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        deadline_ms: int,
        topic_ids: Mapping[str, TopicId],
    ) -> Commit:
        """Queue a new commit and return it."""
        commit = Commit(next(self._tokens), kind, offsets, deadline_ms, topic_ids)
        self.add(commit)
        return commit

    @property
    def has_own(self) -> bool:
        """True if a commit of the member's own waits or is in flight."""
        return any(commit.kind is not CommitKind.MANUAL for commit in self.queue)

    def add(self, commit: Commit) -> None:
        """Queue a commit. One before partitions are released has everything that the member itself meant to
        commit."""
        if commit.kind is CommitKind.RELEASE:
            self.abandon()
        self.queue.append(commit)

    def abandon(self) -> None:
        """Drop the member's own commits: it is not a member any more."""
        self._keep([commit for commit in self.queue if commit.kind is CommitKind.MANUAL])

    def forget(self, partitions: Iterable[TopicPartition]) -> list[Commit]:
        """Remove partitions that were released from all commits, since a member commits only what it owns.

        A commit that waited meanwhile would overwrite the commit of their next owner. The coordinator would
        even accept one of the application's, under the epoch of the next join. Return the commits that ended
        because they are empty now.
        """
        gone = frozenset(partitions)
        for commit in self.queue:
            if gone.isdisjoint(commit.offsets):
                continue
            if commit is self._sent and commit.kind is CommitKind.MANUAL:
                commit.let_go |= gone
            else:
                commit.drop(gone)
        empty = [commit for commit in self.queue if not commit.offsets and commit is not self._sent]
        if empty:
            self._keep([commit for commit in self.queue if commit not in empty])
        return empty

    def _keep(self, commits: list[Commit]) -> None:
        if self._sent not in commits:
            self._sent = self.in_flight = None
        if commits[:1] != self.queue[:1]:
            self._start_next()
        self.queue = commits

    def drop(self, commit: Commit) -> None:
        """Remove a commit that was added last, before any of it was sent."""
        self.queue.remove(commit)

    def expired(self, now_ms: int) -> list[Commit]:
        """Remove the commits whose time is over; a late response is ignored."""
        over = [commit for commit in self.queue if now_ms >= commit.deadline_ms]
        if over:
            self._keep([commit for commit in self.queue if commit not in over])
        return over

    def _start_next(self) -> None:
        self.retry_at_ms = 0
        self._backoff.reset()

    def request(self, epoch: int, now_ms: int) -> SendCommit | None:
        """Return the next OffsetCommit, if one is due, under the member's newest epoch (0 or less: of no
        member)."""
        if not self.queue or self.in_flight is not None or now_ms < self.retry_at_ms:
            return None
        ids = self.queue[0].stated_ids
        action = SendCommit(
            next(self._tokens),
            OffsetCommitRequest(
                group_id=self._group_id,
                member_id=self.member_id,
                member_epoch=epoch if epoch > 0 else NO_EPOCH,
                instance_id=self._config.group_instance_id,
                offsets=self.queue[0].offsets,
                topic_ids=ids,
                api_version=TOPIC_IDS_VERSION if ids else MEMBER_EPOCH_VERSION,
            ),
        )
        self.in_flight = action.token
        self._sent = self.queue[0]
        return action

    def _ended_flight(self, token: int) -> Commit | None:
        """Note that the request of this token is not in flight any more; return the commit if a caller waits
        for it."""
        if token != self.in_flight:
            return None
        commit, self._sent, self.in_flight = self._sent, None, None
        return commit

    def answered(
        self, token: int, response: OffsetCommitResponse, now_ms: int
    ) -> tuple[Commit, dict[TopicPartition, OffsetAndMetadata], ErrorCode, bool] | None:
        """Return the first commit, the offsets that are committed now, its first error, and true if it has
        ended.

        Return None if the response belongs to no commit that is wanted.
        """
        commit = self._ended_flight(token)
        if commit is None:
            return None
        accepted: dict[TopicPartition, OffsetAndMetadata] = {}
        rejected: dict[TopicPartition, OffsetAndMetadata] = {}
        error = ErrorCode.NONE
        again = False
        for partition, offset in commit.offsets.items():
            code = response.errors.get(partition, ErrorCode.UNKNOWN_SERVER_ERROR)
            if code is ErrorCode.NONE:
                accepted[partition] = offset
                continue
            rejected[partition] = offset
            if _tried_again(commit.kind, code) and partition not in commit.let_go:
                again = True
                error = code
            elif error is ErrorCode.NONE:
                error = code
        if again:
            commit.offsets = rejected
            commit.drop(commit.let_go)
            self.retry_at_ms = now_ms + self._backoff.next_ms()
        else:
            del self.queue[0]
            self._start_next()
            error = error or commit.lateness
        return commit, accepted, error, not again

    def failed(self, token: int, now_ms: int) -> tuple[Commit, bool] | None:
        """Take in that the request got no response; return the commit, and true if it has ended. None as in
        `answered`."""
        commit = self._ended_flight(token)
        if commit is None:
            return None
        commit.drop(commit.let_go)
        if commit.kind is CommitKind.AUTO or not commit.offsets:
            del self.queue[0]
            self._start_next()
            return commit, True
        self.retry_at_ms = now_ms + self._backoff.next_ms()
        return commit, False

    def take_all(self) -> list[Commit]:
        """Empty the queue: the member stopped for good."""
        taken = self.queue
        self._keep([])
        return taken

    def retry_ms(self) -> int | None:
        """Return the time at which to send the first commit (again)."""
        return self.retry_at_ms if self.queue and self.in_flight is None else None

    def expires_ms(self) -> int | None:
        """Return the time at which to give a commit up."""
        return min([commit.deadline_ms for commit in self.queue]) if self.queue else None
