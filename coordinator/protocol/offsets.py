"""OffsetCommit, OffsetFetch and OffsetDelete without their wire form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import msgspec

from fencepost.coordinator.protocol.asks import Asks
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import NO_EPOCH, MemberId, TopicId, TopicPartition

MEMBER_EPOCH_VERSION = 9
"""The first version of OffsetCommit and OffsetFetch whose epoch may be a member epoch (KIP-848)."""
TOPIC_IDS_VERSION = 10
"""The first version of both that names topics by id."""

PartitionFence: TypeAlias = Callable[[TopicId, int], None]
"""Raises ProtocolError if the member may not commit for this partition at its epoch (KIP-1251)."""


class OffsetAndMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """A position in a partition: the offset of the next record to read."""

    offset: int
    leader_epoch: int = NO_EPOCH
    metadata: str = ""


NO_OFFSET = OffsetAndMetadata(offset=-1)


class OffsetCommitRequest(Asks["OffsetCommitResponse"], msgspec.Struct, frozen=True, kw_only=True):
    """Commits positions for a group. `member_epoch` is also the classic protocol's generation."""

    group_id: str
    member_id: MemberId = ""
    member_epoch: int = NO_EPOCH
    instance_id: str | None = None
    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    topic_ids: Mapping[str, TopicId] = {}
    """Ids by topic name, if the request has them."""
    retention_time_ms: int = -1
    """Versions 2 to 4 only; -1 is the coordinator's default."""
    api_version: int = MEMBER_EPOCH_VERSION
    producer_id: int = -1
    """The producer in whose transaction the positions are; -1 outside of any."""

    @property
    def is_transactional(self) -> bool:
        """True if the positions count only once a transaction is committed."""
        return self.producer_id >= 0

    @property
    def is_anonymous_transaction(self) -> bool:
        """True if a producer does not say for which member it commits: then the group does not fence it."""
        return (
            self.is_transactional
            and not self.member_id
            and self.member_epoch == NO_EPOCH
            and self.instance_id is None
        )


class OffsetCommitResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A code for each partition of the request, in its order."""

    errors: Mapping[TopicPartition, ErrorCode]


class OffsetFetchRequest(Asks["OffsetFetchResponse"], msgspec.Struct, frozen=True, kw_only=True):
    """Asks for committed positions of one group; `partitions` None means all of them."""

    group_id: str
    member_id: MemberId | None = None
    member_epoch: int = NO_EPOCH
    partitions: tuple[TopicPartition, ...] | None = None
    require_stable: bool = False
    api_version: int = MEMBER_EPOCH_VERSION


class OffsetFetchResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The committed positions; offset -1 for a partition without one. With an error, no offsets."""

    group_id: str
    error_code: ErrorCode = ErrorCode.NONE
    offsets: Mapping[TopicPartition, OffsetAndMetadata] = {}
    unstable: frozenset[TopicPartition] = frozenset()
    """Partitions with a position in an open transaction, if stable ones were asked for."""


class OffsetDeleteRequest(Asks["OffsetDeleteResponse"], msgspec.Struct, frozen=True, kw_only=True):
    """Deletes committed positions of a group."""

    group_id: str
    partitions: tuple[TopicPartition, ...]


class OffsetDeleteResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A code for the group, and one for each partition when that is NONE."""

    error_code: ErrorCode = ErrorCode.NONE
    errors: Mapping[TopicPartition, ErrorCode] = {}
