"""InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn and EndTxn without their wire form."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from fencepost.coordinator.protocol.asks import Asks
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicPartition

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
EPOCH_PER_TRANSACTION = 2
"""The client version from which each transaction has an epoch of its own (KIP-890, TV2)."""


class InitProducerIdRequest(Asks["InitProducerIdResponse"], msgspec.Struct, frozen=True, kw_only=True):
    """Asks for a producer id, or for the next epoch of the transactional id's producer.

    A producer that continues after an error sends its previous id and epoch (KIP-360).
    """

    transactional_id: str | None = None
    timeout_ms: int = 60_000
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    next_producer_id: int = NO_PRODUCER_ID
    """A fresh producer id; the shell draws it."""

    @property
    def names_half(self) -> bool:
        """True if it says an id without an epoch, or an epoch without an id."""
        return (self.producer_id == NO_PRODUCER_ID) != (self.producer_epoch == NO_PRODUCER_EPOCH)


class InitProducerIdResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The producer's id and epoch; -1 with an error."""

    error_code: ErrorCode = ErrorCode.NONE
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


class AddPartitionsToTxnRequest(
    Asks["AddPartitionsToTxnResponse"], msgspec.Struct, frozen=True, kw_only=True
):
    """Adds partitions to the transaction; with `verify_only`, asks whether they are in it."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]
    verify_only: bool = False
    client_version: int = 0
    """2 if the broker adds partitions itself, on the first batch (KIP-890)."""


class AddPartitionsToTxnResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A code for each partition of the request, in its order."""

    errors: Mapping[TopicPartition, ErrorCode]


class AddOffsetsToTxnRequest(Asks["AddOffsetsToTxnResponse"], msgspec.Struct, frozen=True, kw_only=True):
    """Makes the offsets of a group a part of the transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    group_id: str
    verify_only: bool = False
    client_version: int = 0


class AddOffsetsToTxnResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The result."""

    error_code: ErrorCode = ErrorCode.NONE


class EndTxnRequest(Asks["EndTxnResponse"], msgspec.Struct, frozen=True, kw_only=True):
    """Commits or aborts the transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    committed: bool
    client_version: int = 0
    """2 for clients that take a new epoch with each transaction (KIP-890, EndTxn version 5)."""
    next_producer_id: int = NO_PRODUCER_ID
    """A fresh producer id in case the epochs run out; the shell draws it."""


class EndTxnResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The result; with a client version of 2 the producer's next id and epoch."""

    error_code: ErrorCode = ErrorCode.NONE
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


class MarkersWritten(msgspec.Struct, frozen=True, kw_only=True):
    """All markers of a `WriteMarkers` are in the logs."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


class WriteMarkers(msgspec.Struct, frozen=True, kw_only=True):
    """End the transaction everywhere: in the logs of partitions, and in the offsets of groups."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    commit: bool
    partitions: tuple[TopicPartition, ...]
    groups: tuple[str, ...]


class TransactionEnded(msgspec.Struct, frozen=True, kw_only=True):
    """A producer's transaction with offsets of a group is over: they count from now on, or never."""

    group_id: str
    producer_id: int
    commit: bool
