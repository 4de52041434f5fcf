"""The facts of a transaction coordinator: key and value of the records of `__transaction_state` (KIP-98).

The fields are those of TransactionLogValue in its version for KIP-890.
"""

from __future__ import annotations

import msgspec

from fencepost.coordinator.protocol.ids import TopicPartition


class TransactionKey(msgspec.Struct, frozen=True, tag=110, array_like=True, gc=False):
    """One transactional id."""

    transactional_id: str


class TransactionValue(msgspec.Struct, frozen=True, tag=110, array_like=True, gc=False):
    """The state of a transactional id: the producer that may write under it, and what its transaction
    touched."""

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    status: int
    """A `TransactionState` of coordinator.transactions.states, by its number in Kafka's records."""
    partitions: tuple[TopicPartition, ...] = ()
    """Partitions with records of the transaction, sorted."""
    groups: tuple[str, ...] = ()
    """Groups with offsets in the transaction, sorted; Kafka has partitions of `__consumer_offsets`."""
    last_update_ms: int = -1
    start_ms: int = -1
    last_producer_id: int = -1
    """The producer id before the one that is used now."""
    last_producer_epoch: int = -1
    next_producer_id: int = -1
    """The producer id after this transaction, if the epochs of the old one ran out."""
    next_producer_epoch: int = -1
    client_version: int = 0
    """2 for clients whose epoch grows with every transaction (KIP-890)."""


class TransactionRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The state of one transactional id; None ends the id."""

    key: TransactionKey
    value: TransactionValue | None
