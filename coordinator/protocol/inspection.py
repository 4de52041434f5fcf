"""Requests of administrators about transactions, producers, settings and sizes, without their wire form. They
are DescribeTransactions, ListTransactions, DescribeProducers (KIP-664), ListConfigResources (KIP-1142), and
DescribeLogDirs (KIP-113).
"""

from __future__ import annotations

import msgspec

from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.logs import OfTopic
from fencepost.coordinator.protocol.transactions import NO_PRODUCER_EPOCH, NO_PRODUCER_ID


class DescribeTransactionsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Asks about transactional ids."""

    transactional_ids: tuple[str, ...]


class DescribedTransaction(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a transactional id; times in milliseconds."""

    transactional_id: str
    error_code: ErrorCode = ErrorCode.NONE
    state: str = ""
    timeout_ms: int = 0
    start_ms: int = 0
    """Start of the last transaction, in ms; -1 without one."""
    producer_id: int = 0
    producer_epoch: int = 0
    partitions: tuple[TopicPartition, ...] = ()


class DescribeTransactionsResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The result for each id, in the order of the request."""

    transactions: tuple[DescribedTransaction, ...] = ()


class ListTransactionsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Asks for all transactional ids that match; an empty or negative filter matches all."""

    states: tuple[str, ...] = ()
    producer_ids: tuple[int, ...] = ()
    longer_than_ms: int = -1
    pattern: str | None = None
    """An RE2 expression for the whole id."""


class ListedTransaction(msgspec.Struct, frozen=True, kw_only=True):
    """One transactional id."""

    transactional_id: str
    producer_id: int
    state: str


class ListTransactionsResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The ids that the broker coordinates, and the unknown states of the request."""

    error_code: ErrorCode = ErrorCode.NONE
    unknown_states: tuple[str, ...] = ()
    transactions: tuple[ListedTransaction, ...] = ()


class DescribeProducersRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Asks for the producers of partitions."""

    topics: tuple[OfTopic[int], ...]


class ActiveProducer(msgspec.Struct, frozen=True, kw_only=True):
    """A producer as a log remembers it; -1 for an unknown value."""

    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    last_sequence: int = -1
    last_timestamp: int = -1
    coordinator_epoch: int = -1
    transaction_start: int = -1


class PartitionProducers(msgspec.Struct, frozen=True, kw_only=True):
    """The producers of one partition."""

    partition: int
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None
    producers: tuple[ActiveProducer, ...] = ()


class DescribeProducersResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The result for each partition of the request."""

    topics: tuple[OfTopic[PartitionProducers], ...] = ()


class ListConfigResourcesRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Asks for the resources that have settings; no types mean all types."""

    resource_types: tuple[int, ...] = ()
    known_types: frozenset[int] = frozenset()
    """The types that the request's version knows."""


class ListedResource(msgspec.Struct, frozen=True, kw_only=True):
    """A resource that has settings."""

    resource_type: int
    name: str


class ListConfigResourcesResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The resources that have settings."""

    error_code: ErrorCode = ErrorCode.NONE
    resources: tuple[ListedResource, ...] = ()


class DescribeLogDirsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Asks for the sizes of partitions' logs; None means all partitions."""

    topics: tuple[OfTopic[int], ...] | None


class LogSize(msgspec.Struct, frozen=True, kw_only=True):
    """The log of one partition, in bytes."""

    partition: int
    size: int


class LogDir(msgspec.Struct, frozen=True, kw_only=True):
    """A directory with its logs, and its volume in bytes; -1 for an unknown value."""

    path: str
    error_code: ErrorCode = ErrorCode.NONE
    topics: tuple[OfTopic[LogSize], ...] = ()
    total_bytes: int = -1
    usable_bytes: int = -1


class DescribeLogDirsResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The directories of one broker."""

    error_code: ErrorCode = ErrorCode.NONE
    log_dirs: tuple[LogDir, ...] = ()
